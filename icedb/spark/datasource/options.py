"""The options of the data source `icedb`, checked on the driver before anything starts. Names are case-insensitive."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from icedb.errors import InvalidOption
from icedb.transaction.idempotent_append import Txn, check_txn

__all__ = ["Overwrite", "WriteOptions", "number_of", "path_of", "storage_options_of", "stream_options", "write_options"]

#: What an overwrite replaces: all rows, those of named partitions, or those of the partitions that it has rows of.
Overwrite = Literal["table", "partitions", "dynamic"]

MIB = 1024 * 1024
# What DuckDB may take in one task before it spills. With the worker's own memory that stays below a gigabyte.
MEMORY_BYTES = 512 * MIB
MEMORY_BYTES_MIN = 64 * MIB
# No merge touches a part that is larger.
PART_BYTES = 128 * MIB
PART_BYTES_MIN = 1 * MIB

_WRITE_OPTIONS = (
    "path", "overwrite", "partitions", "distribution", "part_bytes", "memory_bytes", "partitionoverwritemode", "job",
    "txn_application", "txn_sequence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What a write was told. `overwrite` is None for an append; `partitions` is a list of paths, or a predicate."""

    path: str
    overwrite: Overwrite | None
    partitions: Sequence[str] | str | None
    part_bytes: int
    memory_bytes: int
    job: str
    txn: Txn | None
    storage_options: Mapping[str, str] = field(repr=False)


def write_options(options: Mapping[str, str], *, overwrite: bool) -> WriteOptions:
    """The options of a write. Raises InvalidOption."""
    path = path_of(options)
    lowered = {k.lower(): v for k, v in options.items()}
    storage_options = storage_options_of(options, path, known=_WRITE_OPTIONS)
    _check_distribution(path, lowered.get("distribution", "none"))
    if not overwrite and "overwrite" in lowered:
        raise InvalidOption(
            f"{path}: overwrite is '{lowered['overwrite']}' and the mode is append, which replaces nothing. Write with "
            "mode('overwrite'), or leave the option out."
        )
    what = _overwrite(path, lowered) if overwrite else None
    partitions = _partitions(path, lowered, what)
    txn = _txn(path, lowered)
    if txn is not None and overwrite:
        raise InvalidOption(f"{path}: an overwrite takes no txn: done twice, it is as if it was done once.")
    return WriteOptions(
        path,
        what,
        partitions,
        number_of(path, lowered, "part_bytes", PART_BYTES, PART_BYTES_MIN),
        number_of(path, lowered, "memory_bytes", MEMORY_BYTES, MEMORY_BYTES_MIN),
        _job(path, lowered),
        txn,
        storage_options,
    )


def stream_options(options: Mapping[str, str], *, complete: bool) -> WriteOptions:
    """The options of a stream's write: those of an append, and where its checkpoint is. Raises InvalidOption."""
    path = path_of(options)
    if complete:
        raise InvalidOption(
            f"{path}: outputMode('complete') would replace the whole table with each batch. Write with "
            "outputMode('append'), or with foreachBatch and icedb.spark.write(batch, path, overwrite='table')."
        )
    own = {k: v for k, v in options.items() if k.lower() != "checkpointlocation"}
    if named := sorted(k for k in own if k.lower() in ("txn_application", "txn_sequence", "job")):
        raise InvalidOption(f"{path}: {named} is not for streams: each batch of one has a name of its own.")
    return write_options(own, overwrite=False)


def path_of(options: Mapping[str, str]) -> str:
    """The table's address. Raises InvalidOption when there is none."""
    path = options.get("path", "")
    if not path:
        raise InvalidOption(
            'icedb: no table is named. Say where it is: df.write.format("icedb").option("path", "s3://bucket/table").'
        )
    check_place(path)
    return path


def check_place(path: str) -> None:
    """Refuse the address of a table that Spark's processes do not reach. Raises InvalidOption."""
    if path.lower().startswith("az://"):
        raise InvalidOption(
            f"{path}: Spark does not reach tables in Azure yet. Read and write them with icedb.Table, or copy the "
            "table to a store that speaks S3."
        )


def storage_options_of(options: Mapping[str, str], path: str, *, known: Collection[str]) -> dict[str, str]:
    """What is for the store. Raises InvalidOption for an option that is neither that nor `known` (in lower case)."""
    storage = {k: v for k, v in options.items() if k.lower() not in known}
    if unknown := [k for k in storage if not k.lower().startswith("aws_") and k.lower() != "fsync"]:
        raise InvalidOption(
            f"{path}: unknown options {sorted(unknown)}. Known: {', '.join(known)}, and storage options such as "
            "AWS_ENDPOINT_URL."
        )
    return storage


def number_of(path: str, options: Mapping[str, str], name: str, default: int, least: int) -> int:
    """An option that is a whole number. Raises InvalidOption."""
    text = options.get(name, str(default))
    if not (text.isascii() and text.isdigit()) or int(text) < least:
        raise InvalidOption(f"{path}: {name} is '{text}'; give a whole number, at least {least}.")
    return int(text)


def _check_distribution(path: str, distribution: str) -> None:
    """A Python data source gets its rows as they are distributed, and cannot ask Spark for a shuffle."""
    if distribution == "partition":
        raise InvalidOption(
            f"{path}: distribution 'partition' needs a shuffle before the data source sees the rows. Write with "
            "icedb.spark.write(frame, path, distribution='partition')."
        )
    if distribution != "none":
        raise InvalidOption(f"{path}: distribution is '{distribution}'; give 'none', or leave it out.")


def _overwrite(path: str, options: Mapping[str, str]) -> Overwrite:
    """Spark does not tell a data source whether its overwrite is dynamic, so an overwrite must say what it is."""
    told = options.get("overwrite", "").lower()
    mode = options.get("partitionoverwritemode", "").lower()
    if mode not in ("", "static", "dynamic"):
        raise InvalidOption(f"{path}: partitionOverwriteMode is '{mode}'; give 'static' or 'dynamic'.")
    if mode and told and (mode == "dynamic") != (told == "dynamic"):
        raise InvalidOption(f"{path}: partitionOverwriteMode is {mode}, and overwrite is '{told}'. Give one.")
    if mode == "dynamic":
        return "dynamic"
    match told:
        case "table" | "partitions" | "dynamic":
            return told
        case "":
            raise InvalidOption(
                f"{path}: mode('overwrite') would replace every row of the table, even where Spark is set to dynamic "
                "partition overwrite. Say what it shall replace: .option('overwrite', 'table'), 'partitions' with "
                ".option('partitions', ...), or 'dynamic' for the partitions of the new rows."
            )
    raise InvalidOption(f"{path}: overwrite is '{told}'; give 'table', 'partitions' or 'dynamic'.")


def _partitions(path: str, options: Mapping[str, str], overwrite: Overwrite | None) -> Sequence[str] | str | None:
    text = options.get("partitions", "").strip()
    if overwrite != "partitions":
        if text:
            raise InvalidOption(
                f"{path}: partitions are named, and nothing says that they shall be replaced. Write with "
                "mode('overwrite') and .option('overwrite', 'partitions')."
            )
        return None
    if not text:
        raise InvalidOption(
            f"{path}: which partitions shall be replaced? Give .option('partitions', ...): a JSON list of paths, such "
            'as ["d=2026-11-21"], or a condition over the partition columns.'
        )
    if not text.startswith("["):
        return text
    try:
        paths = json.loads(text)
    except ValueError:
        paths = None
    if not isinstance(paths, list) or not paths or not all(isinstance(p, str) for p in paths):
        raise InvalidOption(f'{path}: partitions is {text[:200]}; give a JSON list of paths, such as ["d=2026-11-21"].')
    return paths


def _job(path: str, options: Mapping[str, str]) -> str:
    job = options.get("job", "")
    if not re.fullmatch(r"[A-Za-z0-9]{0,16}", job):
        raise InvalidOption(f"{path}: job is '{job}'; give up to 16 letters and digits.")
    return job


def _txn(path: str, options: Mapping[str, str]) -> Txn | None:
    application, sequence = options.get("txn_application"), options.get("txn_sequence")
    if application is None and sequence is None:
        return None
    number = int(sequence) if sequence is not None and sequence.isascii() and sequence.isdigit() else sequence
    return check_txn((application, number), table=path)
