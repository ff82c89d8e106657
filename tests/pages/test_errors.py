"""The pages of errors and symptoms: each public error has a section with its parent, and quoted messages exist."""

from __future__ import annotations

import ast
import re
from functools import cache

import pytest

from icedb import errors
from tests.support.site.pages import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
SYMPTOMS = (ROOT / "docs" / "troubleshooting.md").read_text()
#: Errors that are only caught, never raised.
PARENTS = {"CorruptionError", "InvalidRequestError", "IceDBError", "OutcomeUnknownError", "RetryableError"}
ERRORS = sorted(set(errors.__all__) - PARENTS)
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^#|\Z)", PAGE, flags=re.DOTALL | re.MULTILINE))


@cache
def texts() -> str:
    """Return all texts of the code that may be part of a message, each on a line, without the inserted values."""
    texts = []
    for package in ("icedb", "icedb_dagster"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.JoinedStr):
                    texts.append("".join(str(v.value) if isinstance(v, ast.Constant) else "\0" for v in node.values))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    texts.append(node.value)
    return "\n".join(texts)


def test_each_public_error_has_one_section() -> None:
    assert sorted(name for name in SECTIONS if hasattr(errors, name)) == ERRORS
    of_the_page = re.findall(r"^### (\w+)$", PAGE.partition("\n## Errors of icedb\n")[2], flags=re.MULTILINE)
    assert of_the_page == ERRORS  # in alphabetical order


@pytest.mark.parametrize("name", ERRORS)
def test_a_section_names_the_parents_of_its_error(name: str) -> None:
    kind = getattr(errors, name)
    [parent, builtin] = re.findall(r"\*(\w+),\s(\w+)\.\*\s*\Z", SECTIONS[name])[0]
    assert issubclass(kind, getattr(errors, parent))
    assert parent in PARENTS
    assert builtin in [c.__name__ for c in kind.__mro__ if c.__module__ == "builtins"]


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_quoted_messages_occur_in_the_code() -> None:
    quoted = re.findall(r"^> (.*)$", PAGE + SYMPTOMS, flags=re.MULTILINE)
    assert len(quoted) > len(ERRORS)
    table = SYMPTOMS.partition("| message |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| `(.*?)` \|", table, flags=re.MULTILINE)
    assert len(rows) > 10
    quoted += rows
    for message in quoted:
        pattern = "\0".join(re.escape(piece) for piece in message.split("..."))
        assert re.search(pattern, texts()), message


def test_documented_fields_of_errors_exist() -> None:
    conflict = errors.SchemaConflict("", column="a", types=("BIGINT", "DOUBLE"))
    assert (conflict.column, conflict.types) == ("a", ("BIGINT", "DOUBLE"))
    assert errors.SnapshotExpired("", horizon_ms=1).horizon_ms == 1
