"""A small round of each benchmark, which checks its own answers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.support.processes import run_python

ROOT = Path(__file__).parents[2]


def run_benchmark(tmp_path: Path, module: str, options: str, **paths: Path) -> tuple[Any, str]:
    """Run a benchmark in its own process, and return its results and its output. `paths` are further options."""
    target = tmp_path / "results.json"
    words = [*options.split(), *(word for name, path in paths.items() for word in (f"--{name}", str(path)))]
    env = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = run_python("-m", module, *words, "--json", target, cwd=tmp_path, env=env)
    return json.loads(target.read_text()), done.stdout


@pytest.mark.spark
@pytest.mark.slow(seconds=60)
def test_a_small_round_of_everything_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    results, output = run_benchmark(tmp_path, "benchmarks.spark", "--rows 20000 --rounds 1", folder=tmp_path / "cache")
    results = results["results"]
    assert {(r["group"], r["goal"]) for r in results if r["goal"]} == {
        ("write", 0.65),
        ("write", 0.85),
        ("read, aggregated", 1.05),
        ("read, whole", 1.05),
        ("merge", 1.5),
    }
    written = {r["case"]: r for r in results if r["group"] == "write"}
    assert written["icedb, distributed"]["files"] < written["icedb, not distributed"]["files"]
    assert all(len(r["seconds"]) == 1 and r["seconds"][0] > 0 for r in results)
    assert all(r["worker_bytes_max"] > 0 for name, r in written.items() if name.startswith("icedb"))
    assert all(r["case"] in output for r in results)
    assert [p.name for p in (tmp_path / "cache").iterdir()] == ["events-20000-v1"]  # nothing else stays behind


@pytest.mark.spark
@pytest.mark.slow(seconds=60)
def test_a_short_stream_is_measured_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("pyspark")
    pytest.importorskip("matplotlib")
    plot, work = tmp_path / "images" / "plot.png", tmp_path / "work"
    work.mkdir()
    options = "--minutes 1 --every 6 --rows 500 --speedup 6 --maintain-every 1"
    results, output = run_benchmark(tmp_path, "benchmarks.stream", options, folder=work, plot=plot)
    assert (results["files"], results["rows"], len(results["latencies"])) == (10, 5000, 10)
    assert results["maintained"] > 0
    assert 0 < results["percentiles"]["50"] <= results["percentiles"]["90"] <= results["percentiles"]["100"]
    assert min(results["live_parts"] + results["log_files"]) > 0
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "seconds from arrival to visibility" in output
    assert list(work.iterdir()) == []  # nothing stays behind


@pytest.mark.slow(seconds=5)
def test_tpch_queries_have_the_right_answers(tmp_path: Path) -> None:
    from benchmarks.queries import tpch

    with tpch.make_layouts(tmp_path, 0.01) as layouts:
        assert [(layout.name, layout.parts) for layout in layouts] == [("10 batches", 26), ("merged", 8)]
        for layout in layouts:
            assert len(layout.questions) == 22
            for way, con in layout.connections.items():
                for number, (sql, answer) in layout.questions.items():
                    if way != tpch.BARE:
                        tpch.check_answer(con.execute(sql).fetchall(), answer, number)


@pytest.mark.parametrize(
    "rows", [[], [("A", 1.5)], [("A", 1.5), ("B", 2.52)], [("A", 1.5), ("C", 2.5)], [("A", 1.5), ("B", None)]]
)
def test_a_wrong_answer_is_detected(rows: list[tuple[object, ...]]) -> None:
    from benchmarks.queries.tpch import check_answer

    answer = "name|sum\nA|1.5000\nB|2.5\n"
    check_answer([("B", 2.5049), ("A", 1.5)], answer, 1)
    with pytest.raises(AssertionError, match="query 1 has"):
        check_answer(rows, answer, 1)


def test_opened_files_are_counted(tmp_path: Path) -> None:
    from benchmarks.queries.opens import files_opened

    (tmp_path / "below").mkdir()
    for name in ("a", "b", "below/a", "below/c"):
        (tmp_path / name).write_text(name)
    with files_opened(tmp_path) as opened:
        for name in ("a", "below/a", "below/a"):
            (tmp_path / name).read_text()
        list((tmp_path / "below").iterdir())
        (tmp_path / "b").stat()
    (tmp_path / "below" / "c").read_text()
    assert opened == {str(tmp_path / "a"), str(tmp_path / "below" / "a")}


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_pruning_opens_only_matching_parts(tmp_path: Path) -> None:
    from benchmarks.queries.selective import measure_local

    answers = measure_local(tmp_path, 17, rounds=1, on_step=lambda _: None)
    counts = {(a.question, a.way): (a.parts, a.files) for a in answers}
    ways = {way: [counts[question, way] for question in ("one day", "some users", "some users on one day")]
            for _, way in counts}  # fmt: skip
    assert ways == {
        "bare files": [(16, 16)] * 3,
        "attached view": [(16, 4), (16, 16), (16, 4)],  # a view does not know the condition
        "attached macro, filter := ...": [(16, 4), (16, 4), (16, 1)],
        "table.query": [(16, 4), (16, 4), (16, 1)],
    }


@pytest.mark.s3
@pytest.mark.slow(seconds=60)
def test_queries_are_measured_and_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot, work = tmp_path / "images" / "plot.png", tmp_path / "work"
    work.mkdir()
    options = "--scale 0.01 --rounds 1 --parts 25 --store-parts 16 --latency-ms 1"
    results, output = run_benchmark(tmp_path, "benchmarks.query", options, folder=work, plot=plot)
    assert {(r["layout"], r["way"], r["goal"]) for r in results["tpch"]} == {
        (layout, way, 1.05) for layout in ("10 batches", "merged") for way in ("snapshot", "attached table")
    }
    assert all(len(r["ratios"]) == 22 and len(r["rounds"]) == 1 for r in results["tpch"])
    store = {(a["question"], a["way"]): a for a in results["store"]}
    bare, pruned = (store["some users on one day", way] for way in ("bare files", "table.query"))
    assert (bare["files"], pruned["files"], pruned["times_fewer"]) == (16, 1, 16)
    assert pruned["requests"] < 8 < bare["requests"]
    looks = {(look["place"], look["way"]): look["requests"] for look in results["looks"]}
    of_parts = looks["S3, 1 ms a request", "bare files"]
    assert looks["S3, 1 ms a request", "attached view"] == of_parts | {"LIST": 1}
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert "geometric mean" in output
    assert list(work.iterdir()) == []  # nothing stays behind


@pytest.mark.parametrize(
    ("direct", "through", "rate", "met"),
    [
        ([100.0, 10.0, 10.0], [1.0, 7.0, 7.0], True, True),  # by the ratio of each round, and their median
        ([100.0, 10.0, 10.0], [100.0, 6.0, 6.0], True, False),
        ([], [0.1, 0.6, 0.8], False, True),
        ([], [0.8, 0.8, 0.1], False, False),
    ],
)
def test_a_goal_of_the_proxy_is_met_or_missed(direct: list[float], through: list[float], rate: bool, met: bool) -> None:
    from benchmarks.proxy import Figure

    assert Figure("", "", direct, through, 0.7, rate=rate).met is met
    assert Figure("", "", direct, through, rate=rate).met is None


@pytest.mark.s3
@pytest.mark.slow(seconds=60)
def test_the_proxy_is_measured(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    results, output = run_benchmark(tmp_path, "benchmarks.proxy", "--short", folder=work)
    assert [f["goal"] for f in results["figures"] if f["goal"]] == [0.7, 0.95, 0.06, 1.05]
    assert all(min(f["through"]) > 0 for f in results["figures"])
    assert [len(f["direct"]) for f in results["figures"]] == [2, 2, 2, 2, 2, 0, 0, 0, 1]
    assert results["server"] in output
    assert all(f["name"] in output for f in results["figures"])
    assert list(work.iterdir()) == []  # nothing stays behind


@pytest.mark.process
@pytest.mark.slow(seconds=20)
def test_the_iceberg_catalog_is_measured(tmp_path: Path) -> None:
    from benchmarks.iceberg_catalog import measure

    lines: list[str] = []
    measure(tmp_path, 1_500, 20, lines.append)
    plans = ["plan in pyiceberg", "plan in pyiceberg", "plan in DuckDB"]
    names = ["load", *plans, "after an append of 20 parts", "20 loads"]
    assert [line.partition(":")[0].partition(",")[0] for line in lines] == names


@pytest.mark.dagster
@pytest.mark.slow(seconds=120)
def test_a_running_platform_is_measured(tmp_path: Path) -> None:
    options = "--tables 2 --written 1 --every 5 --minutes 1.5 --warm-up 1"
    env = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    done = run_python("-m", "benchmarks.running_platform", *options.split(), cwd=tmp_path, env=env)
    lines = done.stdout.partition("\n\n")[2].splitlines()
    assert lines[0] == "2 tables, 1 of them with a commit each 5 s, 2 minutes"
    services = {line.partition(":")[0]: float(line.split()[1]) for line in lines if " of a core, " in line}
    assert set(services) == {"postgres", "code", "webserver", "daemon"}
    assert all(cores > 0 for cores in services.values())
    sensors = {line.partition(":")[0] for line in lines if " between ticks, " in line}
    assert sensors == {"icedb_commits_sensor", "icedb_maintenance_sensor"}
    assert any(" from a commit to its event" in line for line in lines)
    assert list(tmp_path.iterdir()) == []  # the platform has ended, and its folder is deleted
