"""The example, step by step: each does something that Dagster could do on a schedule, and is checked."""

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
from examples.run_web_analytics.expected import Expected, Session, count_inbox
from examples.shared.numbers import NumbersDisagree
from examples.shared.recovery import process_tags
from examples.shared.report import Report
from examples.shared.running import QUIET, maintain, materialize

__all__ = ["Example"]

TABLES = ("events", "page_views", "events_quarantine", "sessions", "daily_metrics")
# The time to live that the tables' YAML says; a run over fewer days keeps half of them.
KEEP_DAYS = 30
# Nothing else uses these tables, so cleanup need not wait for readers.
CLEANUP = {"grace_ms": 0, "allow_short_grace": True}


class Example:
    """One run over all steps. `scale`: so many times the usual events."""

    def __init__(self, instance: dg.DagsterInstance, report: Report, *, scale: float = 1.0) -> None:
        self._instance = instance
        self._report = report
        self._scale = scale
        self._days = PARTITIONS.get_partition_keys()
        self._defs = load_definitions()

    def run(self) -> None:
        """All steps. Raises NumbersDisagree."""
        with self._step("generate events"):
            lines = generate(INBOX, DAYS, scale=self._scale)
        self._report.say(f"  {lines:,} lines of {len(DAYS)} days in {INBOX}")
        with self._step("count them by other means"):
            expected = count_inbox(INBOX)
            sessions = expected.sessions()
        self._ingest(expected)
        self._derive(sessions)
        self._look(expected, sessions)
        kept = self._expire(expected)
        self._forget(expected, kept)
        self._draw("dashboard without them")
        self._report.summary("Web analytics, step by step")

    # ------------------------------------------------------------------------------------ in

    def _ingest(self, expected: Expected) -> None:
        """Each day's files, once; and once more, which adds nothing."""
        with self._step(f"ingest {len(self._days)} days", "events"):
            self._materialize("events", partitions=self._days)
        fed = ("events", "page_views", "events_quarantine")
        before = {name: lake.table(name).snapshot().id for name in fed}
        with self._step("the last days once more", "events"):
            self._materialize("events", partitions=self._days[-3:])
        checks.unchanged({name: lake.table(name).snapshot().id for name in fed}, before)
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), expected)
        checks.viewed(lake.table("page_views"), expected)

    def _derive(self, sessions: list[Session]) -> None:
        with self._step("sessions with Spark", "sessions"):
            self._report.say("  starting Spark")
            self._materialize("sessions", partitions=self._days)
        checks.sessions(lake.table("sessions"), sessions)
        with self._step("daily metrics with DuckDB", "daily_metrics"):
            self._materialize("daily_metrics", partitions=self._days)
        checks.metrics(lake.table("daily_metrics"), sessions)

    # ------------------------------------------------------------------------------------ in good order

    def _look(self, expected: Expected, sessions: list[Session]) -> None:
        """The tables' checks, before and after a merge; and the dashboard."""
        with self._step("checks before the merge"):
            failed = self._run_checks()
        if others := [name for name in failed if not name.endswith("/small_parts")]:
            raise NumbersDisagree(f"checks fail before the merge, and not for small parts: {others}")
        for name in ("events", "page_views"):
            with self._step(f"merge {name}", name):
                self._maintain(f"{name}_merge_oldest", {"seconds_max": 600})  # a slow machine needs more than a minute
            checks.merged(lake.table(name))
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), expected)
        checks.viewed(lake.table("page_views"), expected)
        with self._step("checks after the merge"):
            failed = self._run_checks()
        if failed:
            raise NumbersDisagree(f"checks fail after the merge: {failed}")
        self._draw("dashboard")

    def _expire(self, expected: Expected) -> Expected:
        """Drop old events and what the view has of them; sessions and metrics stay."""
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

    def _forget(self, expected: Expected, kept: Expected) -> None:
        """Delete one user's rows everywhere, and make anew what was made of them."""
        user = kept.busiest_misfit()
        self._report.say(f"  user {user} wants to be forgotten")
        conditions = {
            "events": f"user_id = {user}",
            "sessions": f"user_id = {user}",
            "events_quarantine": f"row ->> '$.user_id' IN ('{user}', 'user-{user}')",
        }
        for name, where in conditions.items():
            with self._step(f"forget: {name}", name):
                self._maintain(f"{name}_delete", {"where": where})
        with self._step("make the view anew", "page_views"):
            self._run_job("page_views_refresh")
        with self._step("make the metrics anew", "daily_metrics"):
            self._materialize("daily_metrics", partitions=self._days)
        sessions = [session for session in expected.sessions() if session.user != user]
        checks.ingested(lake.table("events"), lake.table("events_quarantine"), kept.without(user))
        checks.viewed(lake.table("page_views"), kept.without(user))
        checks.sessions(lake.table("sessions"), sessions)
        checks.metrics(lake.table("daily_metrics"), sessions)
        self._clean_up(user)

    def _clean_up(self, user: int) -> None:
        """Delete what is superseded; then no object has the user any more, and every table is sound."""
        for name in TABLES:
            with self._step(f"cleanup {name}", name):
                self._maintain(f"{name}_cleanup", CLEANUP)
            checks.only_live_objects(lake.table(name))
        with self._step("look into every object"):
            objects = sum(checks.nothing_stored_of(lake.table(name), user) for name in TABLES)
            for name in TABLES:
                self._maintain(f"{name}_verify", {"deep": True})
        self._report.say(f"  {objects:,} objects, nothing of the user in any of them")

    # ------------------------------------------------------------------------------------ with Dagster

    def _draw(self, name: str) -> None:
        picture = REPORTS / "dashboard.png"
        with self._step(name):
            self._materialize("dashboard")
        if not picture.read_bytes().startswith(b"\x89PNG"):
            raise NumbersDisagree(f"{picture} is no picture")

    @contextmanager
    def _step(self, name: str, table: str | None = None) -> Iterator[None]:
        look: Callable[[], icedb.Table] | None = None if table is None else lambda: lake.table(table)
        with self._report.step(name, look):
            yield

    def _materialize(self, key: str, *, partitions: Sequence[str] = ()) -> None:
        materialize(self._instance, self._defs, dg.AssetKey(key), partitions=partitions)

    def _maintain(self, job: str, config: Mapping[str, object] | None = None) -> None:
        maintain(self._instance, self._defs, job, config)

    def _run_job(self, job: str) -> dg.ExecuteInProcessResult:
        resolved = self._defs.resolve_job_def(job)
        return resolved.execute_in_process(instance=self._instance, run_config=QUIET, tags=process_tags())

    def _run_checks(self) -> list[str]:
        """Run all asset checks, and return the names of those that fail: warnings, too."""
        result = self._run_job("look")
        found = result.get_asset_check_evaluations()
        failed = [f"{it.asset_key.to_user_string()}/{it.check_name}" for it in found if not it.passed]
        self._report.say(f"  {len(found)} checks, {len(failed)} fail{': ' if failed else ''}{', '.join(failed)}")
        return sorted(failed)
