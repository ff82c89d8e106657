"""Imports only point down, and what is heavy or optional is imported only where it belongs."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

#: From the ground up. A module imports only what stands before it; a name with a dot at its end is a whole package,
#: whose own modules may import each other. A new module gets its place here first.
LAYERS = [
    "icedb.errors",
    "icedb.extras",
    "icedb.progress",
    "icedb.threads",
    "icedb.clock",
    "icedb.temporary",
    "icedb.durations",
    "icedb.times",
    "icedb.arguments",
    "icedb.options",
    "icedb.spec",
    "icedb.format",
    "icedb.format.records",
    "icedb.format.names",
    "icedb.format.operation_names",
    "icedb.format.marker_columns",
    "icedb.format.codec",
    "icedb.format.claims",
    "icedb.format.log_schema",
    "icedb.format.part_columns",
    "icedb.format.snapshot",
    "icedb.format.column_times",
    "icedb.format.feed",
    "icedb.format.rewrite",
    "icedb.credentials",
    "icedb.azure",
    "icedb.location",
    "icedb.objects",
    "icedb.local_files",
    "icedb.two_stores",
    "icedb.store",
    "icedb.reading",
    "icedb.engine",
    "icedb.sandboxes",
    "icedb.result",
    "icedb.expressions",
    "icedb.queries",
    "icedb.selects",
    "icedb.schema",
    "icedb.bounding",
    "icedb.narrowing",
    "icedb.conflicts",
    "icedb.inputs",
    "icedb.inputs.batches",
    "icedb.inputs.column_types",
    "icedb.inputs.values",
    "icedb.inputs.fields",
    "icedb.inputs.shapes",
    "icedb.inputs.fitting",
    "icedb.inputs.arrays",
    "icedb.inputs.rows",
    "icedb.inputs.paths",
    "icedb.inputs.files",
    "icedb.inputs.precision",
    "icedb.inputs.parquet_files",
    "icedb.inputs.csv_files",
    "icedb.inputs.json_lines",
    "icedb.inputs.data_frames",
    "icedb.inputs.offsets",
    "icedb.inputs.opening",
    "icedb.partitions",
    "icedb.statistics",
    "icedb.written",
    "icedb.predicates",
    "icedb.merging",
    "icedb.gathering",
    "icedb.incoming",
    "icedb.shaping",
    "icedb.declared",
    "icedb.staging",
    "icedb.splitting",
    "icedb.parts",
    "icedb.handle",
    "icedb.table_place",
    "icedb.live_parts",
    "icedb.fetching",
    "icedb.pruning",
    "icedb.log_store",
    "icedb.opening",
    "icedb.commit",
    "icedb.foreign",
    "icedb.exclusive",
    "icedb.transactions",
    "icedb.work",
    "icedb.scan",
    "icedb.final",
    "icedb.answers",
    "icedb.rewriting",
    "icedb.maintenance",
    "icedb.maintenance.carrying",
    "icedb.maintenance.operations",
    "icedb.maintenance.merge",
    "icedb.maintenance.delete",
    "icedb.maintenance.rewrite",
    "icedb.maintenance.drop",
    "icedb.maintenance.merge_log",
    "icedb.maintenance.alter",
    "icedb.maintenance.pins",
    "icedb.maintenance.cleanup",
    "icedb.maintenance.condition",
    "icedb.maintenance.gauges",
    "icedb.maintenance.restore",
    "icedb.maintenance.claims",
    "icedb.maintenance.orphans",
    "icedb.maintenance.audit",
    "icedb.maintenance.contents",
    "icedb.maintenance.verify",
    "icedb.maintenance.common_types",
    "icedb.maintenance.recast",
    "icedb.maintenance.repair",
    "icedb.maintenance.repair_spec",
    "icedb.maintenance.sources",
    "icedb.maintenance.footers",
    "icedb.maintenance.examining",
    "icedb.maintenance.hive",
    "icedb.maintenance.file_columns",
    "icedb.maintenance.adoption",
    "icedb.maintenance.copying",
    "icedb.maintenance.adopt",
    "icedb.snapshot",
    "icedb.changes",
    "icedb.history",
    "icedb.diff",
    "icedb.exporting.",
    "icedb.publishing",
    "icedb.views",
    "icedb.writing",
    "icedb.foreseeing",
    "icedb.spark.failures",
    "icedb.frames",
    "icedb.table",
    "icedb.pictures",
    "icedb.pacing",
    "icedb.watch",
    "icedb.buffering.",
    "icedb.log_records",
    "icedb.log",
    "icedb.v3_rules",
    "icedb.icedb",
    "icedb.testing.",
    "icedb",
    "icedb.readers.",
    "icedb.serving.",
    "icedb.proxy.",
    "icedb.ingest.",
    "icedb.cli.",
    "icedb.spark.",
    "pyspark_icedb.",
    "icedb_dagster.",
]

#: Where a package may be imported, at any depth of a file; everywhere else not even lazily.
CONFINED = {
    "pyspark": ("icedb.spark.", "icedb_dagster.", "spark_jobs."),
    "dagster": ("icedb_dagster.",),
    "dagster_aws": ("icedb_dagster.emr",),
    "dagster_pyspark": ("icedb_dagster.",),
    "dagster_pipes": ("icedb_dagster.", "spark_jobs."),
    "polars": ("icedb.result", "icedb_dagster.inputs", "icedb.readers.polars"),
    "pandas": (
        "icedb.result",
        "icedb.readers.pandas",
    ),
    "datafusion": ("icedb.readers.datafusion",),
    "chdb": (),
    "h11": ("icedb.serving.connections",),
    "httpx": ("icedb.proxy.control_plane",),
    "prometheus_client": ("icedb.proxy.metrics", "icedb.ingest.metrics"),
    "starlette": ("icedb.serving.connections", "icedb.proxy.", "icedb.ingest."),
    "uvloop": ("icedb.proxy.server", "icedb.ingest.server"),
    "uvicorn": ("icedb.serving.connections",),
    "matplotlib": ("icedb.pictures", "icedb.cli.table_picture"),
    "obstore": ("icedb.store",),
    "typer": ("icedb.cli.", "icedb_dagster."),
    "yaml": ("icedb_dagster.places",),
    "rich": ("icedb.cli.", "icedb_dagster."),
}
#: What the programs of `spark_jobs` may import beside Python's own: a cluster has nothing else. `boto3` only to reach
#: Dagster through a bucket.
PROGRAMS_IMPORT = {"icedb", "pyspark", "spark_jobs", "dagster_pipes", "boto3"}
PACKAGES = ("icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs")


@cache
def modules() -> dict[str, Path]:
    found = {}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
            found[name] = path
    return found


def imports(module: str, path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module} imports relatively: write the whole name"
            assert node.module
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in modules() else node.module


def layer(module: str) -> int:
    for number, name in enumerate(LAYERS):
        if module == name or (name.endswith(".") and f"{module}.".startswith(name)):
            return number
    raise AssertionError(f"{module} has no place in LAYERS of {__file__}; give it one.")


def inside(module: str, places: tuple[str, ...]) -> bool:
    return any(module == p or (p.endswith(".") and f"{module}.".startswith(p)) for p in places)


@pytest.mark.parametrize("module", [m for m in modules() if not m.startswith("spark_jobs")])
def test_imports_point_down(module: str) -> None:
    own = layer(module)
    for name in imports(module, modules()[module]):
        if name.split(".")[0] in PACKAGES:
            same_package = LAYERS[own].endswith(".") and layer(name) == own
            assert layer(name) < own or same_package, f"{module} imports {name}, which stands above it"


@pytest.mark.parametrize("module", modules())
def test_what_is_heavy_or_optional_stays_where_it_belongs(module: str) -> None:
    for name in imports(module, modules()[module]):
        places = CONFINED.get(name.split(".")[0])
        assert places is None or inside(module, places), f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if m.startswith("spark_jobs.")])
def test_programs_import_what_clusters_have(module: str) -> None:
    for name in imports(module, modules()[module]):
        package = name.split(".")[0]
        assert package in PROGRAMS_IMPORT or package in sys.stdlib_module_names, f"{module} imports {name}"


def test_every_layer_exists() -> None:
    known = modules()
    for name in LAYERS:
        assert name.removesuffix(".") in known, name


def loaded(code: str, packages: list[str]) -> set[str]:
    """Those of the packages that a new Python has loaded after running the code."""
    code += f"\nimport sys; print([m for m in {packages} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return set(ast.literal_eval(done.stdout))


@pytest.mark.process
def test_importing_icedb_imports_nothing_heavy() -> None:
    heavy = ["pyarrow", "duckdb", "obstore", "msgspec", "numpy", "asyncio", "icedb.table", "icedb.log"]
    assert loaded("import icedb", heavy) == set()
    first = "import icedb\nassert icedb.Table is icedb.Table and icedb.IceLogIO.__module__ == 'icedb.log'"
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
        "numpy",
    ]
    optional += ["icedb.cli", "icedb.spark", "icedb.testing", "icedb.icedb", "icedb.log"]
    assert loaded("from icedb import Table", optional) <= {"numpy"}, "pyarrow brings numpy when it is there"
