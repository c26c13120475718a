"""Buffered push: many small pushes become few large ones.

What a buffer accepts gets its id at once. If a batch cannot be stored it stays in
the buffer and is sent again, under the same ids, by the next flush: the store
knows those that it has. So nothing is lost without an error, and nothing is
stored twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from qo.client.arguments import at_least_one
from qo.client.job import JobHandle
from qo.client.outgoing import Message
from qo.core.errors import Closed, Invalid, QoError, TooLarge
from qo.core.message import Dedupe, NewMessage, Pushed, Refused, Stored
from qo.core.names import DEFAULT_KIND

if TYPE_CHECKING:
    from qo.client.queue import Queue
    from qo.core.durations import Length

BUFFER_MESSAGES = 500
BUFFER_MS = 50
FULL = 10
"""A buffer that holds this many batches makes who pushes wait."""


class Buffer:
    """Use it as a context manager; leaving it stores what it holds, or raises::

    async with queue.buffered() as buffer:
        for row in rows:
            await buffer.push(row)
    """

    def __init__(self, queue: Queue, messages: int, milliseconds: float) -> None:
        if not milliseconds > 0:
            raise Invalid("milliseconds", f"must be greater than 0, not {milliseconds}")
        self._queue = queue
        self._size = at_least_one("messages", messages)
        self._seconds = milliseconds / 1000
        self._held: list[NewMessage] = []
        self._sending = asyncio.Lock()
        self._full = asyncio.Event()
        self._background: asyncio.Task[None] | None = None
        self._refused: QoError | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many messages are not stored yet."""
        return len(self._held)

    async def push(
        self,
        payload: Any,
        *,
        kind: str = DEFAULT_KIND,
        key: str | None = None,
        priority: int = 0,
        delay: Length | None = None,
        due_at: datetime | None = None,
        dedupe: str | Dedupe | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: Length | None = None,
    ) -> JobHandle:
        """Accept a message. It is stored with its batch; `flush` says when. Waits if the buffer is full."""
        if self._closed:
            raise Closed("this buffer was closed")
        message = Message(payload, kind, key or self._queue.options.key, priority, delay, due_at, dedupe, headers, ttl)
        [answer] = await self._queue.around_pushes(self._queue.prepare([message]), self._accept)
        if isinstance(answer, Refused):
            raise answer.error
        return JobHandle(self._queue.broker, answer.id)

    async def _accept(self, messages: Sequence[NewMessage]) -> Sequence[Pushed]:
        """Hold them; the answer is the one that is expected when they are stored."""
        while len(self._held) >= self._size * FULL:
            await self._store()  # if it cannot be, these messages were not accepted
        self._held.extend(messages)
        self._store_soon()
        return [Stored(each.id) for each in messages]

    async def flush(self) -> None:
        """Store what the buffer holds now. Raises if it cannot be stored, and then still holds it.

        A message that the store refuses for good (its queue takes no such payload)
        is dropped, and the refusal raised, after the others were stored.
        """
        await self._store()
        self._tell_of_refused()

    async def close(self) -> None:
        """Store what is left and take no more."""
        self._closed = True
        self._full.set()
        if self._background is not None:
            await self._background
        await self.flush()

    async def _store(self) -> None:
        """What is held now; what comes meanwhile is another's to store."""
        last = self._held[-1].id if self._held else None
        async with self._sending:
            while self._held and any(message.id == last for message in self._held):
                await self._store_batch(self._held[: self._size])

    async def _store_batch(self, batch: list[NewMessage]) -> None:
        """In halves, if it is too large for one call."""
        try:
            answers = await self._queue.broker.push(batch)
        except TooLarge as error:
            if len(batch) > 1:
                await self._store_batch(batch[: len(batch) // 2])
                await self._store_batch(batch[len(batch) // 2 :])
                return
            answers = [Refused(error)]
        del self._held[: len(batch)]
        refused = [answer.error for answer in answers if isinstance(answer, Refused)]
        self._refused = self._refused or next(iter(refused), None)

    def _tell_of_refused(self) -> None:
        refused, self._refused = self._refused, None
        if refused is not None:
            raise refused

    def _store_soon(self) -> None:
        if len(self._held) >= self._size:
            self._full.set()
        if self._background is None or self._background.done():
            self._background = asyncio.create_task(self._store_when_due())

    async def _store_when_due(self) -> None:
        """When a batch is full, or its time has come."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._full.wait(), self._seconds)
        self._full.clear()
        with contextlib.suppress(QoError):  # it is still held, and the next flush tells
            await self._store()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
