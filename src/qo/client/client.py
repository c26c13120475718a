"""The object that `qo.connect` gives."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from qo.client.job import JobHandle
from qo.client.middleware import AroundPushes, PushMiddleware
from qo.client.queue import Queue
from qo.client.schedules import Schedules
from qo.client.tokens import Tokens
from qo.core.errors import RolledBack
from qo.core.lane import Filter, Start, read_start
from qo.core.lease import Settlement, Undone, Unit
from qo.core.message import Duplicate, NewMessage, Pushed, Refused, checked_id
from qo.core.outcome import Health, QueueInfo, QueueOverview
from qo.core.verbs import Broker
from qo.core.worker import WaitingKind, WorkerInfo


class Client:
    """A connection to a store. Close it, or use it as a context manager."""

    def __init__(self, broker: Broker, middleware: Sequence[PushMiddleware] = ()) -> None:
        self.broker = broker
        self._around_pushes = AroundPushes(middleware)

    def queue(self, name: str) -> Queue:
        """A queue by name. It need not exist; the first push creates it."""
        return Queue(self.broker, name, around_pushes=self._around_pushes)

    def job(self, id: str) -> JobHandle:
        """A handle on a message by its id, whichever queue it is in."""
        return JobHandle(self.broker, checked_id("id", id))

    async def queues(self, *, after: str = "", limit: int = 100) -> Sequence[QueueInfo]:
        """The queues there are, by name."""
        return await self.broker.inspect.queues(after, limit)

    async def overview(self, *, after: str = "", limit: int = 100) -> Sequence[QueueOverview]:
        """How queues stand, by name: what waits, runs and failed, the oldest, and what the last minute brought."""
        return await self.broker.inspect.overview(after, limit)

    async def create_group(
        self, group: str, *, namespace: str | None = None, task: str | None = None, start: str | Start = "all"
    ) -> bool:
        """Register a group in all queues of a namespace or task, those that appear later too."""
        return await self.broker.admin.create_group(Filter(namespace, task), group, read_start(start))

    async def transact(
        self,
        settlements: Sequence[Settlement] = (),
        pushes: Sequence[NewMessage] = (),
        *,
        refuse_duplicates: bool = False,
        nonce: str | None = None,
    ) -> list[JobHandle]:
        """Do all of it or nothing: settle deliveries and push messages in one commit. Raises `RolledBack`.

        `Delivery.settlement` and `Queue.prepare` make what it takes; it answers
        a handle on each message pushed.
        """

        async def store(messages: Sequence[NewMessage]) -> Sequence[Pushed]:
            unit = Unit(
                settlements=tuple(settlements), pushes=tuple(messages), refuse_duplicates=refuse_duplicates, nonce=nonce
            )
            answer = await self.broker.transact(unit)
            if isinstance(answer, Undone):
                raise RolledBack(
                    f"nothing was done: {answer.reason} (item {answer.item})",
                    item=answer.item,
                    obstacle=answer.obstacle,
                )
            return answer.pushed

        answers = await self._around_pushes(pushes, store) if pushes else await store(())
        pushed = [each for each in answers if not isinstance(each, Refused)]
        return [JobHandle(self.broker, each.id, isinstance(each, Duplicate)) for each in pushed]

    @property
    def tokens(self) -> Tokens:
        """Who may come in, where a server asks for tokens."""
        return Tokens(self.broker)

    @property
    def schedules(self) -> Schedules:
        """Rules that push a message when they are due."""
        return Schedules(self.broker)

    async def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are registered; those that are gone for a day."""
        return await self.broker.workers.workers()

    async def unserved(self) -> Sequence[WaitingKind]:
        """Kinds of messages that wait and that no worker takes."""
        return await self.broker.workers.unserved()

    async def health(self) -> Health:
        """What the store says about itself."""
        return await self.broker.inspect.health()

    async def close(self) -> None:
        """Answer everyone who waits, finish what is under way, let the store go."""
        await self.broker.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
