"""The exporter: the figures of all tables below a root, their cost, and tables that break or disappear."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from icedb import Table
from icedb.errors import InvalidOption
from icedb.format.timing import Timing
from icedb.services.exporter.metrics import ExporterMetrics
from icedb.services.exporter.settings import exporter_settings
from icedb.services.exporter.table_set import ROUNDS_PER_SEARCH, TableSet
from icedb.storage.request_counts import REQUEST_COUNTS
from icedb.testing import ManualClock
from tests.support.ingest.ingest_process import IngestClient
from tests.support.proxy.proxy_process import ProxyProcess
from tests.support.waiting import wait_until

MERGED, SMALL = "merged", "sales/small"


class Exporter:
    """An exporter without its server."""

    def __init__(self, root: Path, clock: ManualClock | None = None) -> None:
        self.tables = TableSet(exporter_settings(str(root)), clock=clock)
        self.metrics = ExporterMetrics(self.tables)

    def search(self) -> None:
        """Run rounds until one searches for tables."""
        for _ in range(ROUNDS_PER_SEARCH):
            self.tables.run_round()

    def samples(self) -> dict[tuple[str, ...], float]:
        """Return the samples by name and values of labels, the table first."""
        return {
            (sample.name, *(value for _, value in sorted(sample.labels.items(), reverse=True))): sample.value
            for family in text_string_to_metric_families(self.metrics.text().decode())
            for sample in family.samples
        }

    def of_table(self, table: str) -> dict[tuple[str, ...], float]:
        """Return the samples of a table, without the prefix of their names."""
        prefix = "icedb_table_"
        return {
            (name.removeprefix(prefix), *(label for label in labels if label != table)): value
            for (name, *labels), value in self.samples().items()
            if name.startswith(prefix) and table in labels
        }


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (MERGED, SMALL):
        table = Table.create(str(tmp_path / name), partition_by=["day"])
        for n in range(34):
            table.insert([{"day": f"2026-11-0{1 + n % 2}", "n": n}])
        if name == MERGED:
            table.merge()
    return tmp_path


@pytest.mark.long
def test_the_figures_of_each_table(root: Path) -> None:
    exporter = Exporter(root)
    exporter.tables.run_round()
    merged, small = exporter.of_table(MERGED), exporter.of_table(SMALL)
    for figures, live, dead in ((merged, 2, 34), (small, 34, 0)):
        assert figures["up",] == 1
        assert (figures["live_parts",], figures["live_rows",], figures["dead_parts",]) == (live, 34, dead)
        assert figures["live_bytes",] > 0
        assert figures["partitions",] == 2
        assert (figures["orphan_parts",], figures["quarantined_rows",]) == (0, 0)
    assert (small["small_parts",], small["log_files",], merged["log_files",]) == (34, 34, 1)
    assert (small["maintenance_due", "merge_log"], merged["maintenance_due", "merge_log"]) == (1, 0)
    [merge] = [c for c in Table.open(str(root / MERGED)).history() if c.kind == "merge"]
    assert merged["last_commit_timestamp_seconds", "merge"] == merge.at_ms / 1000
    assert merged["newest_rows_timestamp_seconds",] < merge.at_ms / 1000
    assert exporter.samples()["icedb_exporter_tables",] == 2


@pytest.mark.long
def test_a_refresh_of_a_quiet_table_is_one_list_request_and_a_scrape_makes_none(root: Path) -> None:
    exporter = Exporter(root)
    exporter.tables.run_round()
    before = REQUEST_COUNTS.read()
    exporter.tables.run_round()
    for _ in range(3):
        exporter.samples()
    used = {name: now.requests - before[name].requests for name, now in REQUEST_COUNTS.read().items()}
    assert used == {"list": 2, "get": 0, "head": 0, "put": 0, "delete": 0, "copy": 0}, "there are two tables"


@pytest.mark.long
def test_commits_are_counted_once_by_kind_also_if_the_log_was_merged_meanwhile(root: Path) -> None:
    exporter, table = Exporter(root), Table.open(str(root / SMALL))
    exporter.tables.run_round()
    for n in range(3):
        table.insert([{"day": "2026-11-01", "n": n}])
    table.merge_log()
    table.merge()
    for _ in range(2):
        exporter.tables.run_round()
        kinds = {labels[0]: value for (name, *labels), value in exporter.of_table(SMALL).items() if "commits" in name}
        assert kinds == {"insert": 3, "merge": 1, "merge_log": 1, "cleanup": 0}


@pytest.mark.long
def test_a_broken_table_leaves_the_others_and_a_dropped_one_is_reported_for_a_day(root: Path) -> None:
    clock = ManualClock()
    exporter = Exporter(root, clock)
    exporter.search()
    shutil.rmtree(root / MERGED)
    [log_file, *_] = sorted((root / SMALL / "_log").iterdir())
    content = log_file.read_bytes()
    log_file.write_bytes(b"no log file")
    exporter.search()
    exporter.tables.run_round()
    assert exporter.of_table(MERGED)["up",] == 0
    assert exporter.of_table(MERGED)["errors_total", "TableNotFound"] >= 1
    assert ("live_parts",) not in exporter.of_table(MERGED)
    assert exporter.of_table(SMALL)["up",] == 0
    log_file.write_bytes(content)
    exporter.search()
    assert exporter.of_table(SMALL)["up",] == 1
    assert exporter.of_table(SMALL)["errors_total", "CorruptLog"] >= 1, "a counter does not go back"
    clock.advance(25 * 3_600_000)
    exporter.search()
    assert not exporter.of_table(MERGED)


@pytest.mark.long
def test_a_table_created_at_the_address_of_another_is_opened_again(root: Path) -> None:
    exporter = Exporter(root)
    exporter.search()
    shutil.rmtree(root / SMALL)
    Table.create(str(root / SMALL)).insert([{"n": 1}])
    exporter.search()
    exporter.tables.run_round()
    figures = exporter.of_table(SMALL)
    assert (figures["live_rows",], figures["up",]) == (1, 1)


def test_rows_of_the_quarantine_and_orphans_are_figures_of_their_table(tmp_path: Path) -> None:
    timing = Timing(part_timeout_ms=1_000, min_age_ms=2_000)
    table = Table.create(str(tmp_path / "t"), schema={"n": "BIGINT"}, timing=timing)
    table.insert([{"n": 1}, {"n": "no number"}], on_conflict="quarantine")
    orphan = tmp_path / "t" / "_data" / f"{'0' * 13}_orphan.parquet"
    orphan.write_bytes(b"x" * 50)
    os.utime(orphan, (1, 1))
    exporter = Exporter(tmp_path)
    exporter.tables.run_round()
    figures = exporter.of_table("t")
    assert figures["quarantined_rows",] == 1
    assert (figures["orphan_parts",], figures["orphan_bytes",]) == (1, 50)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"root": "nowhere"}, "no such folder"),
        ({"root": ".", "listen": "localhost"}, "--listen"),
        ({"root": ".", "interval_ms": 10}, "interval"),
    ],
)
def test_invalid_settings_are_rejected(arguments: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidOption, match=why):
        exporter_settings(**arguments)  # type: ignore[arg-type]


class ExporterProcess(ProxyProcess):
    """A process of `icedb exporter`."""

    def command(self) -> list[str]:
        options = ["--listen", "127.0.0.1:0", "--interval", "1s"]
        return [sys.executable, "-m", "icedb.cli", "exporter", str(self.path), *options]


@pytest.mark.process
def test_the_process_serves_figures_and_ends_on_a_signal(root: Path) -> None:
    with ExporterProcess(root) as exporter, IngestClient(exporter.endpoint) as client:
        wait_until(lambda: client.ask("GET", "/ready").status == 200, "no round is complete")
        assert client.ask("GET", "/health").body == b"ok\n"
        text = client.ask("GET", "/metrics").body.decode()
        assert f'icedb_table_live_rows{{table="{SMALL}"}} 34.0' in text
        exporter.signal(signal.SIGTERM)
        assert exporter.wait() == 0
