"""The plugin of dbt-duckdb and its example, with real dbt processes and with Dagster. Run by `make dbt-test`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

import icedb
from icedb import Table

EXAMPLE = Path(__file__).parents[2] / "examples" / "dbt"
DAYS = [date(2026, 11, 1), date(2026, 11, 2)]


@pytest.fixture
def visits(tmp_path: Path) -> Table:
    """Return the source: n visits on the n-th day."""
    table = Table.create(tmp_path / "lake" / "visits", partition_by=["day"])
    table.insert([{"day": day, "user_id": n % 2} for number, day in enumerate(DAYS, 1) for n in range(number)])
    return table


@pytest.fixture
def project(tmp_path: Path, visits: Table) -> Path:
    return Path(shutil.copytree(EXAMPLE, tmp_path / "project"))


def environment(project: Path) -> dict[str, str]:
    files = project.parent / "files"
    files.mkdir(exist_ok=True)
    return os.environ | {
        "LAKE_ROOT": str(project.parent / "lake"),
        "DBT_FILES": str(files),
        "DBT_TARGET_PATH": str(project.parent / "target"),
        "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
        "NO_COLOR": "1",
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }


def dbt(project: Path, *arguments: str, works: bool = True) -> str:
    """Run dbt, and return its output."""
    command = [str(Path(sys.executable).with_name("dbt")), "build", "--profiles-dir", str(project), *arguments]
    done = subprocess.run(command, cwd=project, env=environment(project), capture_output=True, text=True, check=False)
    assert (done.returncode == 0) is works, done.stdout
    return done.stdout


def rows(project: Path, table: str) -> list[tuple[Any, ...]]:
    return sorted(Table.open(project.parent / "lake" / table).query("SELECT * FROM t").fetchall())


def test_models_read_attached_tables_and_are_committed(project: Path, visits: Table) -> None:
    assert "PASS=3" in dbt(project)
    assert rows(project, "visits_daily") == [(DAYS[0], 1, 1), (DAYS[1], 2, 2)]
    assert rows(project, "visits_total") == [(3,)]
    table = Table.open(project.parent / "lake" / "visits_daily")
    assert (table.spec.partition_by, table.spec.sort_by) == (("day",), ("day",))
    visits.insert([{"day": DAYS[0], "user_id": 9}])
    dbt(project)  # an overwrite has the same result again, or that of the new rows
    assert rows(project, "visits_daily") == [(DAYS[0], 2, 2), (DAYS[1], 2, 2)]
    assert table.history()[0].kind == "overwrite"


def test_a_variable_selects_the_partition_that_is_replaced(project: Path, visits: Table) -> None:
    dbt(project)
    visits.insert([{"day": day, "user_id": 9} for day in DAYS])
    dbt(project, "--select", "visits_daily", "--vars", "{day: 2026-11-02}")
    assert rows(project, "visits_daily") == [(DAYS[0], 1, 1), (DAYS[1], 3, 3)]
    visits.drop_partitions(["day=2026-11-02"])
    dbt(project, "--select", "visits_daily", "--vars", "{day: 2026-11-02}")  # no rows: the partition is empty
    assert rows(project, "visits_daily") == [(DAYS[0], 1, 1)]


def test_an_append_adds_rows_and_a_key_names_the_table(project: Path) -> None:
    model = "{{ config(icedb={'mode': 'append', 'key': 'sales/log'}) }} SELECT 1 AS n, NULL::VARCHAR AS text"
    (project / "models" / "log.sql").write_text(model)
    for _ in range(2):
        dbt(project, "--select", "log")
    assert rows(project, "sales/log") == [(1, None), (1, None)]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("{{ config(icedb={'mod': 'append'}) }} SELECT 1 AS n", "'mod', which is no option. Options are key, mode"),
        ("{{ config(icedb={'mode': 'merge'}) }} SELECT 1 AS n", "mode is 'merge'"),
        ("{{ config(icedb={'mode': 'append', 'partitions': 'n = 1'}) }} SELECT 1 AS n", "append without partitions"),
        ("SELECT 1 AS n WHERE false", "no rows, so an overwrite would only delete"),
        ("SELECT 'text' AS visits", "visits"),
    ],
)
def test_a_model_that_does_not_fit_fails_and_changes_nothing(project: Path, model: str, message: str) -> None:
    dbt(project)
    (project / "models" / "visits_total.sql").write_text(model)
    assert message in " ".join(dbt(project, "--select", "visits_total", works=False).split())
    assert rows(project, "visits_total") == [(3,)]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('path: ":memory:"', "path: lake.duckdb", "Set path: ':memory:' in profiles.yml"),
        ("root: \"{{ env_var('LAKE_ROOT') }}\", ", "", "root is missing"),
        ("tables: [visits]", "tables: [nope]", "there is no table"),
    ],
)
def test_an_invalid_profile_is_named(project: Path, old: str, new: str, message: str) -> None:
    profile = project / "profiles.yml"
    assert old in profile.read_text()
    profile.write_text(profile.read_text().replace(old, new))
    assert message in " ".join(dbt(project, works=False).split())


def test_the_models_are_assets_with_maintenance(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dg = pytest.importorskip("dagster")
    for name, value in environment(project).items():
        monkeypatch.setenv(name, value)
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.chdir(project)
    from definitions import defs  # type: ignore[import-not-found]

    with dg.DagsterInstance.ephemeral() as instance:
        job = defs.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=instance)
        assert result.success
        keys = {event.asset_key.to_user_string() for event in result.get_asset_materialization_events()}
        assert keys == {"visits_daily", "visits_total"}
        assert [c.check_name for c in result.get_asset_check_evaluations()] == ["unique_visits_daily_day"]
    assert rows(project, "visits_total") == [(3,)]
    assert "visits_daily_merge_newest" in {job.name for job in defs.resolve_all_job_defs()}


def test_the_module_without_dbt_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dbt.adapters.duckdb.plugins", None)
    monkeypatch.delitem(sys.modules, "icedb.engines.dbt", raising=False)
    with pytest.raises(ImportError, match=r"pip install 'icedb-dagster\[dbt\]'"):
        __import__("icedb.engines.dbt")
    assert icedb.__name__ == "icedb"
