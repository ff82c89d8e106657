"""The command `icedb-dagster`: start, stop and look at the local stack of a project, and start Spark programs.

A thin shell around `icedb_dagster.stack` and `icedb_dagster.places`. Progress and errors go to standard error, results
to standard output; an error is one readable line, with the end of the log it came from below, and exit status 1.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icedb.errors import IceDBError
from icedb_dagster import stack as local_stack
from icedb_dagster.places import PlaceName, configured_place
from icedb_dagster.stack import ServiceName, ServiceStatus

__all__ = ["app", "main"]

app = typer.Typer(
    name="icedb-dagster",
    help="Run a project's IceDB platform on this machine: a real Postgres, Dagster's web server and daemon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Where there is no terminal, a script should find each row of a table whole and in one line.
_output = Console(width=None if sys.stdout.isatty() else 500)
_errors = Console(stderr=True)

ProjectDir = Annotated[
    Path,
    typer.Option(
        "--project-dir",
        "-d",
        help="The project's folder. Everything is kept in .icedb-dagster inside it.",
    ),
]

_STATE_STYLES = {"running": "green", "external": "cyan", "stopped": "dim"}


@app.command()
def up(
    project_dir: ProjectDir = Path(),
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The web server's port.", show_default="the last one, 3000, or a free one"),
    ] = None,
    webserver: Annotated[bool, typer.Option(help="Start Dagster's web server.")] = True,
    daemon: Annotated[bool, typer.Option(help="Start Dagster's daemon: run queue, schedules, sensors.")] = True,
) -> None:
    """Start what does not run yet, and wait until it works.

    Postgres is started from a Python package, unless ICEDB_POSTGRES_URL names one. Web server and daemon load the
    project's workspace.yaml. Everything listens on 127.0.0.1 only and goes on running until `icedb-dagster down`.
    """
    services: list[ServiceName] = ["postgres"]
    services += ["webserver"] if webserver else []
    services += ["daemon"] if daemon else []
    with _progress() as progress:
        stack = local_stack.up(project_dir, services=services, port=port, progress=progress)
    _show(stack.processes)
    for warning in stack.warnings:
        _errors.print(Text.assemble(("warning: ", "yellow"), warning), soft_wrap=True)
    if stack.webserver_url:
        _output.print(f"Dagster is open at {stack.webserver_url}", soft_wrap=True)


@app.command()
def down(project_dir: ProjectDir = Path()) -> None:
    """Stop all that `up` started in this folder. The data stays."""
    with _progress() as progress:
        stopped = local_stack.down(project_dir, progress=progress)
    _output.print(f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running", soft_wrap=True)


@app.command()
def status(project_dir: ProjectDir = Path()) -> None:
    """Show what runs in this folder."""
    _show(local_stack.status(project_dir))


@app.command()
def submit(
    program: Annotated[str, typer.Argument(help="One of spark_jobs by its name, or a Python file (on AWS: in S3).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="After a --: what the program takes.")] = None,
    on: Annotated[PlaceName, typer.Option(help="Where to run it.")] = "local",
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="The place's fields, as TOML or YAML.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="One field, or FIELD.KEY=VALUE of a mapping. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be started, and check it.")] = False,
) -> None:
    """Start a Spark program: here, on a cluster, over Spark Connect, or on AWS.

    A program whose driver runs here takes the place of this command, which then ends as it does. On AWS, the program is
    started, and nobody waits for it. Secrets belong in the environment, or in the roles of the machines.
    """
    place = configured_place(on, config, set_ or ())
    if dry_run:
        sys.stdout.write(place.preview(program, arguments or ()) + "\n")  # as it is: it may be copied
    else:
        _errors.print(place.submit(program, arguments or ()), soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """The entry point: errors of IceDB and of the operating system become one line and status 1."""
    try:
        app(arguments)
    except (IceDBError, OSError) as error:
        _errors.print(Text.assemble(("error: ", "bold red"), " ".join(str(error).split())), soft_wrap=True)
        for note in getattr(error, "__notes__", ()):
            _errors.print(Text.from_ansi(note, style="dim"), soft_wrap=True)
        sys.exit(1)


@contextmanager
def _progress() -> Iterator[local_stack.Progress]:
    """A line for each step; on a terminal, with a spinner below that shows that something is going on."""
    with _errors.status("") as spinner:

        def tell(message: str) -> None:
            spinner.update(Text(message, style="dim"))
            _errors.print(Text(f"· {message}", style="dim"), soft_wrap=True)

        yield tell


def _show(services: Sequence[ServiceStatus]) -> None:
    table = Table("service", "state", "pid", "address", "log", box=None, pad_edge=False, header_style="bold")
    for service in services:
        state = Text(service.state, style=_STATE_STYLES[service.state])
        pid = str(service.pid) if service.pid else ""
        table.add_row(service.name, state, pid, service.address or "", _short(service.log))
    _output.print(table)


def _short(path: Path | None) -> str:
    if path is None:
        return ""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
