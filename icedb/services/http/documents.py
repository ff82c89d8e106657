"""How documents are read, whoever wrote them: strictly, with words for what is wrong and where.

Names that are not known are refused, as is what contradicts itself, by InvalidOption, which names the file, the place
in it and the remedy. It never quotes a secret, nor what stands where one might have been written by mistake: an id that
is none, the name of an environment variable, the path of a secret's file, an address with a user in it.
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
# With these neither the environment nor a client library's files decide whether an address is one.
_ANY_OPTIONS = {
    "AWS_ENDPOINT_URL": "http://any",
    "AWS_REGION": "any",
    "AWS_ACCESS_KEY_ID": "any",
    "AWS_SECRET_ACCESS_KEY": "any",
}


@dataclass(frozen=True, slots=True)
class ConfigContext:
    """What a file of this machine may refer to. Each file that is looked at leaves its stamp in `seen`."""

    environ: Mapping[str, str]
    folder: Path
    seen: dict[Path, FileStamp | None]

    def variable(self, name: str, what: str, *, place: str) -> str:
        """The value of an environment variable. Raises InvalidOption when it is not set."""
        value = self.environ.get(name)
        if value is None:
            raise InvalidOption(
                f"{place}: the environment variable that {what} names is not set. Set it and start "
                "the process anew: one that runs sees no new variables, but new files (secret_file)."
            )
        return value

    def read(self, path: Path, what: str, *, place: str, bytes_max: int = -1) -> str:
        """The text of a file, or its beginning. Raises InvalidOption when it cannot be read."""
        self.seen[path] = FileStamp.of(path)  # before it is read: a change in between is then one since
        try:
            with path.open("rb") as file:
                return file.read(bytes_max).decode()
        except UnicodeDecodeError:
            raise InvalidOption(f"{place}: {what} is no UTF-8 text. Write it anew.") from None
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or "this is no path"
            raise InvalidOption(f"{place}: {what} cannot be read ({why}). Put it there, readable.") from None

    def existing(self, name: str, what: str, *, place: str) -> Path:
        """The path of a file that somebody else will read. Raises InvalidOption when it is not there."""
        path = self.folder / name
        self.seen[path] = FileStamp.of(path)
        if not path.is_file():
            raise InvalidOption(f"{place}: the file that {what} names is not there. Put it there.")
        return path


class StrictDocument(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A shape that has no other names than its own."""


class SecretDocument(StrictDocument):
    """A secret: here, in a variable of the environment, or in a file."""

    secret: str | None = None
    secret_env: str | None = None
    secret_file: str | None = None


_Shape = TypeVar("_Shape", bound=msgspec.Struct)


def canonical_uri(text: str, name: str, place: str, context: ConfigContext | None) -> str:
    """An address in the one way in which it is compared."""
    if context is not None and text and "://" not in text and not text.startswith("~"):
        text = str(context.folder / text)
    try:
        return parse_location(text, _ANY_OPTIONS).uri
    except (ValueError, OSError, RuntimeError) as error:  # ours; of a path: no home of such a user, a loop of links
        raise InvalidOption(f"{place}: {name} is no table's address: {error}") from None


def read_secret(said: SecretDocument, context: ConfigContext, place: str) -> str:
    """The secret itself. Raises InvalidOption when it is said not at all, or twice, or cannot be read."""
    given = [n for n in ("secret", "secret_env", "secret_file") if getattr(said, n) is not None]
    if len(given) != 1:
        raise InvalidOption(
            f"{place}: it has {' and '.join(given) or 'no secret'}. Give one of secret, secret_env, secret_file."
        )
    if said.secret_env is not None:
        return context.variable(said.secret_env, "secret_env", place=place)
    if said.secret_file is not None:
        what = "the file that secret_file names"
        path = context.folder / said.secret_file
        # Editors end a file with a newline.
        return context.read(path, what, place=place, bytes_max=_SECRET_FILE_BYTES_MAX).strip()
    return said.secret or ""


def decode_document(document: object, shape: type[_Shape], place: str) -> _Shape:
    """The document as that shape. Raises InvalidOption, which says what is known there."""
    try:
        return msgspec.convert(document, shape)
    except UnicodeEncodeError:
        raise InvalidOption(f"{place}: a text in it is no Unicode. Write it anew.") from None
    except msgspec.ValidationError as error:  # it shows names and types, no values
        what, _, at = str(error).partition(" - at `$")
        what, at = what.replace(" | null", ""), at.strip(".`")  # TOML has no null
        known = ", ".join(f.encode_name for f in msgspec.structs.fields(shape))
        hint = " In TOML each of an array's tables begins with [[name]]." if what.startswith("Expected `array`") else ""
        raise InvalidOption(f"{place}: {f'{at}: ' if at else ''}{what}.{hint} Known names: {known}.") from None


def check_positive(values: Mapping[str, int | None], place: str) -> None:
    """Raise InvalidOption for a number that is given and below 1."""
    for name, value in values.items():
        if value is not None and value < 1:
            raise InvalidOption(f"{place}: {name} is {value}; give 1 at least.")


def check_unique(names: Iterable[str], what: str, place: str) -> None:
    """Raise InvalidOption for a name that comes twice."""
    known: set[str] = set()
    for name in names:
        if name in known:
            raise InvalidOption(f"{place}: two {what} '{name}'. Give each its own.")
        known.add(name)
