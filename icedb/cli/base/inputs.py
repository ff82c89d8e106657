"""Inputs of the verbs: rows from files or standard input, and SQL."""

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.text import Text

from icedb.cli.base.application import size
from icedb.cli.render.output import print_message
from icedb.errors import IceDBError
from icedb.util.temporary_files import temporary_folder

__all__ = ["Files", "Format", "Memory", "OnConflict", "Transaction", "read_sql", "rows_of"]

STANDARD_INPUT = "standard input"
_SUFFIXES = {"json": ".jsonl", "csv": ".csv", "parquet": ".parquet"}

Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="Files or globs of Parquet, JSON lines or CSV, local or at s3://; - is standard input.",
        show_default=False,
    ),
]
Format = Annotated[
    Literal["json", "csv", "parquet"] | None,
    typer.Option(
        "--format",
        help="Set the format of standard input; the format of a file follows from its name.",
        show_default="JSON lines",
    ),
]
OnConflict = Annotated[
    Literal["raise", "cast", "quarantine"],
    typer.Option(
        "--on-conflict",
        help="If a value is not of its column's type: reject all rows, cast values that keep their meaning, or move "
        "such rows to the table <name>_quarantine.",
    ),
]


#: The memory of a write or a change in this process.
Memory = Annotated[
    Any, size("--memory", "Use this memory at most before data is spilled to disk.", default="half of the machine's")
]


def _txn(text: str) -> tuple[str, int]:
    application, colon, sequence = text.rpartition(":")
    if not (application and colon and sequence.isdecimal() and sequence.isascii()):
        raise typer.BadParameter(f"{text!r} is not a name and a number. Write --txn nightly-load:42.")
    return application, int(sequence)


#: The idempotency key of a write.
Transaction = Annotated[
    Any,
    typer.Option(
        "--txn",
        parser=_txn,
        metavar="NAME:NUMBER",
        help="Commit exactly once: skip if this name has committed this number or a later one.",
    ),
]


@contextmanager
def rows_of(files: Sequence[str], format: Literal["json", "csv", "parquet"] | None) -> Iterator[list[str]]:  # noqa: A002
    """Yield the paths of the files. Standard input is copied to a temporary file, which is deleted after the block.

    The rows are read more than once: to infer the columns, for the dry run, and for the write.
    """
    if "-" not in files:
        if format is not None:
            raise typer.BadParameter("--format is for standard input (-); the format of a file follows from its name.")
        yield list(files)
        return
    if list(files) != ["-"]:
        raise typer.BadParameter("- is the whole input. Pass either - or files.")
    if sys.stdin.isatty():
        print_message(Text("Reading rows from the terminal until Ctrl-D."))
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
    """Return a query: `text`, or the content of `file`, which is standard input if it is `-`."""
    if (text is None) == (file is None):
        raise typer.BadParameter("Pass either a query as an argument, or --file.")
    if text is not None:
        return text
    assert file is not None  # noqa: S101  for the type checker
    try:
        return sys.stdin.read() if str(file) == "-" else file.read_text()
    except UnicodeDecodeError:
        raise typer.BadParameter(f"{file} is not UTF-8 text.") from None
