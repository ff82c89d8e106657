"""The component `IceDBTableComponent`: YAML and Python give the same definitions, and errors name the attribute."""

import json
import re
from datetime import date, timedelta
from pathlib import Path
from string import Template
from typing import Any

import pytest

dg = pytest.importorskip("dagster")
yaml = pytest.importorskip("yaml")
pytest.importorskip("dagster_dg_cli")

from dagster._core.remote_representation.external_data import RepositorySnap
from jsonschema import Draft202012Validator
from pydantic import ValidationError

import icedb
from icedb.errors import InvalidOption
from icedb.util.durations import duration_text, parse_duration
from icedb_dagster import (
    CommitsSensor,
    FreshnessCheck,
    HorizonCheck,
    IceDBIOManager,
    IceDBResource,
    IceDBResourceComponent,
    IceDBTableComponent,
    LogDepthCheck,
    MaintenanceSensor,
    ObjectsCheck,
    QuarantineCheck,
    SchemaCheck,
    SmallPartsCheck,
    TableChecks,
    TableExport,
    TimeToLive,
    build_observation,
    build_table_definitions,
    observable_table,
    sql_asset,
    table_spec,
)
from icedb_dagster.component.attributes import OF_ASSETS, OF_QUERIES, TableAttributes
from icedb_dagster.component.resources import ResourceAttributes
from icedb_dagster.component.scaffolder import TEMPLATE, yaml_values
from icedb_dagster.maintenance.definitions import CRONS
from tests.support.processes import clean_environment, run_python
from tests.support.site.pages import blocks

pytestmark = pytest.mark.dagster

ROOT = Path(__file__).parents[2]
SCHEMA = Draft202012Validator(TableAttributes.model_json_schema())

EVERYTHING = """
table: sales/orders
asset: observable
observe_cron: "*/20 * * * *"
description: What was ordered.
owners: [team:sales]
group_name: sales
kinds: [spark]
tags: {tier: 1, hot: true}
deps: [raw/orders]
metadata: {partition_expr: day}
partition_by: [day]
sort_by: [customer]
code_version: "3"
partitions_def: {type: daily, start_date: "2026-01-01"}
ttl: {partition_column: day, keep_days: 30, period: month}
export_delta: true
export_iceberg: {exclude_columns: [id], keep: 14d}
engine: spark
lock: claim
max_runtime_s: 600
schedules: {merge_oldest: null, verify: "1 1 * * *", checks: "@daily", export_delta: "@daily"}
thresholds: {hot_parts: 32, expired_bytes: 1000000000}
sensors: {maintenance: {interval_s: 60}, commits: {events: observation}}
checks:
  objects: {blocking: true}
  small_parts: {ratio_max: 0.25}
  log_depth: null
  schema: {columns: {n: int}, additional: fail}
  quarantine: {rows_max: 7, window: 90m}
  freshness: {max_age: 1.5d, column: ts, timezone: Europe/Berlin, severity: WARN}
  horizon: {min_age: 30m, max_age: 7d}
running: true
resource_key: lake
spark_resource_key: cluster
"""
THRESHOLDS = icedb.Thresholds(hot_parts=32, expired_bytes=1_000_000_000)
CHECKS = TableChecks(
    objects=ObjectsCheck(blocking=True),
    small_parts=SmallPartsCheck(ratio_max=0.25),
    log_depth=None,
    schema=SchemaCheck(columns={"n": "INTEGER"}, additional="fail"),
    quarantine=QuarantineCheck(rows_max=7, window=timedelta(minutes=90)),
    freshness=FreshnessCheck(max_age=timedelta(hours=36), column="ts", timezone="Europe/Berlin", severity="WARN"),
    horizon=HorizonCheck(min_age=timedelta(minutes=30), max_age=timedelta(days=7)),
)
TTL = TimeToLive("day", keep_days=30, period="month")
ICEBERG = TableExport(exclude_columns=["id"], keep=timedelta(days=14))
SPEC: dict[str, Any] = {
    "description": "What was ordered.",
    "owners": ["team:sales"],
    "group_name": "sales",
    "kinds": ["spark"],
    "tags": {"tier": "1", "hot": "true"},
    "deps": [dg.AssetKey(["raw", "orders"])],
    "metadata": {"partition_expr": "day"},
    "partition_by": ["day"],
    "sort_by": ["customer"],
    "code_version": "3",
    "partitions_def": dg.DailyPartitionsDefinition("2026-01-01"),
}


def component(attributes: str | dict[str, Any], **scope: Any) -> IceDBTableComponent:
    """Resolve the attributes of a document. `scope`: the variables of templates."""
    parsed = yaml.safe_load(attributes) if isinstance(attributes, str) else attributes
    assert [error.message for error in SCHEMA.iter_errors(parsed)] == [], "dg check yaml rejects it"
    context = dg.ResolutionContext.default().with_scope(**scope)
    return IceDBTableComponent.resolve_from_model(context, TableAttributes.model_validate(parsed))


def defs_of(made: IceDBTableComponent) -> dg.Definitions:
    return made.build_defs(dg.ComponentTree.for_test().load_context)


def snap(defs: dg.Definitions) -> Any:
    """Return the snapshot of definitions for Dagster's servers."""
    lake = IceDBResource(root="lake")
    resources: dict[str, Any] = {"icedb": lake, "lake": lake, "cluster": object(), "tables": IceDBIOManager(icedb=lake)}
    whole = dg.Definitions.merge(defs, dg.Definitions(resources=resources))
    return RepositorySnap.from_def(whole.get_repository_def())


def test_yaml_and_python_give_the_same_definitions() -> None:
    made = component(EVERYTHING)
    assert made == IceDBTableComponent(
        table=dg.AssetKey(["sales", "orders"]),
        asset="observable",
        spec=SPEC,
        observe_cron="*/20 * * * *",
        ttl=TTL,
        export_delta=TableExport(),
        export_iceberg=ICEBERG,
        engine="spark",
        lock="claim",
        max_runtime_s=600,
        schedules={"merge_oldest": None, "verify": "1 1 * * *", "checks": "@daily", "export_delta": "@daily"},
        thresholds=THRESHOLDS,
        maintenance_sensor=MaintenanceSensor(interval_s=60),
        commits_sensor=CommitsSensor(events="observation"),
        checks=CHECKS,
        running=True,
        resource_key="lake",
        spark_resource_key="cluster",
    )
    in_python = dg.Definitions.merge(
        dg.Definitions(assets=[observable_table(["sales", "orders"], resource_key="lake", **SPEC)]),
        build_observation(["sales", "orders"], "*/20 * * * *", running=True),
        build_table_definitions(
            ["sales", "orders"],
            ttl=TTL,
            export_delta=TableExport(),
            export_iceberg=ICEBERG,
            engine="spark",
            lock="claim",
            max_runtime_s=600,
            merge_oldest_cron=None,
            verify_cron="1 1 * * *",
            checks_cron="@daily",
            export_delta_cron="@daily",
            running=True,
            maintenance_sensor=MaintenanceSensor(interval_s=60, thresholds=THRESHOLDS),
            commits_sensor=CommitsSensor(events="observation"),
            checks=CHECKS,
            resource_key="lake",
            spark_resource_key="cluster",
        ),
    )
    assert snap(defs_of(made)) == snap(in_python)
    attributes = {*TableAttributes.model_fields} - {*OF_ASSETS, *OF_QUERIES, "sensors"}
    assert attributes | {"spec", "sql", "maintenance_sensor", "commits_sensor"} == {*made.__dict__}


SQL = """
table: sales/daily
asset: sql
query: SELECT day, count(*) AS n FROM o WHERE day = $partition_key::DATE GROUP BY day
inputs: {o: sales/orders}
partitions_def: {type: daily, start_date: "2026-01-01"}
metadata: {partition_expr: day}
sort_by: [day]
io_manager_key: tables
memory_bytes: 100000000
owners: [team:sales]
"""


@pytest.mark.sampled(days=3)
def test_an_sql_asset_is_the_same_in_yaml_and_python(tmp_path: Path) -> None:
    made = defs_of(component(SQL))
    in_python = sql_asset(
        ["sales", "daily"],
        "SELECT day, count(*) AS n FROM o WHERE day = $partition_key::DATE GROUP BY day",
        inputs={"o": dg.AssetKey(["sales", "orders"])},
        partitions_def=dg.DailyPartitionsDefinition("2026-01-01"),
        metadata={"sort_by": ["day"], "partition_expr": "day"},
        io_manager_key="tables",
        memory_bytes=100_000_000,
        owners=["team:sales"],
    )
    days = dg.DailyPartitionsDefinition("2026-01-01")
    upstream = dg.Definitions(assets=[table_spec(["sales", "orders"], partitions_def=days)])
    whole = dg.Definitions.merge(dg.Definitions(assets=[in_python]), build_table_definitions(["sales", "daily"]))
    assert snap(dg.Definitions.merge(upstream, made)) == snap(dg.Definitions.merge(upstream, whole))

    @dg.asset(key=["sales", "orders"], partitions_def=days, metadata={"partition_expr": "day"}, io_manager_key="tables")
    def orders(context: dg.AssetExecutionContext) -> list[dict[str, Any]]:
        return [{"day": date.fromisoformat(context.partition_key), "item": n} for n in range(3)]

    [daily] = made.assets or ()
    lake = IceDBResource(root=str(tmp_path))
    resources = {"icedb": lake, "tables": IceDBIOManager(icedb=lake)}
    assert dg.materialize([orders, daily], partition_key="2026-01-02", resources=resources).success
    assert lake.table(["sales", "daily"]).query("SELECT * FROM t").fetchall() == [(date(2026, 1, 2), 3)]


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("{table: a, asset: sql}", "needs a query"),
        ("{table: a, query: SELECT 1}", "query needs `asset: sql`"),
        ("{table: a, asset: external, inputs: [b]}", "inputs needs `asset: sql`"),
        ("{table: a, asset: sql, query: SELECT}", "not valid SQL"),
        ("{table: a, asset: sql, query: SELECT 1, inputs: {b-c: b}}", "'b-c' needs a name of letters"),
    ],
)
def test_an_invalid_sql_asset_is_rejected_when_definitions_load(attributes: str, message: str) -> None:
    with pytest.raises((InvalidOption, ValidationError), match=message):
        defs_of(component(attributes))


RESOURCES = Draft202012Validator(ResourceAttributes.model_json_schema())


def resources(attributes: str) -> dg.Definitions:
    """Return the definitions of a document of resources."""
    parsed = yaml.safe_load(attributes)
    assert [error.message for error in RESOURCES.iter_errors(parsed)] == [], "dg check yaml rejects it"
    model = ResourceAttributes.model_validate(parsed)
    made = IceDBResourceComponent.resolve_from_model(dg.ResolutionContext.default(), model)
    return made.build_defs(dg.ComponentTree.for_test().load_context)


@pytest.mark.sampled(days=3)
def test_the_resources_in_yaml_open_the_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    monkeypatch.setenv("LAKE_FSYNC", "false")
    defs = resources(
        """
        root: "{{ env.LAKE_ROOT }}"
        storage_options: {fsync: {env: LAKE_FSYNC}}
        io_manager: {mode: append, sort_by: [n]}
        """
    )
    assert sorted(defs.resources or ()) == ["icedb", "io_manager"]
    assert defs.resources["icedb"].root == str(tmp_path / "lake")
    assert isinstance(defs.resources["icedb"].storage_options["fsync"], dg.EnvVar)

    @dg.asset
    def numbers() -> list[dict[str, int]]:
        return [{"n": 2}, {"n": 1}]

    whole = dg.Definitions.merge(defs, dg.Definitions(assets=[numbers]))
    for _ in range(2):
        assert whole.resolve_implicit_global_asset_job_def().execute_in_process().success
    table = icedb.Table.open(str(tmp_path / "lake" / "numbers"))
    assert table.query("SELECT n FROM t").fetchall() == [(1,), (2,), (1,), (2,)]

    alone = resources("{root: lake, resource_key: tables, io_manager_key: null}")
    assert sorted(alone.resources or ()) == ["tables"]
    from_variable = resources("{root: {env: LAKE_ROOT}}")
    assert from_variable.resources["icedb"].uri("a") == str(tmp_path / "lake" / "a")


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("{root: 's3://lake', storage_options: {aws_secret_access_key: hidden}}", "is plain text"),
        ("{root: '{{ env.NOT_SET }}'}", "renders to nothing"),
        ("{root: lake, io_manager: {mod: append}}", "'mod', which is no field of IceDBIOManager. Fields are .*mode"),
        (
            "{root: lake, io_manager: {mode: merge}}",
            "IceDBIOManager: mode: Input should be 'append', 'overwrite' or 'upsert'",
        ),
    ],
)
def test_invalid_resources_are_rejected_when_definitions_load(attributes: str, message: str) -> None:
    with pytest.raises(InvalidOption, match=message) as error:
        resources(attributes)
    assert "hidden" not in str(error.value)


def test_a_plain_table_has_jobs_and_an_external_table_has_an_asset(recwarn: pytest.WarningsRecorder) -> None:
    assert snap(defs_of(component("table: events"))) == snap(build_table_definitions("events"))
    external = defs_of(component("{table: [sales, orders], asset: external, sensors: {commits: materialization}}"))
    assert snap(external) == snap(
        dg.Definitions.merge(
            dg.Definitions(assets=[table_spec(["sales", "orders"])]),
            build_table_definitions(["sales", "orders"], commits_sensor=CommitsSensor()),
        )
    )
    small = component(
        "{table: a, checks: default, sensors: {maintenance: true, commits: false}, thresholds: {log_files: 9}}"
    )
    assert small.checks == TableChecks()
    assert small.maintenance_sensor == MaintenanceSensor()
    assert small.commits_sensor is None
    ours = (ROOT / "icedb", ROOT / "icedb_dagster")
    assert not [w for w in recwarn if any(Path(w.filename).is_relative_to(folder) for folder in ours)]
    for wrong, message in (
        ({"schedules": {"merge": None}}, "schedules has 'merge'"),
        ({"asset": "mine"}, "asset is 'mine'"),
        ({"schedules": {"ttl": "1 1 * * *"}}, "schedules has ttl, but the table has no such job"),
        ({"schedules": {"checks": "@daily"}}, "schedules has checks, but the table has no such job"),
        ({"table": dg.AssetKey(["a", "_log"])}, "'_log' is not a folder name"),
    ):
        with pytest.raises(InvalidOption, match=message):
            IceDBTableComponent(**{"table": dg.AssetKey("a"), **wrong})  # type: ignore[arg-type]
    for key in ("''", "[]", "a//b", "../up"):
        with pytest.raises(InvalidOption, match="is not a folder name"):
            component(f"table: {key}")
    assert not defs_of(component("{table: a, schedules: {ttl: null, checks: null, cleanup: null}}")).asset_checks


def test_templates_resolve_to_values_and_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEEP_DAYS", "12")
    monkeypatch.setenv("TABLE", "events")

    def oldest(table: icedb.Table, now: Any) -> list[str]:
        return []

    text = """
    table: "{{ env.TABLE }}"
    asset: "{{ kind }}"
    ttl: {partition_column: d, keep_days: "{{ env.KEEP_DAYS }}"}
    thresholds: "{{ thresholds }}"
    checks: {freshness: {max_age: "{{ hours }}h"}, schema: {columns: {n: "{{ type }}"}}, log_depth: "{{ depth }}"}
    freshness_policy: "{{ policy }}"
    sensors: {maintenance: "{{ sensor }}"}
    """
    policy = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=2))
    scope = {"kind": "external", "thresholds": THRESHOLDS, "hours": 3, "type": "DATE", "policy": policy}
    made = component(text, **scope, depth=LogDepthCheck(severity="ERROR"), sensor=MaintenanceSensor(interval_s=7))
    assert (made.table, made.asset, made.spec) == (dg.AssetKey("events"), "external", {"freshness_policy": policy})
    assert made.ttl == TimeToLive("d", keep_days=12)
    assert made.thresholds is THRESHOLDS
    assert made.checks == TableChecks(
        freshness=FreshnessCheck(max_age=timedelta(hours=3)),
        schema=SchemaCheck(columns={"n": "DATE"}),
        log_depth=LogDepthCheck(severity="ERROR"),
    )
    assert made.maintenance_sensor == MaintenanceSensor(interval_s=7)
    assert component('{table: a, ttl: "{{ oldest }}"}', oldest=oldest).ttl is oldest

    with pytest.raises(InvalidOption, match=r"the table 'a': ttl\.keep_days: Input should be a valid integer"):
        component('{table: a, ttl: {partition_column: d, keep_days: "{{ word }}"}}', word="thirty")
    with pytest.raises(InvalidOption, match=r"the table 'a': thresholds: .* hot_parts is 1"):
        component('{table: a, thresholds: {hot_parts: "{{ one }}"}}', one=1)


@pytest.mark.parametrize(
    ("attributes", "at"),
    [
        ('{table: a, checks: "{{ env.NOT_SET }}"}', "checks"),
        ('{table: a, ttl: "{{ nothing }}"}', "ttl"),
        ('{table: a, schedules: {cleanup: "{{ env.NOT_SET }}"}}', "schedules.cleanup"),
        ('{table: a, sensors: {maintenance: "{{ env.NOT_SET }}"}}', "sensors.maintenance"),
        ('{table: a, checks: {freshness: {max_age: 1h, column: "{{ env.NOT_SET }}"}}}', "checks.freshness.column"),
        ('{table: a, asset: external, owners: ["team:{{ env.NOT_SET }}"]}', "owners.0"),
    ],
)
def test_a_template_that_renders_to_nothing_is_rejected(attributes: str, at: str) -> None:
    with pytest.raises(InvalidOption, match=rf"the table 'a': {at}: .*\}}\}} renders to nothing\. Set the variable"):
        component(attributes, nothing=None)


@pytest.mark.parametrize(
    "text", ["events", "sales/orders", "2024", "no", "null", "a: b", "a, b", "a #b", "1e3", "Off", "😀", "2026-01-01",
             '"', "ü", "{x"],
)  # fmt: skip
def test_scaffolded_yaml_parses_to_the_given_values(text: str) -> None:
    written = Template(TEMPLATE.read_text()).substitute(yaml_values(text, ttl_column=text))
    read = yaml.safe_load(written)["attributes"]
    assert (read["table"], read["ttl"]["partition_column"]) == (text, text)
    for commented in re.findall(r"^ *# (\w+: \{.*\})$", written, flags=re.MULTILINE):
        checks = yaml.safe_load(commented)
        attributes = {"table": "a", **({"checks": checks} if {*checks} & {"freshness", "schema"} else checks)}
        component(attributes)


@pytest.mark.parametrize(
    ("attributes", "field", "message", "by_schema"),
    [
        ("{}", "table", "required", True),
        ("{tabel: a}", "tabel", "not permitted", True),
        ("{table: a, ttl: {partition_column: d, keep_days: 0}}", "ttl.keep_days", "greater than or equal", True),
        ("{table: a, ttl: {partition_column: d, keep_days: x}}", "ttl.keep_days", "valid integer", True),
        ("{table: a, ttl: {partition_column: d, keep_days: 1, period: hour}}", "ttl.period", "'day', 'week'", True),
        ("{table: a, checks: {freshness: {max_age: 26hh}}}", "checks.freshness.max_age", "no duration", True),
        ("{table: a, checks: {freshness: {max_age: 0h}}}", "checks.freshness.max_age", "over 0, such as 26h", False),
        ("{table: a, checks: {freshness: {max_age: 26}}}", "checks.freshness.max_age", "no duration", True),
        ("{table: a, checks: {freshness: {}}}", "checks.freshness.max_age", "required", True),
        ("{table: a, checks: {freshnes: {}}}", "checks.freshnes", "not permitted", True),
        ("{table: a, checks: all}", "checks", "'default'", True),
        ("{table: a, checks: {objects: {severity: error}}}", "checks.objects.severity", "'ERROR' or 'WARN'", True),
        ("{table: a, checks: {schema: {columns: {c: INTT}}}}", "checks.schema", "'INTT'", False),
        ("{table: a, checks: {schema: {columns: {c: INT, C: INT}}}}", "checks.schema", "differ only in case", False),
        ("{table: a, ttl: {partition_column: '', keep_days: 1}}", "ttl", "partition_column of a time to live", False),
        ("{table: a, checks: {horizon: {}}}", "checks.horizon", "neither min_age nor max_age", False),
        ("{table: a, schedules: {merge: '* * * * *'}}", "schedules.merge", "not permitted", True),
        ("{table: a, schedules: {verify: '1 2 3'}}", "schedules.verify", "is not a cron expression", True),
        ("{table: a, schedules: {verify: '61 * * * *'}}", "schedules.verify", "is not a cron expression", False),
        ("{table: a, thresholds: {hot_parts: 1}}", "thresholds", "hot_parts is 1", False),
        ("{table: a, sensors: {commits: all}}", "sensors.commits", "'materialization' or 'observation'", True),
        ("{table: a, sensors: {maintenance: {interval_s: 0}}}", "sensors.maintenance", "interval_s is 0", False),
        ("{table: a, lock: none}", "lock", "'pool' or 'claim'", True),
        ("{table: a, running: maybe}", "running", "valid boolean", True),
        ("{table: a, owners: me}", "owners", "valid list", True),
        ("{table: a, description: d}", "", "description applies to an asset that is defined here", False),
        ("{table: a, asset: external, observe_cron: '* * * * *'}", "", "observe_cron needs", False),
    ],
)
def test_an_invalid_attribute_is_rejected_by_name(attributes: str, field: str, message: str, by_schema: bool) -> None:
    parsed = yaml.safe_load(attributes)
    with pytest.raises(ValueError, match="validation error") as refused:
        TableAttributes.model_validate(parsed)
    names = {"value", "object", "bool", "literal['materialization','observation']"}
    errors = {".".join(str(s) for s in e["loc"] if s not in names): e["msg"] for e in refused.value.errors()}  # type: ignore[attr-defined]
    assert field in errors
    assert message in errors[field] or any(message in e["msg"] for e in refused.value.errors())  # type: ignore[attr-defined]
    schema_errors = list(SCHEMA.iter_errors(parsed))
    assert bool(schema_errors) == by_schema
    leads = [".".join(map(str, error.absolute_path)) + error.message for error in schema_errors]
    assert not schema_errors or any(field.rpartition(".")[2] in lead for lead in leads)
    assert "not valid under any" not in str([error.message for error in schema_errors])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("5m", 300), (" 24h ", 86_400), ("7d", 604_800), ("1.5h", 5_400), ("250ms", 0.25), ("0s", 0)],
)
def test_a_duration_is_a_number_with_its_unit(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["", "5", "h", "5 hours", "-5m", "5M", "1e3s", "٣h", "5m\n5m", "9999999999999999d"])
def test_an_invalid_duration_is_rejected(text: str) -> None:
    with pytest.raises(InvalidOption, match="is no duration; write 90s, 5m, 24h or 7d"):
        parse_duration(text)


def test_a_duration_is_printed_in_its_two_largest_units() -> None:
    texts = {0: "0 s", 999: "0 s", 61_000: "1 min 1 s", 3_600_000: "1 h", 90_061_000: "1 d 1 h", -5: "0 s"}
    assert {ms: duration_text(ms) for ms in texts} == texts


def test_the_yaml_of_the_introduction_is_valid() -> None:
    page = ROOT / "docs" / "how-to" / "dagster.md"
    made = [component(yaml.safe_load(block)["attributes"]) for block in blocks(page, "yaml")]
    assert [table.table.to_user_string() for table in made] == ["events"]


def test_the_yaml_of_the_page_is_valid_and_every_attribute_is_named() -> None:
    page = ROOT / "docs" / "component.md"
    documents = [loaded for block in blocks(page, "yaml") for loaded in yaml.safe_load_all(block)]
    made = [component(document["attributes"]) for document in documents]
    assert [table.table.to_user_string() for table in made] == ["events", "sales/daily", "sales/orders"]
    [of_resources] = blocks(page, "yaml resources")
    assert RESOURCES.is_valid(yaml.safe_load(of_resources)["attributes"])
    table = page.read_text().partition("| attribute |")[2].partition("\n\n")[0]
    named = {*re.findall(r"`(\w+)`", table)}
    assert {*TableAttributes.model_fields} | {*CRONS} <= named


@pytest.mark.sampled(days=6)
@pytest.mark.process
def test_dg_lists_scaffolds_and_checks_tables_in_a_new_project(tmp_path: Path) -> None:
    env = environment(tmp_path) | {"PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
    done = run_python("-W", "ignore", "-m", "tests.support.dagster.dg_story", cwd=tmp_path, env=env)
    story = [json.loads(line) for line in done.stdout.splitlines()]
    listed, *scaffolded, good_yaml, good_defs, pools, bad_yaml, bad_defs = story
    [entry] = [item for item in json.loads(listed[2])["items"] if item["key"] == "icedb_dagster.IceDBTableComponent"]
    assert entry["summary"].startswith("An IceDB table: its asset, maintenance jobs")
    assert [code for _, code, _ in (*scaffolded, good_yaml, good_defs, bad_yaml, bad_defs)] == [0, 0, 0, 0, 1, 1]
    assert "All component YAML validated successfully" in good_yaml[2]
    assert "All definitions loaded successfully" in good_defs[2]
    assert pools[2] == ["icedb/events", "icedb/orders", "icedb/sales/returns"]
    assert "attributes.ttl.keep_days 'a year' is not of type 'integer'" in bad_yaml[2]
    assert "attributes.checks.small_parts.sevrity" in bad_yaml[2]
    assert "attributes.schedules.object.cleanup" in bad_defs[2]
    assert "'61 * * * *' is not a cron expression" in bad_defs[2]


def environment(folder: Path) -> dict[str, str]:
    """Return an environment with a new instance, whose telemetry is off so that `dg` prints no notice."""
    (home := folder / "home").mkdir()
    (home / "dagster.yaml").write_text("telemetry: {enabled: false}\n")
    return clean_environment("LAKE_", DAGSTER_HOME=str(home))


LOADING = """
import socket, sys
from pathlib import Path

def refuse(*_):
    raise AssertionError("definitions must load without asking anybody")

import dagster as dg
import icedb_dagster

socket.socket.connect = socket.socket.connect_ex = socket.getaddrinfo = refuse
lake = icedb_dagster.IceDBResource(root="s3://lake/events", storage_options={"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
tables = dg.load_from_defs_folder(path_within_project=Path.cwd())
repository = dg.Definitions.merge(tables, dg.Definitions(resources={"icedb": lake})).get_repository_def()
print(len(repository.get_all_jobs()), len(repository.sensor_defs), len(repository.schedule_defs),
      len(repository.asset_checks_defs_by_key))
"""


@pytest.mark.process
@pytest.mark.slow(seconds=10)
def test_200_tables_in_one_yaml_load_without_a_connection(tmp_path: Path) -> None:
    folder = tmp_path / "many" / "defs" / "tables"
    folder.mkdir(parents=True)
    (tmp_path / "many" / "__init__.py").touch()
    (tmp_path / "pyproject.toml").write_text(
        '[tool.dg]\ndirectory_type = "project"\n[tool.dg.project]\nroot_module = "many"\n'
    )
    kinds = ("none", "external", "observable")
    documents = [
        {
            "type": "icedb_dagster.IceDBTableComponent",
            "attributes": {
                "table": f"team/t{number}",
                "asset": kinds[number % 3],
                "ttl": {"partition_column": "d", "keep_days": 30},
                "schedules": {"merge_oldest": None},
                "sensors": {"maintenance": True, "commits": "observation"},
                "checks": "default",
            },
        }
        for number in range(200)
    ]
    (folder / "defs.yaml").write_text(yaml.safe_dump_all(documents))
    env = environment(tmp_path) | {"PYTHONPATH": f"{ROOT}:{tmp_path}"}
    done = run_python("-W", "ignore", "-c", LOADING, cwd=tmp_path, env=env)
    # Each with eleven jobs, that of the checks, two sensors, four schedules, four checks; and Dagster's own job of all.
    assert done.stdout.split() == ["2401", "400", "800", "800"]
