"""The object store: create-only put, get, list, delete many.

The only module that speaks to a store. It adds to obstore (Rust's `object_store`) what a table needs: one error
tree that never quotes a response (S3 servers send key ids and signatures back), listings sorted by key, deletes
that take "not there" for done, and many gets at a time. Nothing is ever replaced: `create` refuses an existing key.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Protocol, cast

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import LocalStore, MemoryStore, S3Store

from icedb.errors import AccessDenied, BucketNotFound, IceDBError, StoreUnavailable
from icedb.location import Location

__all__ = ["ObjectExists", "ObjectInfo", "ObjectNotFound", "ObjectStore", "StoredObject", "open_store"]

# A request and its retries end well before a commit's deadline (5 minutes), so that a put which nobody waits
# for any more cannot land as a surprise.
REQUEST_TIMEOUT = timedelta(seconds=30)
RETRY_TIMEOUT = timedelta(seconds=60)
RETRIES_MAX = 5
CONCURRENT_GETS = 16
DELETES_PER_REQUEST = 1_000

# S3's names for credentials that are wrong, expired or of another region; some come with status 400.
_DENIED_CODES = frozenset({"InvalidToken", "ExpiredToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"})

# One in-memory store per name and process, as one bucket is to all who open it.
_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


class ObjectExists(IceDBError):
    """A create-only put met an object. Not part of the public tree: commits decide what it means."""


class ObjectNotFound(IceDBError):
    """No object has that key. Not part of the public tree: readers decide what it means."""


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a listing says of an object; `stored_ms` is by the store's clock."""

    key: str
    bytes: int
    stored_ms: int


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object's content and the store's time for it."""

    body: bytes
    stored_ms: int


class ObjectStore(Protocol):
    """What a table needs of a store. `icedb.testing` wraps this to inject faults."""

    @property
    def location(self) -> Location:
        """The address, for messages and for DuckDB."""
        ...

    def create(self, key: str, body: bytes | Path) -> None:
        """Put an object that is not there yet. Raises ObjectExists; StoreUnavailable leaves it open."""
        ...

    def get(self, key: str) -> StoredObject:
        """Raises ObjectNotFound."""
        ...

    def head(self, key: str) -> ObjectInfo:
        """What a listing would say of one object. Raises ObjectNotFound."""
        ...

    def get_many(self, keys: Sequence[str]) -> Mapping[str, StoredObject]:
        """Those that are there."""
        ...

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """All objects whose key starts with `prefix` (which ends in a slash), beyond `after`, by key."""
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there counts as done."""
        ...


def open_store(location: Location) -> ObjectStore:
    """The store of a location. Makes no request."""
    match location.scheme:
        case "s3":
            return ObstoreStore(location, _open_s3(location))
        case "memory":
            with _memory_lock:
                return ObstoreStore(location, _memory_stores.setdefault(location.root, MemoryStore()))
    return ObstoreStore(location, LocalStore(Path(location.root)) if Path(location.root).is_dir() else None)


def _open_s3(location: Location) -> S3Store:
    credentials = location.explicit_credentials
    options: dict[str, object] = {"virtual_hosted_style_request": location.virtual_hosted}
    if location.endpoint:
        options["endpoint"] = location.endpoint
    if location.region or location.endpoint:
        options["region"] = location.region or "us-east-1"
    if credentials is not None:
        options |= {
            "access_key_id": credentials.access_key_id,
            "secret_access_key": credentials.secret_access_key,
        }
        if credentials.session_token:
            options["session_token"] = credentials.session_token
    else:
        options |= _boto3_chain()
    plain_http = bool(location.endpoint and location.endpoint.startswith("http://"))
    return S3Store(
        location.root,
        client_options={"allow_http": plain_http, "timeout": REQUEST_TIMEOUT},
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
        **options,  # type: ignore[arg-type]
    )


def _boto3_chain() -> dict[str, object]:
    import boto3
    from obstore.auth.boto3 import Boto3CredentialProvider

    session = boto3.Session()
    if session.get_credentials() is None:
        return {"skip_signature": True}
    return {"credential_provider": Boto3CredentialProvider(session)}


class ObstoreStore:
    """A store behind obstore. `backend` is None while a local table's folder does not exist yet."""

    def __init__(self, location: Location, backend: LocalStore | MemoryStore | S3Store | None) -> None:
        self.location = location
        self._backend = backend

    def __repr__(self) -> str:
        return f"ObstoreStore({self.location.uri!r})"

    def create(self, key: str, body: bytes | Path) -> None:
        """Put an object that is not there yet, in one request."""
        if self._backend is None:
            with self._errors("create the table's folder for", key):
                self._backend = LocalStore(Path(self.location.root), mkdir=True)
        with self._errors("create", key):
            obstore.put(self._backend, key, body, mode="create", use_multipart=False)

    def get(self, key: str) -> StoredObject:
        """Read an object whole."""
        if self._backend is None:
            raise ObjectNotFound(key)
        with self._errors("read", key):
            found = obstore.get(self._backend, key)
            return StoredObject(found.bytes().to_bytes(), _ms(found.meta["last_modified"]))

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        if self._backend is None:
            raise ObjectNotFound(key)
        with self._errors("look at", key):
            meta = obstore.head(self._backend, key)
        return ObjectInfo(key, meta["size"], _ms(meta["last_modified"]))

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """Read objects, many at a time; those that are not there are left out."""
        if not keys:
            return {}
        with ThreadPoolExecutor(min(CONCURRENT_GETS, len(keys))) as pool:
            return {k: o for k, o in zip(keys, pool.map(self._get_or_none, keys), strict=True) if o is not None}

    def _get_or_none(self, key: str) -> StoredObject | None:
        try:
            return self.get(key)
        except ObjectNotFound:
            return None

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """List objects by key."""
        if self._backend is None:
            return []
        with self._errors("list", prefix):
            pages = obstore.list(self._backend, prefix.rstrip("/"), offset=after)
            found = [ObjectInfo(m["path"], m["size"], _ms(m["last_modified"])) for page in pages for m in page]
        return sorted(found, key=lambda info: info.key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand per request."""
        if self._backend is None:
            return
        for some in _chunks(keys, DELETES_PER_REQUEST):
            try:
                with self._errors("delete", some[0]):
                    obstore.delete(self._backend, some)
            except ObjectNotFound:
                self._delete_singly(some)  # stores without bulk deletion stop at the first that is not there

    def _delete_singly(self, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                with self._errors("delete", key):
                    obstore.delete(cast("LocalStore", self._backend), key)
            except ObjectNotFound:
                continue

    @contextmanager
    def _errors(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except obstore_errors.AlreadyExistsError:
            raise ObjectExists(key) from None
        except (obstore_errors.BaseError, OSError) as error:
            raise translate(error, verb=verb, key=key, uri=self.location.uri, bucket=self.location.root) from None


def translate(error: Exception, *, verb: str, key: str, uri: str, bucket: str) -> IceDBError:
    """The error of ours that an error of obstore or of the file system means. Quotes nothing of the response."""
    text = str(error)
    found = re.search(r"<Code>(\w+)</Code>", text)
    code = found[1] if found else ""
    status = re.search(r"non-2xx status code: (\d{3})", text)
    what = f"{uri}: cannot {verb} '{key}'"
    if code == "NoSuchBucket":
        return BucketNotFound(f"{what}: the bucket '{bucket}' does not exist. Create it, or correct the address.")
    if isinstance(error, FileNotFoundError | obstore_errors.NotFoundError):
        return ObjectNotFound(key)
    if isinstance(error, obstore_errors.PreconditionError):
        return ObjectExists(key)
    denied = (PermissionError, obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError)
    if isinstance(error, denied) or code in _DENIED_CODES or (status and status[1] in ("401", "403")):
        return AccessDenied(
            f"{what}: access was refused{f' ({code})' if code else ''}. Check the access key, its secret, the region "
            "and the rights on that prefix (read, list, put, delete)."
        )
    detail = code or (f"status {status[1]}" if status else _first_cause(error, text))
    return StoreUnavailable(f"{what}: the store did not serve the request ({detail}). Check the endpoint, then retry.")


def _first_cause(error: Exception, text: str) -> str:
    """A short reason that cannot hold a secret: the operating system's, or the kind of transport error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"HTTP error: ([a-z ]+)", text) or re.search(r"\(os error \d+\)", text)
    return found[0] if found else type(error).__name__


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _chunks(keys: Sequence[str], size: int) -> Iterator[list[str]]:
    for start in range(0, len(keys), size):
        yield list(keys[start : start + size])
