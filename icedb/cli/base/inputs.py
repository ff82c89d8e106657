"""What a verb reads: rows of files or of standard input, and SQL."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.text import Text

from icedb.cli.render.output import tell
from icedb.errors import IceDBError
from icedb.util.temporary_files import temporary_folder

__all__ = ["Files", "Format", "OnConflict", "read_sql", "rows_of"]

STANDARD_INPUT = "standard input"
_SUFFIXES = {"json": ".jsonl", "csv": ".csv", "parquet": ".parquet"}

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Parquet, JSON lines or CSV: files or globs, here or at s3://; - is standard input.",
        show_default=False,
    ),
]
Format = Annotated[
    Literal["json", "csv", "parquet"] | None,
    typer.Option("--format", help="What standard input is: JSON lines, if you do not say. Files tell by their names."),
]
OnConflict = Annotated[
    Literal["raise", "cast", "quarantine"],
    typer.Option(
        "--on-conflict",
        help="Values that are not of their column's type: refuse the rows, cast what does not change by it, or put "
        "such rows into the table <name>_quarantine.",
    ),
]


@contextmanager
def rows_of(files: Sequence[str], format: Literal["json", "csv", "parquet"] | None) -> Iterator[list[str]]:  # noqa: A002
    """The paths of the files, as long as the block lasts: of standard input, those of a copy.

    It is read more than once: to find the columns, to show what would be done, and to do it.
    """
    if "-" not in files:
        if format is not None:
            raise typer.BadParameter("--format is for standard input (-); files tell by their names.")
        yield list(files)
        return
    if list(files) != ["-"]:
        raise typer.BadParameter("- stands for all that is to be read; name no files beside it.")
    if sys.stdin.isatty():
        tell(Text("Reading rows from the terminal, until Ctrl-D."))
    with temporary_folder("input") as folder:
        path = folder / f"input{_SUFFIXES[format or 'json']}"
        with path.open("wb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        try:
            yield [str(path)]
        except IceDBError as error:
            error.args = tuple(_without(path, arg) for arg in error.args)
            raise


def _without(path: Path, arg: object) -> object:
    return arg.replace(f"'{path}'", STANDARD_INPUT).replace(str(path), STANDARD_INPUT) if isinstance(arg, str) else arg


def read_sql(text: str | None, file: Path | None) -> str:
    """A query: an argument, a file's content, or standard input for the file `-`."""
    if (text is None) == (file is None):
        raise typer.BadParameter("give the query as an argument, or --file; one of the two.")
    if text is not None:
        return text
    assert file is not None  # noqa: S101  for the type checker
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not text in UTF-8.") from None
