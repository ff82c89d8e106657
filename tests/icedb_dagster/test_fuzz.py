"""Invalid values for all public objects of icedb_dagster: only errors of icedb are raised, without the values."""

from __future__ import annotations

import dataclasses
import inspect
import random
from datetime import timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import icedb_dagster
from icedb.errors import IceDBError, InvalidArgument
from icedb_dagster import IceDBResource
from tests.support.attacks.api_fuzz import SECRET, hostile_values

#: Fields whose values are addresses, options or credentials.
SECRETIVE = {"storage_options", "s3", "environment", "arguments"}
#: Callers get objects of these classes, and make none.
RETURNED = {"FailedRun"}


def constructed() -> dict[str, tuple[Any, list[str], dict[str, Any]]]:
    """Name -> class, its fields, and what it needs: every public class that has fields and can be made."""
    made = {}
    for name in sorted(set(icedb_dagster.__all__) - RETURNED):
        class_ = getattr(icedb_dagster, name)
        if not inspect.isclass(class_) or inspect.isabstract(class_) or issubclass(class_, dg.Component):
            continue
        if dataclasses.is_dataclass(class_):
            fields = [f.name for f in dataclasses.fields(class_) if f.init]
        elif hasattr(class_, "model_fields"):
            fields = list(class_.model_fields)
        else:
            continue
        needed: dict[str, Any] = {"root": "/tmp/lake", "icedb": IceDBResource(root="/tmp/lake")}
        needed |= {"max_age": timedelta(days=1), "partition_column": "d", "keep_days": 5}
        made[name] = (class_, fields, {n: v for n, v in needed.items() if n in fields})
    return made


def outcome(class_: Any, fields: dict[str, Any]) -> str | None:
    """Return the fault of a construction, or None."""
    try:
        class_(**fields)
    except IceDBError as error:
        text = str(error)
        is_shown = SECRET in text and not fields.keys().isdisjoint(SECRETIVE)
        if is_shown or len(text) < 15 or " object at 0x" in text or "pydantic" in text:
            return f"{type(error).__name__}: {text[:300]}"
        cause = None if error.__suppress_context__ else error.__context__
        return f"chained to {cause!r}"[:300] if cause is not None and not isinstance(cause, IceDBError) else None
    except Exception as error:
        return f"{type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
    return None


@pytest.mark.parametrize("count", [300, pytest.param(5_000, marks=pytest.mark.slow(seconds=10))])
def test_only_errors_of_the_tree_escape_a_construction(tmp_path: Path, count: int) -> None:
    classes, values, chance = constructed(), hostile_values(tmp_path), random.Random(15)
    (tmp_path / "junk.csv").touch()
    assert {"IceDBResource", "IceDBIOManager", "FreshnessCheck", "StandaloneSpark"} <= classes.keys()
    escapes = []
    for n in range(count):
        name = sorted(classes)[n % len(classes)]
        class_, fields, needed = classes[name]
        field = chance.choice(fields or ["unknown"])
        value = chance.choice(values)()
        if why := outcome(class_, {**needed, field: value}):
            escapes.append(f"{name}({field}=a {type(value).__name__}): {why}")
    assert not escapes, f"{len(escapes)} of {count}:\n" + "\n".join(escapes)


@pytest.mark.parametrize("key", [None, 3, b"x", ["a", 3], {}])
def test_a_key_of_another_type_is_rejected(key: Any) -> None:
    with pytest.raises(InvalidArgument, match="key must be"):
        IceDBResource(root="/tmp/lake").uri(key)
