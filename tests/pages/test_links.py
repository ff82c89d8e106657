"""The pages: links have targets, the navigation lists every page, and the reference has every public name."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

import msgspec
import pytest
import yaml

from docs_site import beyond
from docs_site.command_page import PAGE as COMMAND_PAGE
from docs_site.command_page import command_page
from icedb import Snapshot, Table
from icedb.services.ingest.config import config_file as ingest_config
from icedb.services.proxy.config import config_file as proxy_config
from icedb.services.proxy.config import tenant_documents
from icedb.storage.location import _OPTIONS as STORAGE_OPTIONS
from tests.repository.test_public_names import PUBLIC

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
REFERENCE = DOCS / "reference"


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in titles}


def structs_of(module: ModuleType) -> list[Any]:
    """Return the documents that a module of a service's configuration defines."""
    return [value for value in vars(module).values() if isinstance(value, type) and issubclass(value, msgspec.Struct)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_links_of_a_page_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        linked = page.parent / file if file else page
        assert linked.is_file(), target
        assert not anchor or anchor in headings(linked), target


def test_every_page_has_one_place_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    named = list(beyond.pages_named(yaml.safe_load(text[text.index("\nnav:") :])["nav"]))
    assert len(named) == len(set(named))
    own = {page for page in named if not page.startswith("project/")}
    assert own == {page.relative_to(DOCS).as_posix() for page in PAGES}, "list each page in mkdocs.yml"
    for page in set(named) - own:
        assert (ROOT / beyond.in_repository(PurePosixPath(page))).is_file(), page


def test_the_readme_links_the_main_pages() -> None:
    linked = set(re.findall(r"\]\((docs/[\w/-]+\.md)\)", (ROOT / "README.md").read_text()))
    main = (
        "index", "quickstart", "tutorial", "tutorial-dagster", "cheat-sheet", "reference/index", "format", "safety",
        "comparison", "faq", "troubleshooting", "production-checklist", "cost-and-sizing", "glossary",
    )  # fmt: skip
    assert linked >= {f"docs/{page}.md" for page in main}


def names_in_reference() -> set[str]:
    """Return the names that pages of the reference show, one by one or as whole modules."""
    documented = {
        name for page in REFERENCE.glob("*.md") for name in re.findall(r"^::: ([\w.]+)$", page.read_text(), re.M)
    }
    modules = [importlib.import_module(n) for n in documented if n.rpartition(".")[2].islower() and _is_module(n)]
    return documented | {f"{module.__name__}.{name}" for module in modules for name in module.__all__}


def _is_module(name: str) -> bool:
    return importlib.util.find_spec(name) is not None


@pytest.mark.parametrize("package", [p for p in PUBLIC if p != "icedb.testing.simulation"])
def test_every_public_name_is_in_the_reference(package: str) -> None:
    """But for the simulation, which `make simulate` runs."""
    twice = {"icedb.IceDBError"}  # with the other errors
    assert {f"{package}.{name}" for name in PUBLIC[package]} - names_in_reference() - twice == set()


def test_the_page_of_the_command_equals_its_help() -> None:
    assert COMMAND_PAGE.read_text() == command_page(), "update it: python -m docs_site.command_page"


def test_the_page_of_the_configuration_has_every_storage_option_and_variable() -> None:
    text = (REFERENCE / "configuration.md").read_text().lower()
    options = text.partition("## storage options")[2].partition("\n## ")[0]
    assert set(STORAGE_OPTIONS) - set(re.findall(r"`(\w+)`", options)) == set()
    variables = text.partition("## environment variables")[2].partition("\n## ")[0]
    for folder in ("icedb", "icedb_dagster", "spark_jobs"):
        for module in (ROOT / folder).rglob("*.py"):
            for name in re.findall(r"\b(?:ICEDB|DAGSTER)_[A-Z_]+\b", module.read_text()):
                assert f"`{name.lower()}`" in variables, (name, module)


def test_links_are_rewritten_for_the_site() -> None:
    text = (
        "[a](../CHANGELOG.md#new) [b](format.md) [c](https://host/x.md) [d](#here) ![e](../benchmarks/plots/open.png)\n"
        "```python spec\n[f](../CHANGELOG.md)\n```\n[g](../examples/readers/live_parts.mjs)\n"
    )
    converted = beyond.for_the_site(text, PurePosixPath("docs/safety.md"))
    assert converted == (
        "[a](project/CHANGELOG.md#new) [b](format.md) [c](https://host/x.md) [d](#here) "
        "![e](project/benchmarks/plots/open.png)\n"
        "```python\n[f](../CHANGELOG.md)\n```\n[g](project/examples/readers/live_parts.mjs.md)\n"
    )
    back = beyond.for_the_site("[a](../docs/tuning.md) [b](README.md)", PurePosixPath("benchmarks/RESULTS.md"))
    assert back == "[a](../../tuning.md) [b](README.md)"


@pytest.mark.parametrize("file", ["docs/format.md", "CHANGELOG.md", "examples/readers/live_parts.mjs", "README.md"])
def test_a_file_of_the_repository_has_one_place_on_the_site(file: str) -> None:
    location = beyond.on_site(PurePosixPath(file))
    assert beyond.in_repository(location) == PurePosixPath(file)


def test_linked_files_outside_docs_are_part_of_the_site() -> None:
    files = set(beyond.files_beyond([PurePosixPath("docs/cost-and-sizing.md"), PurePosixPath("docs/format.md")]))
    assert PurePosixPath("benchmarks/RESULTS.md") in files
    assert PurePosixPath("examples/readers/live_parts.mjs") in files
    assert any(file.suffix == ".png" for file in files), "the plots are missing"
    assert not any(file.is_relative_to("docs") for file in files)


SERVICE_DOCUMENTS = {
    "proxy.md": [*structs_of(proxy_config), *structs_of(tenant_documents)],
    "iceberg-catalog.md": [*structs_of(proxy_config), *structs_of(tenant_documents)],
    "ingest.md": structs_of(ingest_config),
}


@pytest.mark.parametrize("page", SERVICE_DOCUMENTS)
def test_the_settings_on_the_page_of_a_service_exist(page: str) -> None:
    text = (DOCS / page).read_text()
    tables = re.findall(r"^\| (?:name|setting|`\[\w+\]`) \|.*\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    names = {name for cell in cells for name in re.findall(r"`(\w+)`", cell)}
    assert len(names) > 5
    assert names - {field for struct in SERVICE_DOCUMENTS[page] for field in struct.__struct_encode_fields__} == set()


def test_calls_and_verbs_of_the_cheat_sheet_exist() -> None:
    text = (DOCS / "cheat-sheet.md").read_text().partition("## Tasks")[2].partition("\n## ")[0]
    calls = [ast.parse(span, mode="eval").body for span in re.findall(r"`([\w.]+\([^`]*\))`", text)]
    names = set()
    for call in (c for expression in calls for c in ast.walk(expression) if isinstance(c, ast.Call)):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        method = getattr(Table, name, None) or getattr(Snapshot, name)
        assert {k.arg for k in call.keywords} <= inspect.signature(method).parameters.keys(), ast.unparse(call)
        names.add(name)
    assert len(names) > 20
    verbs = set(re.findall(r"`icedb ([\w-]+)", text))
    assert verbs <= set(re.findall(r"^### icedb ([\w-]+)$", COMMAND_PAGE.read_text(), re.MULTILINE))


def test_the_page_on_testing_describes_each_helper() -> None:
    table = (DOCS / "contributing" / "testing.md").read_text().partition("## The helpers")[2]
    described = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert described == sorted(path.stem for path in (ROOT / "tests" / "support").rglob("*.py"))


def test_each_promise_of_the_page_on_safety_names_tests_that_exist() -> None:
    promises = (DOCS / "safety.md").read_text().partition("## The promises")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| [A-Z].*\|$", promises, re.MULTILINE)
    assert len(rows) >= 6
    for row in rows:
        named = re.findall(r"`([\w/]+/test_\w+\.py)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (file, test)


def test_the_architecture_page_and_its_drawing_have_every_package() -> None:
    page, drawing = ((DOCS / name).read_text() for name in ("architecture.md", "images/architecture.svg"))
    for init in (ROOT / "icedb").glob("*/__init__.py"):
        assert f"`icedb/{init.parent.name}/" in page, init.parent.name
        assert f"{init.parent.name}/" in drawing, init.parent.name


def test_files_that_the_architecture_page_names_exist() -> None:
    text = (DOCS / "architecture.md").read_text()
    for folder in set(re.findall(r"`(icedb\w*/[\w/]*)`", text)):
        assert (ROOT / folder).is_dir(), folder
    paths = [path.relative_to(ROOT).as_posix() for path in ROOT.glob("[idt]*/**/*.py")]
    for name in re.findall(r"`([\w/]+\.py)`", text):
        assert any(f"/{path}".endswith(f"/{name}") for path in paths), name


def test_the_glossary_has_each_word_once() -> None:
    words = re.findall(r"^\*\*([^*]+)\.\*\*", (ROOT / "docs" / "glossary.md").read_text(), flags=re.MULTILINE)
    assert len(words) > 50
    assert sorted(words) == sorted(set(words))
