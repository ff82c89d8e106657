"""The component `IceDBResourceComponent`: the resource that opens tables, and their IO manager, declared in YAML."""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import dagster as dg
from pydantic import BaseModel, Field

from icedb.errors import InvalidOption
from icedb_dagster.component.resolution import rendered, set_fields
from icedb_dagster.component.templates import Attributes, Templated
from icedb_dagster.io.io_manager import IceDBIOManager
from icedb_dagster.resource import IceDBResource

__all__ = ["IceDBResourceComponent", "ResourceAttributes"]


class _Variable(Attributes):
    """A value that is read from an environment variable when a run begins. Dagster does not store it."""

    env: str = Field(description="The name of the environment variable.")


class ResourceAttributes(Attributes):
    """The attributes of the component `icedb_dagster.IceDBResourceComponent`."""

    root: Templated[str] | _Variable = Field(
        description="A bucket with a prefix, or a local folder. A table is <root>/<asset key>.",
        examples=["s3://lake/events"],
    )
    storage_options: dict[str, Templated[str] | _Variable] = Field(
        default={},
        description="Options of the store. Secrets are read from variables: {env: AWS_SECRET_ACCESS_KEY}.",
        examples=[{"AWS_REGION": "eu-central-1"}],
    )
    resource_key: str = Field(default="icedb", description="The key of the IceDBResource.")
    io_manager_key: str | None = Field(
        default="io_manager", description="The key of the IceDBIOManager; null: there is none."
    )
    io_manager: dict[str, Any] = Field(
        default={},
        description="Defaults for all assets, as fields of IceDBIOManager.",
        examples=[{"mode": "append", "sort_by": ["ts"]}],
    )


@dataclass(frozen=True, kw_only=True)
class IceDBResourceComponent(dg.Component, dg.Resolvable):
    """The `IceDBResource` that opens a project's tables, and the `IceDBIOManager` over it.

    Example:
        type: icedb_dagster.IceDBResourceComponent
        attributes:
          root: "s3://lake/events"
          storage_options: {AWS_SECRET_ACCESS_KEY: {env: LAKE_SECRET}}
    """

    root: str
    storage_options: Mapping[str, str] = field(default_factory=dict)
    resource_key: str = "icedb"
    io_manager_key: str | None = "io_manager"
    io_manager: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def model(cls) -> type[BaseModel]:
        """Return the YAML attributes."""
        return ResourceAttributes

    @classmethod
    def get_spec(cls) -> dg.ComponentTypeSpec:
        """Return the description for `dg list components` and the UI."""
        return dg.ComponentTypeSpec(tags=["icedb", "lakehouse"], produces=["resource"])

    @classmethod
    def resolve_from_model(cls, context: dg.ResolutionContext, model: BaseModel) -> Self:
        """Return the component that the attributes describe.

        Raises:
            InvalidOption: An attribute is invalid. The errors that Dagster raises for templates are raised, too.
        """
        values = rendered(context, model.model_dump(exclude_unset=True), "the tables' resource")
        fields = set_fields(ResourceAttributes.model_validate(values))
        fields["root"] = _value(fields["root"])
        options = fields.get("storage_options", {})
        return cls(**fields | {"storage_options": {name: _value(value) for name, value in options.items()}})

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Return the resources.

        Raises:
            InvalidOption: A field of the IO manager is invalid, or a secret is in plain text.
        """
        lake = IceDBResource(root=self.root, storage_options=dict(self.storage_options))
        lake.get_resource_definition()  # raises the error for secrets here, with this component's path
        resources: dict[str, Any] = {self.resource_key: lake}
        if self.io_manager_key is not None:
            resources[self.io_manager_key] = self._io_manager(lake)
        return dg.Definitions(resources=resources)

    def _io_manager(self, lake: IceDBResource) -> IceDBIOManager:
        if unknown := sorted(self.io_manager.keys() - _IO_MANAGER_FIELDS):
            raise InvalidOption(
                f"the tables' resource: io_manager has {unknown[0]!r}, which is no field of IceDBIOManager. Fields are "
                f"{', '.join(sorted(_IO_MANAGER_FIELDS))}."
            )
        return IceDBIOManager(icedb=lake, **self.io_manager)


_IO_MANAGER_FIELDS = IceDBIOManager.model_fields.keys() - {"icedb", "pyspark"}


def _value(value: Any) -> str:
    """Return a text, or the reference to a variable."""
    return dg.EnvVar(value.env) if isinstance(value, _Variable) else str(value)
