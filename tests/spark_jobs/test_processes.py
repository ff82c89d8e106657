"""The programs of `spark_jobs` as processes: started by Dagster, on a cluster, on a full disk."""

import json
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark")
dg = pytest.importorskip("dagster")

from icedb import Table
from tests.support.site.pages import ROOT
from tests.support.spark.spark_clusters import SESSION, environment, standalone

pytestmark = pytest.mark.spark

PROGRAM_SECONDS_MAX = 600
FULL_BYTES = 8 * 1024 * 1024
#: More than a quarter of a task's memory. Rows that fit into it are not written to the local disk.
SPILLED_BYTES = 320 * 1024 * 1024


def program(name: str, *arguments: str) -> list[str]:
    return [sys.executable, str(ROOT / "spark_jobs" / f"{name}.py"), *arguments]


def submitted(spark_home: Path, name: str, conf: dict[str, str], *words: str) -> list[str]:
    settings = [word for option in (SESSION | conf).items() for word in ("--conf", "=".join(option))]
    return [str(spark_home / "bin" / "spark-submit"), *settings, *words[:-1], name, *words[-1].split("|")]


def raw_events(folder: Path, lines: list[Any]) -> str:
    path = folder / "raw.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return str(path)


@pytest.mark.slow(seconds=40)  # the short run has the reports of test_launch.py
def test_dagster_gets_the_result_and_the_error_of_a_failed_step(spark_home: Path, tmp_path: Path) -> None:
    table = Table.create(tmp_path / "events", partition_by=["n % 2 AS odd"], schema={"n": "BIGINT"})
    source = raw_events(tmp_path, [{"n": 1}, {"n": 2}, "no json"])
    env = environment(spark_home)

    @dg.asset(check_specs=[dg.AssetCheckSpec("no_quarantined_records", asset="events")])
    def events(context: dg.AssetExecutionContext, client: dg.PipesSubprocessClient):
        command = program("ingest_events", "--table", table.uri, "--input", source, "--quarantine")
        extras = {"checks": ["no_quarantined_records"]}
        return client.run(context=context, command=command, env=env, extras=extras).get_results()

    @dg.asset(partitions_def=dg.DailyPartitionsDefinition("2026-01-01"))
    def lost(context: dg.AssetExecutionContext):
        """Pass the address of Dagster by arguments, as in places without environment variables."""
        command = program("backfill", "--table", str(tmp_path / "nothing"), "--progress", str(tmp_path / "progress"))
        command += ["--partition", "day={date:%Y-%m-%d}", "--input", "{date:%d}.jsonl"]
        with dg.open_pipes_session(
            context=context,
            context_injector=dg.PipesTempFileContextInjector(),
            message_reader=dg.PipesTempFileMessageReader(),
        ) as session:
            words = [word for pair in session.get_bootstrap_cli_arguments().items() for word in pair]
            subprocess.run([*command, *words], env=env, check=True, timeout=PROGRAM_SECONDS_MAX)
        return session.get_results()

    with dg.DagsterInstance.ephemeral() as instance:
        client = dg.PipesSubprocessClient()
        result = dg.materialize([events], resources={"client": client}, instance=instance)
        [materialized] = result.asset_materializations_for_node("events")
        [check] = result.get_asset_check_evaluations()
        texts = messages(instance, result)
        failed = dg.materialize([lost], instance=instance, partition_key="2026-01-02", raise_on_error=False)
        said_of_failed = messages(instance, failed)
        errors = [
            e.dagster_event.engine_event_data.error.message
            for e in instance.all_logs(failed.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
            if e.dagster_event.engine_event_data.error
        ]

    snapshot = table.snapshot()
    metadata = {name: value.value for name, value in materialized.metadata.items()}
    assert (metadata["ingest_events/rows_written"], metadata["ingest_events/rows_quarantined"]) == (2, 1)
    assert (metadata["dagster/row_count"], metadata["icedb/live_parts"]) == (2, len(snapshot.parts))
    assert (metadata["icedb/bytes"], metadata["icedb/snapshot_id"]) == (snapshot.bytes, snapshot.id)
    columns = metadata["dagster/column_schema"].columns
    assert [(c.name, c.type) for c in columns] == [("n", "BIGINT"), ("odd", "BIGINT")]
    assert materialized.tags["dagster/data_version"] == snapshot.id
    assert (check.check_name, check.passed) == ("no_quarantined_records", False)
    assert any("3 records, 2 written in 2 parts, 1 quarantined" in text for text in texts)

    assert not failed.success
    line = f"backfill: TableNotFound: {tmp_path / 'nothing'}: "
    assert len(errors) == 1
    assert errors[0].startswith(line)
    assert "\n" not in errors[0].strip()
    assert any(text.startswith(line) for text in said_of_failed)
    assert f"{tmp_path / 'nothing'}: 1 partitions, 2026-01-02 to 2026-01-02" in said_of_failed


def messages(instance: Any, result: Any) -> list[str]:
    """Return the log messages of a run."""
    return [e.user_message for e in instance.all_logs(result.run_id)]


@pytest.mark.slow(seconds=60)
def test_executors_with_only_the_dependencies_get_icedb_as_a_wheel(spark_home: Path, tmp_path: Path) -> None:
    """Run with a Python that has the installed dependencies but not the checkout."""
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT],
        check=True,
        timeout=240,
    )
    [built] = tmp_path.glob("*.whl")
    wheel = built.rename(tmp_path / "icedb.zip")  # executors import only from archives with such a name
    with zipfile.ZipFile(wheel) as files:
        merge = files.extract("spark_jobs/ingest_events.py", tmp_path / "program")
    venv.create(tmp_path / "python", with_pip=False)
    python = str(tmp_path / "python" / "bin" / "python")
    env = environment(spark_home) | {
        "PYTHONPATH": sysconfig.get_path("platlib"),
        "PYSPARK_PYTHON": python,
        "PYSPARK_DRIVER_PYTHON": python,
    }
    without = subprocess.run(
        [python, "-c", "import duckdb, icedb"], env=env, cwd=tmp_path, capture_output=True, text=True
    )
    assert "No module named 'icedb'" in without.stderr

    source = raw_events(tmp_path, [{"n": n} for n in range(10)])
    table = str(tmp_path / "events")
    with standalone(tmp_path, env) as master:
        arguments = f"--table|{table}|--input|{source}|--create|--partition-by|n % 2 AS odd|--sort-by|n"
        words = ("--master", master, "--py-files", str(wheel), arguments)
        command = submitted(spark_home, merge, {"spark.executor.memory": "512m"}, *words)
        done = subprocess.run(
            command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=PROGRAM_SECONDS_MAX
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "rows_written      10" in done.stdout
    assert Table.open(table).query("SELECT count(*), sum(n) FROM t").fetchall() == [(10, 45)]


def can_mount() -> bool:
    """Return whether a process may mount its own file systems on this machine."""
    tried = subprocess.run([*in_own_mounts(Path("/mnt")), "true"], capture_output=True)
    return tried.returncode == 0


def in_own_mounts(folder: Path) -> list[str]:
    """Return a command prefix that mounts a small private disk at a folder."""
    mount = f'mount -t tmpfs -o size={FULL_BYTES} tmpfs "{folder}" && exec "$@"'
    return ["unshare", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]


@pytest.mark.slow(seconds=30)
@pytest.mark.skipif(not can_mount(), reason="no mount namespaces here")
def test_a_full_disk_is_one_line(spark_home: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    table = Table.create(tmp_path / "blobs")
    noise = np.random.default_rng(1).bytes(SPILLED_BYTES // 8)
    rows = {"blob": [8 * noise[n : n + 25_000] for n in range(0, len(noise), 25_000)]}  # one task reads the small file
    pq.write_table(pa.table(rows), tmp_path / "blobs.parquet", row_group_size=10)
    arguments = f"--table|{table.uri}|--input|{tmp_path / 'blobs.parquet'}"
    command = submitted(
        spark_home, str(ROOT / "spark_jobs" / "ingest_events.py"), {"spark.local.dir": str(scratch)},
        "--master", "local[1]", arguments,
    )  # fmt: skip
    env = environment(spark_home)
    done = subprocess.run(
        [*in_own_mounts(scratch), *command], env=env, cwd=tmp_path, capture_output=True, text=True,
        timeout=PROGRAM_SECONDS_MAX,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    *_, line = done.stdout.splitlines()  # spark-submit prints the stderr of a Python program on stdout
    assert line.startswith(f"ingest_events: SparkJobFailed: {table.uri}: a Spark task found no space left"), line
    assert table.snapshot().parts == ()
