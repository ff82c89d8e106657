"""Checks of the disks on this machine that hold an instance: its folder, its Postgres, temporary files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem, warning
from icedb_dagster.dev.stack.database import ServerInfo

__all__ = ["examine_disks", "judge_free_space"]

# A run writes some 80 kB of events, and a query spills some gigabytes.
FREE_BYTES_MIN = 1 << 30
FREE_BYTES_LOW = 5 << 30


def examine_disks(instance_folder: str, server: ServerInfo | str | None) -> DoctorFinding:
    """Look at the free space of the instance's folders on this machine. `server`: its Postgres, or an error."""
    folders = {"the instance": instance_folder, "temporary files": tempfile.gettempdir()}
    if isinstance(server, ServerInfo) and server.data_folder is not None:
        folders["Postgres"] = server.data_folder
    return judge_free_space({f"{name} ({folder})": _free_bytes(folder) for name, folder in folders.items()})


def _free_bytes(folder: str) -> int | None:
    """Return the free space of a folder's disk; None if the folder is not on this machine."""
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def judge_free_space(free: Mapping[str, int | None]) -> DoctorFinding:
    """Judge the free bytes of folders. None: unknown."""
    check = "disk"
    here = {name: size for name, size in free.items() if size is not None}
    if not here:
        return ok(check, "no folder of the instance is on this machine")
    least = min(here, key=here.__getitem__)
    state = f"{here[least] / (1 << 30):.1f} GiB free for {least}"
    remedy = "free some space. On a full disk, the ends of runs are not recorded, and their tables stay locked"
    if here[least] < FREE_BYTES_MIN:
        return problem(check, state, remedy)
    return warning(check, state, remedy) if here[least] < FREE_BYTES_LOW else ok(check, state)
