"""Imports without Dagster."""

from __future__ import annotations

import pytest

from tests.support.processes import run_python

IMPORT_WITHOUT_DAGSTER = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "dagster":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
import icedb
print("icedb is there")
import icedb_dagster
"""


@pytest.mark.process
def test_icedb_works_without_dagster_and_icedb_dagster_names_the_extra() -> None:
    done = run_python("-c", IMPORT_WITHOUT_DAGSTER, check=False)
    assert done.returncode != 0
    assert done.stdout.strip() == "icedb is there"
    assert "pip install 'icedb-dagster[dagster]'" in done.stderr.splitlines()[-1]
