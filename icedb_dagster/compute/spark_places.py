"""Places where Spark programs run: this machine, a standalone cluster, Spark Connect.

Each place is a Dagster resource. `run` starts a program inside an asset or op, through Dagster Pipes. `submit` starts
it by hand. Here the driver is a process on this machine. `icedb_dagster.compute.emr` has the places on AWS.
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
from pydantic import Field

from icedb.errors import InvalidOption
from icedb.spark.java import find_java, prepare_environment, python_without_space
from icedb.storage.option_names import SECRET_OPTIONS
from icedb_dagster.dagster_internals import internal
from icedb_dagster.resource_fields import CheckedFields

__all__ = [
    "ConnectSpark",
    "Context",
    "Launch",
    "LocalSpark",
    "SparkPlace",
    "StandaloneSpark",
    "reject_secrets",
    "spark_options",
]

Context = dg.AssetExecutionContext | dg.OpExecutionContext

# Names that Spark redacts in its logs.
_SECRET_CONF = re.compile(r"secret|password|token|access[.]?key", re.IGNORECASE)
_SECRET_ARGUMENT = re.compile(rf"(?:--[\w-]+=)?({'|'.join(sorted(SECRET_OPTIONS))})=", re.IGNORECASE)
# Suffixes of files that Spark puts on the Python path of its executors.
_PY_FILES = (".zip", ".egg", ".py")


class SparkPlace(CheckedFields, dg.ConfigurableResource):  # type: ignore[type-arg]
    """A place where Spark programs run. Annotate an asset's resource with it, and each deployment chooses a place.

    A program is the name of one in `spark_jobs`, or the path of a Python file.
    """

    @abstractmethod
    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program as a part of an asset or op, and wait for its end.

        Args:
            context: The context of the asset or op.
            program: A program of `spark_jobs` by name, or a Python file.
            arguments: The program's arguments.
            extras: Values for the program's `PipesContext.extras`.

        Returns:
            The results that the program reported through Dagster Pipes.

        Raises:
            InvalidOption: A field or argument is invalid.
            dagster.Failure: The program failed. On AWS, the Pipes client raises its own error instead.

        Example:
            place.run(context, "backfill", ["--day", "2026-11-21"]).get_results()
        """

    @abstractmethod
    def submit(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Start a program by hand, without Dagster, and return a text about it.

        Raises:
            InvalidOption: A field or argument is invalid.
        """

    @abstractmethod
    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Return what `submit` would start: a shell line or a request, without secrets.

        Raises:
            InvalidOption: A field or argument is invalid.
        """


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start: its command, its additional environment, and the variables whose values are hidden."""

    command: tuple[str, ...]
    environment: dict[str, str] = field(repr=False)
    hidden: frozenset[str]

    def __str__(self) -> str:
        """Return the shell line. Hidden values come from the shell's environment, never from the command line."""
        assignments = [
            f'{name}="${name}"' if name in self.hidden else f"{name}={shlex.quote(value)}"
            for name, value in self.environment.items()
        ]
        return " ".join([*assignments, shlex.join(self.command)])


class _DriverHere(SparkPlace):
    """A place whose driver is a process on this machine."""

    env: dict[str, str] = Field(default={}, repr=False)

    @abstractmethod
    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """Return the process that runs a program. Raises InvalidOption, JavaNotFound."""

    def run(
        self, context: Context, program: str, arguments: Sequence[str] = (), *, extras: Mapping[str, Any] | None = None
    ) -> dg.PipesClientCompletedInvocation:
        """Run a program through `dagster.PipesSubprocessClient`. Its output is that of the Dagster process.

        Raises:
            InvalidOption: A field or argument is invalid.
            JavaNotFound: Java is not installed.
            dagster.Failure: The program failed, with the error that it reported.
        """
        launch = self.launch(program, arguments)
        client = dg.PipesSubprocessClient(env=launch.environment)
        before = len(_reported_errors(context))  # errors of earlier tries
        try:
            return client.run(context=context, command=launch.command, extras=dict(extras or {}))
        except internal("DagsterPipesExecutionError") as error:
            reported = _reported_errors(context)[before:]
            raise dg.Failure(reported[-1] if reported else f"{program}: {error}") from None

    def submit(self, program: str, arguments: Sequence[str] = ()) -> Never:
        """Replace this process by the program, so that signals and the exit status are the program's.

        Raises:
            InvalidOption: A field or argument is invalid.
            JavaNotFound: Java is not installed.
        """
        launch = self.launch(program, arguments)
        sys.stdout.flush()
        sys.stderr.flush()
        os.execve(launch.command[0], launch.command, {**os.environ, **launch.environment})  # noqa: S606

    def preview(self, program: str, arguments: Sequence[str] = ()) -> str:
        """Return the shell line that starts a program."""
        return str(self.launch(program, arguments))

    def _launch(self, command: Sequence[str], environment: Mapping[str, str], hidden: Sequence[str] = ()) -> Launch:
        own = {name: value for name, value in self.env.items() if name not in environment}
        return Launch(tuple(command), {**own, **environment}, frozenset([*own, *hidden]))


class LocalSpark(_DriverHere):
    """Spark inside one process on this machine.

    Args:
        env: Variables for the program, also secrets.
        master: `local[*]`, or `local[4]` for four threads.
        conf: Spark properties. They are on the command line.

    Example:
        resources = {"spark": LocalSpark(conf={"spark.driver.memory": "4g"})}
    """

    master: str = "local[*]"
    conf: dict[str, str] = Field(default={})

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """Return a `spark-submit` with its master in the same process. Raises InvalidOption, JavaNotFound."""
        if not re.fullmatch(r"local(\[.+\])?", self.master):
            _refuse("LocalSpark", "master", self.master, "local[*], or local[4] for four threads")
        environment = {**os.environ, **self.env}
        prepared = dict(environment)
        prepare_environment(prepared)
        command = _spark_submit(environment, self.master, spark_options("LocalSpark", self.conf), program, arguments)
        return self._launch(command, {k: v for k, v in prepared.items() if environment.get(k) != v})


class StandaloneSpark(_DriverHere):
    """A standalone cluster. The driver is on this machine, and the executors must be able to connect to it.

    Args:
        env: Variables for the program, also secrets.
        master: `spark://host:7077`.
        py_files: Archives of Python modules that Spark sends to the executors.
        executor_python: The Python on the cluster's machines, with the dependencies of those modules; None: the path of
            the Python on this machine.
        conf: Spark properties. They are on the command line.

    Example:
        resources = {"spark": StandaloneSpark(master="spark://host:7077")}
    """

    master: str
    py_files: list[str] = Field(default=[])
    executor_python: str | None = None
    conf: dict[str, str] = Field(default={})

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """Return a `spark-submit` in client mode. Raises InvalidOption, JavaNotFound."""
        if not self.master.startswith("spark://"):
            _refuse("StandaloneSpark", "master", self.master, "spark://host:7077")
        environment = {**os.environ, **self.env}
        options = spark_options("StandaloneSpark", self.conf, self.py_files)
        python = python_without_space(Path(sys.executable), environment)
        return self._launch(
            _spark_submit(environment, self.master, options, program, arguments),
            {
                # Fewer variables than for a local Spark: the executors must be able to reach the driver's address.
                "JAVA_HOME": str(find_java(environment).path),
                "PYSPARK_DRIVER_PYTHON": python,
                "PYSPARK_PYTHON": self.executor_python or python,
            },
        )


class ConnectSpark(_DriverHere):
    """A Spark Connect server. The program is a plain Python process and needs no Java.

    Args:
        env: Variables for the program, also secrets.
        remote: `sc://host:15002`, with parameters of Spark Connect after it. If it holds a token, give it as
            `dg.EnvVar("...")`, so that Dagster does not store it. The program gets it in its environment.

    Example:
        resources = {"spark": ConnectSpark(remote=dg.EnvVar("SPARK_REMOTE_URL"))}
    """

    remote: str = Field(repr=False)

    def launch(self, program: str, arguments: Sequence[str] = ()) -> Launch:
        """Return a Python process with `SPARK_REMOTE`. Raises InvalidOption."""
        if not self.remote.startswith("sc://"):
            _refuse("ConnectSpark", "remote", self.remote.partition(";")[0], "sc://host:15002")
        reject_secrets("ConnectSpark", arguments=arguments)
        command = [sys.executable, str(_find_program(program)), *arguments]
        hidden = ["SPARK_REMOTE"] if ";" in self.remote else []  # a parameter may be a token
        return self._launch(command, {"SPARK_REMOTE": self.remote}, hidden)


def spark_options(place: str, conf: Mapping[str, str], py_files: Sequence[str] = ()) -> list[str]:
    """Return the options of `spark-submit` for properties and Python archives. Raises InvalidOption."""
    reject_secrets(place, conf=conf)
    for file in py_files:
        if not file.endswith(_PY_FILES) or "," in file:
            raise InvalidOption(
                f"{place}: py_files has {file!r}, but Spark's executors import only from names that end in "
                f"{', '.join(_PY_FILES)}. A wheel is a zip archive. Copy it to a name that ends in .zip."
            )
    files = ["--py-files", ",".join(py_files)] if py_files else []
    return [*files, *(word for name, value in conf.items() for word in ("--conf", f"{name}={value}"))]


def reject_secrets(place: str, *, conf: Mapping[str, str] | None = None, arguments: Sequence[str] = ()) -> None:
    """Reject secrets on a command line, which other users can read. Raises InvalidOption, without the secret."""
    names = [name for name in conf or {} if _SECRET_CONF.search(name)]
    names += [secret[1] for argument in arguments if (secret := _SECRET_ARGUMENT.match(argument))]
    if names:
        raise InvalidOption(
            f"{place}: {names[0]} would be on a command line, which other users can read. Put it into the program's "
            "environment (the field env, or the environment of this process), or give the machines a role."
        )


def _refuse(place: str, name: str, value: str, remedy: str) -> Never:
    raise InvalidOption(f"{place}: {name} is {value!r}; give {remedy}.")


def _spark_submit(
    environment: Mapping[str, str], master: str, options: Sequence[str], program: str, arguments: Sequence[str]
) -> list[str]:
    """Return the command line of `spark-submit`, from SPARK_HOME or the package pyspark."""
    reject_secrets(program, arguments=arguments)
    if environment.get("SPARK_REMOTE"):
        raise InvalidOption(
            f"SPARK_REMOTE is set, so {program} would not run on {master}. Unset it, or use ConnectSpark."
        )
    home = environment.get("SPARK_HOME") or _pyspark_home()
    script = Path(home, "bin", "spark-submit")
    if not script.is_file():
        raise InvalidOption(
            f"SPARK_HOME is {home!r}, which has no bin/spark-submit. Set it to a Spark installation, or unset it."
        )
    return [str(script), "--master", master, *options, str(_find_program(program)), *arguments]


def _pyspark_home() -> str:
    # Only located: the program imports it in its own process.
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise InvalidOption("The optional dependency pyspark is not installed. Run: pip install 'icedb-dagster[spark]'")
    return spec.submodule_search_locations[0]


def _find_program(program: str) -> Path:
    """Return the file of a program: one of `spark_jobs` by name, or any file by path."""
    if "/" in program or program.endswith(".py"):
        path = Path(program).resolve()
        if not path.is_file():
            raise InvalidOption(
                f"The program {str(path)!r} does not exist. Give the path of a Python file on this machine."
            )
        return path
    programs = _own_programs()
    if program not in programs:
        names = ", ".join(sorted(programs)) or "none: spark_jobs is not installed"
        raise InvalidOption(f"{program!r} is not a program of spark_jobs ({names}). Give one, or a file's path.")
    return programs[program]


def _own_programs() -> dict[str, Path]:
    """Return the files of `spark_jobs` that can be run, by name."""
    spec = importlib.util.find_spec("spark_jobs")
    folders = spec.submodule_search_locations if spec else None
    files = [file for folder in folders or () for file in Path(folder).glob("*.py")]
    return {file.stem: file for file in files if '__name__ == "__main__"' in file.read_text()}


def _reported_errors(context: Context) -> list[str]:
    """Return the first lines of errors that this step's programs reported, which Dagster stores as events."""
    step = context.get_step_execution_context().step.key
    events = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    errors = [e.dagster_event.engine_event_data.error for e in events if e.step_key == step and e.dagster_event]
    return [error.message.strip().partition("\n")[0] for error in errors if error]
