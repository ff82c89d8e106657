"""The servers that benchmarks start."""

from __future__ import annotations

import subprocess

__all__ = ["stop"]

# What they would still put in order is thrown away.
STOP_SECONDS_MAX = 1


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process, and wait until it has ended."""
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
