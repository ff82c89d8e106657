"""The object store: create-only put, copy, get, list, delete many.

The only module that speaks to a store. It adds to obstore (Rust's `object_store`) what a table needs: one error
tree that never quotes a response (S3 servers send key ids and signatures back), listings sorted by key, deletes
that take "not there" for done, many gets at a time, and ranges as asynchronous streams; and, in a local folder, puts
that survive a power failure (`icedb.storage.local_store`). Nothing is ever replaced: `create` refuses an existing key.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import threading
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from io import FileIO
from itertools import islice
from pathlib import Path
from stat import S_ISLNK
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions as obstore_errors
from obstore.store import AzureStore, LocalStore, MemoryStore, S3Store

from icedb.errors import AccessDenied, BucketNotFound, IceDBError, InvalidURI, StoreUnavailable
from icedb.storage.azure import AzureAccess
from icedb.storage.credentials import Provider, usual_chain
from icedb.storage.local_store import check_folder, create_file, delete_files, file_status, list_files, open_file
from icedb.storage.location import Location
from icedb.storage.object_store import ObjectExists, ObjectInfo, ObjectNotFound, ObjectStore, StoredObject, chunks
from icedb.storage.split_store import TwoStores
from icedb.util.progress import Advance, progress
from icedb.util.thread_pool import pool_of

if TYPE_CHECKING:
    from obstore import GetResult  # a name for type checkers only

__all__ = [
    "ObjectExists",
    "ObjectInfo",
    "ObjectNotFound",
    "ObjectStore",
    "StoredObject",
    "fetch",
    "open_store",
    "open_stream",
    "presign",
    "some_below",
    "unfinished_puts",
]

# A request and its retries end well before a commit's deadline (5 minutes), so that a put which nobody waits
# for any more cannot land as a surprise.
REQUEST_TIMEOUT = timedelta(seconds=30)
RETRY_TIMEOUT = timedelta(seconds=60)
RETRIES_MAX = 5
# Over a network each waits: with 20 ms for each, 64 at a time are two and a half times as fast as 16, and 128 are not
# surely faster than that. It is as many connections, which are kept, and threads, which together hold some 2 MB.
CONCURRENT_GETS = 64
FETCH_BYTES = 8 * 1024 * 1024
# Of a stream, which holds two of them. Smaller pieces cost more processor time; larger ones are no faster beyond what
# varies from run to run (256 MB from SeaweedFS on the same machine).
PIECE_BYTES = 1024 * 1024
# Files of a folder, of which a listing is only asked whether it has some; and how often a long listing reports.
SOME = 100
TOLD_EVERY = 1_000

# Keeps obstore from keeping credentials: the provider knows better when to renew them.
EXPIRED = datetime.fromtimestamp(0, tz=UTC)

# S3's names for credentials that are wrong, expired or of another region; some come with status 400.
_DENIED_CODES = frozenset({"InvalidToken", "ExpiredToken", "TokenRefreshRequired", "AuthorizationHeaderMalformed"})

# What obstore says when its credential provider, which is ours, raised something.
_NO_CREDENTIALS = "External AWS credential provider"

Backend = AzureStore | LocalStore | MemoryStore | S3Store

# One in-memory store per name and process, as one bucket is to all who open it.
_memory_stores: dict[str, MemoryStore] = {}
_memory_lock = threading.Lock()


def open_store(location: Location) -> ObjectStore:
    """The store of a location, or both of its stores as one. Makes no request. Raises InvalidURI."""
    if location.log is not None:
        return TwoStores(open_store(replace(location, log=None)), open_store(location.log))
    match location.scheme:
        case "s3":
            return ObstoreStore(location, _open_s3(location))
        case "az" if location.azure is not None:
            return ObstoreStore(location, _open_azure(location.root, location.azure))
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
        options |= _asked_again(location.provider or usual_chain(location.uri))
    plain_http = bool(location.endpoint and location.endpoint.startswith("http://"))
    return S3Store(
        location.root,
        client_options={"allow_http": plain_http, "timeout": REQUEST_TIMEOUT},
        retry_config={"max_retries": RETRIES_MAX, "retry_timeout": RETRY_TIMEOUT},
        **options,  # type: ignore[arg-type]
    )


def _asked_again(provider: Provider) -> dict[str, object]:
    """The options by which obstore asks for credentials before each request; whether there are any is known now."""
    if provider() is None:
        return {"skip_signature": True}

    def current() -> dict[str, object]:
        found = provider()
        if found is None:
            raise LookupError  # there were some: to go on without a signature would say less than this
        return {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token,
            "expires_at": EXPIRED,
        }

    return {"credential_provider": current}


class ObstoreStore:
    """A store behind obstore."""

    def __init__(self, location: Location, backend: Backend | None) -> None:
        self.location = location
        self._backend = backend

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.location.uri!r})"

    def beside(self, location: Location) -> ObjectStore:
        """The store of another table."""
        return open_store(location)

    def _open(self) -> Backend | None:
        """The store itself; None: there is nothing yet, not even the folder that would hold it."""
        return self._backend

    def _existing(self, key: str) -> Backend:
        backend = self._open()
        if backend is None:
            raise ObjectNotFound(key)
        return backend

    def create(self, key: str, body: bytes | Path) -> None:
        """Put an object that is not there yet, in one request."""
        with self._errors("create", key):
            obstore.put(self._existing(key), key, body, mode="create", use_multipart=False)

    def copy(self, source: str, target: str) -> None:
        """Copy an object inside the store."""
        with self._errors("copy", source):
            # S3 has no create-only copy: the target's name must be random.
            obstore.copy(self._existing(source), source, target, overwrite=True)

    def get(self, key: str) -> StoredObject:
        """Read an object whole."""
        with self._errors("read", key):
            found = obstore.get(self._existing(key), key)
            return StoredObject(found.bytes().to_bytes(), _ms(found.meta["last_modified"]))

    def fetch(self, key: str, path: Path) -> None:
        """Write an object's content to a file, piece by piece: it may be larger than memory."""
        with self._errors("read", key), path.open("wb") as file:
            for piece in obstore.get(self._existing(key), key).stream(min_chunk_size=FETCH_BYTES):
                file.write(piece)

    async def open_stream(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """A range of an object, in pieces; see the function of this name."""
        found = await self._ask(key, start, stop)
        if isinstance(self._backend, AzureStore | S3Store):
            return self._streamed(found, key, start, stop)
        return self._piece_by_piece(key, start, stop)

    async def _ask(self, key: str, start: int, stop: int) -> GetResult:
        with self._errors("read", key):
            found = await obstore.get_async(self._existing(key), key, options={"range": (start, stop)})
        if found.range != (start, stop):
            raise _too_short(self.location, key, start, stop)
        return found

    async def _streamed(self, found: GetResult, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """What one answer gives, and the rest from another when it breaks off.

        The client's time limits count from the request on, also while whoever reads here takes a pause: without a new
        request, nobody could read for longer than `RETRY_TIMEOUT`.
        """
        while True:
            asked_from = start
            stream = aiter(found.stream(min_chunk_size=PIECE_BYTES))
            try:
                while start < stop and (piece := await self._next(stream, key)):
                    start += len(piece)
                    yield piece
            except StoreUnavailable:
                if start == asked_from:  # not even one piece more: the store is at fault
                    raise
            if start == stop:
                return
            if start == asked_from:
                raise _too_short(self.location, key, start, stop)
            found = await self._ask(key, start, stop)

    async def _next(self, stream: AsyncIterator[bytes], key: str) -> bytes:
        with self._errors("read", key):
            return await anext(stream, b"")

    async def _piece_by_piece(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """For a folder, of which obstore's stream reads 8 KB at a time, and memory, where it is one piece."""
        for at in range(start, stop, PIECE_BYTES):
            end = min(at + PIECE_BYTES, stop)
            with self._errors("read", key):
                piece = await obstore.get_range_async(self._existing(key), key, start=at, end=end)
            if len(piece) < end - at:
                raise _too_short(self.location, key, at, end)
            yield piece.to_bytes()

    def presign(self, key: str, *, expires: timedelta) -> str | None:
        """An address from which an object can be read without credentials; see the function of this name."""
        backend = self._open()
        # Without a signature obstore would look for credentials on its own, at the metadata service of a machine.
        if not isinstance(backend, S3Store) or "skip_signature" in backend.config:
            return None
        with self._errors("sign an address of", key):
            return obstore.sign(backend, "GET", key, expires)

    def head(self, key: str) -> ObjectInfo:
        """Size and time of an object."""
        with self._errors("look at", key):
            meta = obstore.head(self._existing(key), key)
        return ObjectInfo(key, meta["size"], _ms(meta["last_modified"]))

    def get_many(self, keys: Sequence[str]) -> dict[str, StoredObject]:
        """Read objects, many at a time; those that are not there are left out."""
        pending, found = deque(keys), dict[str, StoredObject | None]()
        if len(keys) > 1:
            workers = min(CONCURRENT_GETS, len(keys))
            with progress("reading objects", len(keys), "objects") as advance, pool_of(workers) as pool:
                for done in [pool.submit(self._get_pending, pending, found, advance) for _ in range(workers)]:
                    done.result()
        elif keys:  # what a refresh finds most often: it is not worth a thread
            found[keys[0]] = self._get_or_none(keys[0])
        return {key: stored for key in keys if (stored := found[key]) is not None}

    def _get_pending(self, pending: deque[str], found: dict[str, StoredObject | None], advance: Advance) -> None:
        """Read one object after the other until there is none left; an error leaves none to the others."""
        while True:
            try:
                key = pending.popleft()
            except IndexError:
                return
            try:
                found[key] = self._get_or_none(key)
                advance(1)
            except BaseException:
                pending.clear()
                raise

    def _get_or_none(self, key: str) -> StoredObject | None:
        try:
            return self.get(key)
        except ObjectNotFound:
            return None

    def some_below(self, prefix: str) -> list[ObjectInfo]:
        """Return the first objects of a listing; see the function of this name."""
        backend = self._open()
        if backend is None:
            return []
        with self._errors("list", prefix):
            page = next(iter(obstore.list(backend, prefix.rstrip("/"))), ())
            return [ObjectInfo(m["path"], m["size"], _ms(m["last_modified"])) for m in page]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """List objects by key."""
        backend = self._open()
        if backend is None:
            return []
        found: list[ObjectInfo] = []
        with self._errors("list", prefix), progress("listing objects", None, "objects") as advance:
            # Azure's emulator begins where the prefix does, whatever it is told; nobody has tried the real one.
            offset = None if isinstance(backend, AzureStore) else after
            for page in obstore.list(backend, prefix.rstrip("/"), offset=offset):
                found += [ObjectInfo(m["path"], m["size"], _ms(m["last_modified"])) for m in page]
                advance(len(page))
        if offset != after:
            found = [info for info in found if info.key > (after or "")]
        return sorted(found, key=lambda info: info.key)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects, a thousand per request; the first request that fails is the last."""
        backend = self._open() if keys else None
        if backend is None:
            return
        with progress("deleting objects", len(keys), "objects") as advance:
            for some in chunks(keys):
                try:
                    with self._errors("delete", some[0], others=len(some) - 1):
                        obstore.delete(backend, some)
                except ObjectNotFound:
                    self._delete_singly(backend, some)  # without bulk deletion it stops at the first that is not there
                advance(len(some))

    def _delete_singly(self, backend: Backend, keys: Iterable[str]) -> None:
        for key in keys:
            try:
                with self._errors("delete", key):
                    obstore.delete(backend, key)
            except ObjectNotFound:
                continue

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
            raise InvalidURI(  # the client library's own check of a name, before any request
                f"{self.location.uri}: cannot {verb} {key!r}{f' and {others} others' if others else ''}: no such name "
                "can be used here, with a control character for example. If a program of v3 has made it, let it write "
                "these rows again, to a partition of another name."
            ) from None


class LocalFolder(ObstoreStore):
    """A folder, which may not be there yet; the first put makes it. What is put survives a power failure."""

    def __init__(self, location: Location) -> None:
        super().__init__(location, None)
        self._root = Path(location.root)
        self._open()

    def _open(self) -> Backend | None:
        backend = self._backend  # before looking: others may make the folder meanwhile
        with self._errors("open", self._root.name):
            found = check_folder(self._root)
            if found and backend is None:
                backend = self._backend = LocalStore(self._root)
        if backend is not None and not found:
            # An empty listing would make an unmounted log an empty table.
            raise StoreUnavailable(
                f"{self.location.uri}: the folder was there and is gone. If its disk was unmounted, mount it again."
            )
        return backend

    def create(self, key: str, body: bytes | Path) -> None:
        """Put a file that is not there yet, whole, and safe from a power failure when this returns."""
        self._open()  # a folder that was there is not made anew
        with self._errors("create", key):
            create_file(self._root, key, body, fsync=self.location.fsync)
        self._open()

    def get(self, key: str) -> StoredObject:
        """Read a file whole: into memory once, where obstore's answer would have to be copied."""
        with self._errors("read", key), self._file(key) as file:
            return StoredObject(file.readall(), _modified_ms(os.fstat(file.fileno())))

    def _file(self, key: str) -> FileIO:
        self._existing(key)
        return open_file(self.location.root, key)

    def fetch(self, key: str, path: Path) -> None:
        """Write a file's content to another file, piece by piece."""
        with self._errors("read", key), self._file(key) as file, path.open("wb") as target:
            shutil.copyfileobj(file, target, FETCH_BYTES)

    async def open_stream(self, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """A range of a file, in pieces; see the function of this name."""
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
        """The bytes from `start` to `end - 1` of a file that has `stop` at least."""
        with self._errors("read", key), self._file(key) as file:
            there = os.fstat(file.fileno()).st_size >= stop
            piece = os.pread(file.fileno(), end - start, start) if there else b""
        if len(piece) < end - start:
            raise _too_short(self.location, key, start, stop)
        return piece

    def head(self, key: str) -> ObjectInfo:
        """Size and time of a file."""
        with self._errors("look at", key):
            self._existing(key)
            return _info(key, file_status(self.location.root, key))

    def some_below(self, prefix: str) -> list[ObjectInfo]:
        """Return the first files of a listing; see the function of this name."""
        return list(islice(self._listed(prefix), SOME))

    def unfinished(self, prefix: str) -> list[ObjectInfo]:
        """List what puts that were cut short have left; see `unfinished_puts`."""
        return [info for info in self._listed(prefix, unfinished=True) if not info.is_link]

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        """List files by key, and links as links."""
        found = []
        with progress("listing objects", None, "objects") as advance:
            for info in self._listed(prefix, after or ""):
                found.append(info)
                if not len(found) % TOLD_EVERY:
                    advance(TOLD_EVERY)
            advance(len(found) % TOLD_EVERY)
        return sorted(found, key=lambda info: info.key)

    def _listed(self, prefix: str, after: str = "", *, unfinished: bool = False) -> Iterator[ObjectInfo]:
        if self._open() is None:
            return
        with self._errors("list", prefix):
            files = list_files(self.location.root, prefix.rstrip("/"), after=after, unfinished=unfinished)
            for key, status in files:
                yield _info(key, status)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete files, or links; the first that fails is the last."""
        if not keys or self._open() is None:
            return
        with progress("deleting objects", len(keys), "objects") as advance:
            for some in chunks(keys):
                with self._errors("delete", some[0], others=len(some) - 1):
                    delete_files(self.location.root, some)
                advance(len(some))

    def copy(self, source: str, target: str) -> None:
        """Copy a file. Not by a hard link: the copy would look as old as its source, and a sweep could take it."""
        with self._errors("copy", source), self._file(source) as file:
            create_file(self._root, target, file, fsync=self.location.fsync)


def fetch(store: ObjectStore, key: str, path: Path) -> None:
    """Write an object's content to a file; in pieces, where the store can. Raises ObjectNotFound."""
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
    """Files that puts into a folder have left when their process was killed, or are writing now; no listing has them.

    Other stores keep nothing of a put that did not finish.
    """
    store = _store_of(store, prefix)
    return store.unfinished(prefix) if isinstance(store, LocalFolder) else []


async def open_stream(store: ObjectStore, key: str, start: int, stop: int) -> AsyncGenerator[bytes, None]:
    """Bytes `start` to `stop - 1` of an object, in pieces of about 1 MiB; `start` is less than `stop`.

    Returns once the store has answered, so errors come before the first piece; later ones come with a piece. Few pieces
    are in memory at a time. However long the reader takes, a request that has ended meanwhile is continued by another;
    dropping the iterator, or its `aclose`, ends the request. Can be called from any event loop.

    Raises ObjectNotFound, AccessDenied; StoreUnavailable, also when the object has fewer bytes.
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
    """An address from which an object can be read (GET) without credentials, until it expires.

    None: the store has no such addresses: it is a folder or memory, or is asked without a signature. It makes no
    request to the store, so the object may not be there; a provider of credentials may make one of its own, and the
    address is valid no longer than what that gives. Raises AccessDenied when it gives nothing.
    """
    store = _store_of(store, key)
    return store.presign(key, expires=expires) if isinstance(store, ObstoreStore) else None


def _store_of(store: ObjectStore, key: str) -> ObjectStore:
    return store.store_of(key) if isinstance(store, TwoStores) else store


def _too_short(location: Location, key: str, start: int, stop: int) -> StoreUnavailable:
    return StoreUnavailable(
        f"{location.uri}: cannot read '{key}': it lacks some of its bytes {start} to {stop - 1}, or the store does not "
        "give them. Check it with `icedb verify --deep`."
    )


def translate(error: Exception, *, verb: str, key: str, location: Location, others: int = 0) -> IceDBError:
    """The error of ours that an error of obstore or of the file system means. Quotes nothing of the response."""
    text = str(error)
    found = re.search(r"<Code>(\w+)</Code>", text)
    code = found[1] if found else ""
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
    if isinstance(error, denied) or code in _DENIED_CODES or (status and status[1] in ("401", "403")):
        if _NO_CREDENTIALS in text:
            return AccessDenied(
                f"{what}: there are no credentials any more. Check the session, profile or role that should give them: "
                "it may need a new login."
            )
        if location.scheme == "file":
            remedy = "Check the folder's owner and its rights (read, write, search)."
        elif location.azure is not None:
            remedy = (
                "Check the account, its key or the signature, which may have expired, and the rights on that container "
                "(read, add, create, write, delete, list)."
            )
        elif location.credentials() is None:
            remedy = (
                "No credentials were found, so it was asked as nobody: set AWS_ACCESS_KEY_ID and "
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
    """A short reason that cannot hold a secret: the operating system's, or the kind of transport error."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    found = re.search(r"HTTP error: ([a-z ]+)", text) or re.search(r"\(os error \d+\)", text)
    return found[0] if found else type(error).__name__


def _info(key: str, status: os.stat_result) -> ObjectInfo:
    return ObjectInfo(key, status.st_size, _modified_ms(status), S_ISLNK(status.st_mode))


def _modified_ms(status: os.stat_result) -> int:
    return status.st_mtime_ns // 1_000_000


def _ms(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
