"""Where Spark programs run: on this machine, on a standalone cluster, over Spark Connect.

Each place is a Dagster resource. `run` starts a program inside an asset or op, through Dagster Pipes; `submit` starts
it by hand. Here the driver is a process on this machine; `icedb_dagster.compute.emr` has the places where it is not.
"""

# No `from __future__ import annotations` here: Dagster reads the annotations of fields as objects.
import importlib.util
import os
import re
import shlex
import sys
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Never

import dagster as dg
from dagster._core.errors import DagsterPipesExecutionError
from pydantic import Field

from icedb.errors import InvalidOption
from icedb.spark.java import find_java, prepare_environment
from icedb_dagster.resource_fields import CheckedFields

__all__ = [
    "ConnectSpark",
    "Launch",
    "LocalSpark",
    "SparkPlace",
    "StandaloneSpark",
    "refuse_secrets",
    "spark_options",
]

Context = dg.AssetExecutionContext | dg.OpExecutionContext

# The names that Spark itself hides in its logs.
_SECRET_CONF = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_SECRET_ARGUMENT = re.compile(r"(?:--[\w-]+=)?((?:aws_)?(?:secret_access_key|session_token))=", re.IGNORECASE)
# The names of files that Spark puts on the Python path of its executors.
_PY_FILES = (".zip", ".egg", ".py")


class SparkPlace(CheckedFields, dg.ConfigurableResource):  # type: ignore[type-arg]
    """Somewhere a Spark program can run. Annotate the asset's resource with it, and each deployment chooses a place.

    A program is the name of one in `spark_jobs`, or the path of a Python file.
    """

    @abstractmethod
    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program as a part of an asset or op, and wait for its end.

        What it reports through Dagster Pipes is in the result. `extras` are for the program: its
        `PipesContext.extras`. Raises InvalidOption, and `dagster.Failure` or what the client of Pipes raises when the
        program fails.
        """

    @abstractmethod
    def submit(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Start a program by hand, without Dagster; returns what was started, in words. Raises InvalidOption."""

    @abstractmethod
    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """What `submit` would start: a line for a shell, or a request. Holds no secrets. Raises InvalidOption."""


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start: what its environment has beyond ours, and the names in it whose values are not shown."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    hidden: frozenset[str]

    def __str__(self) -> str:
        """The line for a shell. It takes hidden values from the shell's environment, and never to a command line."""
        shown = [
            f'{name}="${name}"' if name in self.hidden else f"{name}={shlex.quote(value)}"
            for name, value in self.environment.items()
        ]
        return " ".join([*shown, shlex.join(self.command)])


class _DriverHere(SparkPlace):
    """A place whose driver is a process on this machine."""

    env: dict[str, str] = Field(default={}, repr=False)

    @abstractmethod
    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """The process that runs a program. Raises InvalidOption, JavaNotFound."""

    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program through `dagster.PipesSubprocessClient`; what it prints goes where Dagster's own output goes.

        Raises InvalidOption, JavaNotFound, and `dagster.Failure` with the error that the program reported.
        """
        launch = self.launch(program, arguments)
        client = dg.PipesSubprocessClient(env=launch.environment)
        before = len(_reported_errors(context))  # those of earlier tries
        try:
            return client.run(context=context, command=launch.command, extras=dict(extras or {}))
        except DagsterPipesExecutionError as error:
            reported = _reported_errors(context)[before:]
            raise dg.Failure(reported[-1] if reported else f"{program}: {error}") from None

    def submit(self, program: str, arguments: Sequence[str] = ()) -> Never:
        """Become the program: signals and the exit status are its own. Raises InvalidOption, JavaNotFound."""
        launch = self.launch(program, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(launch.command[0], launch.command, {**os.environ, **launch.environment})  # noqa: S606

    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """The line that starts a program in a shell."""
        return str(self.launch(program, arguments))

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], hidden: Sequence[str] = ()) -> Launch:
        given = {name: value for name, value in self.env.items() if name not in environment}
        return Launch(tuple(command), {**given, **environment}, frozenset([*given, *hidden]))


class LocalSpark(_DriverHere):
    """Spark inside one process of this machine.

    `master`: `local[*]`, or with a number of threads. `conf`: Spark's properties; they stand on the command line.
    `env`: variables for the program, secrets too.
    """

    master: str = "local[*]"
    conf: dict[str, str] = Field(default={})

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """A `spark-submit` whose master is in the same process. Raises InvalidOption, JavaNotFound."""
        if not re.fullmatch(r"local(\[.+\])?", self.master):
            _refuse("LocalSpark", "master", self.master, "local[*], or local[4] for four threads")
        environment = {**os.environ, **self.env}
        prepared = dict(environment)
        prepare_environment(prepared)
        command = _spark_submit(environment, self.master, spark_options("LocalSpark", self.conf), program, arguments)
        return self._launch(command, {k: v for k, v in prepared.items() if environment.get(k) != v})


class StandaloneSpark(_DriverHere):
    """A standalone cluster; the driver is on this machine, and the executors must be able to connect to it.

    `master`: `spark://host:7077`. `py_files`: archives of Python modules that Spark hands to the executors.
    `executor_python`: the Python on the cluster's machines, with what those modules need; without it, the path of the
    Python that runs this. `conf` and `env` as for `LocalSpark`.
    """

    master: str
    py_files: list[str] = Field(default=[])
    executor_python: str | None = None
    conf: dict[str, str] = Field(default={})

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """A `spark-submit` in client mode. Raises InvalidOption, JavaNotFound."""
        if not self.master.startswith("spark://"):
            _refuse("StandaloneSpark", "master", self.master, "spark://host:7077")
        environment = {**os.environ, **self.env}
        options = spark_options("StandaloneSpark", self.conf, self.py_files)
        return self._launch(
            _spark_submit(environment, self.master, options, program, arguments),
            {
                # Not all that a local Spark gets: the driver must have an address that the executors can reach.
                "JAVA_HOME": str(find_java(environment).path),
                "PYSPARK_DRIVER_PYTHON": sys.executable,
                "PYSPARK_PYTHON": self.executor_python or sys.executable,
            },
        )


class ConnectSpark(_DriverHere):
    """A Spark Connect server; the program is a plain Python process and needs no Java.

    `remote`: `sc://host:15002`, with the parameters of Spark Connect after it. Give one that holds a token as
    `dg.EnvVar("...")`: Dagster then keeps it to itself. The program gets it in its environment. `env` as for
    `LocalSpark`.
    """

    remote: str = Field(repr=False)

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """A Python process with `SPARK_REMOTE`. Raises InvalidOption."""
        if not self.remote.startswith("sc://"):
            _refuse("ConnectSpark", "remote", self.remote.partition(";")[0], "sc://host:15002")
        refuse_secrets("ConnectSpark", arguments=arguments)
        command = [sys.executable, str(_find_program(program)), *arguments]
        hidden = ["SPARK_REMOTE"] if ";" in self.remote else []  # its parameters: one may be a token
        return self._launch(command, {"SPARK_REMOTE": self.remote}, hidden)


def spark_options(place: str, conf: Mapping[str, str], py_files: Sequence[str] = ()) -> list[str]:
    """The options of `spark-submit` for properties and Python archives. Raises InvalidOption."""
    refuse_secrets(place, conf=conf)
    for file in py_files:
        if not file.endswith(_PY_FILES) or "," in file:
            raise InvalidOption(
                f"{place}: py_files has {file!r}, and Spark's executors import only from names that end in "
                f"{', '.join(_PY_FILES)}. A wheel is a zip archive: copy it to a name that ends in .zip."
            )
    files = ["--py-files", ",".join(py_files)] if py_files else []
    return [*files, *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]


def refuse_secrets(place: str, *, conf: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> None:
    """A command line can be read by everybody on its machine. Raises InvalidOption, which does not quote the secret."""
    names = [name for name in conf or {} if _SECRET_CONF.search(name)]
    names += [found[1] for argument in arguments if (found := _SECRET_ARGUMENT.match(argument))]
    if names:
        raise InvalidOption(
            f"{place}: {names[0]} would stand on a command line, which others can read. Put it into the program's "
            "environment (the field env, or the environment of this process), or give the machines a role."
        )


def _refuse(place: str, name: str, value: str, remedy: str) -> Never:
    raise InvalidOption(f"{place}: {name} is {value!r}; give {remedy}.")


def _spark_submit(
    environment: Mapping[str, str], master: str, options: Sequence[str], program: str, arguments: Sequence[str]
) -> list[str]:
    """The command line: Spark's own program, of SPARK_HOME or of the package pyspark."""
    refuse_secrets(program, arguments=arguments)
    if environment.get("SPARK_REMOTE"):
        raise InvalidOption(
            f"SPARK_REMOTE is set, so {program} would not go to {master}. Unset it, or use ConnectSpark."
        )
    home = environment.get("SPARK_HOME") or _pyspark_home()
    script = Path(home, "bin", "spark-submit")
    if not script.is_file():
        raise InvalidOption(f"SPARK_HOME is {home!r}, which has no bin/spark-submit. Set it to a Spark, or unset it.")
    return [str(script), "--master", master, *options, str(_find_program(program)), *arguments]


def _pyspark_home() -> str:
    # Only located, not imported: the program will import it, in its own process.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidOption("There is no pyspark here to start the program. Run: pip install 'icedb-dagster[spark]'")
    return spec.submodule_search_locations[0]


def _find_program(program: str) -> Path:
    """The file of a program: one of `spark_jobs` by its name, or any by its path."""
    if "/" in program or program.endswith(".py"):
        path = Path(program).resolve()
        if not path.is_file():
            raise InvalidOption(f"There is no program {str(path)!r}. Give the path of a Python file on this machine.")
        return path
    programs = _own_programs()
    if program not in programs:
        known = ", ".join(sorted(programs)) or "none: spark_jobs is not installed"
        raise InvalidOption(f"There is no program {program!r} in spark_jobs ({known}). Give one, or a file's path.")
    return programs[program]


def _own_programs() -> dict[str, Path]:
    """The files of `spark_jobs` that can be run, by name."""
    spec = importlib.util.find_spec("spark_jobs")
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.py")]
    return {file.stem: file for file in files if '__name__ == "__main__"' in file.read_text()}


def _reported_errors(context: Context) -> list[str]:
    """The first lines of the errors with which programs of this step closed Pipes; Dagster keeps them as events."""
    step = context.get_step_execution_context().step.key
    events = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    errors = [e.dagster_event.engine_event_data.error for e in events if e.step_key == step and e.dagster_event]
    return [error.message.strip().partition("\n")[0] for error in errors if error]
