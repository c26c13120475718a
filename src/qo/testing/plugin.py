"""For pytest: the fixture `qo_harness`. It comes with the package; nothing needs to be switched on."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from qo.testing.worker_harness import Harness, harness


class SyncHarness:
    """A harness for tests that are not async: its methods wait."""

    def __init__(self, runner: asyncio.Runner, own: Harness) -> None:
        self._runner, self._own = runner, own
        self.clock = own.clock

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._own, name)
        if not inspect.iscoroutinefunction(method):
            return method
        return lambda *given, **named: self._runner.run(method(*given, **named))

    def push(self, queue: str, payload: Any, **options: Any) -> Any:
        return self._runner.run(self._own.client.queue(queue).push(payload, **options))

    def result(self, job: Any) -> Any:
        return self._runner.run(job.result(timeout=0))


@pytest.fixture
def qo_harness() -> Iterator[SyncHarness]:
    """A queue in memory, with a clock that the test moves."""
    with asyncio.Runner() as runner:
        opened = harness()
        own = runner.run(opened.__aenter__())
        try:
            yield SyncHarness(runner, own)
        finally:
            runner.run(opened.__aexit__(None, None, None))
