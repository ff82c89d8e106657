"""The sensor of failed runs: what it reports, to a function and to a webhook, and its errors."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any, ClassVar

import pytest

dg = pytest.importorskip("dagster")

from icedb.errors import InvalidOption, RetryableError
from icedb_dagster import FailedRun, IceDBResource, build_run_failure_sensor
from tests.support.dagster.dagster_jobs import dated, definitions

pytestmark = pytest.mark.dagster
pytest_plugins = ["tests.support.dagster.dagster_instance"]


@dg.job
def unrelated() -> None:
    @dg.op
    def connect() -> None:
        raise ConnectionError("postgresql://user:a-password@host does not answer")

    connect()


def report(instance: dg.DagsterInstance, job: Any, sensor: dg.SensorDefinition, **config: Any) -> None:
    """Run a job that fails, and let the sensor report the run as the daemon does."""
    done = job.execute_in_process(instance=instance, raise_on_error=False, run_config=config or None)
    assert not done.success
    context = dg.build_run_status_sensor_context(
        sensor.name, done.get_run_failure_event(), instance, instance.get_run_by_id(done.run_id)
    )
    sensor(context.for_run_failure())


def test_a_failed_maintenance_run_is_reported_with_its_table(lake: IceDBResource) -> None:
    dated(lake, ["sales", "orders"], "2024-01-01")
    job = definitions(lake, ["sales", "orders"]).resolve_job_def("sales__orders_delete")
    reported: list[FailedRun] = []
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {"sales__orders_delete_work": {"config": {"where": "nonsense = 1"}}}}
        report(instance, job, build_run_failure_sensor(reported.append), **config)
    [failed] = reported
    assert (failed.job, failed.table, failed.verb) == ("sales__orders_delete", "sales/orders", "delete")
    assert "nonsense" in failed.error
    assert "\n" not in failed.error
    assert failed.failed_at.startswith("20")


class Webhook(BaseHTTPRequestHandler):
    """A server that stores what it receives."""

    received: ClassVar[list[Any]] = []
    status = 204

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Webhook]]:
    class Fresh(Webhook):
        received: ClassVar[list[Any]] = []

    with HTTPServer(("127.0.0.1", 0), Fresh) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("ALERTS_URL", f"http://127.0.0.1:{server.server_port}/a-secret-path")
        yield Fresh
        server.shutdown()
        thread.join()


def test_any_failed_run_is_sent_to_the_webhook_without_passwords(webhook: type[Webhook]) -> None:
    reported: list[FailedRun] = []
    with dg.DagsterInstance.ephemeral() as instance:
        report(instance, unrelated, build_run_failure_sensor(reported.append, webhook_env="ALERTS_URL"))
    [document] = webhook.received
    assert document == asdict(reported[0])
    assert (document["job"], document["table"], document["verb"]) == ("unrelated", None, None)
    assert document["error"].endswith("postgresql://user:***@host does not answer")


def test_errors_of_the_webhook_do_not_contain_its_address(
    webhook: type[Webhook], monkeypatch: pytest.MonkeyPatch
) -> None:
    webhook.status = 500
    sensor = build_run_failure_sensor(webhook_env="ALERTS_URL")
    with dg.DagsterInstance.ephemeral() as instance:
        with pytest.raises(Exception, match="ALERTS_URL") as refused:
            report(instance, unrelated, sensor)
        monkeypatch.setenv("ALERTS_URL", "no-address-but-a-secret")
        with pytest.raises(Exception, match="ALERTS_URL") as invalid:
            report(instance, unrelated, sensor)
    assert isinstance(refused.value.__cause__ or refused.value, RetryableError)
    assert "status 500" in str(refused.value.__cause__ or refused.value)
    assert isinstance(invalid.value.__cause__ or invalid.value, InvalidOption)
    assert "secret" not in f"{refused.value}{invalid.value}"


def test_an_invalid_interval_is_rejected() -> None:
    with pytest.raises(InvalidOption, match="interval_s"):
        build_run_failure_sensor(interval_s=0)
