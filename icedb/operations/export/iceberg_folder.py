"""The folder of exported Iceberg metadata: the names of its objects, and its newest document.

    metadata/<version, 5 digits>-<uuid>.metadata.json   one version: the document that readers open
    metadata/snap-<version>-<digest>.avro               the manifest list of a snapshot
    metadata/<version>-<digest>.avro                    a manifest

No object is replaced. The UUID in a document's name is computed from the table and the version, so of two exports only
one can create a version. The name of an Avro file has the version that created it. Later versions refer to it as long
as each of them has the same content there: once a version does not, no later one does.
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field

import msgspec

from icedb.errors import CorruptLog, UncoordinatedMaintenance
from icedb.reader.iceberg.table_metadata import TableMetadata
from icedb.storage.obstore_store import ObjectNotFound
from icedb.transaction.table_handle import Handle

__all__ = ["MANIFESTS", "AvroName", "MetadataFolder", "address_of", "document_key", "properties_of", "read_document",
           "read_folder", "referenced", "table_uuid"]  # fmt: skip

_DOCUMENT = re.compile(r"(\d{5,})-([0-9a-f-]{36})\.metadata\.json")
_AVRO = re.compile(r"(snap-)?(\d+)-([0-9a-f]{32})\.avro")
_TABLE = "icedb.table"
#: The key of a snapshot's summary with the names of its manifests.
MANIFESTS = "icedb.manifests"
_decoder = msgspec.json.Decoder(TableMetadata)


@dataclass(frozen=True, slots=True)
class AvroName:
    """The name of a manifest, or of a manifest list."""

    is_list: bool
    version: int
    digest: str

    def __str__(self) -> str:
        return f"{'snap-' if self.is_list else ''}{self.version}-{self.digest}.avro"


@dataclass(slots=True)
class MetadataFolder:
    """The existing objects. `version` is -1 if there is none."""

    version: int = -1
    newest: TableMetadata | None = None
    #: The store's time of each version's document.
    versions_ms: dict[int, int] = field(default_factory=dict)
    avro_files: list[AvroName] = field(default_factory=list)


def table_uuid(handle: Handle) -> str:
    """Return the UUID of the Iceberg table."""
    return str(_uuid(handle, "table"))


def document_key(handle: Handle, version: int) -> str:
    """Return the key of a version's document."""
    return f"{handle.keys.iceberg_prefix}{version:05d}-{_uuid(handle, str(version))}.metadata.json"


def address_of(handle: Handle, key: str) -> str:
    """Return the address by which readers open an object."""
    return f"{handle.location.root_uri}/{key}"


def properties_of(handle: Handle) -> dict[str, str]:
    """Return the properties that name the table whose export wrote a document."""
    return {_TABLE: handle.spec.id}


def _uuid(handle: Handle, what: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"icedb:{handle.spec.id or handle.location.uri}:{what}")


def read_folder(handle: Handle) -> MetadataFolder:
    """List the folder, and read its newest document. Raises UncoordinatedMaintenance, CorruptLog."""
    missing = -1
    while (folder := _listed(handle)).versions_ms:
        folder.version = max(folder.versions_ms)
        try:
            folder.newest = read_document(handle, folder.version)
        except ObjectNotFound as error:
            # Other exports may have superseded and deleted it since the listing. Then a new listing has a later one.
            if folder.version <= missing:
                raise _unreadable(handle, document_key(handle, folder.version), error) from None
            missing = folder.version
        else:
            break
    return folder


def _listed(handle: Handle) -> MetadataFolder:
    """List the folder. Raises UncoordinatedMaintenance."""
    folder = MetadataFolder()
    for info in handle.store.list(handle.keys.iceberg_prefix):
        name = info.key.removeprefix(handle.keys.iceberg_prefix)
        if match := _DOCUMENT.fullmatch(name):
            version = int(match[1])
            if info.key != document_key(handle, version):
                raise _foreign(handle, info.key)
            folder.versions_ms[version] = info.stored_ms
        elif match := _AVRO.fullmatch(name):
            folder.avro_files.append(AvroName(match[1] is not None, int(match[2]), match[3]))
        elif name.endswith(".metadata.json"):
            raise _foreign(handle, info.key)
    return folder


def read_document(handle: Handle, version: int) -> TableMetadata:
    """Read a version's document. Raises UncoordinatedMaintenance, CorruptLog, ObjectNotFound."""
    key = document_key(handle, version)
    try:
        document = _decoder.decode(handle.store.get(key).body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise _unreadable(handle, key, error) from None
    if document.properties.get(_TABLE) != handle.spec.id:
        raise _foreign(handle, key)
    return document


def referenced(document: TableMetadata) -> set[str]:
    """Return the names of all Avro files of a document."""
    names: set[str] = set()
    for snapshot in document.snapshots:
        names |= {snapshot.manifest_list.rpartition("/")[2], *snapshot.summary.get(MANIFESTS, "").split()}
    return names


def _unreadable(handle: Handle, key: str, error: Exception) -> CorruptLog:
    return CorruptLog(
        f"{handle.table}: '{key}' cannot be read: {error}. Move the whole folder 'metadata' away; the next export "
        "starts a new one.",
        key=key,
    )


def _foreign(handle: Handle, key: str) -> UncoordinatedMaintenance:
    return UncoordinatedMaintenance(
        f"{handle.table}: '{key}' was not written by an export of this table. Nothing was exported. If an Iceberg "
        "program wrote rows there, insert them into this table. Then move the folder 'metadata' away, and export again."
    )
