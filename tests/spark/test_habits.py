"""Habits of users of Delta Lake and Iceberg: they work, or the message names the way of icedb."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("pyspark")

from icedb.errors import InvalidOption
from icedb.spark.datasource.options import stream_options, write_options
from icedb.spark.datasource.read_options import batch_read_options, stream_read_options

pytestmark = pytest.mark.filterwarnings("ignore:Cannot infer the eval type")


def append(options: dict[str, str]) -> Any:
    return write_options(options, overwrite=False)


def overwrite(options: dict[str, str]) -> Any:
    return write_options(options, overwrite=True)


def append_stream(options: dict[str, str]) -> Any:
    return stream_options(options, complete=False)


@pytest.mark.parametrize(
    ("parse", "option", "hint"),
    [
        (batch_read_options, "timestampAsOf", "timestampAsOf is called as_of"),
        (batch_read_options, "as-of-timestamp", "as-of-timestamp is called as_of"),
        (batch_read_options, "versionAsOf", "versionAsOf is as_of with a time"),
        (overwrite, "replaceWhere", "replaceWhere is overwrite='partitions' with partitions="),
        (append, "txnAppId", "txnAppId is called txn_application"),
        (append, "txnVersion", "txnVersion is called txn_sequence"),
        (append, "mergeSchema", "mergeSchema is not needed: the columns that a batch adds"),
        (append_stream, "mergeSchema", "mergeSchema is not needed"),
        (stream_read_options, "maxFilesPerTrigger", "maxFilesPerTrigger is called batch_parts_max"),
        (stream_read_options, "maxBytesPerTrigger", "maxBytesPerTrigger is called batch_bytes_max"),
        (stream_read_options, "startingTimestamp", "startingTimestamp is called since"),
        (stream_read_options, "ignoreChanges", "ignoreChanges is not needed"),
        (batch_read_options, "readChangeFeed", "readChangeFeed is not needed: since reads"),
    ],
)
def test_an_option_of_another_format_is_rejected_with_ours(
    parse: Callable[[dict[str, str]], Any], option: str, hint: str
) -> None:
    for name in (option, option.lower()):
        with pytest.raises(InvalidOption) as caught:
            parse({"path": "lake/events", name: "x"})
        assert f"unknown options ['{name}']. {hint.replace(option, name)}" in str(caught.value)
