"""Every key of a table is built and parsed here, and nowhere else.

A key is the full name of an object in its store: in a bucket it starts with the table's prefix, in a local
folder the prefix is empty. A partition's path is Hive style, `d=2026-11-21/u=7`; its values are encoded so
that any text is safe and distinct, and so that DuckDB, Spark and Hive read the same value back.

    log file      <prefix>/_log/<t, 13 digits>[_m]_<writer>.jsonl
    part          <prefix>/_data/<partition path>/<id>.parquet
    epoch claim   <prefix>/_claims/epoch-<n>.json
    txn claim     <prefix>/_claims/txn-<hash of the application>-<sequence>[.<generation>].json
    pin           <prefix>/_claims/pin-<name>.json
    probe         <prefix>/_claims/probe.json
    spec          <prefix>/_table.json
    Delta log     <prefix>/_delta_log/<version, 20 digits>.json, .checkpoint.parquet

Log and claims may lie in another store than parts and spec, under a prefix of their own.
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
    "partition_of",
    "text_as_path",
    "stored_path",
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
    """What a log file's name says of it, without reading it."""

    t_ms: int
    merged: bool
    writer: str

    @property
    def epoch(self) -> int | None:
        """The epoch that the writer's suffix `.e<epoch>` announces; only the header decides."""
        found = _EPOCH_SUFFIX.search(self.writer)
        return int(found[1]) if found else None

    @property
    def is_ours(self) -> bool:
        """Whether the writer is named as `icedb.util.clock.writer_name` does: the suffix then means what it says."""
        return _OUR_WRITER.search(self.writer) is not None


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one table. Prefixes have no slash at either end and may be empty.

    `log_root` is the prefix of the log and the claims in their own store; None: they lie beside the parts.
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
        """The key that is put once to learn whether the store honours create-only puts."""
        return self._beside_log("_claims/probe.json")

    @property
    def log_prefix(self) -> str:
        """What log files are listed by, with the slash at its end."""
        return self._beside_log("_log/")

    @property
    def data_prefix(self) -> str:
        """What parts are listed by, with the slash at its end."""
        return self._under("_data/")

    @property
    def claims_prefix(self) -> str:
        """What claims are listed by, with the slash at its end."""
        return self._beside_log("_claims/")

    @property
    def delta_prefix(self) -> str:
        """Where an export for programs that know Delta puts its log, with the slash at its end."""
        return self._under("_delta_log/")

    def log_file(self, t_ms: int, *, merged: bool, writer: str) -> str:
        """The key of a log file; `merged` says that it carries tombstones."""
        return f"{self.log_prefix}{t_ms:013d}{'_m' if merged else ''}_{writer}.jsonl"

    def parse_log_file(self, key: str) -> LogName:
        """What the name of a listed log file says; CorruptLog if it is none."""
        found = _LOG_NAME.fullmatch(key.removeprefix(self.log_prefix))
        # The writer `m` is refused: `<ts>_m_<writer>` would be ambiguous with it.
        if not key.startswith(self.log_prefix) or found is None or found["writer"] == "m":
            raise CorruptLog(
                f"'{key}' lies among the log files but is not named like one (<unix ms>[_m]_<writer>.jsonl). "
                "Nothing but log files may be there: move it elsewhere.",
                key=key,
            )
        return LogName(int(found["t"]), found["merged"] is not None, found["writer"])

    def part(self, partition: str, part_id: str) -> str:
        """The key of a part; `partition` is an encoded path, empty for a table without partitions."""
        key = f"{self.data_prefix}{partition + '/' if partition else ''}{part_id}.parquet"
        if len(key.encode()) > KEY_BYTES_MAX:
            raise InvalidPartitionValue(
                f"the partition '{partition[:80]}...' makes a key of {len(key.encode())} bytes; "
                f"object stores allow {KEY_BYTES_MAX}. Partition by something shorter, such as a hash."
            )
        return key

    def epoch_claim(self, epoch: int) -> str:
        """The key of the claim that decides who publishes this epoch."""
        return f"{self.claims_prefix}epoch-{epoch}.json"

    def parse_epoch_claim(self, key: str) -> int | None:
        """The epoch of a claim's key, or None for any other object among the claims."""
        found = re.fullmatch(r"epoch-([1-9][0-9]{0,15})\.json", key.removeprefix(self.claims_prefix))
        return int(found[1]) if found else None

    def txn_claim(self, application: str, sequence: int, generation: int = 0) -> str:
        """The key of the claim that decides what an exactly-once append is.

        The next generation counts when the content of the one before can never be published.
        """
        digest = hashlib.sha256(application.encode()).hexdigest()[:32]
        return f"{self.claims_prefix}txn-{digest}-{sequence}{f'.{generation}' if generation else ''}.json"

    def is_txn_claim(self, key: str) -> bool:
        """Whether a key among the claims is one of a transaction."""
        return (
            re.fullmatch(r"txn-[0-9a-f]{32}-[0-9]{1,19}(\.[0-9]{1,16})?\.json", key.removeprefix(self.claims_prefix))
            is not None
        )

    def pin(self, name: str) -> str:
        """The key of a pin: a time that cleanup respects. Raises InvalidOption for a name that is no file's."""
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", name):
            raise InvalidOption(
                f"'{name}' cannot be a pin's name. Use up to 100 letters, digits, '.', '_' and '-'; the first one is a "
                "letter or digit."
            )
        return f"{self.claims_prefix}pin-{name}.json"

    def parse_pin(self, key: str) -> str | None:
        """The name of the pin with this key, or None for any other object among the claims."""
        found = re.fullmatch(r"pin-(.+)\.json", key.removeprefix(self.claims_prefix))
        return found[1] if found else None


def encode_value(value: str | None) -> str:
    """One partition value as a path segment's right side. The result is distinct for distinct values.

    ASCII letters, digits and `_ - .` stay; all other ASCII becomes `%XX`. Characters beyond ASCII stay as they are
    (Spark decodes `%XX` by single characters, so their UTF-8 must not be percent-encoded for it), but for those
    that XML, in which S3 lists keys, or a terminal cannot carry.
    """
    if value is None:
        return NULL_VALUE
    text = "".join(c if c in _SAFE or _is_safe_beyond_ascii(ord(c)) else _percent(c) for c in value)
    # Names that mean something else to a reader: null to DuckDB and Hive, this or the parent folder to a file system.
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
    """A partition's path, `d=2026-11-21/u=7`, from its values as text (null is None)."""
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
    """A partition's path from the text of one, such as `d=2026-11-21/city=New York`: its values are encoded.

    `names` are the table's partition columns, which the text must give in their order; without any, every path will do,
    and its segments need not be Hive style. Raises InvalidPartitionValue.
    """
    segments = text.split("/") if text else []
    pairs = [segment.partition("=") for segment in segments]
    if has_unsafe_segment(segments) or any(equals and not name for name, equals, _ in pairs):
        raise InvalidPartitionValue(
            f"{table}: '{text[:200]}' cannot be a partition: it has a segment that is empty, '.', '..' or has no name."
        )
    if has_reserved_end(segments):
        raise InvalidPartitionValue(
            f"{table}: '{text[:200]}' cannot be a partition: a segment of it ends in '_data' or '_log', by which "
            "programs of IceDB v3 find their way in a key. Let it end in something else."
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
    """The path under which this library stores a partition, from any that means the same values.

    A person writes `city=New York`, and so may a program of IceDB v3 have stored it.
    """
    return "/".join(
        "=".join(part if part == NULL_VALUE else encode_value(unquote(part)) for part in segment.split("=", 1))
        for segment in (path.split("/") if path else ())
    )


def text_as_path(text: str) -> str:
    """The path that this library makes of a partition's text, whether or not it may be one. Null stays null."""
    pairs = [segment.partition("=") for segment in (text.split("/") if text else ())]
    return "/".join(
        f"{encode_value(name)}{equals}{value if value in ('', NULL_VALUE) else encode_value(value)}"
        for name, equals, value in pairs
    )


def decode_partition(path: str) -> dict[str, str | None]:
    """The values of a partition's path, as text; the inverse of `encode_partition`."""
    values: dict[str, str | None] = {}
    for segment in path.split("/") if path else ():
        name, equals, value = segment.partition("=")
        if equals:  # a program of v3 may have chosen a path that is not Hive style: it has no values then
            values[unquote(name)] = None if value == NULL_VALUE else unquote(value)
    return values


def partition_of(data_prefix: str, key: str) -> str:
    """The partition's path in a part's key; CorruptLog if the key lies outside the table."""
    path, _, name = key.removeprefix(data_prefix).rpartition("/")
    if not key.startswith(data_prefix) or not name or has_unsafe_segment(path.split("/") if path else ()):
        raise CorruptLog(
            f"the part '{key}' is outside the table's own prefix '{data_prefix}'. The log file that names it was "
            "not written for this table.",
            key=key,
        )
    return path


def has_unsafe_segment(segments: Sequence[str]) -> bool:
    """Whether a path could leave its folder, or has an empty step."""
    return any(s in ("", ".", "..") for s in segments)


def has_reserved_end(segments: Sequence[str]) -> bool:
    """Whether `_data/` or `_log/` would stand inside a path, where a v3 program looks for the folder of the parts."""
    return any(s.endswith(("_data", "_log")) for s in segments)
