"""Dagster's daemon, which loads a code location again when its code server was replaced, instead of every minute.

    python -m icedb_dagster.daemon run -w workspace.yaml

Every minute, Dagster's daemon loads all code locations again. For that it requests each job from the code server: some
four seconds of processor time in both for 50 tables with nine jobs each. It also watches each code server that it has
not started itself, and loads a location at once when its server was replaced, or answers again. So if all locations
have such a code server (`grpc_server` in workspace.yaml), as with `icedb-dagster up` and the files of `deploy/`,
loading them every minute has no effect, and this module omits it. Then a changed `workspace.yaml` needs a restart of
the daemon.

The arguments are those of `dagster-daemon`. It uses names that are not public in Dagster. Without one of them, this is
Dagster's daemon.
"""

from __future__ import annotations

import logging
import runpy
import sys
from typing import Any

from icedb_dagster.dagster_internals import LOAD_ON_CHANGE, internal, lacking

__all__ = ["omit_reloads", "print_other_messages"]


def omit_reloads() -> None:
    """Change Dagster's daemon in this process, so that it loads locations only if their code servers changed."""
    controller: Any = internal("DagsterDaemonController")
    usual = controller.check_workspace_freshness

    def check_workspace_freshness(self: Any, last_s: float) -> float:
        entries = self._workspace_process_context.create_request_context().get_code_location_entries()
        server = internal("GrpcServerCodeLocationOrigin")
        if all(type(entry.origin) is server for entry in entries.values()):
            return last_s
        return float(usual(self, last_s))

    controller.check_workspace_freshness = check_workspace_freshness


def print_other_messages() -> None:
    """Print warnings of other libraries and of the root logger on standard output.

    Dagster logs a lost connection to Postgres with `logging.warning`. Without a handler of the root logger, that call
    adds one, which prints each later line of Dagster's loggers a second time.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setLevel(logging.WARNING)
    handler.setFormatter(logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s"))
    handler.addFilter(lambda record: record.name.partition(".")[0] != "dagster")
    logging.getLogger().addHandler(handler)


if __name__ == "__main__":
    print_other_messages()
    if lacking(LOAD_ON_CHANGE) is None:
        omit_reloads()
    runpy.run_module("dagster._daemon", run_name="__main__", alter_sys=True)
