"""A PostgreSQL for each module that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres import Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.remove()
