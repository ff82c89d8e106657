"""What the checks of a table expect of it, and how loud they are. Making these touches nothing.

`severity`: what a failure is shown as, `ERROR` or `WARN`. `blocking`: assets downstream wait in the same run, and are
not materialized when the check fails with `ERROR`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from icedb.errors import InvalidOption
from icedb.operations.health.table_health import Thresholds
from icedb.sql.types import checked_type, storage_type
from icedb.util.arguments import checks_arguments
from icedb.util.durations import duration_text
from icedb.writer.spec_validation import declared_columns

__all__ = [
    "CHECKS",
    "Check",
    "FreshnessCheck",
    "HorizonCheck",
    "LogDepthCheck",
    "ObjectsCheck",
    "QuarantineCheck",
    "SchemaCheck",
    "Severity",
    "SmallPartsCheck",
    "TableChecks",
]

Severity = Literal["ERROR", "WARN"]


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectsCheck:
    """Nothing is missing or damaged, and nothing is foreign: sizes, log and claims are compared, no part is opened.

    `foreign`: what objects mean that are nothing of a table's, `"fail"` or `"allow"`. Parts of crashed writes never
    fail: a job deletes them. Raises InvalidOption.
    """

    foreign: Literal["fail", "allow"] = "fail"
    severity: Severity = "ERROR"
    blocking: bool = False


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPartsCheck:
    """Of the live parts, fewer than `ratio_max` (0 to 1) would be taken by a merge, and no partition has too many.

    The ratio counts from `parts_min` live parts on; how many small parts a partition may have, the thresholds of
    `TableChecks` say. Raises InvalidOption.
    """

    ratio_max: float = 0.5
    parts_min: int = 100
    severity: Severity = "WARN"
    blocking: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.ratio_max <= 1:
            raise InvalidOption(f"ratio_max of the check small_parts is {self.ratio_max!r}; give more than 0, up to 1.")
        _check_whole("small_parts", "parts_min", self.parts_min)


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class LogDepthCheck:
    """Whoever opens the table reads fewer log files than the thresholds of `TableChecks` say. Raises InvalidOption."""

    severity: Severity = "WARN"
    blocking: bool = False


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheck:
    """The table has the columns that were declared, with these types.

    `columns`: column -> DuckDB type, or a pyarrow schema; None: those that the table itself declares. `additional`:
    what other columns mean, `"allow"` or `"fail"`. Raises InvalidOption, UnsupportedType.
    """

    columns: Any = None
    additional: Literal["allow", "fail"] = "allow"
    severity: Severity = "ERROR"
    blocking: bool = False

    def __post_init__(self) -> None:
        if self.columns is not None:
            object.__setattr__(self, "columns", _checked_columns(self.columns))


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineCheck:
    """Not more than `rows_max` rows went to the table's quarantine within the last `window`. Raises InvalidOption."""

    rows_max: int = 0
    window: timedelta = timedelta(hours=24)
    severity: Severity = "WARN"
    blocking: bool = False

    def __post_init__(self) -> None:
        _check_whole("quarantine", "rows_max", self.rows_max)
        _check_duration("quarantine", "window", self.window)


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class FreshnessCheck:
    """Rows came within `max_age`; or, with `column`, its greatest value is not older than that.

    `column`: of type TIMESTAMP, with a time zone or in `timezone`, or DATE, which counts as the end of its day there.
    Raises InvalidOption.
    """

    max_age: timedelta
    column: str | None = None
    timezone: str = "UTC"
    severity: Severity = "ERROR"
    blocking: bool = False

    def __post_init__(self) -> None:
        _check_duration("freshness", "max_age", self.max_age)
        if self.column == "":
            raise InvalidOption("column of the check freshness is empty; give the name of a column.")
        try:
            ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise InvalidOption(
                f"timezone of the check freshness is {self.timezone!r}; give a name as in 'Europe/Berlin', or 'UTC'."
            ) from None


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonCheck:
    """How far back the table can be read, and how long superseded rows are still stored. One of the two at least.

    `min_age`: snapshots of that age can be read. `max_age`: what was superseded is deleted by then. Raises
    InvalidOption.
    """

    min_age: timedelta | None = None
    max_age: timedelta | None = None
    severity: Severity = "ERROR"
    blocking: bool = False

    def __post_init__(self) -> None:
        for name, age in (("min_age", self.min_age), ("max_age", self.max_age)):
            if age is not None:
                _check_duration("horizon", name, age)
        if self.min_age is None and self.max_age is None:
            raise InvalidOption("the check horizon has neither min_age nor max_age; give one of them, or leave it out.")
        if self.min_age is not None and self.max_age is not None and self.max_age <= self.min_age:
            raise InvalidOption(
                f"max_age of the check horizon ({_text(self.max_age)}) must be over its min_age "
                f"({_text(self.min_age)}): what can be read that far back is stored that long."
            )


#: The settings of one check.
Check = (
    ObjectsCheck
    | SmallPartsCheck
    | LogDepthCheck
    | SchemaCheck
    | QuarantineCheck
    | FreshnessCheck
    | HorizonCheck
)  # fmt: skip

#: The settings of each check, by its name.
CHECKS: Mapping[str, type[Check]] = {
    "objects": ObjectsCheck,
    "small_parts": SmallPartsCheck,
    "log_depth": LogDepthCheck,
    "schema": SchemaCheck,
    "quarantine": QuarantineCheck,
    "freshness": FreshnessCheck,
    "horizon": HorizonCheck,
}


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableChecks:
    """The checks of a table, each by its name in the UI; None leaves one out. Raises InvalidOption.

    Those that need to be told something (`schema`, `freshness`, `horizon`) are left out unless they are.
    `thresholds`: what parts of a partition and log files should stay below.
    """

    objects: ObjectsCheck | None = field(default_factory=ObjectsCheck)
    small_parts: SmallPartsCheck | None = field(default_factory=SmallPartsCheck)
    log_depth: LogDepthCheck | None = field(default_factory=LogDepthCheck)
    schema: SchemaCheck | None = None
    quarantine: QuarantineCheck | None = field(default_factory=QuarantineCheck)
    freshness: FreshnessCheck | None = None
    horizon: HorizonCheck | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)

    def __post_init__(self) -> None:
        if not self.chosen:
            raise InvalidOption("every check is None; where no check is wanted, leave `checks` out.")

    @property
    def chosen(self) -> Mapping[str, Check]:
        """Those that are not left out, by name."""
        named = {name: getattr(self, name) for name in CHECKS}
        return {name: value for name, value in named.items() if value is not None}


def _checked_columns(columns: Any) -> dict[str, str]:
    """By DuckDB's own names for the types, so that INT and INTEGER are one."""
    declared = declared_columns(columns, table="the check schema")
    if not declared:
        raise InvalidOption("columns of the check schema names no column; give column: type, or leave it out.")
    named: dict[str, str] = {}
    for column in declared:
        if (same := named.setdefault(column.casefold(), column)) != column:
            raise InvalidOption(
                f"columns of the check schema has '{same}' and '{column}', which are one. Name it once."
            )
    return {c: _stored_type(c, t) for c, t in declared.items()}


def _stored_type(column: str, type_: str) -> str:
    canonical = checked_type(type_, what=f"column '{column}'", table="the check schema")
    return storage_type(canonical, column=column, table="the check schema")


def _check_whole(check: str, name: str, value: int) -> None:
    if value < 0:
        raise InvalidOption(f"{name} of the check {check} is {value!r}; give a whole number, 0 at least.")


def _check_duration(check: str, name: str, value: timedelta) -> None:
    if value <= timedelta(0):
        raise InvalidOption(f"{name} of the check {check} is {value!r}; give a timedelta over 0.")


def _text(age: timedelta) -> str:
    return duration_text(age // timedelta(milliseconds=1))
