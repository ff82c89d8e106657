"""The machine and the versions of a run."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["VERSIONS_OF", "Machine", "commit_now", "machine_now"]

#: The packages whose versions are reported.
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

# The measured code. It excludes the results, which a run changes.
_CODE = ("icedb", "benchmarks/*.py", "pyproject.toml")


@dataclass(frozen=True, slots=True)
class Machine:
    """Everything besides the code that affects figures. `versions` is by package."""

    processor: str
    cores: int
    memory_gib: float
    kernel: str
    python: str
    versions: Mapping[str, str]


def machine_now() -> Machine:
    """Return this machine. Only the cores that this process may use are counted."""
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
    """Return the commit of the measured code, with `changed` if it has uncommitted changes; `unknown` without git."""
    root = Path(__file__).parents[2]
    try:
        commit, changes = (
            subprocess.run(["git", "-C", str(root), *command], capture_output=True, text=True, check=True).stdout
            for command in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", *_CODE])
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip() + (", changed" if changes.strip() else "")
