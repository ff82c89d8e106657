"""The tree of all errors that IceDB raises, grouped by the caller's next step.

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
    │   ├── InvalidURI               the address cannot hold a table                       (ValueError)
    │   ├── InvalidOption            an unknown or contradictory option                    (ValueError)
    │   │   └── InvalidArgument          an argument of another type than its parameter       (TypeError)
    │   ├── InvalidBatch             the rows cannot be stored in a table                  (ValueError)
    │   │   ├── EmptyBatch               an overwrite without rows
    │   │   ├── TooManyColumns           the table would exceed its column limit
    │   │   └── TooManyPartitions        the rows exceed the partition limit of a batch
    │   ├── InvalidQuery             SQL that is not one query over its input rows         (ValueError)
    │   ├── InvalidPartitionExpression                                                     (ValueError)
    │   ├── InvalidPartitionValue    the value cannot be part of an object's key           (ValueError)
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

Three kinds of errors are outside of the tree:

- Python's TypeError for a call with a missing or unknown parameter.
- An OSError with an `errno` from the machine itself, such as a full disk.
- An error that a function of the caller raises, such as `on_part`.
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


#: A message ends in the remedy, and may quote a long argument before it. So long messages are cut in the middle.
_BEGIN_CHARS, _END_CHARS = 2_400, 600
_MESSAGE_CHARS_MAX = _BEGIN_CHARS + _END_CHARS


class IceDBError(Exception):
    """Base class of all errors that IceDB raises."""

    def __str__(self) -> str:
        # Explicit, because KeyError would quote the message and OSError would format it as (errno, text).
        text = str(self.args[0]) if self.args else type(self).__name__
        left_out = len(text) - _MESSAGE_CHARS_MAX
        return text if left_out <= 0 else f"{text[:_BEGIN_CHARS]} [{left_out:,} characters] {text[-_END_CHARS:]}"

    def __reduce__(self) -> tuple[object, ...]:
        # Explicit, because some errors take more than a message, and each must survive pickling to another process.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(error_type: type[IceDBError], args: tuple[object, ...], attributes: dict[str, object]) -> IceDBError:
    error = error_type.__new__(error_type, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class RetryableError(IceDBError):
    """The input is valid, and the same call may succeed later."""


class OutcomeUnknownError(IceDBError):
    """The call may or may not have succeeded. Check the table before retrying."""


class InvalidRequestError(IceDBError):
    """The caller must change the call or its environment before the call can succeed."""


class CorruptionError(IceDBError):
    """The store has an object that must not exist, or lacks an object that must exist."""


class StoreUnavailable(RetryableError, ConnectionError):
    """The object store did not answer, or answered that it cannot serve the request now."""


class InconsistentListing(RetryableError, TimeoutError):
    """The log changed faster than the reader could list and read it."""


class CommitConflict(RetryableError, TimeoutError):
    """Other exclusive commits came first at each attempt. Nothing of this commit is visible."""


class CommitStateUnknown(OutcomeUnknownError, RuntimeError):
    """The commit may or may not be in the log, because cleanup may have removed its traces. Nothing was deleted."""


class CommitTimedOut(RetryableError, TimeoutError):
    """The parts or the claim are too old to be published. The orphan sweep may already have deleted the parts."""


class BufferFull(RetryableError, TimeoutError):
    """A BufferedWriter had no room for the rows, or did not flush, before the timeout."""


class SparkJobFailed(RetryableError, RuntimeError):
    """Spark did not finish the tasks of a job: a task failed repeatedly, or the job was cancelled."""


class StaleView(OutcomeUnknownError, RuntimeError):
    """The rows are committed, but a view of the table lacks them. Refresh the view; do not write the rows again."""


class InvalidURI(InvalidRequestError, ValueError):
    """The address cannot hold a table."""


class InvalidOption(InvalidRequestError, ValueError):
    """An unknown or contradictory option."""


class InvalidArgument(InvalidOption, TypeError):
    """An argument of another type than its parameter. The message names the parameter."""


class InvalidBatch(InvalidRequestError, ValueError):
    """The rows cannot be stored in a table."""


class EmptyBatch(InvalidBatch):
    """An overwrite has no rows. `table` names the table if it is known."""

    def __init__(self, message: str, *, table: str | None = None) -> None:
        super().__init__(message)
        self.table = table


class TooManyColumns(InvalidBatch):
    """The batch brings new columns, and the table would have more columns than its writer allows."""


class TooManyPartitions(InvalidBatch):
    """The rows are in more partitions than their writer allows."""


class InvalidQuery(InvalidRequestError, ValueError):
    """SQL that is not a single query over its input rows, or that reads anything else."""


class InvalidPartitionExpression(InvalidRequestError, ValueError):
    """An item of `partition_by` is not one named DuckDB expression over the columns of a row."""


class InvalidPartitionValue(InvalidRequestError, ValueError):
    """A partition value cannot be part of an object's key."""


class UnknownColumn(InvalidRequestError, KeyError):
    """A call names a column that neither the table nor the batch has."""


class SchemaConflict(InvalidRequestError, TypeError):
    """A column has two types: `types` of `column`. `log_files` names two log files if they disagree."""

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
    """A table already exists at the address."""


class PinExists(InvalidRequestError, FileExistsError):
    """A pin of that name already exists. It was not replaced."""


class TableNotFound(InvalidRequestError, FileNotFoundError):
    """No table exists at the address."""


class BucketNotFound(InvalidRequestError, FileNotFoundError):
    """The bucket of the table's address does not exist."""


class AccessDenied(InvalidRequestError, PermissionError):
    """The store rejected the credentials, or they do not allow the request."""


class UnsupportedStore(InvalidRequestError, RuntimeError):
    """The store overwrites an object when it should reject a create-only put, or cannot put an object atomically."""


class ClockSkew(InvalidRequestError, RuntimeError):
    """The difference between this machine's clock and the store's is too large."""


class SnapshotExpired(InvalidRequestError, LookupError):
    """The requested time can no longer be read. `horizon_ms` is the oldest readable time (unix milliseconds)."""

    def __init__(self, message: str, *, horizon_ms: int) -> None:
        super().__init__(message)
        self.horizon_ms = horizon_ms


class StaleCheckpoint(InvalidRequestError, RuntimeError):
    """The table already has this batch of a stream with other rows, or a later batch.

    Either the stream's checkpoint is out of date, or another driver has continued the stream.
    """


class GraceTooShort(InvalidRequestError, ValueError):
    """Cleanup with that grace period could delete objects that a reader or writer still needs."""


class JavaNotFound(InvalidRequestError, RuntimeError):
    """Spark has no Java to run on."""


class MissingExtra(InvalidRequestError, ImportError):
    """An optional dependency is not installed. The message names the extra that installs it."""


class StackError(InvalidRequestError, RuntimeError):
    """The local Postgres, Dagster daemon or web server cannot be started or stopped."""


class PoolNotExclusive(InvalidRequestError, RuntimeError):
    """The Dagster instance does not limit a table's maintenance to one run at a time."""


class WriterClosed(InvalidRequestError, ValueError):
    """A BufferedWriter was closed before these rows were committed, or belongs to the parent of this forked process."""


class CorruptLog(CorruptionError, ValueError):
    """An object of the log cannot be decoded. `key` names it."""

    def __init__(self, message: str, *, key: str) -> None:
        super().__init__(message)
        self.key = key


class MissingPart(CorruptionError, FileNotFoundError):
    """The object of a live part is not in the store."""


class SymbolicLink(CorruptionError, OSError):
    """The folder of a table contains a symbolic link. It is not followed: it may lead to any file of the machine."""


class UncoordinatedMaintenance(CorruptionError, RuntimeError):
    """Another program, which takes no claims, wrote or removed log files of exclusive commits.

    `foreign_ms` is set if the log only cannot show which parts are new, as after merges by a program of IceDB v3. It is
    the time (unix milliseconds) of the last such merge. Later changes can be read again.
    """

    def __init__(self, message: str, *, foreign_ms: int | None = None) -> None:
        super().__init__(message)
        self.foreign_ms = foreign_ms


class InvariantViolated(CorruptionError, AssertionError):
    """A check before or after a write failed. Nothing was published. Please report this bug."""
