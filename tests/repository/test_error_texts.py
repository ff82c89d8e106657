"""Messages of the library contain points in time as ISO 8601, beside the number that an API takes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from icedb import Table
from icedb.errors import InvalidOption

ROOT = Path(__file__).parents[2]

#: Names of points in time, without their unit. Other names with `_ms` are lengths of time.
TIMES = {"as_of", "at", "before", "created", "dead", "declared", "expires", "foreign", "horizon", "latest", "newest",
         "now", "oldest", "since", "started", "stored", "t", "until"}  # fmt: skip
#: Texts that users do not read: representations, keys, and the traces of the simulation.
NO_TEXTS = ("__repr__", "log_file", "_after", "id")


def bare_times(path: Path) -> Iterator[str]:
    """Yield the places where a text contains a point in time as a bare number."""
    for function in ast.walk(ast.parse(path.read_text())):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef) or function.name in NO_TEXTS:
            continue
        for node in ast.walk(function):
            if not isinstance(node, ast.FormattedValue) or node.format_spec is not None:
                continue
            value = node.value
            name = value.attr if isinstance(value, ast.Attribute) else value.id if isinstance(value, ast.Name) else ""
            if name.endswith("_ms") and name.removesuffix("_ms") in TIMES:
                yield f"{path.relative_to(ROOT)}:{node.lineno} {name}"


@pytest.mark.long
def test_no_message_contains_a_time_as_a_bare_number() -> None:
    files = [p for folder in ("icedb", "icedb_dagster") for p in (ROOT / folder).rglob("*.py")]
    assert len(files) > 100
    assert [place for p in files if "testing" not in p.parts for place in bare_times(p)] == []


def test_a_time_is_printed_in_both_forms(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"))
    table.insert([{"a": 1}])
    created = table.history()[0].at_ms
    for call in (lambda: table.diff(created, created - 5), lambda: table.changes(created, created - 5)):
        try:
            call()
        except InvalidOption as error:
            text = str(error)
        assert "T" in text
        assert f"Z ({created} unix ms)" in text
