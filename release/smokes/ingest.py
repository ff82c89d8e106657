"""The ingest service makes its table, and says how it is."""

import subprocess
import sys
from pathlib import Path

import icedb

Path("ingest.toml").write_text(
    """
[server]
listen = "127.0.0.1:0"

[[table]]
name = "events"
uri = "events"
create = true
partition_by = ["day"]

[[tenant]]
name = "acme"
tables = ["events"]
keys = [{ secret = "a-secret-of-acme-that-is-long" }]
"""
)
icedb.Table.create("events", partition_by=["day"])
command = [str(Path(sys.executable).with_name("icedb")), "ingest", "--config", "ingest.toml", "--check"]
done = subprocess.run(command, capture_output=True, check=True, text=True)
assert "events" in done.stdout
assert "a-secret-of-acme" not in done.stdout + done.stderr
