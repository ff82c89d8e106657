"""The public names that programs may import. This test fails if one is added or removed."""

from __future__ import annotations

import importlib

import pytest

import icedb
import icedb.errors
from icedb.errors import IceDBError

#: Module -> its public names in alphabetical order.
PUBLIC = {
    module: names.split()
    for module, names in {
        "icedb": """
            Acknowledged Aggregating BufferStats BufferedWriter Changes CleanupReport Commit CommitInfo
            CompressionCodec Dedup DeleteReport DeltaReport Diff DropReport FileMarker FileMarkerFromJSON
            IceDBError IceDBv3 IceLogIO IcebergReport ImportReport LogMetadata LogMetadataFromJSON LogTombstone
            LogTombstoneFromJSON MergeReport NoLogFilesException OrphansReport ParquetExportReport Part Pin
            Problem QueryResult Recommendation RepairReport Replacing RestoreReport RewriteReport S3Client
            Schema SchemaConflictException Snapshot SpecRepairReport Table TableHealth Thresholds
            TieredMerge Timing UpdateReport UpsertReport VerifyReport WritePlan get_log_file_info
        """,
        "icedb.errors": """
            AccessDenied BucketNotFound BufferFull ClockSkew CommitConflict CommitStateUnknown
            CommitTimedOut CorruptLog CorruptionError EmptyBatch GraceTooShort IceDBError
            InconsistentListing InvalidArgument InvalidBatch InvalidOption InvalidPartitionExpression
            InvalidPartitionValue InvalidQuery InvalidRequestError InvalidURI InvariantViolated JavaNotFound
            MissingExtra MissingPart OutcomeUnknownError PinExists PoolNotExclusive RetryableError
            SchemaConflict SnapshotExpired SparkJobFailed StackError StaleCheckpoint StaleView
            StoreUnavailable SymbolicLink TableExists TableNotFound TooManyColumns TooManyPartitions
            UncoordinatedMaintenance UnknownColumn UnsupportedStore UnsupportedType WriterClosed
        """,
        "icedb.spark": "SparkEngine frame read register translate_error upsert write",
        "icedb.testing": """
            ClockedStore Crash Fault FaultyStore Kind ManualClock Request SkewedClock check_sound
            create_table live_to_v3_readers open_table
        """,
        "icedb.testing.simulation": """
            CHUNK Outcome SCENES Story all_cells pair_stories run_seed run_story single_stories torn_stories
        """,
        "icedb.engines.arrow": "dataset record_batches",
        "icedb.engines.chdb": "attach query source",
        "icedb.engines.datafusion": "register",
        "icedb.engines.duckdb.attached_tables": "Attached attach detach",
        "icedb.engines.pandas": "read",
        "icedb.engines.polars.lazy_frames": "scan",
        "icedb_dagster": """
            CommitsSensor ConnectSpark EmrServerlessSpark EmrSpark FailedRun FreshnessCheck HorizonCheck
            IceDBIOManager IceDBResource IceDBResourceComponent IceDBTableComponent LocalSpark LogDepthCheck
            MaintenanceSensor ObjectsCheck QuarantineCheck SchemaCheck SmallPartsCheck SparkPlace StandaloneSpark
            TableChecks TableExport TimeToLive build_observation build_run_failure_sensor build_run_retention
            build_table_checks build_table_definitions ensure_pool icedb_pool observable_table share_sensors
            spark_progress sql_asset table_spec
        """,
        "icedb_dagster.launcher": "MonitoredRunLauncher",
    }.items()
}


@pytest.mark.parametrize("package", PUBLIC)
def test_the_public_names_are_these(package: str) -> None:
    module = importlib.import_module(package)
    assert module.__all__ == PUBLIC[package] == sorted(PUBLIC[package])
    for name in module.__all__:
        assert getattr(module, name).__doc__ or name == "Kind", name


def test_every_error_is_in_the_tree_and_in_the_diagram_of_the_docstring() -> None:
    diagram = icedb.errors.__doc__ or ""
    for name in icedb.errors.__all__:
        error = getattr(icedb.errors, name)
        assert issubclass(error, IceDBError)
        assert name in diagram
        if error is IceDBError or error.__base__ is IceDBError:
            continue
        groups = [
            group
            for group in ("RetryableError", "OutcomeUnknownError", "InvalidRequestError", "CorruptionError")
            if issubclass(error, getattr(icedb.errors, group))
        ]
        assert len(groups) == 1, f"{name} must be in exactly one group"
        builtin = [
            b for b in error.__mro__ if b.__module__ == "builtins" and b not in (Exception, BaseException, object)
        ]
        assert builtin, f"{name} has no builtin base class"
        assert builtin[0].__name__ in diagram


def test_a_name_is_imported_on_access_and_an_unknown_name_raises() -> None:
    everything: dict[str, object] = {}
    exec("from icedb import *", everything)
    assert set(icedb.__all__) <= set(everything)
    assert set(icedb.__all__) <= set(dir(icedb))
    with pytest.raises(AttributeError, match="module 'icedb' has no attribute 'Tabel'"):
        _ = icedb.Tabel  # type: ignore[attr-defined]
    with pytest.raises(ImportError, match="cannot import name 'Tabel' from 'icedb'"):
        exec("from icedb import Tabel")
