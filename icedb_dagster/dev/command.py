"""The command `icedb-dagster`: a project's local stack, its locks, its health, and Spark programs.

A thin layer over `icedb_dagster.dev.stack`, `dev.doctor`, `dev.project`, `locking.lock_pools` and `compute`. Progress
and errors go to standard error, results to standard output. An error is one readable line, with the end of the related
log below it. The exit status is then 1, or 2 for `doctor`, whose status 1 means that it found a problem.
"""

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from icedb.errors import IceDBError, StackError
from icedb.util.optional_deps import SERVER_MODULES, import_optional
from icedb_dagster.compute.place_config import PlaceName, configured_place
from icedb_dagster.dev import stack as local_stack
from icedb_dagster.dev.doctor import DoctorFinding, examine
from icedb_dagster.dev.doctor.daemon import WATCH_S
from icedb_dagster.dev.project import create_project
from icedb_dagster.dev.project.workspace import load_code, project_environment, use_instance
from icedb_dagster.dev.stack import SERVICES, ServiceName, ServiceStatus
from icedb_dagster.dev.stack.processes import path_with_programs
from icedb_dagster.locking.lock_pools import ensure_pools

__all__ = ["app", "main"]

PROBLEMS = 1
FAILED = 1
NOT_EXAMINED = 2

app = typer.Typer(
    name="icedb-dagster",
    help="Run a project's IceDB platform on this machine: Postgres, Dagster's web server and daemon.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Without a terminal, each row of a table is on one line, for scripts.
_output = Console(width=None if sys.stdout.isatty() else 500)
_errors = Console(stderr=True)

ProjectDir = Annotated[
    Path,
    typer.Option(
        "--project-dir",
        "-d",
        help="The project's folder. All files of the stack are in .icedb-dagster inside it.",
    ),
]

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]

_STATE_STYLES = {"running": "green", "ended": "bold red", "external": "cyan", "stopped": "dim"}
_FINDING_STYLES = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_SERVICE_STYLES: dict[ServiceName, str] = {
    "postgres": "cyan",
    "code": "green",
    "webserver": "magenta",
    "daemon": "blue",
}


@app.command(epilog="Example: icedb-dagster up --port 3001")
def up(
    project_dir: ProjectDir = Path(),
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The web server's port.", show_default="the last one, 3000, or a free one"),
    ] = None,
    webserver: Annotated[bool, typer.Option(help="Start Dagster's web server.")] = True,
    daemon: Annotated[bool, typer.Option(help="Start Dagster's daemon: run queue, schedules, sensors.")] = True,
) -> None:
    """Start the services that do not run, and wait until they work.

    Postgres is started from a Python package, unless ICEDB_POSTGRES_URL names a server. The code servers load the
    project's workspace.yaml, for the web server and the daemon. All services listen on 127.0.0.1 only, and run until
    `icedb-dagster down`.
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


@app.command(epilog="Example: icedb-dagster down")
def down(project_dir: ProjectDir = Path()) -> None:
    """Stop all services that `up` started in this folder. The data remains."""
    with _progress() as progress:
        stopped = local_stack.down(project_dir, progress=progress)
    _output.print(f"Stopped: {', '.join(stopped)}" if stopped else "Nothing was running", soft_wrap=True)


@app.command(epilog="Example: icedb-dagster status")
def status(project_dir: ProjectDir = Path(), json: Json = False) -> None:
    """Show the services of this folder.

    Exit status: 1 if a service that `up` started has ended.
    """
    services = local_stack.status(project_dir)
    if json:
        _print_json(services)
    else:
        _show(services)
    if any(service.state == "ended" for service in services):
        _errors.print("A service has ended: see its log, then run icedb-dagster up", soft_wrap=True)
        raise typer.Exit(PROBLEMS)


@app.command(epilog="Example: icedb-dagster logs daemon --follow")
def logs(
    services: Annotated[
        list[str] | None, typer.Argument(help=f"Services to show: {', '.join(SERVICES)}. Default: all.")
    ] = None,
    project_dir: ProjectDir = Path(),
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Print new lines until interrupted.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Last lines of each log to print first.")] = 20,
) -> None:
    """Show the logs of Postgres, code servers, web server and daemon. Postgres passwords are hidden."""
    width = max(map(len, SERVICES))
    try:
        for line in local_stack.log_lines(project_dir, services=services or SERVICES, lines=lines, follow=follow):
            name = Text(f"{line.service:<{width}} │ ", style=_SERVICE_STYLES[line.service])
            _output.print(name + Text.from_ansi(line.text), soft_wrap=True)
    except KeyboardInterrupt:
        return


@app.command(
    epilog="Example: icedb-dagster run dg dev",
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
def run(
    command: Annotated[list[str], typer.Argument(help="A command and its arguments, such as: dg dev")],
    project_dir: ProjectDir = Path(),
) -> None:
    """Run a command on the instance of this folder's stack, such as dg dev or dagster job execute.

    The command replaces this process. The Postgres address is in its environment, and shown nowhere.
    """
    stack = local_stack.find(project_dir)
    path = path_with_programs(os.environ)
    environ = {**os.environ, **local_stack.environment(stack), "PATH": path}
    if shutil.which(command[0], path=path) is None:
        raise StackError(f"the command {command[0]!r} was not found in {path}. Install it, or correct its name")
    os.chdir(stack.project_dir)
    os.execvpe(command[0], command, environ)  # noqa: S606


@app.command(epilog="Example: icedb-dagster pools --dry-run")
def pools(
    project_dir: ProjectDir = Path(),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the limits.")] = False,
) -> None:
    """Set the limit of each table's lock. Run this after each deployment, before the first job.

    The tables are those of the project's workspace.yaml. The instance is that of DAGSTER_HOME, or of the local stack.
    """
    with project_environment(project_dir), use_instance(project_dir) as used:
        code = load_code(project_dir)
        before = ensure_pools(used.instance, code.pools, dry_run=dry_run)
    table = Table("pool", "limit", "", box=None, pad_edge=False, header_style="bold")
    for pool in before:
        limit = "none" if pool.limit is None else f"{pool.limit}{' (default)' if pool.by_default else ''}"
        done = "" if pool.is_lock else "needs 1" if dry_run else "set to 1"
        table.add_row(pool.pool, limit, Text(done, style="yellow"))
    _output.print(table if before else "This code has no jobs of tables", soft_wrap=not before)
    if code.problems:
        raise StackError(f"some code could not be loaded, so pools may be missing: {'; '.join(code.problems)}")


@app.command(epilog="Example: icedb-dagster doctor --table s3://lake/events")
def doctor(
    project_dir: ProjectDir = Path(),
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="URI", help="A table to check. Repeatable.", show_default="the roots in the code"),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Watch the daemon for half a minute, which reliably detects a second one.")
    ] = False,
    json: Json = False,
) -> None:
    """Check the platform and the access to the store, and print remedies.

    The platform is the instance, Postgres, pools, run monitoring, the daemon, queued and failed runs, schedules and
    sensors. In the store, the doctor writes, reads and deletes an object of its own. Exit status: 0 without problems
    (warnings do not count), 1 with problems, 2 if the check could not run.
    """
    try:
        findings = examine(project_dir, tables=table or (), watch_s=WATCH_S if watch else 0)
    except (IceDBError, OSError) as error:
        _print_error(error)
        raise typer.Exit(NOT_EXAMINED) from None
    if json:
        _print_json(findings)
    else:
        _show_findings(findings)
    if any(finding.status == "problem" for finding in findings):
        raise typer.Exit(PROBLEMS)


@app.command(epilog="Example: icedb-dagster exporter --listen 0.0.0.0:9464")
def exporter(
    project_dir: ProjectDir = Path(),
    root: Annotated[
        str | None,
        typer.Option(metavar="URI", help="The root of the tables.", show_default="the root of the code's resource"),
    ] = None,
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve /metrics, /health and /ready at this address.")
    ] = "127.0.0.1:9464",
    doctor: Annotated[bool, typer.Option(help="Run the doctor every hour, and publish its findings.")] = True,
) -> None:
    """Publish the figures of all tables and of the Dagster instance for Prometheus, until SIGINT or SIGTERM.

    The figures of tables are those of icedb exporter.
    """
    for module in SERVER_MODULES:
        import_optional(module, extra="exporter")
    from icedb.services.exporter.server import serve
    from icedb.services.exporter.settings import exporter_settings
    from icedb_dagster.dev.exporter.source import DOCTOR_INTERVAL_MS, DagsterFigures

    with project_environment(project_dir), use_instance(project_dir) as used:
        lake_root, access = _root_of_tables(project_dir, root)
        settings = exporter_settings(lake_root, listen=listen)
        source = DagsterFigures(
            used.instance, project_dir.absolute(), doctor_interval_ms=DOCTOR_INTERVAL_MS if doctor else None
        )
        serve(settings, on_ready=lambda line: _errors.print(line, soft_wrap=True), access=access, sources=[source])


def _root_of_tables(project_dir: Path, root: str | None) -> tuple[str, dict[str, Any]]:
    """Return the root of the tables, and the access to it of the resource that contains it. Raises StackError."""
    lakes = load_code(project_dir).lakes
    if root is None and len(lakes) != 1:
        roots = ", ".join(lake.root for lake in lakes) or "none that could be loaded"
        raise StackError(f"the code has not exactly one IceDBResource (roots: {roots}). Pass --root URI")
    wanted = lakes[0].root if root is None else root
    lake = next((lake for lake in lakes if f"{wanted}/".startswith(f"{lake.root.rstrip('/')}/")), None)
    return wanted, {} if lake is None else lake.access()


@app.command(epilog="Example: icedb-dagster init shop --root s3://lake/shop")
def init(
    folder: Annotated[Path, typer.Argument(help="A new folder, or one without any of the files.")],
    root: Annotated[
        str, typer.Option(metavar="URI", help="The root of the tables: a folder, or s3://bucket/prefix.")
    ] = "lake",
) -> None:
    """Create a project: a partitioned asset stored as a table, its maintenance, a test, and the Dagster files."""
    created = create_project(folder, root=root)
    for path in created:
        _errors.print(Text(f"· {path}", style="dim"), soft_wrap=True)
    _output.print(f"Begin with {folder / 'README.md'}", soft_wrap=True)


@app.command(epilog="Example: icedb-dagster submit merge_table -- --table s3://lake/events")
def submit(
    program: Annotated[str, typer.Argument(help="A program of spark_jobs by name, or a Python file (on AWS: in S3).")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The program's arguments, after --.")] = None,
    on: Annotated[PlaceName, typer.Option(help="Where to run it.")] = "local",
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML or YAML file with the fields of the place.")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="Set a field, or FIELD.KEY=VALUE in a mapping. Repeatable."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check and show what would be started.")] = False,
) -> None:
    """Start a Spark program: here, on a cluster, over Spark Connect, or on AWS.

    A program whose driver runs here replaces this command, with its exit status. On AWS, the command starts the program
    and does not wait for it. Put secrets into the environment, or into the roles of the machines.
    """
    place = configured_place(on, config, set_ or ())
    if dry_run:
        sys.stdout.write(place.preview(program, arguments or ()) + "\n")  # unwrapped, so that it can be copied
    else:
        _errors.print(place.submit(program, arguments or ()), soft_wrap=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command. Errors of IceDB and of the operating system become one line and status 1."""
    try:
        app(arguments)
    except BrokenPipeError:  # the reader of the output has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)
    except (IceDBError, OSError) as error:
        _print_error(error)
        sys.exit(FAILED)


def _print_error(error: Exception) -> None:
    _errors.print(Text.assemble(("error: ", "bold red"), " ".join(str(error).split())), soft_wrap=True)
    for note in getattr(error, "__notes__", ()):
        _errors.print(Text.from_ansi(note, style="dim"), soft_wrap=True)


@contextmanager
def _progress() -> Iterator[local_stack.Progress]:
    """Print a line for each step; on a terminal, with a spinner below."""
    with _errors.status("") as spinner:

        def report(message: str) -> None:
            spinner.update(Text(message, style="dim"))
            _errors.print(Text(f"· {message}", style="dim"), soft_wrap=True)

        yield report


def _print_json(document: object) -> None:
    text = msgspec.json.encode(document, enc_hook=str)  # of paths
    sys.stdout.write(msgspec.json.format(text).decode() + "\n")


def _show(services: Sequence[ServiceStatus]) -> None:
    table = Table("service", "state", "pid", "address", "log", box=None, pad_edge=False, header_style="bold")
    for service in services:
        state = Text(service.state, style=_STATE_STYLES[service.state])
        pid = str(service.pid) if service.pid else ""
        table.add_row(service.name, state, pid, service.address or "", _short(service.log))
    _output.print(table)


def _show_findings(findings: Sequence[DoctorFinding]) -> None:
    """Print a table for the platform, and one for each place."""
    for about in dict.fromkeys(finding.about for finding in findings):
        table = Table("check", "", "found", "what to change", box=None, pad_edge=False, header_style="bold")
        for finding in findings:
            if finding.about == about:
                status = Text(finding.status, style=_FINDING_STYLES[finding.status])
                table.add_row(finding.check, status, Text(finding.found), Text(finding.remedy))
        if about:
            _output.print(Text(f"\n{about}", style="bold"), soft_wrap=True)
        _output.print(table)


def _short(path: Path | None) -> str:
    if path is None:
        return ""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


if __name__ == "__main__":
    main()
