"""The local stack: Postgres, and Dagster's code servers, web server and daemon, for one project folder.

    stack = up("my/project", services=("postgres",))
    os.environ.update(environment(stack))       # now DagsterInstance.get() uses that Postgres
    release(stack)                              # stops what this `up` started; `down` stops everything

`up` is idempotent and waits until the services work. `down` stops exactly the started services. All files are in
`.icedb-dagster` inside the project, see `icedb_dagster.dev.stack.layout`.
"""

from icedb_dagster.dev.stack.layout import Progress
from icedb_dagster.dev.stack.lifecycle import SERVICES, down, find, release, status, up
from icedb_dagster.dev.stack.logs import LogLine, log_lines
from icedb_dagster.dev.stack.stack_status import ServiceStatus, Stack, environment
from icedb_dagster.dev.stack.state import ServiceName

__all__ = [
    "LogLine",
    "Progress",
    "SERVICES",
    "ServiceName",
    "ServiceStatus",
    "Stack",
    "down",
    "environment",
    "find",
    "log_lines",
    "release",
    "status",
    "up",
]
