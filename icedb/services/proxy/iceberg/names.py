"""The names of metadata objects below `metadata/` of a bucket. Any proxy computes an object from its name.

    00001-<time><snapshots><digest>.metadata.json   a metadata document, in the form of a UUID
    snap-<snapshot id>-<layout digest>.avro         the manifest list of a snapshot; the id contains its time
    <time>-<digest>.avro                            a manifest: the time of its newest part, the digest of its parts

Times are unix milliseconds. The digest of a document is of its bytes. That of a manifest is of all that its bytes
depend on, so it is known before the manifest is encoded.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import ClassVar

from icedb.reader.iceberg.manifests import snapshot_ms

__all__ = ["METADATA_PREFIX", "DocumentName", "ListName", "ManifestName", "MetadataName", "digest_of", "parse_name"]

METADATA_PREFIX = "metadata/"

_DOCUMENT = re.compile(r"00001-([0-9a-f]{8})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{4})-([0-9a-f]{12})\.metadata\.json")
_LIST = re.compile(r"snap-([1-9][0-9]{0,18})-([0-9a-f]{8})\.avro")
_MANIFEST = re.compile(r"([0-9a-f]{12})-([0-9a-f]{32})\.avro")
_AVRO = "application/vnd.apache.avro"
_TIME_BITS = 48
#: A document lists at most this number of earlier states, which its name counts.
_COUNT_MAX = 0xFFFF


def digest_of(body: bytes, digits: int) -> str:
    """Return the first hexadecimal digits of a SHA-256."""
    return hashlib.sha256(body).hexdigest()[:digits]


@dataclass(frozen=True, slots=True)
class DocumentName:
    """The name of a document whose newest snapshot has a time, with the number of states before it.

    The number is without the states of pins, and with states that are not listed because Iceberg lacks their types.
    """

    time_ms: int
    earlier: int
    digest: str

    content_type: ClassVar[str] = "application/json"

    @classmethod
    def of(cls, at_ms: int, earlier: int, body: bytes) -> DocumentName:
        """Return the name of a document with this body."""
        return cls(at_ms & (1 << _TIME_BITS) - 1, min(earlier, _COUNT_MAX), digest_of(body, 16))

    @property
    def key(self) -> str:
        """The key in the bucket."""
        text = f"{self.time_ms:012x}{self.earlier:04x}{self.digest}"
        uuid = "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
        return f"{METADATA_PREFIX}00001-{uuid}.metadata.json"


@dataclass(frozen=True, slots=True)
class ListName:
    """The name of the manifest list of a snapshot. `layout` is the digest of its columns and partition fields."""

    snapshot_id: int
    layout: str

    content_type: ClassVar[str] = _AVRO

    @property
    def time_ms(self) -> int:
        """The time of the snapshot."""
        return snapshot_ms(self.snapshot_id)

    @property
    def key(self) -> str:
        """The key in the bucket."""
        return f"{METADATA_PREFIX}snap-{self.snapshot_id}-{self.layout}.avro"


@dataclass(frozen=True, slots=True)
class ManifestName:
    """The name of a manifest whose newest part has a time."""

    time_ms: int
    digest: str

    content_type: ClassVar[str] = _AVRO

    @property
    def key(self) -> str:
        """The key in the bucket."""
        return f"{METADATA_PREFIX}{self.time_ms:012x}-{self.digest}.avro"


MetadataName = DocumentName | ListName | ManifestName


def parse_name(key: str) -> MetadataName | None:
    """Return the name that a key of a bucket is; None for any other key."""
    name = key.removeprefix(METADATA_PREFIX)
    if name == key:
        return None
    if match := _DOCUMENT.fullmatch(name):
        text = "".join(match.groups())
        return DocumentName(int(text[:12], 16), int(text[12:16], 16), text[16:])
    if match := _LIST.fullmatch(name):
        return ListName(int(match[1]), match[2])
    if match := _MANIFEST.fullmatch(name):
        return ManifestName(int(match[1], 16), match[2])
    return None
