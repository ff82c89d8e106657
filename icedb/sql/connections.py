"""DuckDB connections: readers that can access the store, and sandboxes that can access one folder only.

Writers evaluate expressions from the table's `_table.json`, so they use a sandbox: no file outside of its folder, no
network, no extension, and locked settings. Readers get the S3 extension from its PyPI wheel and a secret that is scoped
to the table's prefix.
"""

from __future__ import annotations

import errno
import json
import os
import re
import tempfile
import threading
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import duckdb

from icedb.errors import InvalidOption, StoreUnavailable
from icedb.format.table_spec import TableSpec
from icedb.sql import machine_memory
from icedb.storage.location import Location
from icedb.util.temporary_files import spill_path

__all__ = [
    "MEMORY_BYTES_MIN",
    "MIB",
    "PARQUET_OPTIONS",
    "READING_SHARE",
    "RESERVED",
    "ROWS_PER_BATCH",
    "WRITE_MEMORY_BYTES_MIN",
    "attach_s3",
    "check_write_memory",
    "connect_reader",
    "connect_sandbox",
    "copy_statement",
    "disk_full",
    "free_unused_memory",
    "is_disk_full",
    "load_httpfs",
    "lock_reader",
    "memory_bytes_default",
    "quote_name",
    "quote_text",
    "quote_texts",
    "read_file",
    "renew_access",
    "set_spill",
    "spill_folder",
]

#: The prefix of every name that the library's SQL adds to a table's columns. No column may begin with it: DuckDB
#: resolves a column before an alias, so a column of the same name would change the result.
RESERVED = "__icedb_"

#: Options of each `read_parquet(...)`. A folder such as `d=1` above a file must not replace the file's own column `d`.
#: The statistics of other writers omit NaN, for which DuckDB would return wrong rows without the second option.
PARQUET_OPTIONS = "hive_partitioning = false, can_have_nan = true"

MIB = 1024 * 1024
# DuckDB spills data that does not fit. With less memory, its buffers for sorting rows of some hundred bytes do not fit.
MEMORY_BYTES_MIN = 256 * MIB
# A batch is sorted in smaller pieces than parts are merged.
WRITE_MEMORY_BYTES_MIN = 64 * MIB
# Rows per batch between two connections. DuckDB allocates a batch outside its memory limit, with room for twice its
# rows, and larger batches are not read faster.
ROWS_PER_BATCH = 16_384
# Reading files takes one in so many bytes of the memory. Staging and writing take the others.
READING_SHARE = 4
# More has no effect: a part is a few hundred megabytes, and only a few are written at a time.
MEMORY_BYTES_MAX = 16 * 1024 * MIB
# DuckDB parses limits up to a little more than this, which is no limit in practice.
_MEMORY_BYTES_PARSED = 2**60
# The memory that a thread of DuckDB needs to read, sort and write Parquet.
MEMORY_BYTES_PER_THREAD = 128 * MIB
# DuckDB's allocator keeps some hundred megabytes of spilled data that the limit does not count. Up to this limit they
# are freed at once, which costs time. From a threshold of 32 MiB on the option has no effect.
MEMORY_BYTES_SCARCE = 1024 * MIB
_FREED_FROM = "16MiB"

_renewing = threading.Lock()

#: The files of extensions whose signature was checked in this process.
_checked: set[tuple[str, int, int, int]] = set()

# Replaced in an address to make the name of its secret, unique in a shared connection.
_SECRET_NAME_CHARS = re.compile(r"[^A-Za-z0-9]+")


def quote_name(name: str) -> str:
    """Quote an identifier for DuckDB's SQL."""
    return '"' + name.replace('"', '""') + '"'


def quote_text(text: str) -> str:
    """Quote a string literal for DuckDB's SQL."""
    return "'" + text.replace("'", "''") + "'"


def quote_texts(texts: Iterable[str | None]) -> str:
    """Write texts, which may hold any character, as one expression of type VARCHAR[] for DuckDB's SQL.

    It is a JSON literal, which DuckDB parses ten times faster than a list of literals. The library's own SQL has no
    parameters: for the first one, DuckDB imports pandas if it is installed, which takes a third of a second.
    """
    return f"from_json({quote_text(json.dumps(list(texts)))}, '[\"VARCHAR\"]')"


def read_file(path: Path | str) -> str:
    """Return a `read_parquet(...)` of one local file, with the columns of the file."""
    return f"read_parquet({quote_text(str(path))}, {PARQUET_OPTIONS})"


def is_disk_full(error: duckdb.OutOfMemoryException) -> bool:
    """Whether DuckDB ran out of memory because it could not spill: its files may use most of the free disk space."""
    return "failed to offload" in str(error)


def disk_full(table: str) -> OSError:
    """Return the error that the operating system raises on a full disk, with the table and the remedy."""
    return OSError(
        errno.ENOSPC,
        f"No space left on device: {table}: rows that do not fit into memory cannot be spilled to "
        f"{tempfile.gettempdir()}. Make room there, or set TMPDIR to a larger disk.",
    )


def copy_statement(query: str, path: Path, spec: TableSpec, *, field_ids: str, level: int | None = None) -> str:
    """Return SQL that writes a query's rows as one Parquet file with the settings of the table.

    `field_ids` is the SQL of the columns' ids. `level` is the zstd level, if that is the table's compression.
    """
    options = (
        f"FORMAT parquet, FIELD_IDS {field_ids}, COMPRESSION {spec.compression}, ROW_GROUP_SIZE {spec.row_group_rows}"
    )
    options += f", COMPRESSION_LEVEL {level}" if level is not None and spec.compression == "zstd" else ""
    return f"COPY ({query}) TO {quote_text(str(path))} ({options})"


def connect_sandbox(
    folder: Path | None = None, *, memory_bytes: int | None = None, threads: int | None = None
) -> duckdb.DuckDBPyConnection:
    """Connect to a sandbox that can read and write in `folder` only, and also spills there (None: nowhere).

    `threads` is the number of threads (None: one for each processor, as far as the memory suffices).
    """
    con = duckdb.connect(":memory:")
    con.execute("SET GLOBAL TimeZone = 'UTC'")  # global, because cursors do not inherit the settings of a session
    _draw_no_progress(con)
    con.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    con.execute("SET preserve_insertion_order = true")
    con.execute("SET arrow_lossless_conversion = true")  # Arrow output keeps types such as UUID and HUGEINT
    con.execute("SET enable_external_file_cache = false")  # it does not notice that a file was just replaced
    _limit(con, memory_bytes, threads)
    set_spill(con, None if folder is None else folder / "spill")
    if folder is not None:
        con.execute(f"SET allowed_directories = [{quote_text(str(folder))}]")
    # SQL must only find Python objects that are registered, and not variables by their names.
    con.execute("SET GLOBAL python_enable_replacements = false")
    con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")
    return con


def spill_folder(folder: Path | None) -> Path | None:
    """Return where a reader spills: below `folder`, or in a temporary folder that exists until the process ends."""
    return spill_path() if folder is None else folder / "spill"


def set_spill(con: duckdb.DuckDBPyConnection, path: Path | None) -> None:
    """Set where a connection spills; None: nowhere. DuckDB's default is `.tmp` in the working directory."""
    con.execute(f"SET temp_directory = {quote_text(str(path or ''))}")


def _draw_no_progress(con: duckdb.DuckDBPyConnection) -> None:
    """Disable DuckDB's progress bar. DuckDB rejects the setting in a notebook that cannot draw one."""
    with suppress(duckdb.InvalidInputException):
        con.execute("SET enable_progress_bar = false")


def _limit(con: duckdb.DuckDBPyConnection, memory_bytes: int | None, threads: int | None) -> None:
    if memory_bytes is None and machine_memory.memory_share() is not None:
        memory_bytes = memory_bytes_default()
    if memory_bytes is not None:
        con.execute(f"SET memory_limit = '{min(memory_bytes, _MEMORY_BYTES_PARSED)}B'")
        if memory_bytes <= MEMORY_BYTES_SCARCE:
            con.execute(f"SET allocator_bulk_deallocation_flush_threshold = '{_FREED_FROM}'")
        threads = threads or max(1, min(os.cpu_count() or 1, memory_bytes // MEMORY_BYTES_PER_THREAD))
    if threads is not None:
        con.execute(f"SET threads = {threads}")


def free_unused_memory() -> None:
    """Return the memory that DuckDB's allocator keeps unused to the operating system.

    Setting a memory limit makes DuckDB free the unused memory of the whole process, also that of connections with
    locked settings. Their memory limits do not count it.
    """
    with duckdb.connect(":memory:") as con:
        con.execute(f"SET memory_limit = '{MEMORY_BYTES_MIN}B'")


def memory_bytes_default() -> int:
    """Return half of the memory of this machine or container, between a minimum and a maximum, in bytes.

    `ICEDB_MEMORY_SHARE` divides it among processes that run at the same time. Raises InvalidOption if it is no share.
    """
    available = int(machine_memory.memory_bytes() * (machine_memory.memory_share() or 1))
    return max(MEMORY_BYTES_MIN, min(available // 2, MEMORY_BYTES_MAX))


def check_write_memory(memory_bytes: int | None, *, table: str) -> int:
    """Return the memory for writing a batch, in bytes (None: half of the machine's). Raises InvalidOption."""
    if memory_bytes is None:
        return memory_bytes_default()
    if isinstance(memory_bytes, int) and memory_bytes >= WRITE_MEMORY_BYTES_MIN:
        return memory_bytes
    raise InvalidOption(
        f"{table}: memory_bytes is {memory_bytes!r}. Pass at least {WRITE_MEMORY_BYTES_MIN}. Data that does not fit is "
        "spilled to disk."
    )


def connect_reader(
    location: Location,
    *,
    memory_bytes: int | None = None,
    folder: Path | None = None,
    threads: int | None = None,
) -> duckdb.DuckDBPyConnection:
    """Connect to read the table's parts. For a bucket, the connection has httpfs and a secret for the table's prefix.

    `memory_bytes` limits all of its cursors together. Data that does not fit spills into `folder` (None: a temporary
    folder that exists until the process ends). `threads`: see `connect_sandbox`.
    """
    # Unsigned extensions can only be allowed when a connection is created.
    checked = location.scheme == "s3" and _is_checked(_httpfs_in_wheel())
    con = duckdb.connect(":memory:", config={"allow_unsigned_extensions": "true"} if checked else {})
    _limit(con, memory_bytes, threads)
    set_spill(con, spill_folder(folder))
    con.execute("SET GLOBAL TimeZone = 'UTC'")  # global, because cursors do not inherit the settings of a session
    _draw_no_progress(con)
    con.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    con.execute("SET GLOBAL python_enable_replacements = false")  # hides this library's variables from a query
    if location.scheme == "s3":
        attach_s3(con, location)
    if checked:
        con.execute("SET allow_unsigned_extensions = false")
    return con


def lock_reader(con: duckdb.DuckDBPyConnection, paths: Sequence[str] | None) -> None:
    """Lock a connection's settings; with `paths`, restrict it to these files and addresses.

    It keeps its credentials, but SQL cannot read them or send them to another address.
    """
    if paths is not None:
        con.execute(f"SET allowed_paths = {quote_texts(paths)}")
        con.execute("SET enable_external_access = false")
    con.execute("SET lock_configuration = true")


def attach_s3(con: duckdb.DuckDBPyConnection, location: Location) -> None:
    """Let a connection read one table's prefix in S3, with the current credentials."""
    load_httpfs(con)
    _set_secret(con, location)


def renew_access(con: duckdb.DuckDBPyConnection, location: Location) -> None:
    """Give a connection the current credentials, if they come from a provider, before it opens more files."""
    if location.provider is not None:
        with _renewing:  # DuckDB rejects concurrent replacements of a secret
            _set_secret(con, location)


def _set_secret(con: duckdb.DuckDBPyConnection, location: Location) -> None:
    options = {"TYPE": "s3", "SCOPE": quote_text(location.uri), "REGION": quote_text(location.region or "us-east-1")}
    credentials = location.credentials()
    if credentials is not None:
        options["KEY_ID"] = quote_text(credentials.access_key_id)
        options["SECRET"] = quote_text(credentials.secret_access_key)
        if credentials.session_token:
            options["SESSION_TOKEN"] = quote_text(credentials.session_token)
    if location.endpoint:
        scheme, _, host = location.endpoint.partition("://")
        options["ENDPOINT"] = quote_text(host)
        options["USE_SSL"] = "false" if scheme == "http" else "true"
        options["URL_STYLE"] = quote_text("vhost" if location.virtual_hosted else "path")
    name = quote_name("icedb_" + _SECRET_NAME_CHARS.sub("_", location.uri))
    con.execute(f"CREATE OR REPLACE TEMPORARY SECRET {name} ({', '.join(f'{k} {v}' for k, v in options.items())})")


def load_httpfs(con: duckdb.DuckDBPyConnection) -> None:
    """Load DuckDB's S3 extension from its PyPI wheel, else from DuckDB's folder of extensions, else by download."""
    wheel = _httpfs_in_wheel()
    try:
        if wheel is not None:
            identity = _identity(wheel)
            unsigned = con.execute("SELECT current_setting('allow_unsigned_extensions')").fetchone() == (True,)
            con.execute(f"LOAD {quote_text(str(wheel))}")
            if not unsigned:
                _checked.add(identity)
        else:
            con.execute("INSTALL httpfs")
            con.execute("LOAD httpfs")
    except duckdb.Error as error:
        raise StoreUnavailable(
            f"DuckDB {duckdb.__version__} cannot load its S3 extension ({str(error).splitlines()[0]}). Install the "
            f"wheel of the same version: pip install 'duckdb-extension-httpfs=={duckdb.__version__}'."
        ) from None


def _is_checked(wheel: Path | None) -> bool:
    """Return whether DuckDB has checked this file's signature in this process. A check takes a tenth of a second."""
    return wheel is not None and _identity(wheel) in _checked


def _identity(file: Path) -> tuple[str, int, int, int]:
    status = file.stat()
    return str(file), status.st_ino, status.st_size, status.st_mtime_ns


def _httpfs_in_wheel() -> Path | None:
    try:
        import duckdb_extension_httpfs
    except ImportError:
        return None
    folder = Path(os.fspath(next(iter(duckdb_extension_httpfs.__path__)))) / "extensions"
    path = folder / f"v{duckdb.__version__}" / "httpfs.duckdb_extension"
    return path if path.exists() else None
