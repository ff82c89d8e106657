"""The group of all verbs of the command `icedb`: its panels, the names of other systems, errors and exit statuses."""

import os
import sys
from enum import IntEnum
from traceback import print_exception
from typing import Any, NoReturn

import typer
from rich.text import Text
from typer.core import TyperGroup
from typer.exceptions import TyperException

from icedb.cli.base.interruption import Interrupted
from icedb.cli.render.output import one_line, print_message
from icedb.errors import CorruptionError, IceDBError, InvalidRequestError, OutcomeUnknownError, RetryableError

__all__ = ["EXIT_STATUSES", "INSPECT", "MAINTAIN", "OTHER_NAMES", "SERVE", "WRITE", "Exit", "VerbGroup", "decline"]

#: The panels of `icedb --help`, in its order.
INSPECT, WRITE, MAINTAIN, SERVE = "Inspect", "Write", "Maintain", "Serve"


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


class VerbGroup(TyperGroup):
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
            decline()
        except Interrupted as interruption:
            print_message(Text(str(interruption)))
            raise typer.Exit(Exit.INTERRUPTED) from None
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # so that the final flush does not fail
            raise typer.Exit(Exit.PIPE_CLOSED) from None
        except (IceDBError, OSError) as error:
            options = self._options(ctx.invoked_subcommand) if isinstance(error, InvalidRequestError) else {}
            print_message(Text.assemble(("error: ", "bold red"), one_line(error, options)))
            raise typer.Exit(_status(error)) from None
        except Exception as error:  # noqa: BLE001  Python's own status 1 would mean that `verify` found errors
            print_exception(error)
            print_message(Text.assemble(("error: ", "bold red"), "this is a bug in IceDB. Please report it."))
            raise typer.Exit(Exit.BUG) from None

    def _options(self, verb: str) -> dict[str, str]:
        """Return the options of a verb by the names of its parameters, which are those of the library's arguments."""
        params = self.commands[verb].params
        return {p.name.rstrip("_"): p.opts[0] for p in params if p.name is not None and p.opts[0].startswith("--")}


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


def decline() -> NoReturn:
    """Exit after the user has declined a change."""
    print_message(Text("Nothing was changed."))
    raise typer.Exit(Exit.FAILED)
