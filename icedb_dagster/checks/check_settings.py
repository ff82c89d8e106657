"""Settings of a table's checks. Creating them accesses neither store nor instance.

`severity` is how a failure is shown, `ERROR` or `WARN`. If a `blocking` check fails with `ERROR`, downstream assets in
the same run are not materialized.
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
    """No object is missing, damaged or foreign. Sizes, log and claims are compared; no part is opened.

    Orphans (parts of crashed writes) never fail the check, because a job deletes them.

    Args:
        foreign: The result for objects that are not of the table: `"fail"` or `"allow"`.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.
    """

    foreign: Literal["fail", "allow"] = "fail"
    severity: Severity = "ERROR"
    blocking: bool = False


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPartsCheck:
    """Few live parts are small enough to be merged, and no partition has too many small parts.

    The limits for small parts of a partition are the thresholds of `TableChecks`.

    Args:
        ratio_max: The ratio of small parts, from 0 to 1, at which the check fails.
        parts_min: The number of live parts from which the ratio is checked.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.

    Raises:
        InvalidOption: A number is out of range.
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
    """Opening the table reads fewer log files than the thresholds of `TableChecks`.

    Args:
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.
    """

    severity: Severity = "WARN"
    blocking: bool = False


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheck:
    """The table has the declared columns with their types.

    Args:
        columns: Column -> DuckDB type, or a pyarrow schema; None: the columns that the table declares.
        additional: The result for other columns: `"allow"` or `"fail"`.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.

    Raises:
        InvalidOption: `columns` is empty, or names a column twice.
        UnsupportedType: A type cannot be stored.
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
    """Not more than `rows_max` rows were quarantined within the last `window`.

    Args:
        rows_max: Maximum rows.
        window: The period before the check.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.

    Raises:
        InvalidOption: A number or a duration is out of range.
    """

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
    """Rows arrived within `max_age`. With `column`, its greatest value is within `max_age` instead.

    Args:
        max_age: Maximum age.
        column: A column of type TIMESTAMP, with or without time zone, or DATE, which counts as the end of its day.
        timezone: The time zone of values without one.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.

    Raises:
        InvalidOption: `max_age`, `column` or `timezone` is invalid.

    Example:
        FreshnessCheck(max_age=timedelta(hours=26), column="ts")
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
                f"timezone of the check freshness is {self.timezone!r}; give an IANA name such as 'Europe/Berlin', or "
                "'UTC'."
            ) from None


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class HorizonCheck:
    """Snapshots can be read back to `min_age`, and superseded rows are deleted by `max_age`.

    Args:
        min_age: The age up to which snapshots can be read. At least one of the two ages is required.
        max_age: The age by which superseded parts are deleted.
        severity: `ERROR` or `WARN`.
        blocking: Whether a failure stops downstream assets of the same run.

    Raises:
        InvalidOption: Both ages are missing, or `max_age` is not over `min_age`.
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
            raise InvalidOption(
                "the check horizon has neither min_age nor max_age. Give one of them, or remove the check."
            )
        if self.min_age is not None and self.max_age is not None and self.max_age <= self.min_age:
            raise InvalidOption(
                f"max_age of the check horizon ({_text(self.max_age)}) must be over its min_age "
                f"({_text(self.min_age)}), because readable snapshots need their parts."
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
    """The checks of a table, by their names in the UI. None leaves a check out.

    The checks that need settings (`schema`, `freshness`, `horizon`) are left out by default.

    Args:
        objects: Checks that no object is missing, damaged or foreign.
        small_parts: Checks that few parts are small.
        log_depth: Checks that opening the table reads few log files.
        schema: Checks the columns.
        quarantine: Checks that few rows were quarantined recently.
        freshness: Checks the age of the newest rows.
        horizon: Checks how far back snapshots reach, and how long superseded rows are stored.
        thresholds: Limits for small parts of a partition, and for log files.
        with_materializations: Whether the checks `objects`, `small_parts`, `log_depth` and `horizon` also run with each
            materialization of the asset. By default they run in their own job only: they are about the table, and not
            about the rows of a materialization. A blocking check always runs.

    Raises:
        InvalidOption: Every check is None.

    Example:
        TableChecks(freshness=FreshnessCheck(max_age=timedelta(hours=26)), quarantine=None)
    """

    objects: ObjectsCheck | None = field(default_factory=ObjectsCheck)
    small_parts: SmallPartsCheck | None = field(default_factory=SmallPartsCheck)
    log_depth: LogDepthCheck | None = field(default_factory=LogDepthCheck)
    schema: SchemaCheck | None = None
    quarantine: QuarantineCheck | None = field(default_factory=QuarantineCheck)
    freshness: FreshnessCheck | None = None
    horizon: HorizonCheck | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)
    with_materializations: bool = False

    def __post_init__(self) -> None:
        if not self.chosen:
            raise InvalidOption("every check is None. For no checks, remove `checks`.")

    @property
    def chosen(self) -> Mapping[str, Check]:
        """The checks that are not left out, by name."""
        named = {name: getattr(self, name) for name in CHECKS}
        return {name: value for name, value in named.items() if value is not None}


def _checked_columns(columns: Any) -> dict[str, str]:
    """Return the columns with DuckDB's own type names, so that INT and INTEGER are equal."""
    declared = declared_columns(columns, table="the check schema")
    if not declared:
        raise InvalidOption("columns of the check schema is empty. Give column: type, or remove columns.")
    named: dict[str, str] = {}
    for column in declared:
        if (same := named.setdefault(column.casefold(), column)) != column:
            raise InvalidOption(
                f"columns of the check schema has '{same}' and '{column}', which differ only in case. Name the column "
                "once."
            )
    return {c: _stored_type(c, t) for c, t in declared.items()}


def _stored_type(column: str, type_: str) -> str:
    canonical = checked_type(type_, what=f"column '{column}'", table="the check schema")
    return storage_type(canonical, column=column, table="the check schema")


def _check_whole(check: str, name: str, value: int) -> None:
    if value < 0:
        raise InvalidOption(f"{name} of the check {check} is {value!r}; give a whole number of at least 0.")


def _check_duration(check: str, name: str, value: timedelta) -> None:
    if value <= timedelta(0):
        raise InvalidOption(f"{name} of the check {check} is {value!r}; give a timedelta over 0.")


def _text(age: timedelta) -> str:
    return duration_text(age // timedelta(milliseconds=1))
