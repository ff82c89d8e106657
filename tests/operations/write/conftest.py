"""A table and its siblings for tests of inserts, in the state of the start of a test."""

from __future__ import annotations

import pytest

from tests.support.tables.siblings import Siblings


@pytest.fixture
def world(shared_world: Siblings) -> Siblings:
    """Return the siblings that a module's fixture `shared_world` creates once."""
    shared_world.reset()
    return shared_world
