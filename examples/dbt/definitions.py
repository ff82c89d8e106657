"""dbt models as Dagster assets, whose tables have maintenance jobs like all others."""

# No `from __future__ import annotations` here: Dagster reads the annotations of functions as objects.
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_dbt import DbtCliResource, DbtProject, dbt_assets

from icedb_dagster import IceDBResource, build_table_definitions

project = DbtProject(project_dir=Path(__file__).parent, target_path=Path(os.environ.get("DBT_TARGET_PATH", "target")))
project.preparer.prepare(project)


@dbt_assets(manifest=project.manifest_path)  # type: ignore[untyped-decorator]
def models(context: dg.AssetExecutionContext, dbt: DbtCliResource) -> Iterator[Any]:
    """Run the models and their tests."""
    yield from dbt.cli(["build"], context=context).stream()


defs = dg.Definitions.merge(
    dg.Definitions(
        assets=[models],
        resources={
            "dbt": DbtCliResource(project_dir=project),
            "icedb": IceDBResource(root=os.environ.get("LAKE_ROOT", "lake")),
        },
    ),
    build_table_definitions("visits_daily"),
)
