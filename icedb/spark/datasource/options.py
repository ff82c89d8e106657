"""Write options of the data source `icedb`, validated on the driver before the job. Names are case-insensitive."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from icedb.errors import InvalidOption
from icedb.transaction.idempotent_append import Txn, check_txn

__all__ = [
    "MEMORY_BYTES",
    "MEMORY_BYTES_MIN",
    "Overwrite",
    "SparkWriteOptions",
    "number_of",
    "path_of",
    "storage_options_of",
    "stream_options",
    "write_options",
]

#: An overwrite replaces all rows, the rows of named partitions, or those of the partitions that the new rows are in.
Overwrite = Literal["table", "partitions", "dynamic"]

MIB = 1024 * 1024
# Memory of DuckDB in one task before it spills. With the worker's own memory, a task stays below a gigabyte.
MEMORY_BYTES = 512 * MIB
MEMORY_BYTES_MIN = 64 * MIB
# A merge skips parts from this size on.
PART_BYTES = 128 * MIB
PART_BYTES_MIN = 1 * MIB

# What the names of storage options begin with.
_STORAGE_OPTIONS = ("aws_", "azure_", "google_", "fsync")

# Properties that Spark passes as options if CREATE TABLE asks for the schema.
_CATALOG_PROPERTIES = frozenset({"provider", "owner"})
_VIEW = (
    "In SQL, name the table with CREATE TEMPORARY VIEW name USING icedb OPTIONS (path 's3://bucket/table'). "
    "Create it with icedb.Table.create."
)

_WRITE_OPTIONS = (
    "path", "overwrite", "partitions", "distribution", "part_bytes", "memory_bytes", "partitions_max",
    "partitionoverwritemode", "job", "txn_application", "txn_sequence",
)  # fmt: skip

# Options of Delta Lake, Iceberg and Spark, in lower case -> what they are called here, as the end of a sentence.
_EQUIVALENTS = {
    "timestampasof": "is called as_of",
    "as-of-timestamp": "is called as_of",
    "versionasof": "is as_of with a time",
    "snapshot-id": "is as_of with a time",
    "replacewhere": "is overwrite='partitions' with partitions='<a condition over the partition columns>'",
    "overwriteschema": "is Table.overwrite(rows, schema_mode='overwrite')",
    "mergeschema": "is not needed: the columns that a batch adds are added to the table",
    "merge-schema": "is not needed: the columns that a batch adds are added to the table",
    "txnappid": "is called txn_application",
    "txnversion": "is called txn_sequence",
    "target-file-size-bytes": "is called part_bytes",
    "maxfilespertrigger": "is called batch_parts_max",
    "streaming-max-files-per-micro-batch": "is called batch_parts_max",
    "maxbytespertrigger": "is called batch_bytes_max",
    "startingtimestamp": "is called since",
    "stream-from-timestamp": "is called since",
    "startingversion": "is since with a time",
    "endingtimestamp": "is called until",
    "endingversion": "is until with a time",
    "readchangefeed": "is not needed: since reads the rows that were added",
    "readchangedata": "is not needed: since reads the rows that were added",
    "ignorechanges": "is not needed: a stream returns appended rows only",
    "ignoredeletes": "is not needed: a stream returns appended rows only",
    "skipchangecommits": "is not needed: a stream returns appended rows only",
}


@dataclass(frozen=True, slots=True)
class SparkWriteOptions:
    """Options of a write. `overwrite` is None for an append. `partitions` is a list of paths, or a predicate."""

    path: str
    overwrite: Overwrite | None
    partitions: Sequence[str] | str | None
    part_bytes: int
    memory_bytes: int
    partitions_max: int | None
    job: str
    txn: Txn | None
    storage_options: Mapping[str, str] = field(repr=False)


def write_options(options: Mapping[str, str], *, overwrite: bool) -> SparkWriteOptions:
    """Parse the options of a write. Raises InvalidOption."""
    path = path_of(options)
    lowered = {k.lower(): v for k, v in options.items()}
    storage_options = storage_options_of(options, path, own=_WRITE_OPTIONS)
    _check_distribution(path, lowered.get("distribution", "none"))
    if not overwrite and "overwrite" in lowered:
        raise InvalidOption(
            f"{path}: overwrite is '{lowered['overwrite']}' and the mode is append, which replaces nothing. Write with "
            "mode('overwrite'), or omit the option."
        )
    replaced = _overwrite(path, lowered) if overwrite else None
    partitions = _partitions(path, lowered, replaced)
    txn = _txn(path, lowered)
    if txn is not None and overwrite:
        raise InvalidOption(f"{path}: an overwrite takes no txn, because a repetition has the same result. Omit it.")
    return SparkWriteOptions(
        path,
        replaced,
        partitions,
        number_of(path, lowered, "part_bytes", PART_BYTES, PART_BYTES_MIN),
        number_of(path, lowered, "memory_bytes", MEMORY_BYTES, MEMORY_BYTES_MIN),
        number_of(path, lowered, "partitions_max", 1, 1) if "partitions_max" in lowered else None,
        _job(path, lowered),
        txn,
        storage_options,
    )


def stream_options(options: Mapping[str, str], *, complete: bool) -> SparkWriteOptions:
    """Parse the options of a stream's write: those of an append, and its checkpoint. Raises InvalidOption."""
    path = path_of(options)
    if complete:
        raise InvalidOption(
            f"{path}: outputMode('complete') would replace the whole table with each batch. Write with "
            "outputMode('append'), or with foreachBatch and icedb.spark.write(batch, path, overwrite='table')."
        )
    own = {k: v for k, v in options.items() if k.lower() != "checkpointlocation"}
    if named := sorted(k for k in own if k.lower() in ("txn_application", "txn_sequence", "job")):
        raise InvalidOption(f"{path}: {named} is not for streams, whose batches have names of their own. Omit it.")
    return write_options(own, overwrite=False)


def path_of(options: Mapping[str, str], *, example: str = 'df.write.format("icedb").save("s3://bucket/table")') -> str:
    """Return the table's address. Raises InvalidOption if there is none, several, or one of Spark's catalog."""
    lowered = {k.lower(): v for k, v in options.items()}
    path = lowered.get("path", "")
    if lowered.keys() >= _CATALOG_PROPERTIES:
        raise InvalidOption(
            f"{path or 'icedb'}: the table cannot be an entry of Spark's catalog, because Spark would pass no options "
            f"to it later. {_VIEW}"
        )
    if not path and "paths" in lowered:
        raise InvalidOption(
            f"icedb: load() has several paths: {lowered['paths'][:200]}. Load each table by itself, and unite the "
            "frames with unionByName."
        )
    if not path:
        raise InvalidOption(
            f"icedb: the option path is missing. Pass the address of the table: {example}. Spark passes no options to "
            f"an entry of its catalog (CREATE TABLE ... USING icedb, saveAsTable): drop it. {_VIEW}"
        )
    return path


def storage_options_of(options: Mapping[str, str], path: str, *, own: Collection[str]) -> dict[str, str]:
    """Return the options for the store. Raises InvalidOption for others that are not in `own` (lower case)."""
    storage = {k: v for k, v in options.items() if k.lower() not in own}
    if unknown := [k for k in storage if not k.lower().startswith(_STORAGE_OPTIONS)]:
        here = "".join(f" {k} {_EQUIVALENTS[k.lower()]}." for k in sorted(unknown) if k.lower() in _EQUIVALENTS)
        raise InvalidOption(
            f"{path}: unknown options {sorted(unknown)}.{here} Known: {', '.join(own)}, and storage options such as "
            "AWS_ENDPOINT_URL."
        )
    return storage


def number_of(path: str, options: Mapping[str, str], name: str, default: int, least: int) -> int:
    """Return an option that is an integer. Raises InvalidOption."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise InvalidOption(f"{path}: {name} is '{text}'. Pass an integer of at least {least}.")
    return int(text)


def _check_distribution(path: str, distribution: str) -> None:
    """Reject a distribution: a Python data source cannot request a shuffle. Raises InvalidOption."""
    if distribution == "partition":
        raise InvalidOption(
            f"{path}: distribution 'partition' needs a shuffle before the data source sees the rows. Write with "
            "icedb.spark.write(frame, path, distribution='partition')."
        )
    if distribution != "none":
        raise InvalidOption(f"{path}: distribution is '{distribution}'. Pass 'none', or omit it.")


def _overwrite(path: str, options: Mapping[str, str]) -> Overwrite:
    """Return the kind of an overwrite. It must be explicit, because Spark does not pass its own setting."""
    kind = options.get("overwrite", "").lower()
    mode = options.get("partitionoverwritemode", "").lower()
    if mode not in ("", "static", "dynamic"):
        raise InvalidOption(f"{path}: partitionOverwriteMode is '{mode}'. Pass 'static' or 'dynamic'.")
    if mode and kind and (mode == "dynamic") != (kind == "dynamic"):
        raise InvalidOption(f"{path}: partitionOverwriteMode is {mode}, and overwrite is '{kind}'. Pass only one.")
    if mode == "dynamic":
        return "dynamic"
    match kind:
        case "table" | "partitions" | "dynamic":
            return kind
        case "":
            raise InvalidOption(
                f"{path}: mode('overwrite') would replace every row of the table, even where Spark is set to dynamic "
                "partition overwrite. Choose what it replaces: .option('overwrite', 'table'), 'partitions' with "
                ".option('partitions', ...), or 'dynamic' for the partitions of the new rows."
            )
    raise InvalidOption(f"{path}: overwrite is '{kind}'. Pass 'table', 'partitions' or 'dynamic'.")


def _partitions(path: str, options: Mapping[str, str], overwrite: Overwrite | None) -> Sequence[str] | str | None:
    text = options.get("partitions", "").strip()
    if overwrite != "partitions":
        if text:
            raise InvalidOption(
                f"{path}: the option partitions requires an overwrite. Write with "
                "mode('overwrite') and .option('overwrite', 'partitions')."
            )
        return None
    if not text:
        raise InvalidOption(
            f"{path}: overwrite is 'partitions' and none is named. Pass .option('partitions', ...): a JSON list of "
            'paths, such as ["d=2026-11-21"], or a predicate over the partition columns.'
        )
    if not text.startswith("["):
        return text
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise InvalidOption(f'{path}: partitions is {text[:200]}. Pass a JSON list of paths, such as ["d=2026-11-21"].')
    return paths


def _job(path: str, options: Mapping[str, str]) -> str:
    job = options.get("job", "")
    if not re.fullmatch(r"[A-Za-z0-9]{0,16}", job):
        raise InvalidOption(f"{path}: job is '{job}'. Pass up to 16 letters and digits.")
    return job


def _txn(path: str, options: Mapping[str, str]) -> Txn | None:
    application, sequence = options.get("txn_application"), options.get("txn_sequence")
    if application is None and sequence is None:
        return None
    number = int(sequence) if sequence is not None and sequence.isascii() and sequence.isdigit() else sequence
    return check_txn((application, number), table=path)
