"""When the daemon of a stack loads code locations again. `dev/test_stack.py` runs the daemon itself."""

from types import SimpleNamespace
from typing import Any

import pytest

dagster = pytest.importorskip("dagster")

from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, ManagedGrpcPythonEnvCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.controller import DagsterDaemonController

from icedb_dagster.daemon import omit_reloads
from tests.support.processes import run_python

pytestmark = pytest.mark.dagster

SERVED = GrpcServerCodeLocationOrigin(host="localhost", port=4000, location_name="served")
STARTED = ManagedGrpcPythonEnvCodeLocationOrigin(LoadableTargetOrigin(module_name="started"), location_name="started")


@pytest.mark.parametrize(("origins", "reloads"), [([SERVED, SERVED], 0), ([SERVED, STARTED], 1)])
def test_locations_are_loaded_every_minute_only_if_the_daemon_starts_a_code_server(
    monkeypatch: pytest.MonkeyPatch, origins: list[Any], reloads: int
) -> None:
    usual = DagsterDaemonController.check_workspace_freshness
    monkeypatch.setattr(DagsterDaemonController, "check_workspace_freshness", usual)  # restored after the test
    refreshed: list[int] = []
    entries = {str(number): SimpleNamespace(origin=origin) for number, origin in enumerate(origins)}
    request = SimpleNamespace(get_code_location_entries=lambda: entries)
    context = SimpleNamespace(create_request_context=lambda: request, refresh_workspace=lambda: refreshed.append(1))
    daemon: Any = SimpleNamespace(_workspace_process_context=context, _grpc_server_registry=None, _logger=None)
    omit_reloads()
    loaded_s = DagsterDaemonController.check_workspace_freshness(daemon, 0)
    assert len(refreshed) == reloads
    assert (loaded_s == 0) is (reloads == 0)


LOST_CONNECTION = """
import logging, sys
from icedb_dagster.daemon import print_other_messages

print_other_messages()
dagster = logging.getLogger("dagster")
dagster.addHandler(logging.StreamHandler(sys.stdout))
logging.warning("Retrying")  # as Dagster does
logging.getLogger("dagster.daemon").warning("Checking")
logging.getLogger("sqlalchemy.pool").error("Lost")
logging.getLogger("icedb").info("Merging")
"""


@pytest.mark.process
def test_a_lost_connection_does_not_double_the_lines_of_the_log() -> None:
    done = run_python("-c", LOST_CONNECTION)
    assert done.stderr == ""
    assert [line.rpartition(" - ")[2] for line in done.stdout.splitlines()] == ["Retrying", "Checking", "Lost"]
