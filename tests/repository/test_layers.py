"""Imports only point down, and what is heavy or optional is imported only where it belongs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

import icedb

ROOT = Path(__file__).parents[2]

#: Folders and single modules from the ground up. A module imports only from entries above its own in this list, and
#: from its own folder. `icedb` and `icedb_dagster` hold the public names, so their modules have entries of their own.
FOLDERS = [
    "icedb.errors",
    "icedb.util",
    "icedb.format",
    "icedb.storage",
    "icedb.sql",
    "icedb.sources.inference",
    "icedb.sources",
    "icedb.writer.encoding",
    "icedb.writer",
    "icedb.transaction",
    "icedb.reader",
    "icedb.reader.iceberg",
    "icedb.operations",
    "icedb.operations.commits",
    "icedb.operations.write",
    "icedb.operations.rewrite",
    "icedb.operations.upsert",
    "icedb.operations.retention",
    "icedb.operations.integrity",
    "icedb.operations.health",
    "icedb.operations.report",
    "icedb.operations.importing",
    "icedb.operations.export",
    "icedb.table",
    "icedb.buffering",
    "icedb.v3",
    "icedb.log",
    "icedb.icedb",
    "icedb",
    "icedb.testing",
    "icedb.testing.simulation.world",
    "icedb.testing.simulation.scenes",
    "icedb.testing.simulation",
    "icedb.engines.clickhouse",
    "icedb.engines",
    "icedb.engines.duckdb",
    "icedb.engines.dbt",
    "icedb.engines.polars",
    "icedb.services",
    "icedb.services.http",
    "icedb.services.proxy.s3",
    "icedb.services.proxy.config",
    "icedb.services.proxy.catalog",
    "icedb.services.proxy.iceberg",
    "icedb.services.proxy",
    "icedb.services.ingest.events",
    "icedb.services.ingest.config",
    "icedb.services.ingest",
    "icedb.services.exporter",
    "icedb.cli.render",
    "icedb.cli.base",
    "icedb.cli.commands",
    "icedb.cli",
    "icedb.spark.datasource",
    "icedb.spark",
    "pyspark_icedb",
    "icedb_dagster.dagster_internals",
    "icedb_dagster.resource_fields",
    "icedb_dagster.resource",
    "icedb_dagster.metadata",
    "icedb_dagster.specs",
    "icedb_dagster.partitioning",
    "icedb_dagster.io",
    "icedb_dagster.sql_assets",
    "icedb_dagster.locking",
    "icedb_dagster.launcher",
    "icedb_dagster.checks",
    "icedb_dagster.sensors",
    "icedb_dagster.maintenance",
    "icedb_dagster.component",
    "icedb_dagster.compute",
    "icedb_dagster",
    "icedb_dagster.dev.stack",
    "icedb_dagster.dev.project",
    "icedb_dagster.dev.doctor",
    "icedb_dagster.dev.exporter",
    "icedb_dagster.dev",
]
#: The most modules that a folder has, and packages that `icedb` has: as many as fit into a reader's memory.
MODULES_MAX, PACKAGES_MAX = 14, 16

#: Where a package may be imported, at any depth of a file; everywhere else not even lazily.
CONFINED = {
    "pyspark": ("icedb.spark.", "icedb_dagster.", "spark_jobs."),
    "dagster": ("icedb_dagster.",),
    "dbt": ("icedb.engines.dbt",),
    "dagster_aws": ("icedb_dagster.compute.emr",),
    "dagster_pyspark": ("icedb_dagster.",),
    "dagster_pipes": ("icedb_dagster.", "spark_jobs."),
    "polars": ("icedb.sql.query_result", "icedb_dagster.io.inputs", "icedb.engines.polars.lazy_frames"),
    "pandas": (
        "icedb.sql.query_result",
        "icedb.engines.pandas",
    ),
    "datafusion": ("icedb.engines.datafusion",),
    "chdb": (),
    "h11": ("icedb.services.http.connections",),
    "httpx": ("icedb.services.proxy.config.control_plane",),
    "prometheus_client": ("icedb.services.", "icedb_dagster.dev.exporter."),
    "starlette": ("icedb.services.",),
    "uvloop": ("icedb.services.http.server_process",),
    "uvicorn": ("icedb.services.http.connections",),
    "jinja2": ("icedb.operations.report.page",),
    "matplotlib": ("icedb.operations.health.size_chart", "icedb.util.plot_style"),
    "obstore": ("icedb.storage.obstore_store",),
    "typer": ("icedb.cli.", "icedb_dagster."),
    "yaml": ("icedb_dagster.compute.place_config",),
    "rich": ("icedb.cli.", "icedb_dagster."),
}
#: What the programs of `spark_jobs` may import beside Python's own: a cluster has nothing else. `boto3` only to reach
#: Dagster through a bucket.
PROGRAMS_IMPORT = {"icedb", "pyspark", "spark_jobs", "dagster_pipes", "boto3"}
PACKAGES = ("icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs")


@cache
def modules() -> dict[str, Path]:
    paths = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            paths[name] = path
    return paths


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


@cache
def imports(module: str) -> tuple[str, ...]:
    """The names that a module imports: of a module of these packages its whole name."""
    return tuple(_imports(module))


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively: write the whole name"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else node.module


def entry(module: str) -> int:
    """The number in FOLDERS of a module's own entry, or of its folder."""
    folder = module if modules()[module].name == "__init__.py" else module.rpartition(".")[0]
    for name in (module, folder):
        if name in FOLDERS:
            return FOLDERS.index(name)
    raise AssertionError(f"{folder} is not in FOLDERS of {__file__}; add it above the folders that import it.")


def imported_modules(module: str) -> set[str]:
    """The modules of these packages that a module imports, also for type checkers alone."""
    return {name for name in imports(module) if name in modules() and name != module}


@cache
def exported(module: str) -> list[str]:
    """The names in a module's `__all__`."""
    for node in tree(module).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and node.targets[0].id == "__all__":
            exports: list[str] = ast.literal_eval(node.value)
            return exports
    raise AssertionError(f"{module} has no __all__")


def inside(module: str, places: tuple[str, ...]) -> bool:
    return any(module == p or (p.endswith(".") and f"{module}.".startswith(p)) for p in places)


LAYERED = [m for m in modules() if not m.startswith("spark_jobs")]


@pytest.mark.parametrize("module", LAYERED)
def test_imports_point_down(module: str) -> None:
    for name in imported_modules(module):
        assert entry(name) <= entry(module), f"{module} imports {name}, which is above it in FOLDERS"


def test_no_modules_import_each_other_in_a_circle() -> None:
    sorter = TopologicalSorter({module: imported_modules(module) for module in LAYERED})
    try:
        sorter.prepare()
    except CycleError as error:
        raise AssertionError(f"these import each other: {' <- '.join(error.args[1])}") from None


@pytest.mark.parametrize("module", LAYERED)
def test_imported_names_are_exported(module: str) -> None:
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.ImportFrom) and node.module in modules() and node.module != "icedb":
            for alias in node.names:
                name = alias.name
                if f"{node.module}.{name}" not in modules():
                    assert name in exported(node.module), f"{module} imports {name}: add it to __all__ of {node.module}"


def test_folders_are_small_and_say_what_they_own() -> None:
    counts = Counter(module.rpartition(".")[0] for module, path in modules().items() if path.name != "__init__.py")
    assert {folder: n for folder, n in counts.items() if n > MODULES_MAX} == {}
    packages = [m for m, path in modules().items() if path.name == "__init__.py" and m.count(".") == 1]
    assert len([m for m in packages if m.startswith("icedb.")]) <= PACKAGES_MAX
    for folder in set(counts) - {"spark_jobs"}:
        assert folder in modules(), f"{folder} has no __init__.py"
        assert ast.get_docstring(ast.parse(modules()[folder].read_text())), f"{folder}/__init__.py has no docstring"


@pytest.mark.parametrize("module", modules())
def test_what_is_heavy_or_optional_stays_where_it_belongs(module: str) -> None:
    for name in imports(module):
        places = CONFINED.get(name.split(".")[0])
        assert places is None or inside(module, places), f"{module} imports {name}"


@pytest.mark.long
def test_private_names_of_dagster_are_listed_in_one_module() -> None:
    """Other modules may name types for the type checker."""
    for module in modules():
        if module == "icedb_dagster.dagster_internals":
            continue
        nodes = [*ast.walk(tree(module))]
        blocks = [n for n in nodes if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
        typed = {id(n) for block in blocks for n in ast.walk(block)}
        for node in nodes:
            names = (
                [a.name for a in node.names] if isinstance(node, ast.Import) else [getattr(node, "module", "") or ""]
            )
            if isinstance(node, ast.Import | ast.ImportFrom) and id(node) not in typed:
                private = [n for n in names if re.match(r"dagster\w*\.(.*\.)?_|dagster_shared\b", n)]
                assert not private, f"{module} imports {private[0]}: add the name to dagster_internals"


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("spark_jobs.")])
def test_programs_import_what_clusters_have(module: str) -> None:
    for name in imports(module):
        package = name.split(".")[0]
        assert package in PROGRAMS_IMPORT or package in sys.stdlib_module_names, f"{module} imports {name}"


def test_every_entry_exists() -> None:
    assert [name for name in FOLDERS if name not in modules()] == []


def loaded(code: str, packages: list[str]) -> set[str]:
    """Those of the packages that a new Python has loaded after running the code."""
    code += f"\nimport sys; print([m for m in {packages} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(ast.literal_eval(done.stdout))


@pytest.mark.process
def test_importing_icedb_imports_nothing_heavy() -> None:
    heavy = ["pyarrow", "duckdb", "obstore", "msgspec", "numpy", "asyncio", "icedb.table", "icedb.log"]
    assert loaded("import icedb", heavy) == set()
    first = "import icedb\nassert icedb.Table is icedb.Table and icedb.IceLogIO.__module__ == 'icedb.v3.log_io'"
    assert loaded(first, heavy) >= set(heavy) - {"numpy", "asyncio"}


@pytest.mark.process
def test_the_library_imports_nothing_optional() -> None:
    optional = [
        "pyspark",
        "dagster",
        "pandas",
        "polars",
        "boto3",
        "starlette",
        "uvicorn",
        "httpx",
        "typer",
        "rich",
    ]
    optional += ["icedb.cli", "icedb.spark", "icedb.testing", "icedb.icedb", "icedb.log"]
    assert loaded("from icedb import Table", optional) == set()


@pytest.mark.process
def test_commands_that_load_no_rows_do_not_import_pandas(tmp_path: Path) -> None:
    uri = str(tmp_path / "table")
    table = icedb.Table.create(uri, partition_by=["n % 2 AS odd"])
    table.insert([{"n": 1}, {"n": 2}])
    commands = [
        ["info", uri],
        ["query", uri, "FROM t"],
        ["verify", uri, "--deep"],
        ["merge", uri],
        ["drop", uri, "--where", "odd = 1", "--yes"],
    ]
    code = f"""
import contextlib, io, icedb.cli
with contextlib.redirect_stdout(io.StringIO()):
    for command in {commands}:
        assert not icedb.cli.app(command, standalone_mode=False)"""
    assert find_spec("pandas") is not None
    assert loaded(code, ["pandas", "duckdb"]) == {"duckdb"}
    assert table.query("SELECT n FROM t").fetchall() == [(2,)]
