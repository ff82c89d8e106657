"""The command `icedb`: look at a table, write to it, maintain it.

A thin shell around `Table`: each verb is one method. Results go to standard output, as a table or with `--json` as one
JSON document; an error is one line on standard error. What changes a table has `--dry-run`; what replaces or deletes
shows that first on a terminal, and asks, unless `--yes`.
"""

try:
    from icedb.cli.commands import (  # noqa: F401, I001  they bring the verbs, in the order of the help
        inspect,
        query,
        listing,
        history,
        write,
        export,
        change,
        maintain,
        ingest,
        proxy,
    )
    from icedb.cli.base.application import app
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
        raise
    raise SystemExit("icedb: the command needs typer and rich: pip install 'icedb-dagster[cli]'") from None

__all__ = ["app", "main"]


def main() -> None:
    """The entry point."""
    app(prog_name="icedb")
