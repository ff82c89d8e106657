"""The code servers of a local stack: one process that starts them, and restarts those that end.

The web server and the daemon share these code servers, as with `dagster dev`. Otherwise each starts its own, and the
daemon replaces its own every minute: that takes seconds of processor time, and closes the tables that sensors keep
open.

    python -m icedb_dagster.dev.code_servers workspace.yaml addresses.yaml logs/

A code location has a proxy of Dagster (`dagster code-server start`), and behind it the server with the code. The proxy
replaces that server when a user reloads the location. Dagster restarts a proxy that has ended. It does not restart a
server that has ended behind its proxy, so this process reloads a location that does not answer.

This process also rotates the logs of the stack, because it runs as long as the services that write them.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster import DagsterInstance

from icedb_dagster.dagster_internals import internal
from icedb_dagster.dev.stack.layout import write_private
from icedb_dagster.dev.stack.logs import rotate_logs

__all__ = ["Location", "main", "serve"]

CHECK_S = 5
#: A location is reloaded if it did not answer twice. If that does not help, the wait doubles, up to a minute.
FAILURES_MAX = 2
WAIT_MAX_S = 60
#: Maximum seconds of a reload. Code with many dependencies loads slowly on a busy machine.
RELOAD_S_MAX = 180


@dataclass(slots=True)
class Location:
    """A code location, and a client of its code server."""

    name: str
    client: Any
    failures: int = 0
    wait_s: float = CHECK_S
    #: No reload before this time, in monotonic seconds.
    not_before_s: float = 0

    def check(self, now_s: float) -> None:
        """Reload the location if its code server does not answer. `now_s` is in monotonic seconds."""
        unreachable = internal("DagsterUserCodeUnreachableError")
        try:
            self.client.ping("")
        except unreachable as error:
            self.failures += 1
            if self.failures < FAILURES_MAX or now_s < self.not_before_s:
                return
            self.wait_s = min(2 * self.wait_s, WAIT_MAX_S)
            self.not_before_s = now_s + self.wait_s
            _log(f"code location {self.name} does not answer ({_first_line(error)}); reloading it")
        else:
            if self.failures >= FAILURES_MAX:
                _log(f"code location {self.name} answers again")
            self.failures, self.wait_s, self.not_before_s = 0, CHECK_S, 0
            return
        # The proxy returns an error if the old server, which it stops, is gone. The next check shows the result.
        with suppress(unreachable):
            self.client.reload_code(RELOAD_S_MAX)


@contextmanager
def serve(workspace: Path, addresses: Path) -> Iterator[list[Location]]:
    """Run the code servers of a workspace file, and write a workspace file with their addresses.

    Locations with a code server of their own are copied. Yields the others.

    Raises:
        StackError: This version of Dagster lacks a name.
        dagster.DagsterError: The workspace file is invalid, or a code server cannot be started.
    """
    options = internal("WorkspaceOpts")(workspace=[str(workspace)])
    target = internal("workspace_opts_to_load_target")(options)
    with (
        DagsterInstance.get() as instance,
        internal("ProxyServerManager")(instance, target, code_server_log_level="info") as manager,
    ):
        specs = [spec["grpc_server"] for spec in manager.get_code_server_specs()]
        # JSON is YAML.
        write_private(addresses, json.dumps({"load_from": [{"grpc_server": spec} for spec in specs]}).encode())
        try:
            own = [hasattr(origin, "loadable_target_origin") for origin in target.create_origins()]
            client = internal("DagsterGrpcClient")
            yield [
                Location(
                    spec["location_name"],
                    client(host=spec.get("host"), port=spec.get("port"), socket=spec.get("socket")),
                )
                for spec, ours in zip(specs, own, strict=True)
                if ours
            ]
        finally:
            addresses.unlink(missing_ok=True)


def main(workspace: str, addresses: str, logs: str) -> None:
    """Run the code servers until SIGTERM or SIGINT."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with serve(Path(workspace), Path(addresses)) as locations:
        while not ended.wait(CHECK_S):
            for location in locations:
                location.check(time.monotonic())
            try:
                rotate_logs(Path(logs))
            except OSError as error:
                _log(f"the logs cannot be rotated: {error}")


def _log(message: str) -> None:
    """Write a line to the log of the service, unless the disk is full: code servers must survive that."""
    with suppress(OSError):
        print(message, file=sys.stderr, flush=True)  # noqa: T201


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


if __name__ == "__main__":
    main(*sys.argv[1:])
