"""Every error that IceDB raises, in one tree, grouped by what a caller does about it.

    IceDBError
    ├── RetryableError           the input is valid: the same call may succeed later
    │   ├── StoreUnavailable         the object store did not answer                       (ConnectionError)
    │   ├── InconsistentListing      the log changed faster than it could be listed        (TimeoutError)
    │   ├── CommitConflict           other exclusive commits came first at each attempt    (TimeoutError)
    │   ├── CommitTimedOut           the parts or the claim are too old to be published    (TimeoutError)
    │   ├── BufferFull               a BufferedWriter has no room, or has not flushed yet  (TimeoutError)
    │   └── SparkJobFailed           Spark did not finish the tasks of a job               (RuntimeError)
    ├── OutcomeUnknownError      the call may or may not have succeeded: check before retrying
    │   ├── CommitStateUnknown       the commit may or may not be in the log               (RuntimeError)
    │   └── StaleView                the rows are committed, and a view of the table lacks them (RuntimeError)
    ├── InvalidRequestError      the caller must change the call or its environment
    │   ├── InvalidURI               no table can be at that address                       (ValueError)
    │   ├── InvalidOption            an unknown or contradictory option                    (ValueError)
    │   │   └── InvalidArgument          an argument of another type than its parameter       (TypeError)
    │   ├── InvalidBatch             the rows cannot become a table                        (ValueError)
    │   │   ├── EmptyBatch               an overwrite without rows
    │   │   ├── TooManyColumns           the table would have more columns than it may
    │   │   └── TooManyPartitions        the rows lie in more partitions than they may
    │   ├── InvalidQuery             SQL that is not one query over the rows it is given   (ValueError)
    │   ├── InvalidPartitionExpression                                                     (ValueError)
    │   ├── InvalidPartitionValue    it cannot be part of an object's key                  (ValueError)
    │   ├── UnknownColumn                                                                  (KeyError)
    │   ├── SchemaConflict           one column, two types                                 (TypeError)
    │   ├── UnsupportedType          a type that Parquet cannot hold without loss          (TypeError)
    │   ├── TableExists                                                                    (FileExistsError)
    │   ├── PinExists                the pin's name is taken                               (FileExistsError)
    │   ├── TableNotFound                                                                  (FileNotFoundError)
    │   ├── BucketNotFound                                                                 (FileNotFoundError)
    │   ├── AccessDenied             wrong or insufficient credentials                     (PermissionError)
    │   ├── UnsupportedStore         the store overwrites objects that exist               (RuntimeError)
    │   ├── ClockSkew                this machine's clock is too far from the store's      (RuntimeError)
    │   ├── SnapshotExpired          that time can no longer be read                       (LookupError)
    │   ├── StaleCheckpoint          the table is ahead of a stream's checkpoint           (RuntimeError)
    │   ├── GraceTooShort            cleanup could delete what a reader still needs        (ValueError)
    │   ├── JavaNotFound             Spark has no Java to run on                           (RuntimeError)
    │   ├── MissingExtra             an optional dependency is not installed               (ImportError)
    │   ├── StackError               the local Postgres, daemon or web server failed       (RuntimeError)
    │   ├── PoolNotExclusive         the Dagster pool does not hold one run at a time      (RuntimeError)
    │   └── WriterClosed             a BufferedWriter was closed, or is another process's  (ValueError)
    └── CorruptionError          the store has an object that must not exist, or lacks one
        ├── CorruptLog               a log file cannot be decoded                          (ValueError)
        ├── MissingPart              a live part without its object                        (FileNotFoundError)
        ├── SymbolicLink             a link inside a table's folder                        (OSError)
        ├── UncoordinatedMaintenance another program made or removed epochs of this log    (RuntimeError)
        └── InvariantViolated        a check before or after a write failed: a bug in IceDB (AssertionError)

Each error also subclasses the builtin in parentheses. A message names the table, the object and the next step. It never
contains credentials: errors of client libraries are rephrased, not chained.

Three kinds of errors are outside of the tree: Python's TypeError for a call with a missing or unknown parameter; an
OSError with an `errno`, of the machine itself (a full disk); and errors that a function of the caller raises
(`on_part`).
"""

from __future__ import annotations

__all__ = [
    "AccessDenied",
    "BucketNotFound",
    "BufferFull",
    "ClockSkew",
    "CommitConflict",
    "CommitStateUnknown",
    "CommitTimedOut",
    "CorruptLog",
    "CorruptionError",
    "EmptyBatch",
    "GraceTooShort",
    "IceDBError",
    "InconsistentListing",
    "InvalidArgument",
    "InvalidBatch",
    "InvalidOption",
    "InvalidPartitionExpression",
    "InvalidPartitionValue",
    "InvalidQuery",
    "InvalidRequestError",
    "InvalidURI",
    "InvariantViolated",
    "JavaNotFound",
    "MissingExtra",
    "MissingPart",
    "OutcomeUnknownError",
    "PinExists",
    "PoolNotExclusive",
    "RetryableError",
    "SchemaConflict",
    "SnapshotExpired",
    "SparkJobFailed",
    "StackError",
    "StaleCheckpoint",
    "StaleView",
    "StoreUnavailable",
    "SymbolicLink",
    "TableExists",
    "TableNotFound",
    "TooManyColumns",
    "TooManyPartitions",
    "UncoordinatedMaintenance",
    "UnknownColumn",
    "UnsupportedStore",
    "UnsupportedType",
    "WriterClosed",
]


#: A message has the remedy at its end, and an argument of any length in its middle: that is shortened.
_BEGIN_CHARS, _END_CHARS = 2_400, 600
_MESSAGE_CHARS_MAX = _BEGIN_CHARS + _END_CHARS


class IceDBError(Exception):
    """The root of the tree; see the module's docstring."""

    def __str__(self) -> str:
        # Explicit, because KeyError would quote the message and OSError would format it as (errno, text).
        text = str(self.args[0]) if self.args else type(self).__name__
        left_out = len(text) - _MESSAGE_CHARS_MAX
        return text if left_out <= 0 else f"{text[:_BEGIN_CHARS]} [{left_out:,} characters] {text[-_END_CHARS:]}"

    def __reduce__(self) -> tuple[object, ...]:
        # Explicit, because some take more than a message, and all come back whole from another process.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(error_type: type[IceDBError], args: tuple[object, ...], attributes: dict[str, object]) -> IceDBError:
    error = error_type.__new__(error_type, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class RetryableError(IceDBError):
    """Nothing is wrong with the input: the same call may succeed later."""


class OutcomeUnknownError(IceDBError):
    """Whether it happened is not known: look before you repeat it."""


class InvalidRequestError(IceDBError):
    """The caller must change something before the call can succeed."""


class CorruptionError(IceDBError):
    """The store holds something that must not be there, or lacks something that must."""


class StoreUnavailable(RetryableError, ConnectionError):
    """The object store did not answer, or answered that it cannot serve the request now."""


class InconsistentListing(RetryableError, TimeoutError):
    """The log changed faster than it could be listed and read."""


class CommitConflict(RetryableError, TimeoutError):
    """Other exclusive commits always came first; nothing of this one is visible."""


class CommitStateUnknown(OutcomeUnknownError, RuntimeError):
    """Published or not: the trace that would tell may already have been cleaned up. Nothing was deleted."""


class CommitTimedOut(RetryableError, TimeoutError):
    """The parts were written too long ago to be published; an orphan sweep may already have taken them."""


class BufferFull(RetryableError, TimeoutError):
    """A BufferedWriter commits more slowly than rows arrive: it had no room, or did not flush, in the time given."""


class SparkJobFailed(RetryableError, RuntimeError):
    """Spark did not finish the tasks of a job: one died again and again, or somebody cancelled it."""


class StaleView(OutcomeUnknownError, RuntimeError):
    """The rows are committed, but not to a view of the table: refresh the view, do not write the rows again."""


class InvalidURI(InvalidRequestError, ValueError):
    """No table can be at that address."""


class InvalidOption(InvalidRequestError, ValueError):
    """An unknown or contradictory option."""


class InvalidArgument(InvalidOption, TypeError):
    """An argument of another type than its parameter, which the message names."""


class InvalidBatch(InvalidRequestError, ValueError):
    """The rows cannot become a table."""


class EmptyBatch(InvalidBatch):
    """There are no rows to put in the place of what is there; `table`, if it is known, names whose."""

    def __init__(self, message: str, *, table: str | None = None) -> None:
        super().__init__(message)
        self.table = table


class TooManyColumns(InvalidBatch):
    """The rows bring columns, and the table would have more than its writer allows."""


class TooManyPartitions(InvalidBatch):
    """The rows lie in more partitions than their writer allows."""


class InvalidQuery(InvalidRequestError, ValueError):
    """SQL that is not one query over the rows that it is given, or that asks for more than them."""


class InvalidPartitionExpression(InvalidRequestError, ValueError):
    """`partition_by` holds something that is not one named DuckDB expression over the row's columns."""


class InvalidPartitionValue(InvalidRequestError, ValueError):
    """A partition value cannot be part of an object's key."""


class UnknownColumn(InvalidRequestError, KeyError):
    """A column is named that neither the table nor the batch has."""


class SchemaConflict(InvalidRequestError, TypeError):
    """One column, two types. `column`, `types` and, when two log files disagree, `log_files` say which."""

    def __init__(
        self, message: str, *, column: str, types: tuple[str, str], log_files: tuple[str, str] | None = None
    ) -> None:
        super().__init__(message)
        self.column = column
        self.types = types
        self.log_files = log_files


class UnsupportedType(InvalidRequestError, TypeError):
    """A column has a type that Parquet cannot hold without loss."""


class TableExists(InvalidRequestError, FileExistsError):
    """There is a table at that address already."""


class PinExists(InvalidRequestError, FileExistsError):
    """There is a pin of that name already; it was not replaced."""


class TableNotFound(InvalidRequestError, FileNotFoundError):
    """There is no table at that address."""


class BucketNotFound(InvalidRequestError, FileNotFoundError):
    """The bucket of the table's address does not exist."""


class AccessDenied(InvalidRequestError, PermissionError):
    """The store refused the credentials, or they do not allow the request."""


class UnsupportedStore(InvalidRequestError, RuntimeError):
    """The store overwrites an object where a create-only put must be refused, or cannot put one whole."""


class ClockSkew(InvalidRequestError, RuntimeError):
    """This machine's clock is too far from the store's."""


class SnapshotExpired(InvalidRequestError, LookupError):
    """That time can no longer be read; `horizon_ms` is the oldest that can."""

    def __init__(self, message: str, *, horizon_ms: int) -> None:
        super().__init__(message)
        self.horizon_ms = horizon_ms


class StaleCheckpoint(InvalidRequestError, RuntimeError):
    """The table has this batch of a stream with other rows, or a later one of it.

    The stream's checkpoint is an older one, or another driver has gone on with it.
    """


class GraceTooShort(InvalidRequestError, ValueError):
    """Cleanup with that grace period could delete what a reader or writer still needs."""


class JavaNotFound(InvalidRequestError, RuntimeError):
    """Spark has no Java to run on."""


class MissingExtra(InvalidRequestError, ImportError):
    """A package that is needed here, and that one of our extras brings, is not installed."""


class StackError(InvalidRequestError, RuntimeError):
    """The local Postgres, Dagster daemon or web server cannot be started or stopped."""


class PoolNotExclusive(InvalidRequestError, RuntimeError):
    """The Dagster instance does not hold a table's maintenance to one run at a time."""


class WriterClosed(InvalidRequestError, ValueError):
    """A BufferedWriter was closed before these rows were committed, or belongs to the process that was forked."""


class CorruptLog(CorruptionError, ValueError):
    """A log file that cannot be read as one; `key` names it."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class MissingPart(CorruptionError, FileNotFoundError):
    """A live part whose object is not in the store."""


class SymbolicLink(CorruptionError, OSError):
    """A symbolic link inside the folder of a table. It is not followed: it may lead to any file of the machine."""


class UncoordinatedMaintenance(CorruptionError, RuntimeError):
    """Another program, which takes no claims, wrote or removed log files of exclusive commits.

    `foreign_ms` is set when that only hides what is new, as merges by a program of IceDB v3 do: the time (unix
    milliseconds) of the last one, after which it is known again.
    """

    def __init__(self, message: str, *, foreign_ms: int | None = None) -> None:
        super().__init__(message)
        self.foreign_ms = foreign_ms


class InvariantViolated(CorruptionError, AssertionError):
    """A check before or after a write failed. Nothing was published; please report it."""
