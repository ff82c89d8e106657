"""What all verbs of the command `icedb` share: the application, the connection to a store, kinds of arguments.

A verb is a function of its arguments. One that speaks to a store takes a `Connection` first; the flags that make it are
added to the verb's own. Errors of IceDB and of the operating system become one line on standard error and an exit
status, see `Exit`.
"""

import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import wraps
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer
from rich.console import Console
from rich.text import Text
from typer.core import TyperGroup

from icedb.cli.output import one_line, report_rows, show, tell
from icedb.durations import parse_duration
from icedb.errors import IceDBError, InvalidOption
from icedb.times import AsOf, parse_as_of

if TYPE_CHECKING:
    from icedb.table import Table

__all__ = [
    "LOOK",
    "MAINTAIN",
    "SERVE",
    "WRITE",
    "Connection",
    "DryRun",
    "Exit",
    "Json",
    "Uri",
    "Yes",
    "app",
    "duration",
    "limit",
    "run",
    "time_option",
    "verb",
]

#: The panels of `icedb --help`.
LOOK, WRITE, MAINTAIN, SERVE = "Look", "Write", "Maintain", "Serve"

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit statuses."""

    DONE = 0
    #: `verify` found errors.
    PROBLEMS = 1
    FAILED = 2


class _Verbs(TyperGroup):
    """Errors of IceDB and of the operating system become one line and an exit status."""

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except (IceDBError, OSError) as error:
            tell(Text.assemble(("error: ", "bold red"), one_line(error)))
            raise typer.Exit(Exit.FAILED) from None


app = typer.Typer(
    name="icedb",
    cls=_Verbs,
    help="Look at an IceDB table and maintain it. URI: s3://bucket/prefix or a folder; credentials come from the "
    "environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


# ------------------------------------------------------------------------------------------------ kinds of arguments


def _duration_ms(text: str) -> int:
    try:
        return round(parse_duration(text) / timedelta(milliseconds=1))
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None


def _time(text: str) -> AsOf:
    try:
        return parse_as_of(text, table="TIME")
    except InvalidOption:
        raise typer.BadParameter(
            f"{text!r} is no time with a zone; write 2026-11-21T10:00:00Z or unix milliseconds."
        ) from None


Uri = Annotated[str, typer.Argument(help="The table: s3://bucket/prefix or a folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and tell what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]


def duration(flag: str, text: str) -> Any:
    """An option that is a duration; the verb gets milliseconds."""
    return typer.Option(flag, parser=_duration_ms, metavar="DURATION", help=text)


def limit(text: str) -> Any:
    """An option that is a number."""
    return typer.Option(metavar="NUMBER", help=text)


def time_option(flag: str, text: str) -> Any:
    """An option that is a time; the verb gets an `AsOf`."""
    return typer.Option(flag, parser=_time, metavar="TIME", help=f"{text} ISO with zone, or unix milliseconds.")


# ------------------------------------------------------------------------------------------------ connection


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a store, as the flags say; what they do not say, the environment does."""

    endpoint_url: str | None = None
    region: str | None = None

    @property
    def storage_options(self) -> dict[str, str]:
        """As `Table.open` takes them."""
        given = {"AWS_ENDPOINT_URL": self.endpoint_url, "AWS_REGION": self.region}
        return {k: v for k, v in given.items() if v is not None}

    @property
    def flags(self) -> list[str]:
        """The flags that make it, for a command that is to be typed."""
        given = {"--endpoint-url": self.endpoint_url, "--region": self.region}
        return [word for flag, value in given.items() if value is not None for word in (flag, value)]

    def open(self, uri: str) -> "Table":
        """A table. Raises as `Table.open` does."""
        from icedb.table import Table

        return Table.open(uri, storage_options=self.storage_options)


_CONNECTION = {
    "endpoint_url": Annotated[str | None, typer.Option("--endpoint-url", help="The S3 server, when it is not AWS.")],
    "region": Annotated[str | None, typer.Option("--region", help="The bucket's region.")],
}


def verb(panel: str, name: str | None = None) -> Callable[[F], F]:
    """Make a verb of a function. Its parameter `connection`, if there is one, becomes the flags of `Connection`."""

    def decorate(function: F) -> F:
        hints = get_type_hints(function, include_extras=True)
        if "connection" not in hints:
            app.command(name, rich_help_panel=panel)(function)
            return function

        @wraps(function)
        def connected(**given: Any) -> Any:
            flags = {flag: given.pop(flag) for flag in _CONNECTION}
            return function(connection=Connection(**flags), **given)

        keyword = inspect.Parameter.KEYWORD_ONLY
        own = [p.replace(kind=keyword, annotation=hints[n])
               for n, p in inspect.signature(function).parameters.items() if n != "connection"]  # fmt: skip
        more = [inspect.Parameter(n, keyword, default=None, annotation=a) for n, a in _CONNECTION.items()]
        connected.__signature__ = inspect.Signature([*own, *more])  # type: ignore[attr-defined]
        connected.__annotations__ = {p.name: p.annotation for p in (*own, *more)}
        app.command(name, rich_help_panel=panel)(connected)
        return function

    return decorate


# ------------------------------------------------------------------------------------------------ asking


def run(operation: Callable[[bool], object], *, dry_run: bool, yes: bool, json: bool) -> None:
    """Do it; on a terminal only after a dry run was shown and a person agreed."""
    if not dry_run and not yes and sys.stdin.isatty():
        Console(stderr=True).print(report_rows(operation(True)))
        if not typer.confirm("Do this?", err=True):
            tell(Text("Nothing was changed."))
            raise typer.Exit(Exit.FAILED)
    show(operation(dry_run), json=json)
