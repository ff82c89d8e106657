"""Where the tables of a deployment are: a root, and the options to get in."""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Sequence

import dagster as dg
from pydantic import Field

import icedb
from icedb.errors import TableExists, TableNotFound

__all__ = ["IceDBResource"]


class IceDBResource(dg.ConfigurableResource):  # type: ignore[type-arg]
    """The tables below one root; an asset's table is `<root>/<asset key, joined by />`.

    `root`: a bucket with a prefix (`s3://lake/events`) or a local folder. `storage_options`: as for
    `icedb.Table.open`; give secrets as `dg.EnvVar("...")`. Without them the usual AWS chain decides.
    """

    root: str
    storage_options: dict[str, str] = Field(default={}, repr=False)

    def __repr__(self) -> str:
        return f"IceDBResource(root={self.root!r}, storage_options={sorted(self.storage_options)})"

    __str__ = __repr__

    def uri(self, key: dg.AssetKey | Sequence[str] | str) -> str:
        """The address of an asset's table."""
        return "/".join([self.root.rstrip("/"), *dg.AssetKey.from_coercible(key).path])

    def table(self, key: dg.AssetKey | Sequence[str] | str) -> icedb.Table:
        """The table of an asset. Raises TableNotFound and the store's errors."""
        return icedb.Table.open(self.uri(key), storage_options=self.storage_options)

    def table_or_create(
        self,
        key: dg.AssetKey | Sequence[str] | str,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
    ) -> icedb.Table:
        """The table of an asset, created when it is missing; partitioning and order are for the new table only."""
        try:
            return self.table(key)
        except TableNotFound:
            pass
        try:
            return icedb.Table.create(
                self.uri(key), partition_by=partition_by, sort_by=sort_by, storage_options=self.storage_options
            )
        except TableExists as error:
            try:
                return self.table(key)  # another run was first; its table is as good
            except TableNotFound:
                raise error from None  # it is no table of ours
