"""The folder of the tables, and a client. Each module has its own fixture `service`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.ingest.ingest_process import IngestClient, IngestProcess


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tables, which does not exist yet, so that nothing else is beside them."""
    return tmp_path_factory.mktemp("lake") / "below"


@pytest.fixture
def client(service: IngestProcess) -> Iterator[IngestClient]:
    """A client of the service."""
    with IngestClient(service.endpoint) as client:
        yield client
