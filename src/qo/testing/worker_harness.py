"""A harness: a client in memory whose time stands still, and workers that run when told to."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from qo.client.client import Client
from qo.client.holding import Holder
from qo.client.payload import encoded
from qo.connect import connect
from qo.core.errors import Invalid
from qo.core.lease import Claimed, Complete, Delivered, LeaseToken, Nothing, Report, Settlement, Want
from qo.core.message import MessageId
from qo.core.names import DEFAULT_KIND, suggestion
from qo.core.queue import DEFAULT_LEASE
from qo.testing.clock import ManualClock
from qo.worker.running import Runner
from qo.worker.tasks import Context, Task
from qo.worker.worker import Worker

BATCH = 100


@dataclass(slots=True)
class Drained:
    """What a worker did when it was drained."""

    reports: list[tuple[Delivered, Report]] = field(default_factory=list)

    @property
    def succeeded(self) -> int:
        return sum(isinstance(report, Complete) for _, report in self.reports)

    @property
    def failed(self) -> int:
        return len(self.reports) - self.succeeded


class Harness:
    """A client, its clock, and what runs on them."""

    def __init__(self, client: Client, clock: ManualClock) -> None:
        self.client = client
        self.clock = clock

    async def drain(self, worker: Worker, *, to_the_end: bool = False) -> Drained:
        """Run all that is there for a worker, one after another, and what that brings.

        `to_the_end` moves the clock to whatever comes later, retries and delays too, until there is nothing to come.
        """
        broker, drained = self.client.broker, Drained()
        holder = Holder(broker, DEFAULT_LEASE)
        with ThreadPoolExecutor(4) as threads:
            runner = worker.runner(threads)
            while True:
                answer = await broker.claim(_want(worker))
                if isinstance(answer, Claimed):
                    holder.take(answer)
                    drained.reports += [await _handled(holder, worker, runner, each) for each in answer.deliveries]
                elif not to_the_end or not self._moved_to(answer):
                    return drained

    def _moved_to(self, empty: Nothing) -> bool:
        if empty.ask_again is None:
            return False
        self.clock.move_to(max(empty.ask_again, self.clock.now()))
        return True

    async def run_inline(self, worker: Worker, kind: str, payload: Any, *, attempt: int = 1) -> Any:
        """Call a task as a worker would, with no queue in between: its result, or what it raises."""
        task = _task(worker, kind)
        delivered = _delivered(kind, encoded("payload", payload), attempt, self.clock.now())
        answer = task.bound(task.payload(delivered), Context(delivered, None))()
        return await answer if task.is_async else answer


def _want(worker: Worker) -> Want:
    return Want(
        token=LeaseToken(secrets.token_hex(16)),
        queues=worker.queues,
        group=worker.group,
        kinds=frozenset(worker.tasks),
        messages=BATCH,
        lane_messages=1,
        owner=worker.owner,
    )


async def _handled(holder: Holder, worker: Worker, runner: Runner, delivered: Delivered) -> tuple[Delivered, Report]:
    report = await runner.run(worker.tasks[delivered.kind], Context(delivered, None))
    item = Settlement(token=delivered.token, lane=delivered.lane, offset=delivered.offset, report=report)
    await holder.settle([item])
    return delivered, report


def _task(worker: Worker, kind: str) -> Task:
    try:
        return worker.tasks[kind]
    except KeyError:
        raise Invalid("kind", f"'{kind}' is not a task of this worker" + suggestion(kind, worker.tasks)) from None


def _delivered(kind: str, payload: bytes, attempt: int, now: datetime) -> Delivered:
    return Delivered(
        token=LeaseToken("inline"),
        lane=0,  # type: ignore[arg-type]
        offset=0,
        id=MessageId(bytes(16)),
        queue="inline",
        key=None,
        kind=kind or DEFAULT_KIND,
        payload=payload,
        headers={},
        priority=0,
        attempt=attempt,
        created_at=now,
        due_at=now,
        entered_at=now,
        expires_at=datetime.max.replace(tzinfo=UTC),
        retry_of=None,
    )


@contextlib.asynccontextmanager
async def harness() -> AsyncIterator[Harness]:
    """A harness on a store in memory, gone when it is left."""
    clock = ManualClock()
    async with connect("sqlite://:memory:", clock=clock) as client:
        yield Harness(client, clock)
