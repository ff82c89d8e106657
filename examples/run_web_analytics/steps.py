"""The steps of the example. Dagster could run each on a schedule. Each result is checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta

import dagster as dg
from web_analytics.definitions import defs as load_definitions
from web_analytics.defs.resources import lake
from web_analytics.generate import generate
from web_analytics.settings import DAYS, INBOX, PARTITIONS, REPORTS

import icedb
from examples.run_web_analytics import checks
from examples.run_web_analytics.expected import EventCounts, ExpectedSession, count_inbox
from examples.shared.numbers import NumbersDisagree
from examples.shared.recovery import process_tags
from examples.shared.report import ExampleReport
from examples.shared.running import QUIET, maintain, materialize

__all__ = ["Example"]

TABLES = ("events", "page_views", "events_quarantine", "sessions", "daily_metrics")
# The time to live in the tables' YAML. A run over fewer days keeps half of them.
KEEP_DAYS = 30
# No other program uses these tables, so cleanup need not wait for readers.
CLEANUP = {"grace_ms": 0, "allow_short_grace": True}


class Example:
    """One run of all steps. `scale` multiplies the number of events."""

    def __init__(self, instance: dg.DagsterInstance, report: ExampleReport, *, scale: float = 1.0) -> None:
        self._instance = instance
        self._report = report
        self._scale = scale
        self._days = PARTITIONS.get_partition_keys()
        self._defs = load_definitions()

    def run(self) -> None:
        """Run all steps. Raises NumbersDisagree."""
        with self._step("generate events"):
            lines = generate(INBOX, DAYS, scale=self._scale)
        self._report.say(f"  {lines:,} lines of {len(DAYS)} days in {INBOX}")
        with self._step("count by other means"):
            expected = count_inbox(INBOX)
            sessions = expected.sessions()
        self._ingest(expected)
        self._derive(sessions)
        self._look(expected, sessions)
        kept = self._expire(expected)
        self._forget(expected, kept)
        self._draw("dashboard without the user")
        self._report.summary("Web analytics, step by step")

    # ------------------------------------------------------------------------------------ in

    def _ingest(self, expected: EventCounts) -> None:
        """Ingest each day's files, and the last days again, which adds nothing."""
        with self._step(f"ingest {len(self._days)} days", "events"):
            self._materialize("events", partitions=self._days)
        fed = ("events", "page_views", "events_quarantine")
        before = {name: lake.table(name).snapshot().id for name in fed}
        with self._step("ingest the last days again", "events"):
            self._materialize("events", partitions=self._days[-3:])
        checks.unchanged({name: lake.table(name).snapshot().id for name in fed}, before)
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), expected)
        checks.viewed(lake.table("page_views"), expected)

    def _derive(self, sessions: list[ExpectedSession]) -> None:
        with self._step("sessions with Spark", "sessions"):
            self._report.say("  starting Spark")
            self._materialize("sessions", partitions=self._days)
        checks.sessions(lake.table("sessions"), sessions)
        with self._step("daily metrics with DuckDB", "daily_metrics"):
            self._materialize("daily_metrics", partitions=self._days)
        checks.metrics(lake.table("daily_metrics"), sessions)

    # ------------------------------------------------------------------------------------ in good order

    def _look(self, expected: EventCounts, sessions: list[ExpectedSession]) -> None:
        """Run the tables' checks before and after a merge, and draw the dashboard."""
        with self._step("checks before the merge"):
            failed = self._run_checks()
        if others := [name for name in failed if not name.endswith("/small_parts")]:
            raise NumbersDisagree(f"checks other than small_parts fail before the merge: {others}")
        for name in ("events", "page_views"):
            with self._step(f"merge {name}", name):
                # `hot_ms` merges all small parts, and a slow machine needs more than the default minute.
                self._maintain(f"{name}_merge_oldest", {"seconds_max": 600, "hot_ms": -1})
            checks.merged(lake.table(name))
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), expected)
        checks.viewed(lake.table("page_views"), expected)
        with self._step("checks after the merge"):
            failed = self._run_checks()
        if failed:
            raise NumbersDisagree(f"checks fail after the merge: {failed}")
        self._draw("dashboard")

    def _expire(self, expected: EventCounts) -> EventCounts:
        """Drop old events, and their rows in the view. Sessions and metrics remain."""
        reference = DAYS[-1] + timedelta(days=1)
        keep = KEEP_DAYS if len(DAYS) > KEEP_DAYS else max(1, len(DAYS) // 2)
        first_kept = reference - timedelta(days=keep)
        for name in ("events", "page_views"):
            with self._step(f"{keep} days to live: {name}", name):
                self._maintain(f"{name}_ttl", {"reference_date": str(reference), "keep_days": keep})
        kept = expected.since(str(first_kept))
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), kept)
        checks.viewed(lake.table("page_views"), kept)
        return kept

    # ------------------------------------------------------------------------------------ forgotten

    def _forget(self, expected: EventCounts, kept: EventCounts) -> None:
        """Delete one user's rows everywhere, and refresh the tables derived from them."""
        user = kept.busiest_misfit()
        self._report.say(f"  user {user} requests deletion")
        conditions = {
            "events": f"user_id = {user}",
            "sessions": f"user_id = {user}",
            "events_quarantine": f"row ->> '$.user_id' IN ('{user}', 'user-{user}')",
        }
        for name, where in conditions.items():
            with self._step(f"delete: {name}", name):
                self._maintain(f"{name}_delete", {"where": where})
        with self._step("refresh the view", "page_views"):
            self._run_job("page_views_refresh")
        with self._step("refresh the metrics", "daily_metrics"):
            self._materialize("daily_metrics", partitions=self._days)
        sessions = [session for session in expected.sessions() if session.user != user]
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), kept.without(user))
        checks.viewed(lake.table("page_views"), kept.without(user))
        checks.sessions(lake.table("sessions"), sessions)
        checks.metrics(lake.table("daily_metrics"), sessions)
        self._clean_up(user)

    def _clean_up(self, user: int) -> None:
        """Delete superseded objects. Then no object contains the user, and every table is sound."""
        for name in TABLES:
            with self._step(f"cleanup {name}", name):
                self._maintain(f"{name}_cleanup", CLEANUP)
            checks.only_live_objects(lake.table(name))
        with self._step("search every object"):
            objects = sum(checks.nothing_stored_of(lake.table(name), user) for name in TABLES)
            for name in TABLES:
                self._maintain(f"{name}_verify", {"deep": True})
        self._report.say(f"  {objects:,} objects, none contains the user")

    # ------------------------------------------------------------------------------------ with Dagster

    def _draw(self, name: str) -> None:
        picture = REPORTS / "dashboard.png"
        with self._step(name):
            self._materialize("dashboard")
        if not picture.read_bytes().startswith(b"\x89PNG"):
            raise NumbersDisagree(f"{picture} is not a PNG")

    @contextmanager
    def _step(self, name: str, table: str | None = None) -> Iterator[None]:
        open_table: Callable[[], icedb.Table] | None = None if table is None else lambda: lake.table(table)
        with self._report.step(name, open_table):
            yield

    def _materialize(self, key: str, *, partitions: Sequence[str] = ()) -> None:
        materialize(self._instance, self._defs, dg.AssetKey(key), partitions=partitions)

    def _maintain(self, job: str, config: Mapping[str, object] | None = None) -> None:
        maintain(self._instance, self._defs, job, config)

    def _run_job(self, job: str) -> dg.ExecuteInProcessResult:
        resolved = self._defs.resolve_job_def(job)
        return resolved.execute_in_process(instance=self._instance, run_config=QUIET, tags=process_tags())

    def _run_checks(self) -> list[str]:
        """Run all asset checks, and return the names of those that fail, including warnings."""
        result = self._run_job("look")
        evaluations = result.get_asset_check_evaluations()
        failed = [f"{it.asset_key.to_user_string()}/{it.check_name}" for it in evaluations if not it.passed]
        self._report.say(f"  {len(evaluations)} checks, {len(failed)} fail{': ' if failed else ''}{', '.join(failed)}")
        return sorted(failed)
