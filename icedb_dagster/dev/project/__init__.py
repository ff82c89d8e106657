"""A new project that uses this library: `create_project`.

The files are those in the folder `templates`, with the project's names filled in. No file is overwritten. If one file
cannot be written, none is kept.
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

#: The files and their templates; `{package}` is the name of the project's package.
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

# Only for tables in a bucket: a folder needs no secret.
_OPTIONS = """
    storage_options={
        "AWS_ACCESS_KEY_ID": dg.EnvVar("AWS_ACCESS_KEY_ID"),
        "AWS_SECRET_ACCESS_KEY": dg.EnvVar("AWS_SECRET_ACCESS_KEY"),
    },"""
_SECRETS = """
# The access key, which needs the rights to list, read, put and delete objects. If the machine has a role, remove both
# lines, here and in definitions.py.
AWS_ACCESS_KEY_ID=
AWS_SECRET_ACCESS_KEY=
# AWS_REGION=us-east-1
# AWS_ENDPOINT_URL=http://127.0.0.1:9000
"""


def create_project(folder: str | Path, *, root: str = "lake") -> list[Path]:
    """Write a new project into a folder, and return its files. `root` is the root of its tables.

    Raises InvalidOption if a file exists already, or if the folder's name cannot be a package name, and InvalidURI for
    a root that cannot hold tables.
    """
    target = Path(folder).expanduser().resolve()
    package = _package(target)
    content = {target / name.format(package=package): text for name, text in _rendered(target, package, root).items()}
    taken = [path for path in content if path.exists() or path.is_symlink()]
    if taken:
        names = ", ".join(str(path.relative_to(target)) for path in taken)
        raise InvalidOption(f"{target} has {names} already. Files are never overwritten. Choose another folder.")
    _write(content)
    return list(content)


def _package(target: Path) -> str:
    """Return the name of the project's package: the folder's name, adapted to Python."""
    name = re.sub(r"[^a-z0-9_]+", "_", target.name.lower()).strip("_")
    if not name.isidentifier() or keyword.iskeyword(name):
        raise InvalidOption(f"{target}: '{name}' cannot be the name of a package. Rename the folder.")
    if name == "tests" or name in sys.stdlib_module_names or name in importlib.metadata.packages_distributions():
        raise InvalidOption(f"{target}: the package would be named '{name}', which exists already. Rename the folder.")
    return name


def _rendered(target: Path, package: str, root: str) -> dict[str, str]:
    location = parse_location(root)
    if location.scheme == "memory":
        raise InvalidOption(f"'{root}' is in memory and ends with its process. Give a folder or s3://bucket/prefix.")
    if location.cloud is not None:
        raise InvalidOption(
            f"'{root}' cannot be the root of a new project. Give a folder or s3://bucket/prefix, and change root and "
            "storage_options of its resource afterwards."
        )
    on_s3 = location.scheme == "s3"
    path = Path(root).expanduser()
    # A relative folder is inside the project, independent of a run's working directory.
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
