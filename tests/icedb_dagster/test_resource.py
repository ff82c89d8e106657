"""The resource: addresses of tables, credentials, and texts without secrets."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

pytest.importorskip("dagster_aws")

from dagster._core.remote_representation.external_data import RepositorySnap
from dagster._serdes import serialize_value
from dagster_aws.s3 import S3Resource

import icedb
from icedb.errors import InvalidArgument, InvalidOption, TableNotFound
from icedb_dagster import IceDBIOManager, IceDBResource, build_table_definitions
from icedb_dagster.compute.spark_places import LocalSpark
from tests.support.dagster.dagster_instance import ONE, TWO, AssetRun, returning, rows
from tests.support.object_stores.rotating_keys import RotatingKeys

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance", "tests.support.object_stores.rotating_keys"]


@pytest.mark.parametrize("root", ["s3://lake/events", "s3://lake/events/"])
def test_the_address_of_a_table_is_the_root_and_the_asset_key(root: str) -> None:
    lake = IceDBResource(root=root)
    assert lake.uri("flights") == "s3://lake/events/flights"
    assert lake.uri(["a", "b"]) == lake.uri(dg.AssetKey(["a", "b"])) == "s3://lake/events/a/b"


@pytest.mark.parametrize(
    "key", [["x", ".."], ["..", "x"], ["x", "."], ["x", ""], ["x/y"], ["x", "_data"], ["_log", "x"], []]
)
def test_a_key_that_leaves_the_root_or_enters_a_table_is_rejected(key: list[str]) -> None:
    with pytest.raises(InvalidOption, match="is not a folder name"):
        IceDBResource(root="s3://lake").uri(dg.AssetKey(key))
    with pytest.raises(InvalidOption, match="is not a folder name"):
        build_table_definitions(dg.AssetKey(key))  # not only when a run opens it


@pytest.mark.sampled(days=3)
def test_asset_keys_become_nested_folders(run: AssetRun, tmp_path: Path) -> None:
    run(returning(["a", "b"], ONE), returning(["a", "c"], TWO))
    assert rows(run.lake, ["a", "b"]) == [(1,)]
    assert rows(run.lake, ["a", "c"]) == [(2,)]
    assert run.lake.table(["a", "b"]).uri == str(tmp_path / "lake" / "a" / "b")


def test_a_table_is_opened_or_created_once(lake: IceDBResource) -> None:
    with pytest.raises(TableNotFound):
        lake.table("events")
    first = lake.table_or_create("events", partition_by=["n"], sort_by=["m"])
    again = lake.table_or_create("events", partition_by=["m"])
    assert first.spec == again.spec == lake.table("events").spec
    assert first.spec.partition_by == ("n",)


def test_a_log_without_a_spec_is_not_a_missing_table(lake: IceDBResource) -> None:
    table = lake.table_or_create("events")
    table.insert(ONE)
    (Path(table.uri) / "_table.json").unlink()
    assert lake.table_or_create("events").snapshot().rows == table.snapshot().rows == 1
    assert not (Path(table.uri) / "_table.json").exists()


SECRET = "sEcReT-that-must-not-be-shown"


def test_the_text_of_a_resource_contains_no_secret() -> None:
    lake = IceDBResource(root="s3://lake", storage_options={"AWS_SECRET_ACCESS_KEY": SECRET})
    with_s3 = IceDBResource(root="s3://lake", s3=S3Resource(aws_secret_access_key=SECRET))
    for text in (repr(lake), str(lake), f"{lake}", repr(with_s3), str(with_s3)):
        assert "s3://lake" in text
        assert SECRET not in text


@pytest.mark.parametrize(
    ("resource", "fields"),
    [
        (IceDBResource, {"root": "lake", "storage_options": {"AWS_SECRET_ACCESS_KEY": [SECRET]}}),
        (IceDBResource, {"root": "lake", "storage_options": SECRET}),
        (IceDBIOManager, {"icedb": IceDBResource(root="lake"), "mode": [SECRET]}),
        (IceDBIOManager, {"icedb": IceDBResource(root="lake"), "preview_rows": SECRET}),
        (LocalSpark, {"env": {"TOKEN": [SECRET]}}),
    ],
)
def test_a_field_of_a_wrong_type_is_named_without_its_value(resource: Any, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=f"{resource.__name__}: {[*fields][-1]}") as refused:
        resource(**fields)
    assert SECRET not in str(refused.value)
    assert refused.value.__suppress_context__


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_secrets_come_from_the_environment_and_stay_out_of_the_event_log(
    instance: dg.DagsterInstance, s3: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {**s3.storage_options, "AWS_SECRET_ACCESS_KEY": dg.EnvVar("THE_SECRET")}
    lake = IceDBResource(root=s3.uri, storage_options=options)
    resources = {"io_manager": IceDBIOManager(icedb=lake), "icedb": lake}

    @dg.asset(ins={"upstream": dg.AssetIn(name)})
    def reader(upstream: pa.Table, icedb: IceDBResource) -> pa.Table:
        assert icedb.table(name).snapshot().rows == upstream.num_rows
        return upstream

    assets = [returning(name, ONE), reader]
    monkeypatch.setenv("THE_SECRET", s3.storage_options["AWS_SECRET_ACCESS_KEY"])
    good = dg.materialize(assets, resources=resources, instance=instance)
    assert good.success
    stored = icedb.Table.open(f"{s3.uri}/reader", storage_options=s3.storage_options)
    assert stored.query("SELECT n FROM t").fetchall() == [(1,)]

    monkeypatch.setenv("THE_SECRET", SECRET)
    bad = dg.materialize(assets, resources=resources, instance=instance, raise_on_error=False)
    [failure] = bad.get_step_failure_events()
    assert "AccessDenied" in str(failure.step_failure_data.error)
    for result, secret in ((good, s3.storage_options["AWS_SECRET_ACCESS_KEY"]), (bad, SECRET)):
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        texts = [
            *map(str, instance.all_logs(run.run_id)),
            str(run),
            str(instance.get_job_snapshot(run.job_snapshot_id or "")),
        ]
        assert len(texts) > 10
        assert not any(secret in text for text in texts)


def secrets_of(s3: Any) -> tuple[str, str]:
    return s3.storage_options["AWS_ACCESS_KEY_ID"], s3.storage_options["AWS_SECRET_ACCESS_KEY"]


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_an_s3_resource_provides_endpoint_region_and_keys(
    instance: dg.DagsterInstance, s3: Any, name: str, monkeypatch: pytest.MonkeyPatch, capfd: Any
) -> None:
    key, secret = secrets_of(s3)
    monkeypatch.setenv("THE_SECRET", secret)
    s3_resource = S3Resource(
        endpoint_url=s3.storage_options["AWS_ENDPOINT_URL"],
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=dg.EnvVar("THE_SECRET"),
    )
    lake = IceDBResource(root=s3.uri, s3=s3_resource)
    result = dg.materialize([returning(name, ONE)], resources={"io_manager": IceDBIOManager(icedb=lake)},
                            instance=instance)  # fmt: skip
    assert result.success
    assert lake.table(name).query("SELECT n FROM t").fetchall() == [(1,)]  # a script reads the variable too
    texts = [*map(str, instance.all_logs(result.run_id)), repr(lake), str(instance.get_run_by_id(result.run_id))]
    texts += [*capfd.readouterr()]
    assert not any(secret in text for text in texts)


@pytest.mark.sampled(days=3)
@pytest.mark.s3
def test_credentials_of_an_s3_resource_are_renewed_during_a_run(
    instance: dg.DagsterInstance, s3: Any, name: str, keys: RotatingKeys, profile: str
) -> None:
    s3_resource = S3Resource(endpoint_url=s3.storage_options["AWS_ENDPOINT_URL"], profile_name=profile)
    lake = IceDBResource(root=s3.uri, s3=s3_resource)
    used = set()

    @dg.asset(key=name)
    def rotating(icedb: IceDBResource) -> Any:
        table = icedb.table_or_create(name)
        for n in range(2):
            used.add(keys.now["access_key_id"])
            table.insert([{"n": n}])
            keys.rotate()
        assert table.merge().merged_parts == 2
        keys.rotate()
        assert table.query("SELECT sum(n) FROM t").fetchall() == [(1,)]

    resources = {"icedb": lake, "io_manager": IceDBIOManager(icedb=lake)}
    result = dg.materialize([rotating], resources=resources, instance=instance)
    [event] = result.asset_materializations_for_node(name)
    assert event.metadata["dagster/row_count"].value == 2
    assert len(used) == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verify": False}, "always verifies certificates"),
        ({"use_ssl": False}, "give an endpoint_url that begins with http://"),
        ({"profile_name": "nobody"}, r"boto3 cannot create a session from s3: .*\(nobody\) could not be found"),
        ({"aws_access_key_id": "a"}, "but not both"),
        ({"region_name": dg.EnvVar("NOT_SET_ANYWHERE")}, "NOT_SET_ANYWHERE is not set"),
    ],
)
def test_unsupported_settings_of_an_s3_resource_are_rejected(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        IceDBResource(root="s3://lake", s3=S3Resource(**fields)).table("events")


def test_an_s3_resource_is_the_only_source_of_keys() -> None:
    with pytest.raises(InvalidOption, match="not an S3Resource"):
        IceDBResource(root="s3://lake", s3=IceDBResource(root="s3://other")).table("events")
    both = IceDBResource(root="s3://lake", s3=S3Resource(), storage_options={"AWS_SESSION_TOKEN": "a"})
    with pytest.raises(InvalidOption, match="not both"):
        both.table("events")
    unsigned = IceDBResource(root="s3://lake", s3=S3Resource(use_unsigned_session=True)).access()
    assert unsigned["credential_provider"]() is None


@pytest.mark.parametrize("name", ["AWS_SECRET_ACCESS_KEY", "aws_session_token"])
def test_a_literal_secret_in_code_is_rejected(name: str) -> None:
    lake = IceDBResource(root="s3://lake", storage_options={name: SECRET})
    nested = IceDBResource(root="s3://lake", s3=S3Resource(**{name.lower(): SECRET}))
    for resource in (lake, nested):
        with pytest.raises(
            InvalidOption, match=rf'{name} in .* dg\.EnvVar\("{name.upper()}"\)|{name.lower()}'
        ) as error:
            dg.Definitions(assets=[returning("a", ONE)], resources={"lake": resource}).get_repository_def()
        assert SECRET not in str(error.value)
    variable = IceDBResource(root=dg.EnvVar("LAKE_ROOT"), storage_options={name: SECRET})
    with pytest.raises(InvalidOption, match=r"'LAKE_ROOT': .* is plain text"):
        IceDBIOManager(icedb=variable)
    with pytest.raises(InvalidOption, match="is plain text"):
        dg.materialize([returning("a", ONE)], resources={"io_manager": IceDBIOManager(icedb=lake)})


def test_dagster_s_snapshot_of_code_names_variables_and_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_SECRET", SECRET)
    variable = dg.EnvVar("THE_SECRET")
    s3_resource = S3Resource(aws_access_key_id="a", aws_secret_access_key=variable)
    lake = IceDBResource(root="s3://lake", storage_options={"AWS_SECRET_ACCESS_KEY": variable})
    nested = IceDBResource(root="x", s3=s3_resource)
    resources = {"icedb": lake, "io_manager": IceDBIOManager(icedb=lake), "nested": nested}
    defs = dg.Definitions(assets=[returning("a", ONE)], jobs=[dg.define_asset_job("j")], resources=resources)
    serialized = serialize_value(RepositorySnap.from_def(defs.get_repository_def()))
    assert "THE_SECRET" in serialized
    assert SECRET not in serialized
    assert SECRET not in serialize_value(defs.resolve_job_def("j").get_job_snapshot())


def test_a_script_can_use_the_resource(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAKE_ROOT", str(tmp_path / "lake"))
    variable = IceDBResource(root=dg.EnvVar("LAKE_ROOT"), s3=S3Resource())
    assert variable.table_or_create("events").uri == str(tmp_path / "lake" / "events")
    lake = IceDBResource(root=str(tmp_path), storage_options={"AWS_SECRET_ACCESS_KEY": SECRET, "FSYNC": "false"})
    lake.table_or_create("events", sort_by=["n"], required=["n"]).insert(ONE)
    assert lake.table("events").spec.required == ("n",)
