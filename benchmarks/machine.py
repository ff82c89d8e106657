"""Where figures were taken: the machine, and what ran on it."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["VERSIONS_OF", "Machine", "commit_now", "machine_now"]

#: What is told of the installed packages: our own, and all that take part.
VERSIONS_OF = (
    "icedb-dagster",
    "duckdb",
    "pyarrow",
    "polars",
    "deltalake",
    "pyiceberg",
    "duckdb-extension-ducklake",
    "duckdb-extension-httpfs",
    "obstore",
    "msgspec",
    "ministack",
)

# What runs: results are changed by being written.
_CODE = ("icedb", "benchmarks/*.py", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Machine:
    """All that figures depend on beside the code; `versions` by package."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: Mapping[str, str]


def machine_now() -> Machine:
    """This one. Only the cores that this process may use are counted."""
    return Machine(
        _processor(),
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1024**3, 1),
        f"{platform.system()} {platform.release()}",
        f"{platform.python_implementation()} {platform.python_version()}",
        {name: _version(name) for name in VERSIONS_OF},
    )


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def commit_now() -> str:
    """Of the code that is measured; `changed` when there is more than that in its folder, `unknown` without git."""
    root = Path(__file__).parents[1]
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True).stdout
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", *_CODE])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + (", changed" if changes.strip() else "")
