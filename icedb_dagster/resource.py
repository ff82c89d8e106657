"""The resource that locates and opens the tables of a deployment.

Dagster stores and shows a resource's values: they are in the code location's snapshot and in the UI. Of an `EnvVar` it
stores the name only. So a secret written in the code is rejected when the resource is given to Dagster. A script that
uses the resource without Dagster may contain one.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

import icedb
from icedb.errors import InvalidArgument, InvalidOption, TableExists, TableNotFound
from icedb.storage.credentials import CredentialProvider
from icedb.storage.option_names import SECRET_OPTIONS
from icedb_dagster.resource_fields import CheckedFields

__all__ = ["IceDBResource", "folders_of"]

_OF_SESSION = ("profile_name", "region_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")


# Key segments that are not folder names, or that name a folder inside another asset's table.
_NO_FOLDERS = frozenset({"", ".", "..", "_data", "_log", "_claims"})


def folders_of(key: dg.AssetKey) -> Sequence[str]:
    """Return the folders of an asset's table, below the root.

    Raises InvalidOption if the key would lead outside the root or into another asset's table.
    """
    wrong = [part for part in key.path if part in _NO_FOLDERS or "/" in part] if key.path else [""]
    if wrong:
        raise InvalidOption(
            f"the asset key {[*key.path]} cannot have a table: {wrong[0]!r} is not a folder name, or is a folder that "
            "tables use themselves. Rename the asset."
        )
    return key.path


class IceDBResource(CheckedFields, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Opens the tables below one root: an asset's table is `<root>/<asset key, joined by />`.

    Without `s3` and without credentials in `storage_options`, the usual AWS chain decides.

    Args:
        root: A bucket with a prefix (`s3://lake/events`) or a local folder.
        storage_options: As for `icedb.Table.open`. Give secrets as `dg.EnvVar("...")`.
        s3: An `S3Resource` of dagster-aws. Its session provides credentials for each request, so temporary credentials
            of a role may expire during a run.

    Example:
        resources = {"icedb": IceDBResource(root="s3://lake/events")}
    """

    root: str
    storage_options: dict[str, str] = Field(default={}, repr=False)
    # Any resource, because dagster-aws is optional; `_provider` checks its type.
    s3: dg.ConfigurableResource | None = None  # type: ignore[type-arg]

    _in_run: bool = PrivateAttr(default=False)
    _provider: CredentialProvider | None = PrivateAttr(default=None)

    def __repr__(self) -> str:
        s3 = "" if self.s3 is None else ", s3=S3Resource(...)"
        return f"{type(self).__name__}(root={self.root!r}, storage_options={sorted(self.storage_options)}{s3})"

    __str__ = __repr__

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Mark Dagster's copy for a run: it holds the values of the variables, and is not stored."""
        self._in_run = True

    def get_resource_definition(self) -> Any:
        """Return the definition that Dagster stores and shows.

        Raises:
            InvalidOption: A field holds a secret in plain text.
        """
        if not self._in_run:
            self._refuse_secrets("storage_options", self.storage_options.items())
            self._refuse_secrets("s3", self.s3 or ())
        return super().get_resource_definition()

    def uri(self, key: dg.AssetKey | Sequence[str] | str) -> str:
        """Return the address of an asset's table.

        Args:
            key: The asset key, in any form that Dagster accepts.

        Raises:
            InvalidOption: The key would lead outside the root or into another asset's table.

        Example:
            resource.uri(["sales", "orders"])  # s3://lake/events/sales/orders
        """
        if not isinstance(key, dg.AssetKey | str) and not (  # an AssetKey is a tuple that cannot be iterated
            isinstance(key, list | tuple) and all(isinstance(part, str) for part in key)
        ):
            raise InvalidArgument(
                f"{_value(self.root)}: key must be an AssetKey, text or a list of texts, not a {type(key).__name__}."
            )
        return "/".join([_value(self.root).rstrip("/"), *folders_of(dg.AssetKey.from_coercible(key))])

    def table(self, key: dg.AssetKey | Sequence[str] | str) -> icedb.Table:
        """Open the table of an asset.

        Args:
            key: The asset key, in any form that Dagster accepts.

        Raises:
            TableNotFound: The table does not exist.
            InvalidOption: The key or the credentials are invalid. Errors of the store are raised, too.

        Example:
            resource.table("events").query("SELECT count(*) FROM t")
        """
        return icedb.Table.open(self.uri(key), **self.access())

    def table_or_create(
        self,
        key: dg.AssetKey | Sequence[str] | str,
        *,
        partition_by: Sequence[str] | None = None,
        sort_by: Sequence[str] | None = None,
        **options: Any,
    ) -> icedb.Table:
        """Open the table of an asset, or create it if it does not exist.

        Args:
            key: The asset key, in any form that Dagster accepts.
            partition_by: Partition expressions of a new table. An existing table keeps its own.
            sort_by: Sort columns of a new table. An existing table keeps its own.
            **options: Further arguments of `icedb.Table.create`, for a new table.

        Example:
            table = resource.table_or_create("events", partition_by=["day"])
        """
        try:
            return self.table(key)
        except TableNotFound:
            pass
        try:
            return icedb.Table.create(
                self.uri(key), partition_by=partition_by, sort_by=sort_by, **self.access(), **options
            )
        except TableExists as error:
            try:
                return self.table(key)  # another run created it first
            except TableNotFound:
                raise error from None  # the existing objects are not an IceDB table

    def access(self) -> dict[str, Any]:
        """Return `storage_options` and `credential_provider` for `icedb.Table`.

        Raises:
            InvalidOption: A variable is not set, or `s3` is not a usable `S3Resource`.
        """
        options = {name: _value(value) for name, value in self.storage_options.items()}
        if self.s3 is None:
            return {"storage_options": options}
        fields = _set_fields(self.s3)
        if self._provider is None:
            self._provider = _provider(_value(self.root), fields)
        return {"storage_options": {**_addresses(fields), **options}, "credential_provider": self._provider}

    def _refuse_secrets(self, field: str, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            if name.lower() in SECRET_OPTIONS and value and not isinstance(value, dg.EnvVar):
                raise InvalidOption(
                    f"{self.root!r}: {name} in {field} is plain text, which Dagster would store and show. Set an "
                    f'environment variable and give dg.EnvVar("{name.upper()}").'
                )


def _value(field: str) -> str:
    """Return a value, or that of its environment variable, which Dagster resolves only when a run begins."""
    if not isinstance(field, dg.EnvVar):
        return field
    value = field.get_value()
    if value is None:
        raise InvalidOption(f"the environment variable {field.env_var_name} is not set. A resource needs it.")
    return value


def _set_fields(s3: Any) -> dict[str, Any]:
    """Return the fields of an S3Resource that are set, with the values of their variables."""
    return {name: _value(value) for name, value in s3 if value is not None}


def _addresses(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the storage options for the endpoint and region of an S3Resource."""
    names = {"endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_REGION"}
    return {option: fields[name] for name, option in names.items() if name in fields}


def _provider(root: str, fields: Mapping[str, Any]) -> CredentialProvider:
    """Return the credential provider of an S3Resource. Raises InvalidOption for fields that IceDB cannot honor."""
    if "use_unsigned_session" not in fields:
        raise InvalidOption(f"{root}: s3 is not an S3Resource (from dagster_aws.s3 import S3Resource).")
    if fields.get("verify") is False:
        raise InvalidOption(f"{root}: s3 has verify=False, but IceDB always verifies certificates. Remove verify.")
    if not fields["use_ssl"] and "endpoint_url" not in fields:
        raise InvalidOption(f"{root}: s3 has use_ssl=False; give an endpoint_url that begins with http:// instead.")
    if fields["use_unsigned_session"]:
        return _anonymous
    # boto3 takes half a second to import, and only tables with an S3Resource need it.
    import boto3
    from botocore.exceptions import BotoCoreError

    if ("aws_access_key_id" in fields) != ("aws_secret_access_key" in fields):  # boto3 would search other sources
        raise InvalidOption(
            f"{root}: s3 has an access key id or a secret access key, but not both. Set both or neither."
        )
    try:
        return boto3.Session(**{name: fields[name] for name in _OF_SESSION if name in fields})
    except BotoCoreError as error:
        raise InvalidOption(f"{root}: boto3 cannot create a session from s3: {error}") from None


def _anonymous() -> None:
    """Provide no credentials, so that requests are unsigned."""
