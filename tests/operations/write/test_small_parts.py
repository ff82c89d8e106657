"""The warning about a job of Spark whose parts are too many and too small."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from icedb import Table
from icedb.operations.write.small_parts import parts_needed, warn_of_small_parts
from icedb.storage.parts import Part

MIB = 1024 * 1024


def parts(partitions: int, each: int, size: int) -> list[Part]:
    """Return `each` parts of a size for each partition."""
    return [
        Part(f"_data/p={p}/{n}.parquet", f"/_data/p={p}/{n}.parquet", f"p={p}", size, 1, 0)
        for p in range(partitions)
        for n in range(each)
    ]


def test_each_partition_needs_a_part_for_128_mib() -> None:
    assert parts_needed([]) == 0
    assert parts_needed(parts(3, 4, 32 * MIB)) == 3
    assert parts_needed(parts(3, 4, 33 * MIB)) == 6


@pytest.mark.parametrize(
    ("partitions", "each", "size", "warned"),
    [
        (30, 200, 12_000, True),
        (25, 4, 4 * MIB - 1, True),
        (25, 4, 4 * MIB, False),  # opening a part costs less than reading it
        (34, 3, 100, False),  # a merge would leave a third
        (11, 9, 100, False),  # less than 100
        (5_000, 1, 100, False),  # each partition needs one
        (0, 0, 0, False),
    ],
)
def test_the_warning_needs_many_small_parts_in_each_partition(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, partitions: int, each: int, size: int, warned: bool
) -> None:
    table = Table.create(tmp_path / "events")
    with caplog.at_level(logging.WARNING, "icedb"):
        warn_of_small_parts(table.handle, parts(partitions, each, size))
    assert len(caplog.records) == warned


@pytest.mark.parametrize(
    ("query", "remedy"),
    [(None, "/events', distribution='partition')"), ("FROM _rows", "in fewer tasks: frame.coalesce(n)")],
)
def test_the_warning_names_the_parts_and_the_remedy(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, query: str | None, remedy: str
) -> None:
    table = Table.create(tmp_path / "events", insert_query=query)
    warn_of_small_parts(table.handle, parts(30, 200, 12_345))
    [message] = caplog.messages
    counts = "the job wrote 6,000 parts (data files) with a mean size of 12.3 kB, and 30 would be enough"
    assert message.startswith(f"{table.uri}: {counts}")
    assert remedy in message
