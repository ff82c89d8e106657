"""Object stores on S3, Azure, Google Cloud, memory and local folders, over obstore (Rust's `object_store`).

The only module that makes requests to a store. It adds to obstore:

- one error tree whose messages never quote a response, because S3 servers return key ids and signatures
- listings sorted by key, deletes for which a missing object counts as deleted, and parallel gets
- asynchronous streams of byte ranges
- puts that survive a power failure in a local folder (`icedb.storage.local_store`)

No object is ever replaced: `create` rejects an existing key.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from itertools import islice
from math import ceil
from pathlib import Path
from stat import S_ISLNK

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import AzureStore, GCSStore, LocalStore, MemoryStore, S3Store

from icedb.errors import AccessDenied, BucketNotFound, IceDBError, InvalidOption, InvalidURI, StoreUnavailable
from icedb.storage.azure import AzureAccess
from icedb.storage.credentials import Provider, default_chain
from icedb.storage.google_cloud import GoogleAccess
from icedb.storage.local_store import check_folder, create_file, delete_files, file_status, list_files, open_file
from icedb.storage.location import Location
from icedb.storage.object_store import ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore, StoredObject, chunks
from icedb.storage.request_counts import REQUEST_COUNTS, Operation, RequestInProgress
from icedb.storage.split_store import SplitStore
from icedb.util.progress import DELETING, Advance, progress
from icedb.util.thread_pool import start_thread_pool

__all__ = [
    "FETCH_BYTES",
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "StoredObject",
    "fetch",
    "open_single_store",
    "open_store",
    "open_stream",
    "presign",
    "some_below",
    "unfinished_puts",
]

# A request and its retries end well before the commit timeout (5 minutes), so that an abandoned put cannot create an
# object later.
REQUEST_TIMEOUT = timedelta(seconds=30)
RETRY_TIMEOUT = timedelta(seconds=60)
RETRIES_MAX = 5
# With a latency of 20 ms, 64 parallel gets are two and a half times as fast as 16, and 128 are not measurably faster
# than 64. Each takes a connection, which is kept, and a thread. All together take some 2 MB of memory.
CONCURRENT_GETS = 64
# obstore does not repeat a deletion after a late response or a reset connection, because a key may be used again.
DELETE_ATTEMPTS_MAX = 3
FETCH_BYTES = 8 * 1024 * 1024
# The size of a piece of a stream, which holds two of them. Smaller pieces cost more processor time. Larger ones are not
# measurably faster (256 MB from SeaweedFS on the same machine).
PIECE_BYTES = 1024 * 1024
# The number of files that `some_below` returns at most for a folder, and the progress step of a long listing.
SOME = 100
PROGRESS_STEP = 1_000
# The maximum of keys in one response to a LIST request of S3.
KEYS_PER_LIST = 1_000
# The verbs of error messages that are requests, with the name of the operation in the counts.
_OPERATIONS: Mapping[str, Operation] = {
    "create": "put", "read": "get", "look up": "head", "list": "list", "delete": "delete", "copy": "copy",
}  # fmt: skip

# The code of a request, or of an object that a bulk deletion left. obstore's texts also quote the key, before the
# response and as a string.
_ERROR_CODE = re.compile(
    r'Server returned .*?<Code>(\w+)</Code>|DeleteFailed {\s*path: [^\n]*\s*code: "(\w+)"', re.DOTALL
)

# An expiry that keeps obstore from caching credentials, because the provider caches and renews them itself.
EXPIRED = datetime.fromtimestamp(0, tz=UTC)

# S3's codes for missing rights and for credentials that are wrong, expired or of another region. Some come with status
# 400, and those of objects in a bulk deletion with status 200.
_DENIED_CODES = frozenset({
    "AccessDenied", "InvalidToken", "ExpiredToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed",
})  # fmt: skip

# Part of obstore's message if the credential provider raised an error.
_NO_CREDENTIALS = "External AWS credential provider"
# Part of obstore's message if Google's server, or the metadata server of the machine, gave no token.
_GOOGLE_LOGIN = "token request"

Backend = AzureStore | GCSStore | LocalStore | MemoryStore | S3Store

# One in-memory store per name and process, so that all tables with that name share their objects.
_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(location: Location) -> ObjectStore:
    """Return the store of a location, or a SplitStore if its log is elsewhere. Makes no request.

    Raises InvalidURI, and InvalidOption for the key of a service account that cannot be used.
    """
    if location.log is not None:
        return SplitStore(open_single_store(replace(location, log=None)), open_store(location.log))
    return open_single_store(location)


def open_single_store(location: Location) -> ObstoreStore:
    """Return the store of a location whose log is not elsewhere. Raises as `open_store` does."""
    if isinstance(location.cloud, AzureAccess):
        return ObstoreStore(location, _open_azure(location.root, location.cloud))
    if isinstance(location.cloud, GoogleAccess):
        return ObstoreStore(location, _open_google(location, location.cloud))
    match location.scheme:
        case "s3":
            return ObstoreStore(location, _open_s3(location))
        case "memory":
            with _memory_lock:
                return ObstoreStore(location, _memory_stores.setdefault(location.root, MemoryStore()))
    return LocalFolder(location)


def _open_azure(container: str, access: AzureAccess) -> AzureStore:
    options = {"account_key": access.key} if access.key else {"sas_key": access.sas_token}
    return AzureStore(
        container,
        account_name=access.account,
        endpoint=access.endpoint,
        client_options={"allow_http": access.endpoint.startswith("http://"), "timeout": REQUEST_TIMEOUT},
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
        **options,
    )


def _open_google(location: Location, access: GoogleAccess) -> GCSStore:
    plain_http = bool(access.endpoint and access.endpoint.startswith("http://"))
    try:
        return GCSStore(
            location.root,
            client_options={"allow_http": plain_http, "timeout": REQUEST_TIMEOUT},
            retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
            skip_signature=False,  # not from the environment: such a store cannot write
            **access.storage_options,  # type: ignore[arg-type]
        )
    except obstore_errors.BaseError:  # its message is about a line of the file
        raise InvalidOption(
            f"{location.uri}: the credentials for Google Cloud cannot be used. GOOGLE_SERVICE_ACCOUNT and "
            "GOOGLE_APPLICATION_CREDENTIALS must be paths of JSON files with credentials, and "
            "GOOGLE_SERVICE_ACCOUNT_KEY the content of such a file."
        ) from None


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
        options |= _provider_options(location.provider or default_chain(location.uri))
    plain_http = bool(location.endpoint and location.endpoint.startswith("http://"))
    return S3Store(
        location.root,
        client_options={"allow_http": plain_http, "timeout": REQUEST_TIMEOUT},
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
        **options,  # type: ignore[arg-type]
    )


def _provider_options(provider: Provider) -> dict[str, object]:
    """Return options that make obstore call the provider before each request; unsigned access if it returns None."""
    if provider() is None:
        return {"skip_signature": True}

    def current() -> dict[str, object]:
        credentials = provider()
        if credentials is None:
            raise LookupError  # there were credentials before; an unsigned request would fail with a less clear error
        return {
            "access_key_id": credentials.access_key_id,
            "secret_access_key": credentials.secret_access_key,
            "token": credentials.session_token,
            "expires_at": EXPIRED,
        }

    return {"credential_provider": current}


class ObstoreStore:
    """An ObjectStore over obstore."""

    def __init__(self, location: Location, backend: Backend | None) -> None:
        self.location = location
        self._backend = backend

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location.uri!r})"

    def sibling(self, location: Location) -> ObjectStore:
        """See ObjectStore."""
        return open_store(location)

    def _open(self) -> Backend | None:
        """Return obstore's store; None if the table's folder does not exist yet."""
        return self._backend

    def _existing(self, key: str) -> Backend:
        backend = self._open()
        if backend is None:
            raise ObjectNotFound(key)
        return backend

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore. One request."""
        with self._request("create", key) as request:
            request.bytes = _size(body)
            obstore.put(self._existing(key), key, body, mode="create", use_multipart=False)

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore."""
        with self._request("copy", source):
            # S3 has no create-only copy, so the target's name must be random.
            obstore.copy(self._existing(source), source, target, overwrite=True)

    def get(self, key: str) -> StoredObject:
        """See ObjectStore."""
        with self._request("read", key) as request:
            result = obstore.get(self._existing(key), key)
            body = result.bytes().to_bytes()
            request.bytes = len(body)
            return StoredObject(body, _ms(result.meta["last_modified"]))

    def fetch(self, key: str, path: Path) -> None:
        """Write an object's content to a file in pieces, because it may be larger than memory."""
        with self._request("read", key) as request, path.open("wb") as file:
            for piece in obstore.get(self._existing(key), key).stream(min_chunk_size=FETCH_BYTES):
                request.bytes += file.write(piece)

    async def open_stream(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Stream a range of an object; see the function of this name."""
        pieces = await self._request_range(key, start, stop)
        if isinstance(self._backend, AzureStore | GCSStore | S3Store):
            return self._streamed(pieces, key, start, stop)
        return self._piece_by_piece(key, start, stop)

    async def _request_range(self, key: str, start: int, stop: int) -> AsyncIterator[bytes]:
        """Request a range and return its pieces.

        The result hands over its connection here, because obstore may keep the result itself alive until its next call.
        A stream that no reader begins would hold its connection for that long.
        """
        with self._request("read", key):
            result = await obstore.get_async(self._existing(key), key, options={"range": (start, stop)})
        if result.range != (start, stop):
            raise _too_short(self.location, key, start, stop)
        return aiter(result.stream(min_chunk_size=PIECE_BYTES))

    async def _streamed(
        self, pieces: AsyncIterator[bytes], key: str, start: int, stop: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield the pieces of a response. If it breaks off, request the rest.

        The client's timeouts count from the start of the request, even while the reader pauses. Without a new request,
        a stream could not last longer than `RETRY_TIMEOUT`.
        """
        while True:
            requested_from = start
            try:
                while start < stop and (piece := await self._next(pieces, key)):
                    start += len(piece)
                    REQUEST_COUNTS.add_bytes("get", len(piece))
                    yield piece
            except StoreUnavailable:
                if start == requested_from:  # the request returned no piece at all: the store is at fault
                    raise
            if start == stop:
                return
            if start == requested_from:
                raise _too_short(self.location, key, start, stop)
            pieces = await self._request_range(key, start, stop)

    async def _next(self, stream: AsyncIterator[bytes], key: str) -> bytes:
        with self._errors("read", key):
            return await anext(stream, b"")

    async def _piece_by_piece(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Yield pieces by separate reads, because obstore's stream is one piece for memory."""
        for at in range(start, stop, PIECE_BYTES):
            end = min(at + PIECE_BYTES, stop)
            with self._request("read", key) as request:
                piece = await obstore.get_range_async(self._existing(key), key, start=at, end=end)
                request.bytes = len(piece)
            if len(piece) < end - at:
                raise _too_short(self.location, key, at, end)
            yield piece.to_bytes()

    def presign(self, key: str, *, expires: timedelta) -> str | None:
        """Return an address that reads an object without credentials; see the function of this name."""
        backend = self._open()
        # Without credentials, obstore would query the machine's metadata service for some.
        if not isinstance(backend, S3Store) or "skip_signature" in backend.config:
            return None
        with self._errors("sign an address of", key):
            return obstore.sign(backend, "GET", key, expires)

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with self._request("look up", key):
            meta = obstore.head(self._existing(key), key)
        return ObjectInfo(key, meta["size"], _ms(meta["last_modified"]))

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """See ObjectStore. Reads many objects at a time."""
        pending, objects = deque(keys), dict[str, StoredObject | None]()
        if len(keys) > 1:
            workers = min(CONCURRENT_GETS, len(keys))
            with progress("reading objects", len(keys), "objects") as advance, start_thread_pool(workers) as pool:
                for done in [pool.submit(self._get_pending, pending, objects, advance) for _ in range(workers)]:
                    done.result()
        elif keys:  # the usual case of a refresh, for which threads would be slower
            objects[keys[0]] = self._get_or_none(keys[0])
        return {key: stored for key in keys if (stored := objects[key]) is not None}

    def _get_pending(self, pending: deque[str], objects: dict[str, StoredObject | None], advance: Advance) -> None:
        """Read pending objects until none are left. After an error, the other workers stop as well."""
        while True:
            try:
                key = pending.popleft()
            except IndexError:
                return
            try:
                objects[key] = self._get_or_none(key)
                advance(1)
            except BaseException:
                pending.clear()
                raise

    def _get_or_none(self, key: str) -> StoredObject | None:
        try:
            return self.get(key)
        except ObjectNotFound:
            return None

    def list_folder(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the objects and of the folders that are directly in a folder ("": the root).

        One request for each thousand names. Symbolic links are omitted.
        """
        backend = self._open()
        if backend is None:
            return (), ()
        with self._request("list", folder):
            entries = obstore.list_with_delimiter(backend, folder or None)
        objects = (m["path"] for m in entries["objects"])
        return tuple(map(_last_segment, objects)), tuple(map(_last_segment, entries["common_prefixes"]))

    def some_below(self, prefix: str) -> list[ObjectInfo]:
        """Return the first objects of a listing; see the function of this name."""
        backend = self._open()
        if backend is None:
            return []
        with self._request("list", prefix):
            page = next(iter(obstore.list(backend, prefix.rstrip("/"))), ())
            return [ObjectInfo(m["path"], m["size"], _ms(m["last_modified"])) for m in page]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore."""
        backend = self._open()
        if backend is None:
            return []
        infos: list[ObjectInfo] = []
        with (
            self._request("list", prefix) as request,
            progress("listing objects", None, "objects") as advance,
        ):
            # Azure's emulator ignores the offset. The real service has not been tested.
            offset = None if isinstance(backend, AzureStore) else after
            for page in obstore.list(backend, prefix.rstrip("/"), offset=offset):
                infos += [ObjectInfo(m["path"], m["size"], _ms(m["last_modified"])) for m in page]
                advance(len(page))
            request.requests = max(1, ceil(len(infos) / KEYS_PER_LIST))
        # Google Cloud's emulator ignores the offset as well.
        return sorted((info for info in infos if after is None or info.key > after), key=lambda info: info.key)

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore. Stops at the first request that fails."""
        backend = self._open() if keys else None
        if backend is None:
            return
        with progress(DELETING, len(keys), "objects") as advance:
            for some in chunks(keys):
                try:
                    self._delete_existing(backend, some, repeat=repeat)
                except ObjectNotFound:  # stores without bulk deletion stop at the first missing object
                    for key in some:
                        with suppress(ObjectNotFound):
                            self._delete_existing(backend, [key], repeat=repeat)
                advance(len(some))

    def _delete_existing(self, backend: Backend, keys: Sequence[str], *, repeat: bool) -> None:
        """Delete objects by one bulk deletion. Stores without bulk deletion raise ObjectNotFound for a missing one."""
        for attempts_left in reversed(range(DELETE_ATTEMPTS_MAX if repeat else 1)):
            try:
                with self._request("delete", keys[0], others=len(keys) - 1):
                    obstore.delete(backend, keys)
                return
            except StoreUnavailable:
                if not attempts_left:
                    raise

    @contextmanager
    def _request(self, verb: str, key: str, *, others: int = 0) -> Iterator[RequestInProgress]:
        """Count a request, and translate its errors."""
        with REQUEST_COUNTS.request(_OPERATIONS[verb]) as request, self._errors(verb, key, others=others):
            yield request

    @contextmanager
    def _errors(self, verb: str, key: str, *, others: int = 0) -> Iterator[None]:
        try:
            yield
        except (obstore_errors.AlreadyExistsError, FileExistsError):
            raise ObjectExists(key) from None
        except (obstore_errors.BaseError, OSError) as error:
            if isinstance(error, IceDBError):
                raise
            raise translate(error, verb=verb, key=key, location=self.location, others=others) from None
        except (ValueError, TypeError) as error:
            if isinstance(error, IceDBError):
                raise
            raise InvalidURI(  # obstore rejects the name before any request
                f"{self.location.uri}: cannot {verb} {key!r}{f' and {others} others' if others else ''}: the store "
                "does not allow this name, for example because of a control character. If a program of IceDB v3 "
                "created it, write its rows again to a partition with another name."
            ) from None


class LocalFolder(ObstoreStore):
    """A local folder, which the first put creates. Puts survive a power failure."""

    def __init__(self, location: Location) -> None:
        super().__init__(location, None)
        self._root = Path(location.root)
        self._open()

    def _open(self) -> Backend | None:
        backend = self._backend  # read before the check, because another thread may create the folder concurrently
        with self._errors("open", self._root.name):
            exists = check_folder(self._root)
            if exists and backend is None:
                backend = self._backend = LocalStore(self._root)
        if backend is not None and not exists:
            # With an empty listing, the table of an unmounted log would seem empty.
            raise StoreUnavailable(
                f"{self.location.uri}: the folder no longer exists. If its disk was unmounted, mount it again."
            )
        return backend

    def create(self, key: str, body: bytes | Path) -> None:
        """See ObjectStore. The file survives a power failure after this returns."""
        self._open()  # raises if an existing folder has disappeared, instead of creating it again
        with self._request("create", key) as request:
            request.bytes = _size(body)
            create_file(self._root, key, body, fsync=self.location.fsync)
        self._open()

    def get(self, key: str) -> StoredObject:
        """See ObjectStore. Reads the file directly, because obstore's result would have to be copied."""
        with self._request("read", key) as request, self._file(key) as file:
            body = file.readall()
            request.bytes = len(body)
            return StoredObject(body, _modified_ms(os.fstat(file.fileno())))

    def _file(self, key: str) -> FileIO:
        self._existing(key)
        return open_file(self.location.root, key)

    def fetch(self, key: str, path: Path) -> None:
        """Write a file's content to another file, in pieces."""
        with self._request("read", key) as request, self._file(key) as file, path.open("wb") as target:
            shutil.copyfileobj(file, target, FETCH_BYTES)
            request.bytes = target.tell()

    async def open_stream(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Stream a range of a file; see the function of this name."""
        first = await asyncio.to_thread(self._range, key, start, min(start + PIECE_BYTES, stop), stop)
        return self._pieces(key, first, start, stop)

    async def _pieces(self, key: str, piece: bytes, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        while True:
            yield piece
            start += len(piece)
            if start >= stop:
                return
            piece = await asyncio.to_thread(self._range, key, start, min(start + PIECE_BYTES, stop), stop)

    def _range(self, key: str, start: int, end: int, stop: int) -> bytes:
        """Read the bytes `start` to `end - 1` of a file that must have at least `stop` bytes."""
        with self._request("read", key) as request, self._file(key) as file:
            is_complete = os.fstat(file.fileno()).st_size >= stop
            piece = os.pread(file.fileno(), end - start, start) if is_complete else b""
            request.bytes = len(piece)
        if len(piece) < end - start:
            raise _too_short(self.location, key, start, stop)
        return piece

    def head(self, key: str) -> ObjectInfo:
        """See ObjectStore."""
        with self._request("look up", key):
            self._existing(key)
            return _info(key, file_status(self.location.root, key))

    def list_folder(self, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the files and folders in a folder. Follows no link, which could lead in a circle."""
        if self._open() is None:
            return (), ()
        with self._request("list", folder), os.scandir(self._root / folder) as entries:
            kinds = [(e.name, e.is_file(follow_symlinks=False), e.is_dir(follow_symlinks=False)) for e in entries]
        return tuple(n for n, is_file, _ in kinds if is_file), tuple(n for n, _, is_dir in kinds if is_dir)

    def some_below(self, prefix: str) -> list[ObjectInfo]:
        """Return the first files of a listing; see the function of this name."""
        return list(islice(self._listed(prefix), SOME))

    def unfinished(self, prefix: str) -> list[ObjectInfo]:
        """List the staged files of puts; see `unfinished_puts`."""
        return [info for info in self._listed(prefix, unfinished=True) if not info.is_link]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """See ObjectStore. Symbolic links are listed as links."""
        infos = []
        with progress("listing objects", None, "objects") as advance:
            for info in self._listed(prefix, after or ""):
                infos.append(info)
                if not len(infos) % PROGRESS_STEP:
                    advance(PROGRESS_STEP)
            advance(len(infos) % PROGRESS_STEP)
        return sorted(infos, key=lambda info: info.key)

    def _listed(self, prefix: str, after: str = "", *, unfinished: bool = False) -> Iterator[ObjectInfo]:
        if self._open() is None:
            return
        with self._request("list", prefix):
            files = list_files(self.location.root, prefix.rstrip("/"), after=after, unfinished=unfinished)
            for key, status in files:
                yield _info(key, status)

    def delete(self, keys: Sequence[str], *, repeat: bool = False) -> None:
        """See ObjectStore. Deletes files or links, and stops at the first that fails."""
        if not keys or self._open() is None:
            return
        with progress(DELETING, len(keys), "objects") as advance:
            for some in chunks(keys):
                with self._request("delete", some[0], others=len(some) - 1):
                    delete_files(self.location.root, some)
                advance(len(some))

    def copy(self, source: str, target: str) -> None:
        """See ObjectStore. Not a hard link: it would be as old as its source, and an orphan sweep could delete it."""
        with self._request("copy", source), self._file(source) as file:
            create_file(self._root, target, file, fsync=self.location.fsync)


def fetch(store: ObjectStore, key: str, path: Path) -> None:
    """Write an object's content to a file, in pieces if the store supports it. Raises ObjectNotFound."""
    store = _store_of(store, key)
    if isinstance(store, ObstoreStore):
        store.fetch(key, path)
    else:
        path.write_bytes(store.get(key).body)


def some_below(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    """Return some of the objects below a prefix, by one request; an empty list if there are none."""
    store = _store_of(store, prefix)
    return store.some_below(prefix) if isinstance(store, ObstoreStore) else store.list(prefix)


def unfinished_puts(store: ObjectStore, prefix: str) -> list[ObjectInfo]:
    """List the staged files of unfinished puts into a folder, in progress or interrupted. Listings skip these files.

    Other stores keep nothing of an unfinished put.
    """
    store = _store_of(store, prefix)
    return store.unfinished(prefix) if isinstance(store, LocalFolder) else []


async def open_stream(store: ObjectStore, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    """Stream bytes `start` to `stop - 1` of an object, in pieces of about 1 MiB; `start` is less than `stop`.

    Returns after the store's first response, so most errors are raised before the first piece. Few pieces are in memory
    at a time. If a request times out while the reader pauses, another request continues it. Dropping the iterator, or
    calling its `aclose`, ends the request. Can be called from any event loop.

    Raises ObjectNotFound and AccessDenied, and StoreUnavailable also if the object has fewer bytes.
    """
    store = _store_of(store, key)
    if isinstance(store, ObstoreStore):
        return await store.open_stream(key, start, stop)
    body = (await asyncio.to_thread(store.get, key)).body
    if len(body) < stop:
        raise _too_short(store.location, key, start, stop)
    return _in_pieces(memoryview(body)[start:stop])


async def _in_pieces(body: memoryview) -> AsyncGenerator[bytes, None]:
    for at in range(0, len(body), PIECE_BYTES):
        yield bytes(body[at : at + PIECE_BYTES])


def presign(store: ObjectStore, key: str, *, expires: timedelta) -> str | None:
    """Return an address that reads (GET) an object without credentials, until it expires.

    Returns None for a folder, for memory, and for unsigned access. Makes no request to the store, so the object may not
    exist. A credential provider may make a request of its own, and the address is valid no longer than its credentials.
    Raises AccessDenied if it returns none.
    """
    store = _store_of(store, key)
    return store.presign(key, expires=expires) if isinstance(store, ObstoreStore) else None


def _store_of(store: ObjectStore, key: str) -> ObjectStore:
    return store.store_of(key) if isinstance(store, SplitStore) else store


def _size(body: bytes | Path) -> int:
    return len(body) if isinstance(body, bytes) else body.stat().st_size


def _too_short(location: Location, key: str, start: int, stop: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{location.uri}: cannot read '{key}': the store did not return all of its bytes {start} to {stop - 1}. Check "
        "the object with `icedb verify --deep`."
    )


def translate(error: Exception, *, verb: str, key: str, location: Location, others: int = 0) -> IceDBError:
    """Translate an error of obstore or of the file system into the error tree, without quoting the response."""
    text = str(error)
    match = _ERROR_CODE.search(text)
    code = match[1] or match[2] if match else ""
    status = re.search(r"non-2xx status code: (\d{3})", text)
    what = f"{location.uri}: cannot {verb} '{key}'{f' and {others} others' if others else ''}"
    if code in ("NoSuchBucket", "ContainerNotFound"):
        kind = "container" if location.scheme == "az" else "bucket"
        return BucketNotFound(
            f"{what}: the {kind} '{location.root}' does not exist. Create it, or correct the address."
        )
    if isinstance(error, FileNotFoundError | obstore_errors.NotFoundError):
        return ObjectNotFound(key)
    if isinstance(error, obstore_errors.PreconditionError):
        return ObjectExists(key)
    if isinstance(error, NotADirectoryError):
        return InvalidURI(f"{what}: a part of that path is a file. Move it away, or choose another address.")
    denied = (PermissionError, obstore_errors.PermissionDeniedError, obstore_errors.UnauthenticatedError)
    refused = code in _DENIED_CODES or (status and status[1] in ("401", "403"))
    no_token = _GOOGLE_LOGIN in text and not (status and status[1] >= "500")
    if isinstance(error, denied) or refused or no_token:
        if _NO_CREDENTIALS in text:
            return AccessDenied(
                f"{what}: there are no credentials any more. Check the session, profile or role that provides them. "
                "It may need a new login."
            )
        if location.scheme == "file":
            remedy = "Check the folder's owner and its rights (read, write, search)."
        elif no_token:
            remedy = (
                "Google Cloud gave no token for the credentials. Set GOOGLE_SERVICE_ACCOUNT to the path of a service "
                "account's key, or run: gcloud auth application-default login."
            )
        elif isinstance(location.cloud, GoogleAccess):
            remedy = (
                "Check the service account and its rights on that bucket (storage.objects.get, list, create, delete)."
            )
        elif isinstance(location.cloud, AzureAccess):
            remedy = (
                "Check the account, its key or the signature, which may have expired, and the rights on that container "
                "(read, add, create, write, delete, list)."
            )
        elif location.credentials() is None:
            remedy = (
                "No credentials were found, so the request was sent unsigned. Set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY, or the name of a profile (AWS_PROFILE)."
            )
        else:
            remedy = (
                "Check the access key, its secret, the region and the rights on that prefix (read, list, put, delete)."
            )
        return AccessDenied(f"{what}: access was refused{f' ({code})' if code else ''}. {remedy}")
    detail = code or (f"status {status[1]}" if status else _first_cause(error, text))
    remedy = "the folder and its disk" if location.scheme == "file" else "the endpoint"
    return StoreUnavailable(f"{what}: the store did not serve the request ({detail}). Check {remedy}, then retry.")


def _first_cause(error: Exception, text: str) -> str:
    """Return a short reason without secrets: that of the operating system, or the kind of transport error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    match = re.search(r"HTTP error: ([a-z ]+)", text) or re.search(r"\(os error \d+\)", text)
    return match[0] if match else type(error).__name__


def _last_segment(key: str) -> str:
    return key.rstrip("/").rpartition("/")[2]


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _modified_ms(status), S_ISLNK(status.st_mode))


def _modified_ms(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1_000_000


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
