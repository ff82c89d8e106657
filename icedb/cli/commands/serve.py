"""Verbs that serve: `ingest` receives events, `proxy` shows tables as S3 buckets, `exporter` publishes figures."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table as Rows
from rich.text import Text

from icedb.cli.base.application import SERVE, Connection, Exit, duration, verb
from icedb.cli.render.output import output, print_message, write_json
from icedb.util.optional_deps import SERVER_MODULES, import_optional

Config = Annotated[Path, typer.Option("--config", metavar="FILE", help="Read this TOML file.", show_default=False)]
Check = Annotated[bool, typer.Option("--check", help="Check the file and open each of its tables, without serving.")]
CheckJson = Annotated[bool, typer.Option("--json", help="With --check: print the result as one JSON document.")]


@verb(SERVE, "icedb ingest --config ingest.toml")
def ingest(config: Config, check: Check = False, json: CheckJson = False) -> None:
    """Receive events over HTTP and commit them, until SIGINT or SIGTERM. Status 2xx means committed."""
    if check:
        from icedb.services.ingest.config.config_check import check_config

        tables = check_config(config)
        _print_check(
            tables,
            ("table", "uri", "tenants", "state", "rows"),
            ((t.table, t.uri, ", ".join(t.tenants), t.state or "failed", "" if t.rows is None else f"{t.rows:,}")
             for t in tables),
            [(f"table '{t.table}'", t.warnings, t.error) for t in tables],
            json=json,
        )  # fmt: skip
        return
    _require_server(SERVER_MODULES, extra="ingest", json=json)
    from icedb.services.ingest.server import serve

    serve(config, on_ready=lambda line: print_message(Text(line)))


@verb(SERVE, "icedb proxy --config proxy.toml")
def proxy(config: Config, check: Check = False, json: CheckJson = False) -> None:
    """Serve the live parts of tables as read-only S3 buckets, one set a tenant, until SIGINT or SIGTERM."""
    if check:
        from icedb.services.proxy.config_check import check_config

        buckets = check_config(config)
        with_iceberg = any(b.iceberg_columns is not None or b.iceberg_error is not None for b in buckets)
        _print_check(
            buckets,
            ("tenant", "bucket", "table", "parts", "rows", *(["Iceberg"] if with_iceberg else [])),
            ((b.tenant, b.bucket, b.table, *("unknown" if n is None else f"{n:,}" for n in (b.parts, b.rows)),
              *([_iceberg_cell(b.iceberg_columns)] if with_iceberg else []))
             for b in buckets),
            [(f"{b.tenant}, bucket '{b.bucket}'", () if b.warning is None else (b.warning,), b.error or b.iceberg_error)
             for b in buckets],
            json=json,
        )  # fmt: skip
        return
    _require_server((*SERVER_MODULES, "httpx"), extra="proxy", json=json)
    from icedb.services.proxy.server import serve

    serve(config, on_ready=lambda line: print_message(Text(line)))


@verb(SERVE, "icedb exporter s3://lake --listen 0.0.0.0:9464")
def exporter(
    connection: Connection,
    root: Annotated[str, typer.Argument(help="A folder, s3://bucket or s3://bucket/prefix.", show_default=False)],
    listen: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Serve /metrics, /health and /ready at this address.")
    ] = "127.0.0.1:9464",
    interval: Annotated[Any, duration("--interval", "Read each table this often.", default="2m")] = None,
    listing_interval: Annotated[
        Any,
        duration("--listing-interval", "List the parts of each table this often, to find orphans; 0s: never.",
                 default="24h"),
    ] = None,
) -> None:  # fmt: skip
    """Publish the figures of all tables below a root for Prometheus, until SIGINT or SIGTERM."""
    _require_server(SERVER_MODULES, extra="exporter", json=False)
    from icedb.services.exporter.server import serve
    from icedb.services.exporter.settings import exporter_settings

    settings = exporter_settings(root, listen=listen, interval_ms=interval, listing_interval_ms=listing_interval)
    serve(settings, on_ready=lambda line: print_message(Text(line)))


def _iceberg_cell(columns: int | None) -> str:
    return "error" if columns is None else f"{columns:,} columns"


def _require_server(modules: Sequence[str], *, extra: str, json: bool) -> None:
    if json:
        raise typer.BadParameter("--json requires --check.")
    for module in modules:
        import_optional(module, extra=extra)


def _print_check(
    document: object,
    names: Sequence[str],
    rows: Iterable[Sequence[str]],
    problems: Sequence[tuple[str, Sequence[str], str | None]],
    *,
    json: bool,
) -> None:
    """Print a check, then its problems: name, warnings and error of each entry. Exit with status 2 for an error."""
    if json:
        write_json(document)
    else:
        table = Rows(*names, box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for row in rows:
            table.add_row(*map(Text, row))
        output().print(table)
    for name, warnings, _ in problems:
        for warning in warnings:
            print_message(Text.assemble(("warning: ", "bold yellow"), f"{name}: {warning}"))
    errors = [(name, error) for name, _, error in problems if error is not None]
    for name, error in errors:
        print_message(Text.assemble(("error: ", "bold red"), f"{name}: {error}"))
    if errors:
        raise typer.Exit(Exit.FAILED)
