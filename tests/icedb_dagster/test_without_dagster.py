"""Without Dagster: what works then, and what is said of what does not."""

from __future__ import annotations

import subprocess
import sys

import pytest

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
def test_without_dagster_icedb_works_and_icedb_dagster_says_what_to_install() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORT_WITHOUT_DAGSTER], capture_output=True, check=False, text=True)
    assert done.returncode != 0
    assert done.stdout.strip() == "icedb is there"
    assert "pip install 'icedb-dagster[dagster]'" in done.stderr.splitlines()[-1]
