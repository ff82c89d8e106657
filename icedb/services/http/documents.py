"""Strict decoding of configuration documents.

Unknown names and contradictions raise InvalidOption, which names the file, the place in it and the remedy. A message
never quotes a secret. It also never quotes a value in whose place an operator may have written a secret by mistake: an
invalid id, the name of an environment variable, the path of a secret's file, an address with a user in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from icedb.errors import InvalidOption
from icedb.services.http.server_settings import FileStamp
from icedb.storage.location import parse_location

__all__ = [
    "ConfigContext",
    "SecretDocument",
    "StrictDocument",
    "check_positive",
    "check_unique",
    "canonical_uri",
    "decode_document",
    "read_secret",
]

_SECRET_FILE_BYTES_MAX = 4_096
# With these options, neither the environment nor the files of a client library influence the check of an address.
_ANY_OPTIONS = {
    "az": {
        "AZURE_STORAGE_ACCOUNT_NAME": "any",
        "AZURE_STORAGE_SAS_TOKEN": "any",
        "AZURE_STORAGE_ENDPOINT": "http://any",
    },
    "gs": {"GOOGLE_BEARER_TOKEN": "any", "GOOGLE_BASE_URL": "http://any"},
    "s3": {
        "AWS_ENDPOINT_URL": "http://any",
        "AWS_REGION": "any",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
    },
}


@dataclass(frozen=True, slots=True)
class ConfigContext:
    """The environment variables and files that a configuration file may refer to.

    Each method adds the stamp of the file that it reads to `stamps`.
    """

    environ: Mapping[str, str]
    folder: Path
    stamps: dict[Path, FileStamp | None]

    def variable(self, name: str, what: str, *, place: str) -> str:
        """Return the value of an environment variable. Raises InvalidOption if it is not set."""
        value = self.environ.get(name)
        if value is None:
            raise InvalidOption(
                f"{place}: the environment variable that {what} names is not set. Set it and restart the process. "
                "A running process does not see new variables; use secret_file to change a secret without a restart."
            )
        return value

    def read(self, path: Path, what: str, *, place: str, bytes_max: int = -1) -> str:
        """Return the text of a file, `bytes_max` at most. Raises InvalidOption if it cannot be read."""
        self.stamps[path] = FileStamp.of(path)  # before the read, so that a change during the read is detected
        try:
            with path.open("rb") as file:
                return file.read(bytes_max).decode()
        except UnicodeDecodeError:
            raise InvalidOption(f"{place}: {what} is not UTF-8 text. Replace it.") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "invalid path"
            raise InvalidOption(f"{place}: {what} cannot be read ({why}). Make it readable.") from None

    def require_file(self, name: str, what: str, *, place: str) -> Path:
        """Return the path of a file that another library will read. Raises InvalidOption if it does not exist."""
        path = self.folder / name
        self.stamps[path] = FileStamp.of(path)
        if not path.is_file():
            raise InvalidOption(f"{place}: the file that {what} names does not exist. Create it.")
        return path


class StrictDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A document that rejects unknown names."""


class SecretDocument(StrictDocument):
    """A secret: inline, in an environment variable, or in a file."""

    secret: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None


_Document = TypeVar("_Document", bound=msgspec.Struct)


def canonical_uri(text: str, name: str, place: str, context: ConfigContext | None) -> str:
    """Return the canonical form of a table's address, for comparisons. Raises InvalidOption."""
    if context is not None and text and "://" not in text and not text.startswith("~"):
        text = str(context.folder / text)
    try:
        return parse_location(text, _ANY_OPTIONS.get(text.partition("://")[0].lower(), _ANY_OPTIONS["s3"])).uri
    except (ValueError, OSError, RuntimeError) as error:  # of paths: an unknown home directory, a loop of links
        raise InvalidOption(f"{place}: {name} is not a table's address: {error}") from None


def read_secret(document: SecretDocument, context: ConfigContext, place: str) -> str:
    """Return the value of a secret. Raises InvalidOption if none or several are set, or if it cannot be read."""
    sources = [n for n in ("secret", "secret_env", "secret_file") if getattr(document, n) is not None]
    if len(sources) != 1:
        raise InvalidOption(
            f"{place}: it has {' and '.join(sources) or 'no secret'}. Set one of secret, secret_env, secret_file."
        )
    if document.secret_env is not None:
        return context.variable(document.secret_env, "secret_env", place=place)
    if document.secret_file is not None:
        what = "the file that secret_file names"
        path = context.folder / document.secret_file
        # Editors end a file with a newline.
        return context.read(path, what, place=place, bytes_max=_SECRET_FILE_BYTES_MAX).strip()
    return document.secret or ""


def decode_document(document: object, shape: type[_Document], place: str) -> _Document:
    """Convert a parsed document to a struct. Raises InvalidOption, which lists the names that are allowed there."""
    try:
        return msgspec.convert(document, shape)
    except UnicodeEncodeError:
        raise InvalidOption(f"{place}: a string in it is not valid Unicode. Replace it.") from None
    except msgspec.ValidationError as error:  # its message has names and types, but no values
        what, _, at = str(error).partition(" - at `$")
        what, at = what.replace(" | null", ""), at.strip(".`")  # TOML has no null
        allowed = ", ".join(f.encode_name for f in msgspec.structs.fields(shape))
        hint = " In TOML, each table of an array starts with [[name]]." if what.startswith("Expected `array`") else ""
        raise InvalidOption(f"{place}: {f'{at}: ' if at else ''}{what}.{hint} Known names: {allowed}.") from None


def check_positive(values: Mapping[str, int | None], place: str) -> None:
    """Raise InvalidOption if a number that is set is below 1."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise InvalidOption(f"{place}: {name} is {value}. Set at least 1.")


def check_unique(names: Iterable[str], what: str, place: str) -> None:
    """Raise InvalidOption if a name occurs twice."""
    previous: set[str] = set()
    for name in names:
        if name in previous:
            raise InvalidOption(f"{place}: two {what} '{name}'. Make each unique.")
        previous.add(name)
