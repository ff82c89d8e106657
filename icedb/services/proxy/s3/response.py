"""Responses: a status, headers, and a body in memory or a range of an object."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

from icedb.storage.obstore_store import ObjectStore

__all__ = ["S3Response", "ObjectRange", "http_date", "xml_response", "xml_text"]

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
#: Control characters and noncharacters. XML 1.0 allows few of them, and parsers change those or fail.
_UNREPRESENTABLE = re.compile("[\x00-\x1f\x7f-\x9f\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """The bytes from `start` to before `stop` of an object in a store, at least one."""

    store: ObjectStore
    stored_key: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class S3Response:
    """One response. With `content`, the body is streamed from the store."""

    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = field(default=b"", repr=False)
    content: ObjectRange | None = None
    #: The S3 error code, for logs and metrics.
    code: str = ""


def xml_response(root: str, body: str) -> S3Response:
    """Return a document of S3's namespace. `body` is XML."""
    document = f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} xmlns="{NAMESPACE}">{body}</{root}>'
    return S3Response(headers=(("content-type", "application/xml"),), body=document.encode())


def xml_text(text: str) -> str:
    """Escape text for XML. Characters that XML 1.0 lacks become U+FFFD; `encoding-type=url` preserves them."""
    if text.isprintable():
        return escape(text, {'"': "&quot;"})
    return escape(_UNREPRESENTABLE.sub("\N{REPLACEMENT CHARACTER}", text))


def http_date(unix_ms: int) -> str:
    """Return a time in the format of `Last-Modified`, in whole seconds."""
    return formatdate(unix_ms // 1000, usegmt=True)
