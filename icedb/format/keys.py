"""The only place where keys of a table are built and parsed.

A key is the full name of an object in its store. In a bucket it starts with the table's prefix; in a local folder the
prefix is empty. A partition's path is Hive style, `d=2026-11-21/u=7`. Its values are encoded so that any text is safe
and distinct, and so that DuckDB, Spark and Hive read the same value back.

    log file      <prefix>/_log/<t, 13 digits>[_m]_<writer>.jsonl
    part          <prefix>/_data/<partition path>/<id>.parquet
    epoch claim   <prefix>/_claims/epoch-<n>.json
    txn claim     <prefix>/_claims/txn-<hash of the application>-<sequence>[.<generation>].json
    pin           <prefix>/_claims/pin-<name>.json
    probe         <prefix>/_claims/probe.json
    spec          <prefix>/_table.json
    Delta log     <prefix>/_delta_log/<version, 20 digits>.json, .checkpoint.parquet
    Iceberg       <prefix>/metadata/<version>-<uuid>.metadata.json, [snap-]<version>-<digest>.avro

Log and claims may be in another store than parts and spec, under a prefix of their own.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from icedb.errors import CorruptLog, InvalidOption, InvalidPartitionValue, InvalidURI

__all__ = [
    "NULL_VALUE",
    "Keys",
    "LogName",
    "decode_partition",
    "encode_partition",
    "encode_partition_text",
    "encode_value",
    "has_reserved_end",
    "has_unsafe_segment",
    "partition_of",
    "stored_path",
    "text_as_path",
]

# Hive's name for null, which DuckDB, Spark and pyarrow read back as null.
NULL_VALUE = "__HIVE_DEFAULT_PARTITION__"

# File systems allow 255 bytes for one name; an S3 key may have 1,024 in all.
SEGMENT_BYTES_MAX = 255
KEY_BYTES_MAX = 1_024

_LOG_NAME = re.compile(r"(?P<t>[0-9]{13})(?P<merged>_m)?_(?P<writer>[A-Za-z0-9._-]+)\.jsonl")
_EPOCH_SUFFIX = re.compile(r"\.e([1-9][0-9]{0,15})$")
_OUR_WRITER = re.compile(r"-[0-9]+-[0-9a-f]{12}(\.e[0-9]+)?$")
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.")


@dataclass(frozen=True, slots=True)
class LogName:
    """The fields of a log file's name."""

    t_ms: int
    merged: bool
    writer: str

    @property
    def epoch(self) -> int | None:
        """The epoch in the writer's suffix `.e<epoch>`. It is a hint: the header decides."""
        match = _EPOCH_SUFFIX.search(self.writer)
        return int(match[1]) if match else None

    @property
    def is_ours(self) -> bool:
        """Whether the writer has a name as `icedb.util.clock.writer_name` makes it, so that the suffix is an epoch."""
        return _OUR_WRITER.search(self.writer) is not None


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one table. Prefixes have no slash at either end and may be empty.

    `log_root` is the prefix of the log and the claims in their own store; None if they are in the store of the parts.
    """

    prefix: str
    log_root: str | None = None

    def __post_init__(self) -> None:
        for prefix in (self.prefix, self.log_root or ""):
            segments = prefix.split("/") if prefix else []
            if any(s in ("", ".", "..") for s in segments):
                raise InvalidURI(f"'{prefix}' cannot be a table's prefix: it has an empty, '.' or '..' segment.")

    def _under(self, path: str) -> str:
        return f"{self.prefix}/{path}" if self.prefix else path

    def _beside_log(self, path: str) -> str:
        root = self.prefix if self.log_root is None else self.log_root
        return f"{root}/{path}" if root else path

    @property
    def spec(self) -> str:
        """The key of the table's spec."""
        return self._under("_table.json")

    @property
    def probe(self) -> str:
        """The key that is put to check whether the store supports create-only puts."""
        return self._beside_log("_claims/probe.json")

    @property
    def log_prefix(self) -> str:
        """The prefix of log files, with a slash at the end."""
        return self._beside_log("_log/")

    @property
    def data_prefix(self) -> str:
        """The prefix of parts, with a slash at the end."""
        return self._under("_data/")

    @property
    def claims_prefix(self) -> str:
        """The prefix of claims, with a slash at the end."""
        return self._beside_log("_claims/")

    @property
    def delta_prefix(self) -> str:
        """The prefix of an exported Delta log, with a slash at the end."""
        return self._under("_delta_log/")

    @property
    def iceberg_prefix(self) -> str:
        """The prefix of exported Iceberg metadata, with a slash at the end."""
        return self._under("metadata/")

    def log_file(self, t_ms: int, *, merged: bool, writer: str) -> str:
        """Return the key of a log file; `merged` if it carries tombstones."""
        return f"{self.log_prefix}{t_ms:013d}{'_m' if merged else ''}_{writer}.jsonl"

    def parse_log_file(self, key: str) -> LogName:
        """Parse the key of a log file. Raises CorruptLog for the key of another object."""
        match = _LOG_NAME.fullmatch(key.removeprefix(self.log_prefix))
        # The writer `m` is rejected: `<ts>_m_<writer>` would be ambiguous with it.
        if not key.startswith(self.log_prefix) or match is None or match["writer"] == "m":
            raise CorruptLog(
                f"'{key}' lies among the log files but is not named like one (<unix ms>[_m]_<writer>.jsonl). "
                "Only log files may be there. Move the object elsewhere.",
                key=key,
            )
        return LogName(int(match["t"]), match["merged"] is not None, match["writer"])

    def part(self, partition: str, part_id: str) -> str:
        """Return the key of a part; `partition` is an encoded path, empty for a table without partitions."""
        key = f"{self.data_prefix}{partition + '/' if partition else ''}{part_id}.parquet"
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidPartitionValue(
                f"the partition '{partition[:80]}...' makes a key of {len(key.encode())} bytes; "
                f"object stores allow {KEY_BYTES_MAX}. Partition by something shorter, such as a hash."
            )
        return key

    def epoch_claim(self, epoch: int) -> str:
        """Return the key of the claim that decides which log file this epoch becomes."""
        return f"{self.claims_prefix}epoch-{epoch}.json"

    def parse_epoch_claim(self, key: str) -> int | None:
        """Return the epoch of a claim's key, or None for any other object among the claims."""
        match = re.fullmatch(r"epoch-([1-9][0-9]{0,15})\.json", key.removeprefix(self.claims_prefix))
        return int(match[1]) if match else None

    def txn_claim(self, application: str, sequence: int, generation: int = 0) -> str:
        """Return the key of the claim that decides which log file an exactly-once append becomes.

        If the content of a claim can never be published, the claim of the next generation decides.
        """
        digest = hashlib.sha256(application.encode()).hexdigest()[:32]
        return f"{self.claims_prefix}txn-{digest}-{sequence}{f'.{generation}' if generation else ''}.json"

    def is_txn_claim(self, key: str) -> bool:
        """Whether a key is that of a transaction's claim."""
        return (
            re.fullmatch(r"txn-[0-9a-f]{32}-[0-9]{1,19}(\.[0-9]{1,16})?\.json", key.removeprefix(self.claims_prefix))
            is not None
        )

    def pin(self, name: str) -> str:
        """Return the key of a pin, a named time that cleanup keeps readable. Raises InvalidOption for the name."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise InvalidOption(
                f"'{name}' cannot be a pin's name. Use up to 100 letters, digits, '.', '_' and '-'; the first one is a "
                "letter or digit."
            )
        return f"{self.claims_prefix}pin-{name}.json"

    def parse_pin(self, key: str) -> str | None:
        """Return the name of the pin with this key, or None for any other object among the claims."""
        match = re.fullmatch(r"pin-(.+)\.json", key.removeprefix(self.claims_prefix))
        return match[1] if match else None


def encode_value(value: str | None) -> str:
    """Encode one partition value for a path segment. Distinct values have distinct encodings.

    ASCII letters, digits and `_ - .` are kept. All other ASCII becomes `%XX`. Characters beyond ASCII are kept, because
    Spark decodes each `%XX` as one character and would misread their UTF-8. The exceptions are characters that a
    terminal, or the XML of an S3 listing, cannot represent.
    """
    if value is None:
        return NULL_VALUE
    text = "".join(c if c in _SAFE or _is_safe_beyond_ascii(ord(c)) else _percent(c) for c in value)
    # Names with another meaning: null for DuckDB and Hive, the current or parent folder for a file system.
    if text.upper() in ("NULL", NULL_VALUE) or text in (".", ".."):
        text = _percent(text[0]) + text[1:]
    return text


def _is_safe_beyond_ascii(code: int) -> bool:
    controls = 0x80 <= code <= 0x9F or code in (0x2028, 0x2029)
    no_characters = 0xD800 <= code <= 0xDFFF or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    return code > 0x7F and not controls and not no_characters


def _percent(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", errors="surrogatepass"))


def encode_partition(values: Mapping[str, str | None]) -> str:
    """Build a partition's path, `d=2026-11-21/u=7`, from its values as text (None for null)."""
    segments = [f"{encode_value(name)}={encode_value(value)}" for name, value in values.items()]
    for (name, value), segment in zip(values.items(), segments, strict=True):
        if len(segment.encode()) > SEGMENT_BYTES_MAX:
            raise InvalidPartitionValue(
                f"the value of partition column '{name}' needs {len(segment.encode())} bytes in a path "
                f"('{str(value)[:40]}...'); {SEGMENT_BYTES_MAX} are allowed. Partition by something shorter, "
                "such as a prefix or a hash of it."
            )
    return "/".join(segments)


def encode_partition_text(text: str, names: Sequence[str], *, table: str) -> str:
    """Build a partition's path from a caller's text, such as `d=2026-11-21/city=New York`, by encoding its values.

    `names` are the table's partition columns, which the text must have in this order. Without names, any path is
    accepted, and its segments need not be Hive style. Raises InvalidPartitionValue.
    """
    segments = text.split("/") if text else []
    pairs = [segment.partition("=") for segment in segments]
    if has_unsafe_segment(segments) or any(equals and not name for name, equals, _ in pairs):
        raise InvalidPartitionValue(
            f"{table}: '{text[:200]}' cannot be a partition: it has a segment that is empty, '.', '..' or has no name."
        )
    if has_reserved_end(segments):
        raise InvalidPartitionValue(
            f"{table}: '{text[:200]}' cannot be a partition: a segment of it ends in '_data' or '_log', which "
            "programs of IceDB v3 search for in a key. Choose a value with another ending."
        )
    if names and [(name, equals) for name, equals, _ in pairs] != [(name, "=") for name in names]:
        raise InvalidPartitionValue(
            f"{table}: '{text[:200]}' is no partition of this table, whose paths are "
            f"'{'/'.join(f'{name}=...' for name in names)}'."
        )
    path = text_as_path(text)
    if any(len(segment.encode()) > SEGMENT_BYTES_MAX for segment in path.split("/")):
        raise InvalidPartitionValue(
            f"{table}: a segment of the partition '{text[:80]}...' needs more than {SEGMENT_BYTES_MAX} bytes. Use "
            "something shorter, such as a prefix or a hash of it."
        )
    return path


def stored_path(path: str) -> str:
    """Return the path under which this library stores a partition, from any path with the same values.

    A caller may write `city=New York`, and a program of IceDB v3 may have stored that path.
    """
    return "/".join(
        "=".join(part if part == NULL_VALUE else encode_value(unquote(part)) for part in segment.split("=", 1))
        for segment in (path.split("/") if path else ())
    )


def text_as_path(text: str) -> str:
    """Encode a partition's text as a path, without checking that it is valid. Null values are kept."""
    pairs = [segment.partition("=") for segment in (text.split("/") if text else ())]
    return "/".join(
        f"{encode_value(name)}{equals}{value if value in ('', NULL_VALUE) else encode_value(value)}"
        for name, equals, value in pairs
    )


def decode_partition(path: str) -> dict[str, str | None]:
    """Return the values of a partition's path as text. The inverse of `encode_partition`."""
    values: dict[str, str | None] = {}
    for segment in path.split("/") if path else ():
        name, equals, value = segment.partition("=")
        if equals:  # a program of v3 may use a path that is not Hive style, which has no values
            values[unquote(name)] = None if value == NULL_VALUE else unquote(value)
    return values


def partition_of(data_prefix: str, key: str) -> str:
    """Return the partition's path in a part's key. Raises CorruptLog if the key is outside the table."""
    path, _, name = key.removeprefix(data_prefix).rpartition("/")
    if not key.startswith(data_prefix) or not name or has_unsafe_segment(path.split("/") if path else ()):
        raise CorruptLog(
            f"the part '{key}' is outside the table's own prefix '{data_prefix}'. The log file that names it was "
            "not written for this table. Restore the table's own log file, or move the other one elsewhere.",
            key=key,
        )
    return path


def has_unsafe_segment(segments: Sequence[str]) -> bool:
    """Whether a path could leave its folder, or has an empty segment."""
    return any(s in ("", ".", "..") for s in segments)


def has_reserved_end(segments: Sequence[str]) -> bool:
    """Whether a path contains `_data/` or `_log/`, by which a v3 program finds the folder of the parts."""
    return any(s.endswith(("_data", "_log")) for s in segments)
