"""The page of questions and errors: every public error is there, below the right parent, with words that it says."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from icedb import errors
from tests.support.site.pages import ROOT

PAGE = (ROOT / "docs" / "faq.md").read_text()
#: Those that are only there to be caught.
PARENTS = {"CorruptionError", "InvalidRequestError", "IceDBError", "OutcomeUnknownError", "RetryableError"}
ERRORS = sorted(set(errors.__all__) - PARENTS)
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))


@cache
def texts() -> str:
    """All texts of the code that may be part of a message, each on a line, without what is filled in."""
    found = []
    for package in ("icedb", "icedb_dagster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    found.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


def test_each_public_error_has_its_section_and_no_other_has() -> None:
    assert sorted(name for name in SECTIONS if hasattr(errors, name)) == ERRORS
    of_the_page = re.findall(r"^### (\w+)$", PAGE.partition("\n## Errors of icedb\n")[2], flags=re.MULTILINE)
    assert of_the_page == ERRORS  # in the order of the alphabet


@pytest.mark.parametrize("name", ERRORS)
def test_a_section_says_what_kind_of_error_it_is(name: str) -> None:
    kind = getattr(errors, name)
    [parent, builtin] = re.findall(r"\*(\w+),\s(\w+)\.\*\s*\Z", SECTIONS[name])[0]
    assert issubclass(kind, getattr(errors, parent))
    assert parent in PARENTS
    assert builtin in [c.__name__ for c in kind.__mro__ if c.__module__ == "builtins"]


@pytest.mark.long
def test_quoted_messages_are_said_by_the_code() -> None:
    quoted = re.findall(r"^> (.*)$", PAGE, flags=re.MULTILINE)
    assert len(quoted) > len(ERRORS)
    for message in quoted:
        pattern = "\0".join(re.escape(piece) for piece in message.split("..."))
        assert re.search(pattern, texts()), message


def test_fields_that_the_page_names_are_there() -> None:
    conflict = errors.SchemaConflict("", column="a", types=("BIGINT", "DOUBLE"))
    assert (conflict.column, conflict.types) == ("a", ("BIGINT", "DOUBLE"))
    assert errors.SnapshotExpired("", horizon_ms=1).horizon_ms == 1
