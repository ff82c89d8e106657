"""The IO manager and a maintenance job, with a lake in the emulators of Azure and Google Cloud."""

from typing import Any

import pyarrow as pa
import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption
from icedb.storage.option_names import SECRET_OPTIONS
from icedb_dagster import IceDBIOManager, IceDBResource
from tests.support.dagster.dagster_instance import rows
from tests.support.dagster.dagster_jobs import definitions, run_job
from tests.support.object_stores.stores import Place

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]


@pytest.mark.sampled(cases=1)
def test_assets_and_maintenance_work_in_a_cloud(
    cloud: Place, instance: dg.DagsterInstance, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = dict(cloud.storage_options or {})
    for option in options.keys() & {name.upper() for name in SECRET_OPTIONS}:
        with pytest.raises(InvalidOption, match=f"{option} in storage_options is plain text"):
            IceDBResource(root=cloud.uri, storage_options=options).get_resource_definition()
        monkeypatch.setenv(f"LAKE_{option}", options[option])
        options[option] = dg.EnvVar(f"LAKE_{option}")
    lake = IceDBResource(root=cloud.uri, storage_options=options)

    @dg.asset(key=name, partitions_def=dg.StaticPartitionsDefinition(["a", "b"]), metadata={"partition_expr": "p"})
    def written(context: dg.AssetExecutionContext) -> pa.Table:
        return pa.table({"p": [context.partition_key] * 2, "n": [1, 2]})

    @dg.asset(key=f"{name}_sum", ins={"upstream": dg.AssetIn(name)})
    def summed(upstream: pa.Table) -> pa.Table:
        return pa.table({"n": [sum(upstream["n"].to_pylist())]})

    resources = {"io_manager": IceDBIOManager(icedb=lake)}
    for key in ("a", "b", "b"):
        assert dg.materialize([written], resources=resources, instance=instance, partition_key=key).success
    assert dg.materialize([written, summed], selection=[summed], resources=resources, instance=instance).success
    assert rows(lake, f"{name}_sum") == [(6,)]
    lake.table(name).insert(pa.table({"p": ["b"], "n": [3]}))
    assert run_job(instance, definitions(lake, name), f"{name}_merge_newest").success
    assert len(lake.table(name).snapshot().parts) == 2
    assert rows(lake, name, "n") == [(1,), (1,), (2,), (2,), (3,)]
