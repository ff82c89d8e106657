"""Sizes in bytes as text."""

from __future__ import annotations

import pytest

from icedb.errors import InvalidOption
from icedb.util.sizes import parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1048576", 1_048_576),
        ("4_000_000", 4_000_000),
        ("2,000 B", 2_000),
        ("64MB", 64_000_000),
        ("64 mb", 64_000_000),
        ("64M", 64_000_000),
        ("1.5GiB", 1_610_612_736),
        ("8kib", 8_192),
        ("0.1TB", 100_000_000_000),
    ],
)
def test_a_size_has_an_optional_unit(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1", "1e6", "64 X", "64MBs", "1.2.3", "_1", "٣MB"])
def test_other_texts_are_rejected(text: str) -> None:
    with pytest.raises(InvalidOption, match="is not a size"):
        parse_size(text)
