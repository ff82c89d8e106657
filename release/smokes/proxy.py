"""The S3 proxy opens its table, and tells what a tenant sees."""

import json
import subprocess
import sys
from pathlib import Path

import icedb

icedb.Table.create("events", partition_by=["day"]).insert([{"day": "2026-11-21", "n": 1}])
Path("proxy.toml").write_text(
    """
[server]
listen = "127.0.0.1:0"

[[tenant]]
name = "acme"
keys = [{ id = "ACMEKEY1", secret = "a-secret-of-acme" }]

[[tenant.bucket]]
name = "events"
table = "events"
"""
)
command = [str(Path(sys.executable).with_name("icedb")), "proxy", "--config", "proxy.toml", "--check", "--json"]
done = subprocess.run(command, capture_output=True, check=True, text=True)
assert json.loads(done.stdout)
assert "a-secret-of-acme" not in done.stdout + done.stderr
