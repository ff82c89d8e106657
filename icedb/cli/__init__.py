"""The command `icedb`: look at a table and maintain it.

A thin shell around `Table`: each verb is one method. Results go to standard output, as a table or with `--json` as one
JSON document; an error is one line on standard error. What deletes has `--dry-run`, and on a terminal shows that first
and asks, unless `--yes`.
"""

try:
    from icedb.cli import looking, maintaining, serving, writing  # noqa: F401 - they bring the verbs
    from icedb.cli.frame import app
except ImportError as error:
    if error.name is None or error.name.partition(".")[0] not in ("typer", "rich"):
        raise
    raise SystemExit("icedb: the command needs typer and rich: pip install 'icedb-dagster[cli]'") from None

__all__ = ["app", "main"]


def main() -> None:
    """The entry point."""
    app()
