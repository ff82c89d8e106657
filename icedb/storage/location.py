"""The address of a table and the access to it: a URI and storage options, as in deltalake and Polars.

    s3://bucket/prefix     with AWS_ENDPOINT_URL (or AWS_ENDPOINT_URL_S3), AWS_REGION, AWS_ACCESS_KEY_ID,
                           AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, AWS_VIRTUAL_HOSTED_STYLE_REQUEST
                           (AWS_ALLOW_HTTP is accepted but not needed: an endpoint that starts with
                           http:// implies it)
    az://container/prefix  with AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY: see icedb.storage.azure
    gs://bucket/prefix     with GOOGLE_SERVICE_ACCOUNT or the machine's credentials: see icedb.storage.google_cloud
    /a/folder, file:///a/folder, ~/folder, relative/folder
    memory://name          in this process only, for tests

Missing options come from the environment. Missing credentials then come from boto3's chain (profiles, SSO, instance
roles). A `credential_provider` takes precedence over all of these: see `icedb.storage.credentials`.

A `Location` can be pickled to a Spark task, and its repr shows no secret. The task gets the credentials that the
provider returns at the time of pickling, and does not call the provider again.

In a local folder every put is synced to disk before it returns. `"fsync": "false"` disables that. Puts are faster then,
but after a power failure objects of the last seconds may be empty or missing. Use it for tests and reproducible data.

The log may be in a store of its own (`with_log`), for example one with lower latency.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TypedDict
from urllib.parse import unquote, urlsplit

from icedb.errors import InvalidOption, InvalidURI
from icedb.format.keys import Keys
from icedb.storage.azure import AzureAccess, azure_access
from icedb.storage.credentials import (
    CredentialProvider,
    Credentials,
    Provider,
    as_provider,
    default_chain,
    default_region,
)
from icedb.storage.google_cloud import GoogleAccess, google_access
from icedb.storage.option_names import known_options

__all__ = ["Location", "StoreOptions", "parse_beside", "parse_location", "with_log"]

# Of several names of one option, the first takes precedence.
_OPTIONS = {
    "aws_endpoint_url_s3": "endpoint",
    "aws_endpoint_url": "endpoint",
    "aws_endpoint": "endpoint",
    "endpoint_url": "endpoint",
    "endpoint": "endpoint",
    "aws_region": "region",
    "aws_default_region": "region",
    "region": "region",
    "aws_access_key_id": "access_key_id",
    "access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "session_token": "session_token",
    "aws_allow_http": "allow_http",
    "allow_http": "allow_http",
    "aws_virtual_hosted_style_request": "virtual_hosted",
    "virtual_hosted_style_request": "virtual_hosted",
    "fsync": "fsync",
}
_OF_KEYS = ("access_key_id", "secret_access_key", "session_token")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


class StoreOptions(TypedDict, total=False):
    """The options with which an existing table is opened, with the meanings of `Table.create`."""

    storage_options: Mapping[str, str] | None
    credential_provider: CredentialProvider | None
    log_storage_options: Mapping[str, str] | None


@dataclass(frozen=True, slots=True)
class Location:
    """A table's address. `root` is the bucket, the folder or the name of the memory store."""

    scheme: str
    root: str
    prefix: str
    endpoint: str | None = None
    region: str | None = None
    virtual_hosted: bool = False
    explicit_credentials: Credentials | None = None
    #: The location of log and claims; None if they are in the store of the parts.
    log: Location | None = None
    #: Whether a local store syncs each put to disk.
    fsync: bool = True
    #: Called for the current credentials if there are no explicit ones.
    provider: Provider | None = field(default=None, repr=False)
    #: The access to a container in Azure Blob Storage, or to a bucket in Google Cloud Storage.
    cloud: AzureAccess | GoogleAccess | None = None

    def __reduce__(self) -> tuple[object, ...]:
        whole = self
        if self.provider is not None:  # it may hold connections and a login session, which cannot be pickled
            whole = replace(self, explicit_credentials=self.provider(), provider=None)
        return Location, tuple(getattr(whole, f.name) for f in fields(Location))

    @property
    def uri(self) -> str:
        """The address as a caller writes it."""
        return self.root if self.scheme == "file" else f"{self.root_uri}/{self.prefix}".rstrip("/")

    @property
    def root_uri(self) -> str:
        """The prefix which, with a slash and a key, is a path that DuckDB can open."""
        return self.root if self.scheme == "file" else f"{self.scheme}://{self.root}"

    @property
    def is_opened_by_engines(self) -> bool:
        """Whether DuckDB and Arrow can open its objects directly. For other locations they read copies."""
        return self.scheme in ("file", "s3")

    @property
    def access(self) -> tuple[object, ...]:
        """Bucket, endpoint and credentials. Between locations with equal access, a store can copy objects."""
        return self.scheme, self.root, self.endpoint, self.explicit_credentials, self.provider, self.cloud

    @property
    def storage_options(self) -> dict[str, str]:
        """The options that `parse_location` needs for this address. Contains secrets."""
        if self.cloud is not None:
            return self.cloud.storage_options
        options = {"AWS_ENDPOINT_URL": self.endpoint, "AWS_REGION": self.region}
        current = self.explicit_credentials if self.provider is None else self.provider()
        if current is not None:
            options["AWS_ACCESS_KEY_ID"] = current.access_key_id
            options["AWS_SECRET_ACCESS_KEY"] = current.secret_access_key
            options["AWS_SESSION_TOKEN"] = current.session_token
        if self.virtual_hosted:
            options["AWS_VIRTUAL_HOSTED_STYLE_REQUEST"] = "true"
        if not self.fsync:
            options["FSYNC"] = "false"
        return {name: value for name, value in options.items() if value}

    def sibling(self, name: str) -> Location:
        """Return the address of another table in the same folder. Raises InvalidURI if this one is a whole bucket."""
        whole = self.root if self.scheme == "file" else self.prefix
        parent, slash, own = whole.rpartition("/")
        if not own:
            raise InvalidURI(f"{self.uri}: a table that is a whole bucket has no siblings. Give the table a prefix.")
        path = f"{parent}{slash}{name}"
        changed = replace(self, root=path) if self.scheme == "file" else replace(self, prefix=path)
        return replace(changed, log=None)

    @property
    def name(self) -> str:
        """The last segment of the address."""
        return (self.root if self.scheme == "file" else self.prefix).rpartition("/")[2]

    @property
    def keys(self) -> Keys:
        """The names of the table's objects."""
        return Keys(self.prefix, log_root=None if self.log is None else self.log.prefix)

    def credentials(self) -> Credentials | None:
        """Return the explicit credentials, or those of the provider or of boto3's chain; None for unsigned requests."""
        if self.explicit_credentials is not None or self.scheme != "s3":
            return self.explicit_credentials
        return (self.provider or default_chain(self.uri))()


def parse_location(
    uri: str | os.PathLike[str],
    storage_options: Mapping[str, str] | None = None,
    credential_provider: CredentialProvider | None = None,
) -> Location:
    """Parse a URI and storage options. Raises InvalidURI, InvalidOption, AccessDenied.

    For a table that is not in S3, the provider is ignored, like the options for S3.
    """
    location = _parse(uri, storage_options)
    if location.scheme != "s3":
        return location
    if credential_provider is None:
        chain = location.explicit_credentials is None and not (location.region or location.endpoint)
        return replace(location, region=default_region(location.uri)) if chain else location
    if any(_OPTIONS[name.lower()] in _OF_KEYS for name in storage_options or {}):
        raise InvalidOption(f"{location.uri}: give keys as storage options, or a credential_provider, but not both.")
    return replace(
        location,
        explicit_credentials=None,
        provider=as_provider(credential_provider, table=location.uri),
        region=location.region or getattr(credential_provider, "region_name", None),  # a Session may know it
    )


def parse_beside(
    uri: str | os.PathLike[str], home: Location, storage_options: Mapping[str, str] | None = None
) -> Location:
    """Parse a URI. Without options, one in a store of the same kind as `home` has its endpoint and credentials.

    Raises InvalidURI, InvalidOption, AccessDenied.
    """
    if storage_options is not None:
        return parse_location(uri, storage_options)
    of_cloud = home.cloud is not None and os.fspath(uri).lower().startswith(f"{home.scheme}://")
    location = parse_location(uri, home.storage_options if of_cloud else None)
    if location.scheme != home.scheme or location.scheme not in ("s3", "az", "gs"):
        return location
    return replace(home, root=location.root, prefix=location.prefix, log=None)


def _parse(uri: str | os.PathLike[str], storage_options: Mapping[str, str] | None) -> Location:
    text = os.fspath(uri)
    scheme, separator, rest = text.partition("://")
    if not separator:
        return _local(text, storage_options)
    match scheme.lower():
        case "s3" | "s3a":
            return _s3(text, rest, storage_options or {})
        case "file":
            address = urlsplit(text)
            if address.netloc not in ("", "localhost"):
                raise InvalidURI(f"'{_redacted(text)}' names a host; write file:///a/folder, or just the folder.")
            return _local(unquote(address.path), storage_options)
        case "az":
            container, prefix = _root_and_prefix(text, rest)
            access = azure_access(storage_options or {}, text=text)
            return Location("az", container, prefix, endpoint=access.endpoint, cloud=access)
        case "gs":
            bucket, prefix = _root_and_prefix(text, rest)
            google = google_access(storage_options or {}, text=text)
            return Location("gs", bucket, prefix, endpoint=google.endpoint, cloud=google)
        case "memory":
            return Location("memory", *_root_and_prefix(text, rest))
    raise InvalidURI(
        f"'{_redacted(text)}' has the scheme '{scheme}'; a table can be at s3://bucket/prefix, at "
        "az://container/prefix, at gs://bucket/prefix, in a local folder, or, for tests, at memory://name."
    )


def with_log(
    location: Location, log_uri: str | os.PathLike[str] | None, options: Mapping[str, str] | None = None
) -> Location:
    """Return the location of a table whose log may be at another address. Raises InvalidURI, InvalidOption.

    Without options of its own, a log in a store of the same kind uses the access of the parts.
    """
    if log_uri is None:
        if options is not None:
            raise InvalidOption(f"{location.uri}: log_storage_options is set, but no log_uri. Set log_uri as well.")
        return location
    log = parse_beside(log_uri, location, options)
    if options is None and log.scheme == location.scheme:
        log = replace(location, root=log.root, prefix=log.prefix)
    if (log.uri, log.endpoint) == (location.uri, location.endpoint):
        return location
    own, its = f"{location.uri}/", f"{log.uri}/"
    nested = own.startswith(its) or its.startswith(own)
    if (nested and log.endpoint == location.endpoint) or _is_ambiguous(location, log):
        raise InvalidURI(
            f"'{log.uri}' cannot hold the log of '{location.uri}': one is inside the other, so their objects could "
            "not be distinguished. Choose two addresses of which none contains the other."
        )
    return replace(location, log=log)


def _is_ambiguous(location: Location, log: Location) -> bool:
    """Whether the key of a part could also be that of a log file, because two buckets may have any prefixes."""
    own, its = (f"{p}/" if p else "" for p in (location.prefix, log.prefix))
    return own.startswith((f"{its}_log/", f"{its}_claims/")) or its.startswith(f"{own}_data/")


def _local(path: str, storage_options: Mapping[str, str] | None) -> Location:
    if not path or "\0" in path:
        raise InvalidURI("an empty path cannot be a table's folder; give s3://bucket/prefix or a folder.")
    options = _check_options(storage_options or {}, text=path)
    fsync = _BOOLEANS.get(options.get("fsync", "true").lower())
    if fsync is None:
        raise InvalidOption(f"{path}: fsync is '{options['fsync']}'; give 'true' or 'false'.")
    folder = str(Path(path).expanduser().resolve())
    if any(c in folder for c in "?*[]\n\r"):  # DuckDB would interpret the paths of the parts as patterns
        raise InvalidURI(f"'{folder}' cannot be a table's folder: its path has one of ?, *, [, ]. Choose another.")
    return Location("file", folder, "", fsync=fsync)


def _s3(text: str, rest: str, storage_options: Mapping[str, str]) -> Location:
    bucket, prefix = _root_and_prefix(text, rest)
    from_environment = {k: v for k, v in os.environ.items() if k.startswith("AWS_")}
    options = _check_options(from_environment, text=text, strict=False)
    explicit = _check_options(storage_options, text=text)
    if "access_key_id" in explicit or "secret_access_key" in explicit:
        # A key pair never comes from two different sources, and a token belongs to its pair.
        for name in _OF_KEYS:
            options.pop(name, None)
    options |= explicit
    if ("access_key_id" in options) != ("secret_access_key" in options):
        raise InvalidOption(f"{text}: give both AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or neither of them.")
    endpoint = options.get("endpoint")
    if endpoint and (not endpoint.startswith(("http://", "https://")) or "@" in endpoint):
        raise InvalidOption(f"{text}: AWS_ENDPOINT_URL must start with http:// or https:// and contain no credentials.")
    if "access_key_id" in options:
        credentials = Credentials(
            options["access_key_id"], options["secret_access_key"], options.get("session_token") or None
        )
    else:
        credentials = None
    return Location(
        "s3",
        bucket,
        prefix,
        endpoint=endpoint.rstrip("/") if endpoint else None,
        region=options.get("region"),
        virtual_hosted=options.get("virtual_hosted", "false").lower() in ("true", "1"),
        explicit_credentials=credentials,
    )


def _root_and_prefix(text: str, rest: str) -> tuple[str, str]:
    root, _, prefix = rest.partition("/")
    if "@" in root or ":" in root:  # not quoted, because it may be a secret
        raise InvalidURI(
            "a table's address has no credentials in it; give them as storage options or by the environment."
        )
    if not root or any(c in text for c in "?*[]\\\0\n\r"):
        raise InvalidURI(
            f"'{_redacted(text)}' is no table's address: it needs a bucket or name, and none of ?, *, [, ], \\."
        )
    keys = Keys(prefix.strip("/"))  # rejects empty and '..' segments
    return root, keys.prefix


def _redacted(text: str) -> str:
    """Return an address without its credentials and its query, which may be secrets."""
    scheme, separator, rest = text.partition("://")
    address, query, _ = rest.partition("?")
    _credentials, at, address = address.rpartition("@")
    return f"{scheme}{separator}{'...@' if at else ''}{address}{'?...' if query else ''}" if separator else text


def _check_options(options: Mapping[str, str], *, text: str, strict: bool = True) -> dict[str, str]:
    parsed = known_options(options, _OPTIONS)
    unknown = sorted(k for k in options if k.lower() not in _OPTIONS)
    if strict and unknown:
        raise InvalidOption(
            f"{text}: unknown storage options {unknown}. Known: fsync, "
            f"{sorted(k.upper() for k in _OPTIONS if 'aws' in k)}."
        )
    return parsed
