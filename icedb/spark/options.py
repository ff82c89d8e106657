"""The options of the data source `icedb`, checked on the driver before anything starts. Names are case-insensitive."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from icedb.errors import InvalidOption
from icedb.transactions import Txn, check_txn

__all__ = ["MEMORY_BYTES", "WriteMode", "WriteOptions", "path_of", "storage_options_of", "write_options"]

_OPTIONS = (
    "path", "overwrite", "memory_bytes", "partitionoverwritemode", "job", "txn_application", "txn_sequence",
)  # fmt: skip
WriteMode = Literal["append", "overwrite"]

# What DuckDB may take in one task before it spills; several tasks share a machine, so not DuckDB's own 80% of it.
MEMORY_BYTES = 1024 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was told."""

    path: str
    mode: WriteMode
    storage_options: Mapping[str, str] = field(repr=False)
    memory_bytes: int
    job: str
    txn: Txn | None


def write_options(options: Mapping[str, str], mode: WriteMode) -> WriteOptions:
    """The options of a write. Raises InvalidOption."""
    path = path_of(options)
    _check_overwrite(path, options, mode)
    txn = _txn(options, path)
    if txn is not None and mode == "overwrite":
        raise InvalidOption(f"{path}: an overwrite takes no txn: done twice, it is as if it was done once.")
    return WriteOptions(
        path, mode, storage_options_of(options, path), _memory_bytes(options, path), _job(options, path), txn
    )


def path_of(options: Mapping[str, str]) -> str:
    """The table's address. Raises InvalidOption when there is none."""
    path = options.get("path", "")
    if not path:
        raise InvalidOption(
            'icedb: no table is named. Say where it is: df.write.format("icedb").option("path", "s3://bucket/table").'
        )
    return path


def _check_overwrite(path: str, options: Mapping[str, str], mode: WriteMode) -> None:
    """Spark does not tell a data source whether its overwrite is dynamic, so an overwrite must say what it is."""
    lowered = {k.lower(): v.lower() for k, v in options.items()}
    if lowered.get("partitionoverwritemode") == "dynamic":
        raise InvalidOption(
            f"{path}: dynamic partition overwrite is not supported. Use Table.overwrite(rows, partitions=[...]), which "
            "replaces exactly those partitions."
        )
    if mode == "overwrite" and lowered.get("overwrite") != "table":
        raise InvalidOption(
            f"{path}: mode('overwrite') would replace every row of the table, even where Spark is set to dynamic "
            "partition overwrite. If that is what you want, say .option('overwrite', 'table')."
        )


def storage_options_of(options: Mapping[str, str], path: str) -> dict[str, str]:
    """What is for the store. Raises InvalidOption for an option that nobody knows."""
    storage = {k: v for k, v in options.items() if k.lower() not in _OPTIONS}
    if unknown := [k for k in storage if not k.lower().startswith("aws_") and k.lower() != "fsync"]:
        raise InvalidOption(
            f"{path}: unknown options {sorted(unknown)}. Known: path, overwrite, memory_bytes, and storage options "
            "such as AWS_ENDPOINT_URL."
        )
    return storage


def _memory_bytes(options: Mapping[str, str], path: str) -> int:
    text = {k.lower(): v for k, v in options.items()}.get("memory_bytes", str(MEMORY_BYTES))
    if not text.isdigit() or int(text) < 64 * 1024 * 1024:
        raise InvalidOption(f"{path}: memory_bytes is '{text}'; give at least 67108864 (64 MiB per task).")
    return int(text)


def _job(options: Mapping[str, str], path: str) -> str:
    job = {k.lower(): v for k, v in options.items()}.get("job", "")
    if not re.fullmatch(r"[A-Za-z0-9]{0,32}", job):
        raise InvalidOption(f"{path}: job is '{job}'; give up to 32 letters and digits.")
    return job


def _txn(options: Mapping[str, str], path: str) -> Txn | None:
    lowered = {k.lower(): v for k, v in options.items()}
    application, sequence = lowered.get("txn_application"), lowered.get("txn_sequence")
    if application is None and sequence is None:
        return None
    number = int(sequence) if sequence is not None and sequence.isdigit() else sequence
    return check_txn((application, number), table=path)
