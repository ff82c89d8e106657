"""What all verbs of the command `icedb` share: the application, the connection to a store, kinds of arguments.

A verb is a function of its arguments. One that speaks to a store takes a `Connection` first; the flags that make it are
added to the verb's own. Errors of IceDB and of the operating system become one line on standard error and an exit
status, see `Exit`. While a verb works on something long, a terminal shows how far it is.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from functools import wraps
from traceback import print_exception
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import TyperException

from icedb import __version__
from icedb.cli.render.output import errors, one_line, print_report, show, tell
from icedb.cli.render.progress_bars import bars
from icedb.errors import CorruptionError, IceDBError, InvalidOption, OutcomeUnknownError, RetryableError
from icedb.util.clock import SystemClock
from icedb.util.durations import DURATION, parse_duration
from icedb.util.times import AsOf, as_of_ms, parse_as_of

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

#: The panels of `icedb --help`, and the one of the flags that `Connection` is made of.
LOOK, WRITE, MAINTAIN, SERVE = "Look", "Write", "Maintain", "Serve"
CONNECTION = "Connection"

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit statuses. They are told in `icedb --help` and in docs/command.md, and do not change."""

    #: Done, or nothing was to be done.
    DONE = 0
    #: `verify` found errors.
    PROBLEMS = 1
    #: Nothing was done, and something must be changed first: the call, the rows, the credentials. Or a person said no.
    FAILED = 2
    #: Nothing was done, and nothing is wrong with the call: the same one may succeed later.
    AGAIN = 3
    #: It is not known whether it was done, or only some of it was: look before you repeat it.
    LOOK_FIRST = 4
    #: The store holds something that must not be there, or lacks something that must.
    DAMAGED = 5
    #: A mistake in IceDB.
    BUG = 70
    #: Stopped by SIGINT (Ctrl-C).
    INTERRUPTED = 130
    #: Whoever reads standard output has gone away, as `head` does.
    PIPE_CLOSED = 141


EXIT_STATUSES = (
    "Exit status: 0 done; 1 verify found errors; 2 nothing was done, change something first (the call, the rows, the "
    "credentials); 3 nothing was done, the same call may succeed later; 4 not known whether it was done, look first; "
    "5 the table is damaged; 70 a mistake in IceDB; 130 interrupted."
)


class _Verbs(TyperGroup):
    """Errors of IceDB and of the operating system become one line and an exit status."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The verbs, panel by panel."""
        panels = (LOOK, WRITE, MAINTAIN, SERVE)
        return sorted(self.commands, key=lambda name: panels.index(_panel(self.commands[name])))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, TyperException):
            raise
        except typer.Abort:  # the end of the input, or Ctrl-C, in the place of an answer: in the question's line
            typer.echo(err=True)
            _refuse()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left is not to fail at the end
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except (IceDBError, OSError) as error:
            tell(Text.assemble(("error: ", "bold red"), one_line(error)))
            raise typer.Exit(_status(error)) from None
        except Exception as error:  # noqa: BLE001  to be told from what `verify` says, which is status 1
            print_exception(error)
            tell(Text.assemble(("error: ", "bold red"), "this is a mistake in IceDB. Please report it."))
            raise typer.Exit(Exit.BUG) from None


def _panel(command: Any) -> str:
    panel: str = command.rich_help_panel
    return panel


def _status(error: IceDBError | OSError) -> Exit:
    match error:
        case OutcomeUnknownError():
            return Exit.LOOK_FIRST
        case CorruptionError():
            return Exit.DAMAGED
        case RetryableError() | ConnectionError() | TimeoutError():
            return Exit.AGAIN
    return Exit.FAILED


def _refuse() -> NoReturn:
    tell(Text("Nothing was changed."))
    raise typer.Exit(Exit.FAILED)


app = typer.Typer(
    name="icedb",
    cls=_Verbs,
    help="Look at an IceDB table, write to it and maintain it. URI: s3://bucket/prefix or a folder.",
    epilog=EXIT_STATUSES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"icedb {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


# ------------------------------------------------------------------------------------------------ kinds of arguments


def _duration_ms(text: str) -> int:
    try:
        return round(parse_duration(text) / timedelta(milliseconds=1))
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None


def _time(text: str) -> AsOf:
    try:
        if re.match(DURATION, text):
            return as_of_ms(SystemClock().now_ms() - parse_duration(text) // timedelta(milliseconds=1))
        return parse_as_of(text, table="TIME")
    except InvalidOption:
        raise typer.BadParameter(
            f"{text!r} is no time with a zone; write 2026-11-21T10:00:00Z, unix milliseconds, or 2h for two hours ago."
        ) from None


Uri = Annotated[str, typer.Argument(help="The table: s3://bucket/prefix or a folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Change nothing, and tell what would be done.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; only on a terminal anybody is asked.")]


def duration(flag: str, text: str) -> Any:
    """An option that is a duration; the verb gets milliseconds."""
    return typer.Option(flag, parser=_duration_ms, metavar="DURATION", help=text)


def limit(text: str) -> Any:
    """An option that is a number."""
    return typer.Option(metavar="NUMBER", help=text)


def time_option(flag: str, text: str) -> Any:
    """An option that is a time; the verb gets an `AsOf`."""
    return typer.Option(
        flag, parser=_time, metavar="TIME", help=f"{text} ISO with zone, unix milliseconds, or 2h: ago."
    )


# ------------------------------------------------------------------------------------------------ connection


@dataclass(frozen=True, slots=True)
class Connection:
    """How to reach a store, as the flags say; what they do not say, the environment does.

    Inside `in_force` the environment says it all, so that it holds for every address that a verb opens: the table, its
    log, files to insert, the target of an export.
    """

    endpoint_url: str | None = None
    region: str | None = None
    profile: str | None = None

    @property
    def flags(self) -> list[str]:
        """The flags that make it, for a command that is to be typed."""
        given = {"--endpoint-url": self.endpoint_url, "--region": self.region, "--profile": self.profile}
        return [word for flag, value in given.items() if value is not None for word in (flag, value)]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """The process's environment is as the flags say, until the block ends."""
        changes = {
            **dict.fromkeys(_ENDPOINTS if self.endpoint_url else (), self.endpoint_url),
            **dict.fromkeys(_REGIONS if self.region else (), self.region),
            # A profile that is named holds before keys that happen to be in the environment.
            **dict.fromkeys(_KEYS if self.profile else ()),
            **({"AWS_PROFILE": self.profile} if self.profile else {}),
        }
        before = {name: os.environ.get(name) for name in changes}
        _set_environment(changes)
        try:
            yield
        finally:
            _set_environment(before)

    def open(self, uri: str) -> "Table":
        """A table. Raises as `Table.open` does."""
        from icedb.table import Table

        return Table.open(uri)


_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
_REGIONS = ("AWS_REGION", "AWS_DEFAULT_REGION")
_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def _set_environment(values: dict[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _connection_option(flag: str, text: str) -> Any:
    return Annotated[str | None, typer.Option(flag, help=text, rich_help_panel=CONNECTION, show_default=False)]


_CONNECTION = {
    "endpoint_url": _connection_option("--endpoint-url", "The S3 server, when it is not AWS; else AWS_ENDPOINT_URL."),
    "region": _connection_option("--region", "The bucket's region; else AWS_REGION, or what the profile says."),
    "profile": _connection_option(
        "--profile", "Whose credentials: a profile of ~/.aws; else AWS_PROFILE, AWS_ACCESS_KEY_ID, or a role."
    ),
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
            connection = Connection(**{flag: given.pop(flag) for flag in _CONNECTION})
            with connection.in_force(), bars(wanted=not given.get("json")):
                return function(connection=connection, **given)

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
    """Do it; on a terminal only after a dry run was shown and a person agreed.

    Without a terminal there is nobody to ask: a script that calls a verb means it, and must not wait for ever.
    """
    if not dry_run and not yes and sys.stdin.isatty():
        print_report(errors(), operation(True), dry_run=True)
        if not typer.confirm("Do this?", err=True):
            _refuse()
    show(operation(dry_run), json=json, dry_run=dry_run)
