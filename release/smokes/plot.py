"""A picture of a table."""

import subprocess
import sys
from pathlib import Path

import icedb

table = icedb.Table.create("events", partition_by=["day"])
table.insert([{"day": f"2026-11-{day:02}", "n": day} for day in range(1, 29)])
subprocess.run([Path(sys.executable).with_name("icedb"), "plot", "events", "-o", "events.png"], check=True)
assert Path("events.png").read_bytes().startswith(b"\x89PNG")
