"""The same client for programs without an event loop: a thin shell over the async one.

One thread runs an event loop for the client; every call hands its coroutine over
and waits. So sync callers from many threads share commits like async ones do.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack, overload

from qo.client.arguments import check_handler
from qo.client.buffer import BUFFER_MESSAGES, BUFFER_MS
from qo.client.client import Client
from qo.client.delivery import Delivery
from qo.client.outgoing import Message
from qo.client.portal import Portal
from qo.client.queue import Queue
from qo.client.steps import Options, Steps
from qo.client.sync_handles import SyncBuffer, SyncDeadLetters, SyncDelivery, SyncJobHandle, SyncTokens
from qo.client.typed import PushOptions, SettingsChanges, documented_by
from qo.core.durations import Length
from qo.core.errors import Closed, Invalid
from qo.core.lane import Start
from qo.core.lease import Settlement, Verdict
from qo.core.message import Dedupe, NewMessage
from qo.core.names import DEFAULT_KIND
from qo.core.outcome import (
    Depth,
    GroupInfo,
    Health,
    Job,
    JobState,
    LaneInfo,
    QueueInfo,
)
from qo.core.queue import QueueSettings
from qo.core.worker import WaitingKind, WorkerInfo


@documented_by(Queue)
class SyncQueue(Steps):
    """One queue, seen by one group; see `Queue`."""

    def __init__(self, portal: Portal, queue: Queue) -> None:
        self._portal = portal
        self._queue = queue
        self.name = queue.name
        self.group_name = queue.group_name
        self.options = queue.options

    def _with(self, options: Options) -> Self:
        return type(self)(self._portal, replace(self._queue, options=options))

    def group(self, name: str, *, start: str | datetime | Start = "all") -> SyncQueue:
        return SyncQueue(self._portal, self._queue.group(name, start=start))

    def push(
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
    ) -> SyncJobHandle:
        message = Message(payload, kind, key or self.options.key, priority, delay, due_at, dedupe, headers, ttl)
        return self.push_many([message])[0]

    def push_many(self, messages: Iterable[Message], *, nonce: str | None = None) -> list[SyncJobHandle]:
        handles = self._portal.call(self._queue.push_many(messages, nonce=nonce))
        return [SyncJobHandle(self._portal, handle) for handle in handles]

    def prepare(self, messages: Iterable[Message]) -> list[NewMessage]:
        return self._queue.prepare(messages)

    def buffered(self, *, messages: int = BUFFER_MESSAGES, milliseconds: float = BUFFER_MS) -> SyncBuffer:
        return SyncBuffer(self._portal, self._queue, messages, milliseconds)

    def submit(self, kind: str, payload: Any = None, **options: Unpack[PushOptions]) -> SyncJobHandle:
        return self.push(payload, kind=kind, **options)

    def claim(
        self,
        messages: int | None = None,
        *,
        wait: Length | None = None,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        key: str | None = None,
        lanes: int | None = None,
        lane_messages: int | None = None,
        owner: str | None = None,
        auto_settle: bool = False,
    ) -> list[SyncDelivery]:
        deliveries = self._portal.call(
            self._queue.claim(
                messages,
                wait=wait,
                lease=lease,
                kinds=kinds,
                key=key,
                lanes=lanes,
                lane_messages=lane_messages,
                owner=owner,
                auto_settle=auto_settle,
            )
        )
        return [SyncDelivery(self._portal, delivery) for delivery in deliveries]

    def complete_many(self, deliveries: Iterable[SyncDelivery]) -> list[Verdict | None]:
        return self._portal.call(self._queue.complete_many([each.delivery for each in deliveries]))

    def complete_and_claim(
        self,
        deliveries: Iterable[SyncDelivery],
        messages: int = 1,
        *,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        lanes: int | None = None,
        lane_messages: int | None = None,
        owner: str | None = None,
    ) -> tuple[list[Verdict | None], list[SyncDelivery]]:
        verdicts, claimed = self._portal.call(
            self._queue.complete_and_claim(
                [each.delivery for each in deliveries],
                messages,
                lease=lease,
                kinds=kinds,
                lanes=lanes,
                lane_messages=lane_messages,
                owner=owner,
            )
        )
        return verdicts, [SyncDelivery(self._portal, delivery) for delivery in claimed]

    @overload
    def consume(
        self,
        *,
        batch: int | None = ...,
        lease: Length | None = ...,
        kinds: Collection[str] | None = ...,
        idle: Length | None = ...,
    ) -> Iterator[SyncDelivery]: ...

    @overload
    def consume(
        self,
        handler: Callable[[Any], Any],
        *,
        batch: int | None = ...,
        concurrency: int | None = ...,
        lease: Length | None = ...,
        kinds: Collection[str] | None = ...,
        idle: Length | None = ...,
    ) -> int: ...

    def consume(
        self,
        handler: Callable[[Any], Any] | None = None,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        idle: Length | None = None,
    ) -> Iterator[SyncDelivery] | int:
        """As `Queue.consume`, with a plain function; it runs in a thread of its own.

        A thread cannot be cancelled: an interrupt, or a cancel of its job, lets a
        running handler finish, and its result counts.
        """
        check_handler(handler)
        if inspect.iscoroutinefunction(handler):
            raise Invalid("handler", "must be a plain function; the async client takes async ones")
        queue = self._queue.told(batch=batch, concurrency=concurrency, lease=lease, kinds=kinds, idle=idle)
        if handler is None:
            return self._iterate(queue.consume())
        with ThreadPoolExecutor(queue.options.concurrency, thread_name_prefix="qo-handler") as threads:
            if queue.options.on_error is not None:
                queue = queue.on_error(self._in_thread(queue.options.on_error, threads))
            return self._portal.call(queue.consume(self._in_thread(handler, threads)))

    def _in_thread(self, function: Callable[..., Any], threads: ThreadPoolExecutor) -> Callable[..., Awaitable[Any]]:
        async def call(given: Delivery | list[Delivery], *more: Any) -> Any:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(threads, function, self._handed(given), *more)
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            return running.result()

        return call

    def _handed(self, given: Delivery | list[Delivery]) -> SyncDelivery | list[SyncDelivery]:
        if isinstance(given, list):
            return [SyncDelivery(self._portal, each) for each in given]
        return SyncDelivery(self._portal, given)

    def _iterate(self, deliveries: Any) -> Iterator[SyncDelivery]:
        try:
            while (delivery := self._portal.call(anext(deliveries, None))) is not None:
                yield SyncDelivery(self._portal, delivery)
        finally:
            self._portal.call(deliveries.aclose())

    def configure(self, **settings: Unpack[SettingsChanges]) -> QueueSettings:
        return self._portal.call(self._queue.configure(**settings))

    def pause(self) -> None:
        self._portal.call(self._queue.pause())

    def resume(self) -> None:
        self._portal.call(self._queue.resume())

    def purge(self) -> int:
        return self._portal.call(self._queue.purge())

    def delete(self) -> bool:
        return self._portal.call(self._queue.delete())

    def register(self) -> bool:
        return self._portal.call(self._queue.register())

    def delete_group(self) -> bool:
        return self._portal.call(self._queue.delete_group())

    def seek(self, to: str | datetime | int, *, key: str | None = None) -> int:
        return self._portal.call(self._queue.seek(to, key=key))

    @property
    def dead(self) -> SyncDeadLetters:
        return SyncDeadLetters(self._portal, self._queue.dead)

    def info(self) -> QueueInfo:
        return self._portal.call(self._queue.info())

    def exists(self) -> bool:
        return self._portal.call(self._queue.exists())

    def settings(self) -> QueueSettings:
        return self._portal.call(self._queue.settings())

    def depth(self) -> Depth:
        return self._portal.call(self._queue.depth())

    def groups(self) -> Sequence[GroupInfo]:
        return self._portal.call(self._queue.groups())

    def lanes(self, *, after: int = 0, limit: int = 100) -> Sequence[LaneInfo]:
        return self._portal.call(self._queue.lanes(after=after, limit=limit))

    def job(self, id: str) -> SyncJobHandle:
        return SyncJobHandle(self._portal, self._queue.job(id))

    def jobs(
        self, *, state: JobState | str | None = None, before: str | None = None, limit: int = 100
    ) -> Sequence[Job]:
        return self._portal.call(self._queue.jobs(state=state, before=before, limit=limit))


@documented_by(Client)
class SyncClient:
    """A connection to a store, for programs without an event loop; see `Client`."""

    def __init__(self, portal: Portal, client: Client) -> None:
        self._portal = portal
        self._client = client

    @classmethod
    def start(cls, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> SyncClient:
        """A client whose loop runs in a thread of its own."""
        portal = Portal()
        try:
            return cls(portal, portal.call(open_client()))
        except BaseException:
            portal.stop()
            raise

    def queue(self, name: str) -> SyncQueue:
        return SyncQueue(self._portal, self._client.queue(name))

    def job(self, id: str) -> SyncJobHandle:
        return SyncJobHandle(self._portal, self._client.job(id))

    def queues(self, *, after: str = "", limit: int = 100) -> Sequence[QueueInfo]:
        return self._portal.call(self._client.queues(after=after, limit=limit))

    def create_group(
        self, group: str, *, namespace: str | None = None, task: str | None = None, start: str | Start = "all"
    ) -> bool:
        return self._portal.call(self._client.create_group(group, namespace=namespace, task=task, start=start))

    def transact(
        self,
        settlements: Sequence[Settlement] = (),
        pushes: Sequence[NewMessage] = (),
        *,
        refuse_duplicates: bool = False,
        nonce: str | None = None,
    ) -> list[SyncJobHandle]:
        handles = self._portal.call(
            self._client.transact(settlements, pushes, refuse_duplicates=refuse_duplicates, nonce=nonce)
        )
        return [SyncJobHandle(self._portal, handle) for handle in handles]

    @property
    def tokens(self) -> SyncTokens:
        return SyncTokens(self._portal, self._client.tokens)

    def workers(self) -> Sequence[WorkerInfo]:
        return self._portal.call(self._client.workers())

    def unserved(self) -> Sequence[WaitingKind]:
        return self._portal.call(self._client.unserved())

    def health(self) -> Health:
        return self._portal.call(self._client.health())

    def close(self) -> None:
        try:
            self._portal.call(self._client.close())
        except Closed:
            return
        self._portal.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
