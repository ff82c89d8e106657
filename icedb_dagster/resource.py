"""Where the tables of a deployment are: a root, and what it takes to get in.

Dagster keeps a resource's values: the code location's snapshot has them, and the UI shows them. Of an `EnvVar` it has
the name only. So a secret that stands in the code is refused when the resource is given to Dagster; a script that
uses the resource by itself may do as it likes.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field, PrivateAttr

import icedb
from icedb.errors import InvalidArgument, InvalidOption, TableExists, TableNotFound
from icedb.storage.credentials import CredentialProvider
from icedb_dagster.resource_fields import CheckedFields

__all__ = ["IceDBResource", "folders_of"]

_SECRETS = frozenset({"aws_secret_access_key", "secret_access_key", "aws_session_token", "session_token"})
_OF_SESSION = ("profile_name", "region_name", "aws_access_key_id", "aws_secret_access_key", "aws_session_token")


# Parts of a key that name no folder of their own, or one inside of another asset's table.
_NO_FOLDERS = frozenset({"", ".", "..", "_data", "_log", "_claims"})


def folders_of(key: dg.AssetKey) -> Sequence[str]:
    """The folders, below a root, of an asset's table. Raises InvalidOption for a key that would lead elsewhere."""
    wrong = [part for part in key.path if part in _NO_FOLDERS or "/" in part] if key.path else [""]
    if wrong:
        raise InvalidOption(
            f"the asset key {[*key.path]} has no table: {wrong[0]!r} is no name of a folder, or one that tables use "
            "themselves. Rename the asset."
        )
    return key.path


class IceDBResource(CheckedFields, dg.ConfigurableResource):  # type: ignore[type-arg]
    """The tables below one root; an asset's table is `<root>/<asset key, joined by />`.

    `root`: a bucket with a prefix (`s3://lake/events`) or a local folder. `storage_options`: as for
    `icedb.Table.open`; secrets among them as `dg.EnvVar("...")`. `s3`: an `S3Resource` of dagster-aws, whose session
    is asked for credentials again and again, so that a role's may expire while a run works. With neither, the usual
    AWS chain decides.
    """

    root: str
    storage_options: dict[str, str] = Field(default={}, repr=False)
    # Any resource, so that dagster-aws need not be there; `_provider` looks whether it is the right one.
    s3: dg.ConfigurableResource | None = None  # type: ignore[type-arg]

    _in_run: bool = PrivateAttr(default=False)
    _provider: CredentialProvider | None = PrivateAttr(default=None)

    def __repr__(self) -> str:
        s3 = "" if self.s3 is None else ", s3=S3Resource(...)"
        return f"{type(self).__name__}(root={self.root!r}, storage_options={sorted(self.storage_options)}{s3})"

    __str__ = __repr__

    def setup_for_execution(self, context: dg.InitResourceContext) -> None:
        """Dagster's copy for a run has the values of the variables, and is not kept."""
        self._in_run = True

    def get_resource_definition(self) -> Any:
        """What Dagster keeps and shows. Raises InvalidOption for a secret in it."""
        if not self._in_run:
            self._refuse_secrets("storage_options", self.storage_options.items())
            self._refuse_secrets("s3", self.s3 or ())
        return super().get_resource_definition()

    def uri(self, key: dg.AssetKey | Sequence[str] | str) -> str:
        """The address of an asset's table. Raises InvalidOption for a key that would lead elsewhere."""
        if not isinstance(key, dg.AssetKey | str) and not (  # an AssetKey is a tuple that cannot be iterated
            isinstance(key, list | tuple) and all(isinstance(part, str) for part in key)
        ):
            raise InvalidArgument(
                f"{_value(self.root)}: key must be an AssetKey, text or a list of texts, not a {type(key).__name__}."
            )
        return "/".join([_value(self.root).rstrip("/"), *folders_of(dg.AssetKey.from_coercible(key))])

    def table(self, key: dg.AssetKey | Sequence[str] | str) -> icedb.Table:
        """The table of an asset. Raises TableNotFound, InvalidOption and the store's errors."""
        return icedb.Table.open(self.uri(key), **self.access())

    def table_or_create(
        self,
        key: dg.AssetKey | Sequence[str] | str,
        *,
        partition_by: Sequence[str] = (),
        sort_by: Sequence[str] = (),
        **options: Any,
    ) -> icedb.Table:
        """The table of an asset, created when it is missing; partitioning and order are for the new table only.

        So are `options`, which are those of `icedb.Table.create`.
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
                return self.table(key)  # another run was first; its table is as good
            except TableNotFound:
                raise error from None  # it is no table of ours

    def access(self) -> dict[str, Any]:
        """`storage_options` and `credential_provider` for `icedb.Table`. Raises InvalidOption."""
        options = {name: _value(value) for name, value in self.storage_options.items()}
        if self.s3 is None:
            return {"storage_options": options}
        fields = _given(self.s3)
        if self._provider is None:
            self._provider = _provider(_value(self.root), fields)
        return {"storage_options": {**_addresses(fields), **options}, "credential_provider": self._provider}

    def _refuse_secrets(self, field: str, values: Iterable[tuple[str, Any]]) -> None:
        for name, value in values:
            if name.lower() in _SECRETS and value and not isinstance(value, dg.EnvVar):
                raise InvalidOption(
                    f"{self.root!r}: {name} in {field} is written out, and Dagster would keep and show it. Put it into "
                    f'the environment and give dg.EnvVar("{name.upper()}").'
                )


def _value(given: str) -> str:
    """Dagster has the values of variables ready when a run begins; a script that uses the resource has not."""
    if not isinstance(given, dg.EnvVar):
        return given
    value = given.get_value()
    if value is None:
        raise InvalidOption(f"the environment variable {given.env_var_name} is not set, and a resource needs it.")
    return value


def _given(s3: Any) -> dict[str, Any]:
    """The fields of an S3Resource that were given, with the values of their variables."""
    return {name: _value(value) for name, value in s3 if value is not None}


def _addresses(fields: Mapping[str, Any]) -> dict[str, str]:
    """The storage options that say where the S3 of an S3Resource is."""
    names = {"endpoint_url": "AWS_ENDPOINT_URL", "region_name": "AWS_REGION"}
    return {option: fields[name] for name, option in names.items() if name in fields}


def _provider(root: str, fields: Mapping[str, Any]) -> CredentialProvider:
    """The session of an S3Resource. Raises InvalidOption for what cannot be done as it says."""
    if "use_unsigned_session" not in fields:
        raise InvalidOption(f"{root}: s3 is no S3Resource of dagster-aws (from dagster_aws.s3 import S3Resource).")
    if fields.get("verify") is False:
        raise InvalidOption(f"{root}: s3 has verify=False, and certificates are always verified here. Leave it out.")
    if not fields["use_ssl"] and "endpoint_url" not in fields:
        raise InvalidOption(f"{root}: s3 has use_ssl=False; give an endpoint_url that begins with http:// instead.")
    if fields["use_unsigned_session"]:
        return _anonymous
    # Half a second that tables in folders, or with options, need not spend.
    import boto3
    from botocore.exceptions import BotoCoreError

    if ("aws_access_key_id" in fields) != ("aws_secret_access_key" in fields):  # boto3 would look elsewhere
        raise InvalidOption(f"{root}: aws_access_key_id and aws_secret_access_key of s3 come together or not at all.")
    try:
        return boto3.Session(**{name: fields[name] for name in _OF_SESSION if name in fields})
    except BotoCoreError as error:
        raise InvalidOption(f"{root}: there can be no session as s3 says: {error}") from None


def _anonymous() -> None:
    """Requests without a signature."""
