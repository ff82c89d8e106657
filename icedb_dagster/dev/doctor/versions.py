"""Do Dagster's packages belong together? They are released together, under two numbers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from icedb_dagster.dev.doctor.finding import Finding, ok, problem

__all__ = ["judge_versions", "read_versions"]

PACKAGES = (
    "dagster",
    "dagster-aws",
    "dagster-dg-cli",
    "dagster-graphql",
    "dagster-pipes",
    "dagster-postgres",
    "dagster-pyspark",
    "dagster-shared",
    "dagster-spark",
    "dagster-webserver",
)


def read_versions() -> dict[str, str]:
    """The versions of those that are installed."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def judge_versions(versions: Mapping[str, str]) -> Finding:
    """`dagster` is in it."""
    core = versions["dagster"]
    fitting = {core, _library_version(core)}
    other = [f"{package} {found}" for package, found in sorted(versions.items()) if found not in fitting]
    if other:
        fit = " or ".join(sorted(fitting))
        remedy = f"pip install the versions {fit} of: {', '.join(o.partition(' ')[0] for o in other)}"
        return problem("versions", f"dagster is {core}, and not of its release are: {', '.join(other)}", remedy)
    return ok("versions", f"Dagster {core}, and {len(versions) - 1} packages of the same release")


def _library_version(core: str) -> str:
    """Dagster 1.13.27 and its libraries 0.29.27 are one release."""
    major, minor, micro = core.split(".", 2)
    return f"0.{16 + int(minor)}.{micro}" if major == "1" else core
