"""Check that Dagster's packages are of one release. A release has two version numbers."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

from icedb_dagster.dev.doctor.finding import DoctorFinding, ok, problem

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
    """Return the versions of the installed packages."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def judge_versions(versions: Mapping[str, str]) -> DoctorFinding:
    """Judge the versions, which include that of `dagster`."""
    core = versions["dagster"]
    fitting = {core, _library_version(core)}
    other = [f"{package} {number}" for package, number in sorted(versions.items()) if number not in fitting]
    if other:
        fit = " or ".join(sorted(fitting))
        remedy = f"pip install version {fit} of: {', '.join(o.partition(' ')[0] for o in other)}"
        return problem("versions", f"dagster is {core}, and these are of other releases: {', '.join(other)}", remedy)
    return ok("versions", f"Dagster {core}, and {len(versions) - 1} packages of the same release")


def _library_version(core: str) -> str:
    """Return the library version of a Dagster release: 1.13.27 and 0.29.27 are one release."""
    major, minor, micro = core.split(".", 2)
    return f"0.{16 + int(minor)}.{micro}" if major == "1" else core
