"""Every engine, under one suite. An engine is done when it passes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from qo.stores.sqlite.engine import SqliteEngine
from qo.stores.store import Engine
from tests.clock import ManualClock


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(params=["sqlite-file", "sqlite-memory"])
async def store(request, tmp_path, clock) -> AsyncIterator[Engine]:
    path = ":memory:" if request.param == "sqlite-memory" else str(tmp_path / "qo.db")
    engine = await SqliteEngine.open(path, synchronous="off", clock=clock.now, draw=lambda: 0.5)
    yield engine
    await engine.close()
