"""Tables that are found below an address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from icedb import Table
from icedb.reader.find_tables import find_tables
from icedb.storage.location import parse_location


def test_tables_are_found_at_any_depth_without_following_links(tmp_path: Path) -> None:
    for name in ("b", "a/deep/er", "a/deep", "b/nested"):
        Table.create(tmp_path / "lake" / name).insert([{"n": 1}])
    (tmp_path / "lake" / "b" / "_table.json").unlink()  # as a table of v3
    Table.create(tmp_path / "lake" / ".hidden")
    (tmp_path / "lake" / "loop").symlink_to(tmp_path / "lake")
    (tmp_path / "lake" / "raw").mkdir()
    (tmp_path / "lake" / "raw" / "x.parquet").write_bytes(b"x")
    found = [Path(uri).relative_to(tmp_path / "lake").as_posix() for uri in find_tables(tmp_path / "lake")]
    assert found == ["a/deep", "a/deep/er", "b", "b/nested"]
    assert list(find_tables(tmp_path / "lake" / "b" / "nested")) == [str(tmp_path / "lake" / "b" / "nested")]
    assert list(find_tables(tmp_path / "nothing")) == []


@pytest.mark.s3
def test_tables_are_found_in_a_bucket(s3: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in s3.storage_options.items():
        monkeypatch.setenv(name, value)
    for name in ("b", "a/deep"):
        Table.create(f"{s3.uri}/{name}").insert([{"n": 1}])
    assert list(find_tables(s3.uri)) == [f"{s3.uri}/a/deep", f"{s3.uri}/b"]
    assert f"{s3.uri}/b" in list(find_tables(parse_location(s3.uri).root_uri))
