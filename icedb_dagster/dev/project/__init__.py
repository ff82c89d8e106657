"""A new project, as somebody would have it who uses this library: `create_project`.

The files are those of the folder `templates`, with the project's names put in. Nothing is ever overwritten, and a
project that cannot be written whole is not written at all.
"""

from __future__ import annotations

import importlib.metadata
import json
import keyword
import re
import sys
from pathlib import Path
from string import Template

from icedb.errors import InvalidOption
from icedb.storage.location import parse_location
from icedb_dagster.component.scaffolder import TEMPLATE as TABLE
from icedb_dagster.component.scaffolder import yaml_values

__all__ = ["create_project"]

TEMPLATES = Path(__file__).with_name("templates")

#: What is written, and of which template; `{package}` is the name of the project's package.
FILES = {
    "pyproject.toml": "pyproject.toml.txt",
    "workspace.yaml": "workspace.yaml.txt",
    "README.md": "README.md.txt",
    ".env.example": "env.txt",
    ".gitignore": "gitignore.txt",
    "{package}/__init__.py": "package.py.txt",
    "{package}/definitions.py": "definitions.py.txt",
    "{package}/defs/__init__.py": "defs.py.txt",
    "{package}/defs/events/defs.yaml": str(TABLE),
    "tests/test_{package}.py": "test.py.txt",
}

# Only where the tables are in a bucket: a folder needs no secret.
_OPTIONS = """
    storage_options={
        "AWS_ACCESS_KEY_ID": dg.EnvVar("AWS_ACCESS_KEY_ID"),
        "AWS_SECRET_ACCESS_KEY": dg.EnvVar("AWS_SECRET_ACCESS_KEY"),
    },"""
_SECRETS = """
# The key that may list, read, put and delete there. Where the machine has a role, leave the two out, here and in
# definitions.py.
AWS_ACCESS_KEY_ID=
AWS_SECRET_ACCESS_KEY=
# AWS_REGION=us-east-1
# AWS_ENDPOINT_URL=http://127.0.0.1:9000
"""


def create_project(folder: str | Path, *, root: str = "lake") -> list[Path]:
    """Write a new project into a folder, and return its files. `root`: where its tables are to be.

    Raises InvalidOption when one of the files is there already, or the folder's name cannot be that of a package, and
    InvalidURI for a root at which no table can be.
    """
    target = Path(folder).expanduser().resolve()
    package = _package(target)
    content = {target / name.format(package=package): text for name, text in _rendered(target, package, root).items()}
    taken = [path for path in content if path.exists() or path.is_symlink()]
    if taken:
        names = ", ".join(str(path.relative_to(target)) for path in taken)
        raise InvalidOption(f"{target} has {names} already, and nothing is overwritten: choose another folder.")
    _write(content)
    return list(content)


def _package(target: Path) -> str:
    """The name of the project's package: the folder's, as Python allows it."""
    name = re.sub(r"[^a-z0-9_]+", "_", target.name.lower()).strip("_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidOption(f"{target}: '{name}' cannot be the name of a package. Name the folder otherwise.")
    if name == "tests" or name in sys.stdlib_module_names or name in importlib.metadata.packages_distributions():
        raise InvalidOption(
            f"{target}: the package would be called '{name}', and there is one of that name. Name the folder otherwise."
        )
    return name


def _rendered(target: Path, package: str, root: str) -> dict[str, str]:
    location = parse_location(root)
    if location.scheme == "memory":
        raise InvalidOption(f"'{root}' is gone with the process that wrote it; give a folder or s3://bucket/prefix.")
    on_s3 = location.scheme == "s3"
    path = Path(root).expanduser()
    # A relative folder is inside the project, wherever a run is started.
    inside = not on_s3 and not path.is_absolute()
    literal = json.dumps(location.uri if on_s3 else str(path))
    values = {
        "project": target.name,
        "package": package,
        "title": package.replace("_", " ").capitalize(),
        "version": importlib.metadata.version("dagster"),
        "root": f"str(Path(__file__).parents[1] / {literal})" if inside else literal,
        **yaml_values("events", ttl_column="day"),
        "options": _OPTIONS if on_s3 else "",
        "secrets": _SECRETS if on_s3 else "",
    }
    return {name: Template((TEMPLATES / file).read_text()).substitute(values) for name, file in FILES.items()}


def _write(content: dict[Path, str]) -> None:
    made: list[Path] = []
    try:
        for path, text in content.items():
            for folder in reversed([path.parent, *path.parent.parents]):
                if not folder.exists():
                    folder.mkdir()
                    made.append(folder)
            with path.open("x", encoding="utf-8") as file:
                made.append(path)
                file.write(text)
    except BaseException:
        for path in reversed(made):
            path.rmdir() if path.is_dir() else path.unlink()
        raise
