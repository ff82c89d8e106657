"""The command: create, insert, query, info."""

import json
import subprocess
import sys
from pathlib import Path

icedb = Path(sys.executable).with_name("icedb")


def run(*arguments: str) -> str:
    """What the command prints."""
    return subprocess.run([icedb, *arguments], capture_output=True, check=True, text=True).stdout


Path("rows.jsonl").write_text('{"user_id": 1, "day": "2026-11-21"}\n{"user_id": 2, "day": "2026-11-22"}\n')
run("create", "events", "--partition-by", "day")
run("insert", "events", "rows.jsonl")
assert "2" in run("query", "events", "SELECT count(*) AS n FROM t")
assert json.loads(run("info", "events", "--json"))
assert run("--version").startswith("icedb ")
