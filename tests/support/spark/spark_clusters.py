"""Spark clusters on 127.0.0.1, and driver programs that a test controls.

A process can hold one Spark session, so each session is in its own driver (`tests.support.spark.spark_driver`), which
gets requests over a pipe. Everything that is started here is ended here, by its process id.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from tests.support.spark.quick_java import QUICK_JAVA
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from dagster_pyspark import PySparkResource

#: The settings of every session of the tests.
SESSION = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": QUICK_JAVA,
    "spark.executor.extraJavaOptions": QUICK_JAVA,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "OFF",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.task.maxFailures": "2",
}
#: Two executors in their own processes, and no task before both have registered.
TWO_EXECUTORS = {
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "240s",
}


class RemoteError(Exception):
    """An error of a driver: its type and its text."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.text = text


class Driver:
    """A driver program with one Spark session; `config` may name a master, or a Connect server by `spark.remote`."""

    def __init__(self, config: Mapping[str, str], folder: Path, env: Mapping[str, str]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        own = {"spark.local.dir": str(folder / "local"), "spark.sql.warehouse.dir": str(folder / "warehouse")}
        settings = dict(config) if "spark.remote" in config else SESSION | own | dict(config)
        with (folder / "driver.log").open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("spark_driver.py")), json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                cwd=folder,
                env=dict(env),
                text=True,
            )
        self._log = folder / "driver.log"

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._process.poll() is None and self._process.stdin is not None:
                self._process.stdin.close()  # the end of its work: it stops its session
                self._process.wait(30)
        except (OSError, subprocess.TimeoutExpired):
            pass
        finally:
            self.kill()

    @property
    def pid(self) -> int:
        """Return the pid of the Python process, whose descendants are Spark's."""
        return self._process.pid

    def ask(self, do: str, **arguments: Any) -> Any:
        """Call a function of `tests.support.spark.spark_driver`. Raises RemoteError; EOFError if the driver died."""
        self.tell(do, **arguments)
        return self.answer()

    def tell(self, do: str, **arguments: Any) -> None:
        """Begin what `answer` waits for."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Return the result of the oldest unanswered request."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"the driver ended:\n{self._log.read_text(errors='replace')[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise RemoteError(*answer["error"])
        return answer["result"]

    def kill(self) -> None:
        """End the driver and all that it started with SIGKILL, from the top, so that nothing is started again."""
        for pid in [self.pid, *descendants(self.pid)]:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class SharedDriver:
    """The session that the tests of this process share, with the interface of `Driver`."""

    pid = property(lambda self: os.getpid())

    def __init__(self, spark: Any) -> None:
        self._spark = spark

    def ask(self, do: str, **arguments: Any) -> Any:
        """Call a function of `tests.support.spark.spark_driver`. Raises RemoteError."""
        from tests.support.spark.spark_driver import COMMANDS

        try:
            return COMMANDS[do](self._spark, **arguments)
        except Exception as error:
            raise RemoteError(type(error).__name__, str(error)) from error


def descendants(pid: int) -> list[int]:
    """Return the descendants of a process, parents first."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(ProcessLookupError, FileNotFoundError):
            fields = stat.read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(int(stat.parent.name))
    pids = list(children.get(pid, []))
    for child in pids:  # grows as we go
        pids += children.get(child, [])
    return pids


def make_spark_home(home: Path) -> Path:
    """Make a SPARK_HOME of the installed pyspark, whose work folder is in a folder of the tests.

    It lacks the archive of pyspark, from which each Python worker would import, and compile, what is installed anyway.
    """
    home.mkdir(exist_ok=True)
    [installed] = importlib.util.find_spec("pyspark").submodule_search_locations
    for name in ("bin", "jars"):
        (home / name).symlink_to(Path(installed, name))
    return home


def dagster_spark(home: Path, **config: str) -> PySparkResource:
    """Prepare this process for a local Spark with this home, and return Dagster's resource of it."""
    from dagster_pyspark import PySparkResource

    from icedb.spark.java import prepare_environment

    os.environ["SPARK_HOME"] = str(make_spark_home(home))
    prepare_environment()
    return PySparkResource(spark_config=SESSION | {"spark.master": "local[2]"} | config)


def environment(spark_home: Path) -> dict[str, str]:
    """Return the environment of all processes: a Java, this Python, the loopback address, no secrets."""
    from icedb.spark.java import prepare_environment

    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "SPARK_"))}
    env |= {"SPARK_HOME": str(spark_home), "SPARK_NO_DAEMONIZE": "1"}
    prepare_environment(env)
    return env


@contextmanager
def _daemon(
    folder: Path, name: str, command: list[str], ready: str, env: Mapping[str, str]
) -> Iterator[tuple[str, ...]]:
    """Run a process of Spark during the block. Yields the groups of `ready` in its log."""
    log = folder / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [str(Path(env["SPARK_HOME"], "bin", "spark-class")), *command],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder,
            env=dict(env),
        )
    try:

        def ready_line() -> re.Match[str] | None:
            text = log.read_text(errors="replace")
            assert process.poll() is None, f"{name} did not start:\n{text[-3000:]}"
            return re.search(ready, text)

        match = wait_until(ready_line, f"{name} is ready", every_seconds=0.1)
        assert match is not None
        yield match.groups()
    finally:
        below = descendants(process.pid)
        process.kill()
        process.wait()
        for pid in below:
            with suppress(ProcessLookupError, FileNotFoundError):
                os.kill(pid, signal.SIGKILL)


@contextmanager
def standalone(folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Run a master and two workers of one core each. Yields the master's URL.

    The workers have different addresses, as machines do: Spark runs no speculative copy of a task on the same host.
    """
    package = "org.apache.spark.deploy"
    daemons = dict(env) | {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": f"{QUICK_JAVA} -Dspark.master.rest.enabled=false -Dspark.worker.cleanup.enabled=true",
    }
    address = ["--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
    ready = r"Starting Spark master at (spark://\S+)[\s\S]*MasterWebUI.* started at http://[^:]+:(\d+)"
    with ExitStack() as stack:
        master = _daemon(folder, "master", [f"{package}.master.Master", *address], ready, daemons)
        url, web_port = stack.enter_context(master)
        for number in (1, 2):
            host = f"127.0.0.{number}"
            command = [f"{package}.worker.Worker", "--host", host, "--port", "0", "--webui-port", "0"]
            command += ["--cores", "1", "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), url]
            alone = daemons | {"SPARK_LOCAL_IP": host}
            stack.enter_context(
                _daemon(folder, f"worker-{number}", command, "Successfully registered with master", alone)
            )
        with urllib.request.urlopen(f"http://127.0.0.1:{web_port}/json/", timeout=240) as answer:
            workers = [w["host"] for w in json.load(answer)["workers"] if w["state"] == "ALIVE"]
        if sorted(workers) != ["127.0.0.1", "127.0.0.2"]:
            raise RuntimeError(f"the master has the workers {workers}")
        yield url


@contextmanager
def connect_server(folder: Path, env: Mapping[str, str]) -> Iterator[str]:
    """Run a Spark Connect server on two cores. Yields its address."""
    settings = SESSION | {
        "spark.log.level": "INFO",  # its log has the port
        "spark.local.dir": str(folder / "local"),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": "0",
    }
    command = ["org.apache.spark.deploy.SparkSubmit", "--master", "local[2]", "--driver-memory", "1g"]
    command += [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    command += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
    ready = r"Spark Connect server started at: (\S+)"
    with _daemon(folder, "connect", command, ready, env) as (address,):
        yield f"sc://{address}"
