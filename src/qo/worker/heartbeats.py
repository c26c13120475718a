"""Heartbeats: what a worker says about itself, while it holds something; one that is idle is silent."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from datetime import UTC, datetime

from qo.core.errors import QoError, Unavailable
from qo.core.verbs import Broker
from qo.core.worker import Heartbeat
from qo.worker.pressure import Pressure, memory_usage

log = logging.getLogger("qo.worker")

HEARTBEAT_SECONDS = 20.0
"""A worker that holds something says how it is at least this often."""


class Heartbeats:
    """Registers a worker, tells how it is, and deregisters it."""

    def __init__(
        self,
        broker: Broker,
        *,
        owner: str,
        queues: tuple[str, ...],
        group: str,
        kinds: frozenset[str],
        slots: int,
        taken: Callable[[], int],
        pressure: Pressure,
    ) -> None:
        self._broker = broker
        self._owner, self._queues, self._group, self._kinds = owner, queues, group, kinds
        self._slots, self._taken, self._pressure = slots, taken, pressure
        self._began = datetime.now(UTC)

    async def run(
        self, every_seconds: float, holds_something: Callable[[], bool], registered: Callable[[], None]
    ) -> None:
        """Register; then send heartbeats while the worker holds messages, and one more when it holds none.

        Where the store does not know by itself that the worker lives, it is told again and again.
        """
        vouched_for, busy = await self._register(), False
        registered()
        while True:
            await asyncio.sleep(min(every_seconds, HEARTBEAT_SECONDS))
            if holds_something() or busy or not vouched_for:
                busy = holds_something()
                vouched_for = await self._send()

    async def deregister(self) -> None:
        with contextlib.suppress(QoError):
            await self._broker.workers.deregister([self._owner])

    async def _register(self) -> bool:
        """The first contact. A worker that is refused (its token, its queues) ends: asking again would not help."""
        try:
            return await self._broker.workers.heartbeat([self._now()])
        except Unavailable as error:
            log.warning("could not register: %s", error)
            return False

    async def _send(self) -> bool:
        """Send a heartbeat. Answers whether a process vouches for this worker from now on while it is idle."""
        try:
            return await self._broker.workers.heartbeat([self._now()])
        except QoError as error:
            log.warning("could not register: %s", error)
            return False

    def _now(self) -> Heartbeat:
        return Heartbeat(
            id=self._owner,
            queues=self._queues,
            group=self._group,
            kinds=tuple(sorted(self._kinds)),
            host=socket.gethostname(),
            pid=os.getpid(),
            started_at=self._began,
            max_capacity=self._slots,
            available_capacity=max(0, self._slots - self._taken()),
            memory_usage=round(min(max(memory_usage(), 0.0), 1.0), 4),
            pressure=self._pressure.reasons,
        )
