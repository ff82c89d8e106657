"""The figures of an instance for the exporter, read again and again, and the findings of the doctor."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dagster as dg
import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from icedb.services.http.metrics import ComputedMetrics
from icedb.util.clock import Clock, SystemClock
from icedb_dagster.dev.doctor import DoctorFinding
from icedb_dagster.dev.exporter.instance_figures import InstanceFigures, read_instance
from icedb_dagster.dev.exporter.run_figures import RunFigures
from icedb_dagster.dev.project.workspace import reason_of

__all__ = ["DOCTOR_INTERVAL_MS", "INTERVAL_MS", "DagsterFigures"]

logger = logging.getLogger("icedb.exporter")

#: Time between two reads of the instance, and between two runs of the doctor, which loads the project's code.
INTERVAL_MS, DOCTOR_INTERVAL_MS = 60_000, 3_600_000
#: The doctor is killed after this time.
_DOCTOR_SECONDS = 300


class DagsterFigures:
    """The figures of an instance. See `icedb.services.exporter.server.FigureSource`."""

    def __init__(
        self,
        instance: dg.DagsterInstance,
        project_dir: Path,
        *,
        interval_ms: int = INTERVAL_MS,
        doctor_interval_ms: int | None = DOCTOR_INTERVAL_MS,
        clock: Clock | None = None,
    ) -> None:
        """Read nothing yet. `doctor_interval_ms` None: the doctor is not run."""
        self._instance = instance
        self._project_dir = project_dir
        self._interval = interval_ms / 1000
        self._doctor_interval_ms = doctor_interval_ms
        self._clock = clock or SystemClock()
        self._thread = ThreadPoolExecutor(1, "icedb-exporter-dagster")
        #: None until the instance was read, and while it cannot be read.
        self._state: InstanceFigures | None = None
        self._runs: RunFigures | None = None
        self._errors = 0
        self._findings: Counter[tuple[str, str]] = Counter()
        self._doctor_ms = 0

    def register(self, registry: CollectorRegistry) -> None:
        """Add the metrics to a registry. Call it once, before `run`."""
        self._runs = RunFigures(registry)
        registry.register(ComputedMetrics(self._metrics))

    async def run(self) -> None:
        """Read the instance again and again, until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await loop.run_in_executor(self._thread, self.read)
            await self.examine_if_due()
            await asyncio.sleep(max(0, self._interval - (loop.time() - began)))

    def read(self) -> None:
        """Read runs, locks, sensors and heartbeats. An error becomes a figure."""
        try:
            if self._runs is not None:
                self._runs.read(self._instance, self._clock.now_ms())
            self._state = read_instance(self._instance)
        except Exception as error:  # noqa: BLE001 - from the driver, or from any storage class
            if self._state is not None or not self._errors:
                logger.error("the Dagster instance cannot be read: %s", reason_of(error))
            self._errors += 1
            self._state = None

    async def examine_if_due(self) -> None:
        """Run the doctor if its interval is over. It is a process, because it loads the project's code."""
        now_ms, interval_ms = self._clock.now_ms(), self._doctor_interval_ms
        if interval_ms is None or now_ms - self._doctor_ms < interval_ms:
            return
        try:
            findings = await _run_doctor(self._project_dir)
        except (OSError, TimeoutError, msgspec.DecodeError) as error:
            logger.error("the doctor could not examine the platform: %s", reason_of(error))
            self._errors += 1
        else:
            counts = Counter({(finding.check, "problem"): 0 for finding in findings})
            counts.update((finding.check, finding.status) for finding in findings)
            self._findings = counts
        self._doctor_ms = now_ms

    def _metrics(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "icedb_dagster_up", "Whether the instance could be read.", value=float(self._state is not None)
        )
        yield CounterMetricFamily(
            "icedb_dagster_errors", "Reads of the instance, and runs of the doctor, that failed.", value=self._errors
        )
        if self._state is not None:
            yield from self._state.metrics()
        findings = GaugeMetricFamily(
            "icedb_dagster_doctor_findings", "Findings of the doctor.", labels=["check", "status"]
        )
        for labels, number in sorted(self._findings.items()):
            findings.add_metric(labels, number)
        yield findings
        at = GaugeMetricFamily("icedb_dagster_doctor_timestamp_seconds", "Time of the doctor's last run.")
        if self._doctor_ms:
            at.add_metric([], self._doctor_ms / 1000)
        yield at


async def _run_doctor(project_dir: Path) -> list[DoctorFinding]:
    """Return the findings. Raises OSError, TimeoutError, and DecodeError if the doctor could not examine."""
    command = (sys.executable, "-m", "icedb_dagster.dev.command", "doctor", "--json", "--project-dir", str(project_dir))
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(_DOCTOR_SECONDS):
            output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return msgspec.json.decode(output, type=list[DoctorFinding])
