"""What a request is answered with: a status, headers, and a body that is here or a piece of an object."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

from icedb.storage.obstore_store import ObjectStore

__all__ = ["S3Response", "ObjectRange", "http_date", "xml_response", "xml_text"]

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
#: Control characters, most of which XML 1.0 has not; its parsers change the others, and end at the noncharacters.
_UNSAYABLE = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """Bytes `start` to before `stop` of an object in a store; at least one."""

    store: ObjectStore
    stored_key: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class S3Response:
    """One answer. With `content`, the body is streamed from the store."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    content: ObjectRange | None = None
    #: Of S3's error, for logs and numbers.
    code: str = ""


def xml_response(root: str, body: str) -> S3Response:
    """A document of S3's namespace; `body` is XML."""
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">{body}</{root}>'
    return S3Response(headers=(("content-type", "application/xml"),), body=document.encode())


def xml_text(text: str) -> str:
    """Text inside XML. What XML 1.0 cannot say becomes a replacement character; `encoding-type=url` keeps it."""
    if text.isprintable():
        return escape(text, {'"': "&quot;"})
    return escape(_UNSAYABLE.sub("\N{REPLACEMENT CHARACTER}", text))


def http_date(unix_ms: int) -> str:
    """As `Last-Modified` has it: whole seconds."""
    return formatdate(unix_ms // 1000, usegmt=True)
