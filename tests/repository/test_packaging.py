"""The release: a source distribution that builds the same wheel, whose metadata names all dependencies."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from email.message import Message
from email.parser import Parser
from importlib.metadata import distribution, distributions
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

import icedb
from release.environments import ROOT, find_python
from release.matrix import SMOKES_FILE, extras
from release.smokes import SMOKES
from release.versions import EXTRAS, TESTS_OF, TOOLS

pytestmark = pytest.mark.process

PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
PACKAGES = ("icedb", "icedb_dagster", "pyspark_icedb", "spark_jobs")
PROGRAMS = Path(sys.executable).parent
SNIPPET = """
import icedb
from icedb.errors import IceDBError

table = icedb.Table.create("events", partition_by=["day"])
reveal_type(table.insert([{"day": "2026-11-21"}]))
reveal_type(table.query("SELECT 1").fetchall())
try:
    table.merge(partition=1)
except IceDBError as error:
    reveal_type(error)
"""


def hatch(source: Path, target: Path, kind: str) -> Path:
    """Build the project in a folder, and return the built file."""
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(target), "-t", kind]
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [built] = target.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(hatch(ROOT, folder, "sdist")) as archive:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4, without a warning
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(folder)
    [unpacked] = [path for path in folder.iterdir() if path.is_dir()]
    return unpacked


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the source distribution."""
    return hatch(sdist, tmp_path_factory.mktemp("wheel"), "wheel")


def requirements(of: str) -> Iterator[Requirement]:
    for text in distribution(of).requires or ():
        wanted = Requirement(text)
        if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
            yield wanted


@pytest.fixture(scope="module")
def alone(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the wheel and its dependencies alone.

    The packages are links to those of this environment, so nothing is fetched.
    """
    root = tmp_path_factory.mktemp("alone")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", root / "venv"], check=True)
    python = root / "venv" / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = Path(subprocess.run([python, "-c", code], capture_output=True, check=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    pending, linked = [Requirement(text) for text in PROJECT["dependencies"]], set[str]()
    while pending:
        name = canonicalize_name(pending.pop().name)
        if name in linked:
            continue
        linked.add(name)
        installed = distribution(name)
        for top in {file.parts[0] for file in installed.files or () if file.parts[0] not in ("..", "__pycache__")}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(installed.locate_file(top))))
        pending += requirements(name)
    return python


def metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return Parser().parsestr(archive.read(name).decode())


@pytest.mark.sampled(days=3)
def test_the_source_distribution_makes_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(hatch(ROOT, tmp_path, "wheel")) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        for name in set(one.namelist()) - {n for n in one.namelist() if n.endswith("/RECORD")}:
            assert one.read(name) == other.read(name), name


@pytest.mark.sampled(days=3)
def test_the_wheel_has_the_packages_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name.split("/")[0] for name in names} == {*PACKAGES, f"icedb_dagster-{icedb.__version__}.dist-info"}
    for package in PACKAGES:
        assert f"{package}/py.typed" in names
    kinds = {Path(name).suffix for name in names if ".dist-info/" not in name and not name.endswith("py.typed")}
    assert kinds == {".css", ".jinja", ".js", ".py", ".txt", ".yaml"}
    here = {p.relative_to(ROOT).as_posix() for package in PACKAGES for p in (ROOT / package).rglob("*.py")}
    assert here == {name for name in names if name.endswith(".py")}


def test_the_source_distribution_has_only_the_required_files(sdist: Path) -> None:
    named = set(PYPROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["only-include"])
    has = {path.name for path in sdist.iterdir()}
    assert has == named | {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", ".gitignore"}
    assert not [p for p in sdist.rglob("*") if p.name in ("__pycache__", ".icedb-dagster", ".venv", ".DS_Store")]


@pytest.mark.parametrize("folder", ["benchmarks", "docs_site", "examples", "release", "tests"])
def test_no_module_is_ignored_by_git_and_missing_from_the_source_distribution(sdist: Path, folder: str) -> None:
    modules = {p.relative_to(ROOT) for p in (ROOT / folder).rglob("*.py") if not {".venv", "data"} & {*p.parts}}
    assert {p.relative_to(sdist) for p in (sdist / folder).rglob("*.py")} == modules


def test_the_version_is_in_one_place(wheel: Path) -> None:
    assert metadata(wheel)["Version"] == icedb.__version__
    assert "version" not in PROJECT
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    assert newest
    assert newest[1] == icedb.__version__


def test_the_metadata_is_that_of_the_project(wheel: Path) -> None:
    fields = metadata(wheel)
    assert fields["Requires-Python"] == "<3.14,>=3.11"
    assert fields["License-Expression"] == "Apache-2.0"
    assert set(fields.get_all("Provides-Extra", [])) == set(PROJECT["optional-dependencies"])
    assert fields.get_payload() == (ROOT / "README.md").read_text()
    for python in ("3.11", "3.12", "3.13"):
        assert f"Programming Language :: Python :: {python}" in fields.get_all("Classifier", [])


@pytest.mark.sampled(days=3)
def test_the_wheel_works_with_its_dependencies_alone(alone: Path, tmp_path: Path) -> None:
    command = [alone, "-I", SMOKES_FILE, "base"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    command = [alone, "-I", "-c", "import icedb; print(icedb.__file__)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(done.stdout).is_relative_to(alone.parents[1])


@pytest.mark.sampled(days=3)
def test_programs_that_use_the_wheel_are_typed(alone: Path, tmp_path: Path) -> None:
    (tmp_path / "consumer.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", alone, "consumer.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    notes = [line.partition(": ")[2] for line in done.stdout.splitlines() if line.startswith("consumer.py")]
    assert notes[0] == 'note: Revealed type is "icedb.transaction.append.Commit"', done.stdout + done.stderr
    assert notes[1] == 'note: Revealed type is "list[tuple[Any, ...]]"'
    assert 'Unexpected keyword argument "partition"' in notes[2]
    assert "icedb.errors.IceDBError" in notes[-1]


def _packages_of(extra: str) -> set[str]:
    """Return the packages that an extra names, and those of the extras that it includes."""
    packages = set()
    for wanted in map(Requirement, PROJECT["optional-dependencies"][extra]):
        packages |= set().union(*map(_packages_of, wanted.extras)) if wanted.name == PROJECT["name"] else {wanted.name}
    return packages


def test_an_extra_installs_neither_spark_nor_dagster_unless_it_is_for_them() -> None:
    development = {"demo", "bench", "dev", "ui", "dbt-tests"}
    with_package = {
        name: {e for e in PROJECT["optional-dependencies"] if name in _packages_of(e)} - development
        for name in ("pyspark", "dagster")
    }
    assert with_package == {"pyspark": {"spark", "dagster-spark"}, "dagster": {"dagster", "aws", "dagster-spark"}}


def test_every_extra_has_a_smoke_of_its_own() -> None:
    assert SMOKES.keys() == set(extras())


def test_the_extras_tools_and_tests_of_the_version_runs_exist() -> None:
    assert set(EXTRAS) <= set(PROJECT["optional-dependencies"])
    dev = {Requirement(text).name for text in PROJECT["optional-dependencies"]["dev"]}
    assert set(TOOLS) <= dev
    for tests in TESTS_OF.values():
        assert all((ROOT / test).is_file() for test in tests)


def test_the_version_ranges_on_the_page_are_those_of_the_project() -> None:
    page = (ROOT / "docs" / "versions.md").read_text()
    wanted = {r.name: r for text in _all_requirements() for r in [Requirement(text)] if not r.name.startswith("icedb")}
    low, high = re.findall(r"\d+(?:\.\d+)+", str(wanted["dagster"].specifier))
    low, high = sorted((low, high), key=lambda v: [int(n) for n in v.split(".")])
    assert f"| Dagster | {low} and newer, below {high} |" in page
    [pinned] = wanted["duckdb"].specifier
    assert f"| DuckDB | {pinned.version}, and no other |" in page
    assert wanted["duckdb-extension-httpfs"].specifier == wanted["duckdb"].specifier
    oldest = min(re.findall(r"\d+\.\d+", str(wanted["pyspark"].specifier)))
    assert f"| Spark | {oldest}" in page


def _all_requirements() -> list[str]:
    return [*PROJECT["dependencies"], *(text for some in PROJECT["optional-dependencies"].values() for text in some)]


def _pinned() -> dict[str, str]:
    """Return the version, as `==1.2.3`, of each package of which one version is supported."""
    return {
        canonicalize_name(wanted.name): str(wanted.specifier)
        for wanted in map(Requirement, _all_requirements())
        if str(wanted.specifier).startswith("==")
    }


def test_installed_packages_are_in_the_version_ranges() -> None:
    """The suite runs on versions that the project promises."""
    for text in PROJECT["dependencies"]:
        wanted = Requirement(text)
        assert distribution(wanted.name).version in wanted.specifier


def test_pip_does_not_search_for_a_version_that_another_package_requires_exactly() -> None:
    """Pip meets such a requirement late, and then tries old versions of all packages that it has selected before."""
    wanted_by_name = defaultdict[str, dict[str, SpecifierSet]](dict)
    for package in distributions():
        for wanted in map(Requirement, package.requires or []):
            if wanted.marker is None or wanted.marker.evaluate({"extra": ""}):
                wanted_by_name[canonicalize_name(wanted.name)][package.name] = wanted.specifier
    searched = {
        name
        for name, specifiers in wanted_by_name.items()
        if len(set(specifiers.values())) > 1
        and any("==" in str(one) and "*" not in str(one) for one in specifiers.values())
    }
    assert searched <= _pinned().keys()


def test_the_examples_install_the_s3_server_of_the_suite() -> None:
    pinned = _pinned()
    server = f"pip install ministack{pinned['ministack']} boto3{pinned['boto3']}"
    assert server in (ROOT / "examples" / "README.md").read_text()
    assert server in (ROOT / "examples" / "shared" / "local_s3.py").read_text()


def test_the_hooks_run_the_commands_of_make_lint() -> None:
    subprocess.run([PROGRAMS / "pre-commit", "validate-config"], cwd=ROOT, check=True)
    [repo] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    lint = (ROOT / "Makefile").read_text().partition("\nlint:")[2].partition("\n\n")[0]
    for hook in repo["hooks"]:
        program, *arguments = hook["entry"].split()
        assert program.startswith(".venv/bin/")
        if Path(program).name != "hadolint":  # for Linux alone
            assert (PROGRAMS / Path(program).name).exists(), program
        assert " ".join([f"$(BIN)/{Path(program).name}", *arguments]) in lint
    assert len(repo["hooks"]) == len(set(re.findall(r"\$\(BIN\)/([\w-]+(?: (?:format|check))?)", lint)))


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "SECURITY.md"])
def test_files_and_targets_on_a_page_of_the_repository_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        assert (ROOT / target).is_file(), target
    for test in re.findall(r"tests/\w+\.py", text):
        assert (ROOT / test).is_file(), test
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for words in re.findall(r"\bmake ((?:[a-z-]+ ?)+)", "\n".join(re.findall(r"`(make [^`]*)`", text))):
        assert set(words.split()) <= set(targets), words


def test_only_installed_interpreters_are_found() -> None:
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    installed = find_python(own)
    assert installed is not None
    assert find_python("3.1") is None


def test_smokes_import_nothing_from_the_repository() -> None:
    for node in ast.walk(ast.parse(SMOKES_FILE.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in ("tests", "release", "examples", "benchmarks")
