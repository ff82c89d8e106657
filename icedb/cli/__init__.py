"""The command `icedb`: inspect, write, maintain and serve tables.

A verb calls one method of `Table`, or serves. Results go to standard output, as a table or with `--json` as one JSON
document. An error is one line on standard error. Each verb that changes a table has `--dry-run`. A verb that replaces
or deletes data shows a dry run on a terminal and asks for confirmation, unless `--yes` is passed.
"""

try:
    from icedb.cli.commands import (  # noqa: F401, I001  each registers its verbs, in the order of the help
        inspect,
        query,
        listing,
        history,
        write,
        rows,
        export,
        change,
        maintain,
        serve,
    )
    from icedb.cli.base.application import app
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
        raise
    raise SystemExit("icedb: typer and rich are not installed. Run: pip install 'icedb-dagster[cli]'") from None

__all__ = ["app", "main"]


def main() -> None:
    """Run the command with the arguments of the process."""
    app(prog_name="icedb")
