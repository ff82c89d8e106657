"""The application that all verbs of the command `icedb` share: connection flags, kinds of arguments, exit statuses.

A verb is a function of its arguments, registered with `verb` and one example. A verb that connects to a store takes a
`Connection` as its first parameter, and `verb` adds the flags of the connection. Errors of IceDB and of the operating
system become one line on standard error and an exit status, see `Exit`. Long work shows its progress on a terminal.
"""

import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import timedelta
from enum import IntEnum
from functools import wraps
from traceback import print_exception
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn, TypeVar, get_type_hints

import typer
from rich.text import Text
from typer._completion_classes import completion_init
from typer.completion import install_callback, show_callback
from typer.core import TyperGroup
from typer.exceptions import TyperException

from icedb import __version__
from icedb.cli.base.interruption import Interrupted, explain_interruption
from icedb.cli.render.outcomes import outcome_of
from icedb.cli.render.output import error_output, one_line, print_message
from icedb.cli.render.progress_bars import bars
from icedb.cli.render.report_text import print_details, show
from icedb.errors import CorruptionError, IceDBError, InvalidOption, OutcomeUnknownError, RetryableError
from icedb.util.clock import SystemClock
from icedb.util.durations import DURATION, parse_duration
from icedb.util.sizes import parse_size
from icedb.util.times import AsOf, as_of_ms, parse_as_of

if TYPE_CHECKING:
    from icedb.table import Table

__all__ = [
    "INSPECT",
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
    "size",
    "time_option",
    "verb",
]

#: The panels of `icedb --help`, in its order.
INSPECT, WRITE, MAINTAIN, SERVE = "Inspect", "Write", "Maintain", "Serve"
#: The panel of the flags that make a `Connection`.
CONNECTION = "Connection"

#: The shells with completion.
Shell = Literal["bash", "zsh", "fish", "powershell", "pwsh"]

F = TypeVar("F", bound=Callable[..., Any])


class Exit(IntEnum):
    """Exit statuses, as in `icedb --help` and docs/command.md. They do not change between versions."""

    #: The command succeeded, or there was nothing to do.
    DONE = 0
    #: `verify` found errors.
    PROBLEMS = 1
    #: Nothing was done. The call, the rows or the credentials must be changed first, or the user declined.
    FAILED = 2
    #: Nothing was done, and the call is valid: the same call may succeed later.
    RETRY = 3
    #: The outcome is unknown, or only a part of the work was done. Check the table before retrying.
    OUTCOME_UNKNOWN = 4
    #: The store holds an object that must not be there, or lacks one that must be there.
    CORRUPT = 5
    #: A bug in IceDB.
    BUG = 70
    #: Stopped by SIGINT (Ctrl-C).
    INTERRUPTED = 130
    #: The reader of standard output has closed the pipe, as `head` does.
    PIPE_CLOSED = 141


EXIT_STATUSES = (
    "Exit status: 0 done; 1 verify found errors; 2 nothing was done, change the call, the rows or the credentials; "
    "3 nothing was done, retry later; 4 the outcome is unknown, check the table before retrying; "
    "5 the table is damaged; 70 a bug in IceDB; 130 interrupted."
)

#: The names of verbs in other systems.
OTHER_NAMES = {"compact": "merge", "ls": "list", "optimize": "merge", "vacuum": "cleanup"}


class _Verbs(TyperGroup):
    """The group of all verbs. It turns errors of IceDB and of the operating system into one line and an exit status."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the verb, or name it if `args` begins with the name that it has in other systems."""
        if args[0] in OTHER_NAMES and not ctx.resilient_parsing:
            name = OTHER_NAMES[args[0]]
            ctx.fail(f"The verb '{args[0]}' is called '{name}' in IceDB. Run: icedb {name}")
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the verbs, panel by panel."""
        panels = (INSPECT, WRITE, MAINTAIN, SERVE)
        return sorted(self.commands, key=lambda name: panels.index(_panel(self.commands[name])))

    def invoke(self, ctx: Any) -> Any:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except (typer.Exit, TyperException):
            raise
        except typer.Abort:  # end of input or Ctrl-C at the prompt, whose line is still open
            typer.echo(err=True)
            _decline()
        except Interrupted as interruption:
            print_message(Text(str(interruption)))
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the final flush does not fail
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except (IceDBError, OSError) as error:
            print_message(Text.assemble(("error: ", "bold red"), one_line(error)))
            raise typer.Exit(_status(error)) from None
        except Exception as error:  # noqa: BLE001  Python's own status 1 would mean that `verify` found errors
            print_exception(error)
            print_message(Text.assemble(("error: ", "bold red"), "this is a bug in IceDB. Please report it."))
            raise typer.Exit(Exit.BUG) from None


def _panel(command: Any) -> str:
    panel: str = command.rich_help_panel
    return panel


def _status(error: IceDBError | OSError) -> Exit:
    match error:
        case OutcomeUnknownError():
            return Exit.OUTCOME_UNKNOWN
        case CorruptionError():
            return Exit.CORRUPT
        case RetryableError() | ConnectionError() | TimeoutError():
            return Exit.RETRY
    return Exit.FAILED


def _decline() -> NoReturn:
    print_message(Text("Nothing was changed."))
    raise typer.Exit(Exit.FAILED)


app = typer.Typer(
    name="icedb",
    cls=_Verbs,
    help="Inspect, write, maintain and serve IceDB tables. A table's URI is s3://bucket/prefix or a folder.",
    epilog=EXIT_STATUSES,
    no_args_is_help=True,
    add_completion=False,  # the options below name the shell; typer's would guess it from the parent process
    pretty_exceptions_enable=False,
)
completion_init()


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"icedb {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    install_completion: Annotated[
        Shell | None,
        typer.Option(
            "--install-completion",
            callback=install_callback,
            is_eager=True,
            help="Install the completion of verbs, flags and values for this shell.",
        ),
    ] = None,
    show_completion: Annotated[
        Shell | None,
        typer.Option(
            "--show-completion",
            callback=show_callback,
            is_eager=True,
            help="Print the completion script.",
        ),
    ] = None,
) -> None:
    pass


# ------------------------------------------------------------------------------------------------ kinds of arguments


def _duration_ms(text: str) -> int:
    try:
        return round(parse_duration(text) / timedelta(milliseconds=1))
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None


def _bytes(text: str) -> int:
    try:
        size = parse_size(text)
    except InvalidOption as error:
        raise typer.BadParameter(str(error)) from None
    if size < 1:
        raise typer.BadParameter(f"{text!r} is below 1 byte.")
    return size


def _time(text: str) -> AsOf:
    try:
        if re.match(DURATION, text):
            return as_of_ms(SystemClock().now_ms() - parse_duration(text) // timedelta(milliseconds=1))
        return parse_as_of(text, table="TIME")
    except InvalidOption:
        raise typer.BadParameter(
            f"{text!r} is not a time with a time zone. Write 2026-11-21T10:00:00Z, unix milliseconds, or 2h for two "
            "hours ago."
        ) from None


Uri = Annotated[str, typer.Argument(help="Table: s3://bucket/prefix or a folder.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON document.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and change nothing.")]
Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt. Required if there is no terminal.")
]


def duration(flag: str, text: str, *, default: str) -> Any:
    """Return an option for a duration, which the verb gets in milliseconds. `default`: text for the help."""
    return typer.Option(flag, parser=_duration_ms, metavar="DURATION", help=text, show_default=default)


#: The forms of a size, for the help.
SIZES = "Bytes, or with a unit: 64MB, 1GiB."


def size(flag: str, text: str, *, default: str) -> Any:
    """Return an option for a number of bytes, with or without a unit. `default`: text for the help."""
    return typer.Option(flag, parser=_bytes, metavar="SIZE", help=f"{text} {SIZES}", show_default=default)


def limit(text: str, *, default: str) -> Any:
    """Return an option for a number. `default`: text for the help."""
    return typer.Option(metavar="NUMBER", help=text, show_default=default)


def time_option(flag: str, text: str, *, default: str | None = None) -> Any:
    """Return an option for a time, which the verb gets as an `AsOf`. `default`: text for the help; None: no default."""
    forms = "ISO 8601 with time zone, unix milliseconds, or a duration ago (2h)."
    return typer.Option(flag, parser=_time, metavar="TIME", help=f"{text} {forms}", show_default=default or False)


# ------------------------------------------------------------------------------------------------ connection


def _connection_flag(flag: str, text: str, default: str) -> Any:
    return typer.Option(flag, help=text, rich_help_panel=CONNECTION, show_default=default)


@dataclass(frozen=True, slots=True)
class Connection:
    """The connection flags of a verb. The environment provides what the flags leave out.

    Inside `in_force` the flags are set in the environment. So they apply to every address that a verb opens: the table,
    its log, files to insert, the target of an export.
    """

    endpoint_url: Annotated[
        str | None, _connection_flag("--endpoint-url", "Connect to this S3 server.", "AWS_ENDPOINT_URL, or AWS")
    ] = None
    region: Annotated[
        str | None, _connection_flag("--region", "Set the bucket's region.", "AWS_REGION, or the profile's")
    ] = None
    profile: Annotated[
        str | None,
        _connection_flag(
            "--profile", "Use the credentials of this profile in ~/.aws.", "AWS_PROFILE, AWS_ACCESS_KEY_ID, or a role"
        ),
    ] = None

    @property
    def flags(self) -> list[str]:
        """The flags as words of a shell command that the user can copy."""
        values = {"--endpoint-url": self.endpoint_url, "--region": self.region, "--profile": self.profile}
        return [word for flag, value in values.items() if value is not None for word in (flag, value)]

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Set the flags in the environment of the process until the block ends."""
        changes = {
            **dict.fromkeys(_ENDPOINTS if self.endpoint_url else (), self.endpoint_url),
            **dict.fromkeys(_REGIONS if self.region else (), self.region),
            # A profile that the user names takes precedence over keys in the environment.
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
        """Open a table. Raises as `Table.open` does."""
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


def verb(panel: str, example: str) -> Callable[[F], F]:
    """Make a verb of a function.

    A parameter whose type is a dataclass becomes a flag for each of its fields, which have typer's options. So verbs
    share flags. The flags of `connection` come last in the help.

    Args:
        panel: the panel of `icedb --help` that lists the verb.
        example: a whole command. Its second word is the name of the verb, and the help of the verb ends with it.
    """

    verb_name = example.split()[1]

    def decorate(function: F) -> F:
        register = app.command(verb_name, rich_help_panel=panel, epilog=f"Example: {example}")
        hints = get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters
        shared = {name: hints[name] for name in parameters if is_dataclass(hints[name])}
        if not shared:
            register(function)
            return function

        @wraps(function)
        def with_shared(**arguments: Any) -> Any:
            for parameter, flags in shared.items():
                arguments[parameter] = flags(**{field.name: arguments.pop(field.name) for field in fields(flags)})
            changed = None if panel == INSPECT else arguments.get("uri")
            with (
                arguments["connection"].in_force(),
                explain_interruption(verb_name, changed),
                bars(enabled=not arguments.get("json")),
            ):
                return function(**arguments)

        keyword = inspect.Parameter.KEYWORD_ONLY
        expanded: list[inspect.Parameter] = []
        for name in sorted(parameters, key=lambda name: name == "connection"):
            types = get_type_hints(shared.get(name, function), include_extras=True)
            own = inspect.signature(shared[name]).parameters if name in shared else {name: parameters[name]}
            expanded += [p.replace(kind=keyword, annotation=types[flag]) for flag, p in own.items()]
        with_shared.__signature__ = inspect.Signature(expanded)  # type: ignore[attr-defined]
        with_shared.__annotations__ = {p.name: p.annotation for p in expanded}
        register(with_shared)
        return function

    return decorate


# ------------------------------------------------------------------------------------------------ confirmation


def run(
    operation: Callable[[bool], object],
    *,
    dry_run: bool,
    yes: bool,
    json: bool,
    nothing: Callable[[], str | None] | None = None,
) -> None:
    """Run an operation and print its result. Unless `yes`, show a dry run on a terminal and ask for confirmation first.

    Without a terminal there is no prompt, because a scheduled job must not wait for input: the operation is rejected.
    A plan that has nothing to do needs no confirmation. `nothing`: see `show`.
    """
    if not dry_run and not yes:
        if not sys.stdin.isatty():
            raise InvalidOption(
                "Confirmation is required, and standard input is not a terminal. Nothing was changed. Pass --yes, or "
                "--dry-run to print what would be done."
            )
        plan = operation(True)
        outcome = outcome_of(plan)
        if outcome.acts:
            print_details(error_output(), plan, dry_run=True)
            if not typer.confirm(outcome.question, err=True):
                _decline()
    show(operation(dry_run), json=json, dry_run=dry_run, nothing=nothing)
