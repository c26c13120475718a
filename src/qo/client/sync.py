"""The same client for programs without an event loop: a thin shell over the async one.

One thread runs an event loop for the client; every call hands its coroutine over
and waits. So sync callers from many threads share commits like async ones do.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, overload

from qo.client.arguments import check_handler
from qo.client.buffer import BUFFER_MESSAGES, BUFFER_MS, Buffer
from qo.client.client import Client
from qo.client.delivery import Delivery
from qo.client.portal import Portal
from qo.client.queue import Queue
from qo.client.steps import Options, Steps
from qo.client.sync_shells import BufferShell, ClientShell, QueueShell, SyncDelivery
from qo.core.durations import Length
from qo.core.errors import Closed, Invalid


class SyncQueue(QueueShell, Steps, over=Queue):
    """One queue, seen by one group; see `Queue`."""

    def __init__(self, portal: Portal, inner: Queue) -> None:
        super().__init__(portal, inner)
        self.options = inner.options

    def _with(self, options: Options) -> Self:
        return type(self)(self._portal, replace(self._inner, options=options))

    def buffered(self, *, messages: int = BUFFER_MESSAGES, milliseconds: float = BUFFER_MS) -> SyncBuffer:
        """Push through a buffer, which makes few large pushes of many small ones; see `Queue.buffered`."""
        return SyncBuffer.made(self._portal, self._inner, messages, milliseconds)

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
        queue = self._inner.with_options(batch=batch, concurrency=concurrency, lease=lease, kinds=kinds, idle=idle)
        if handler is None:
            return self._iterate(queue.consume())
        with ThreadPoolExecutor(queue.options.concurrency, thread_name_prefix="qo-handler") as threads:
            if queue.options.on_error is not None:
                queue = queue.on_error(self._in_thread(queue.options.on_error, threads))
            count: int = self._portal.call(queue.consume(self._in_thread(handler, threads)))
            return count

    def _in_thread(self, function: Callable[..., Any], threads: ThreadPoolExecutor) -> Callable[..., Awaitable[Any]]:
        async def call(given: Delivery | list[Delivery], *more: Any) -> Any:
            loop = asyncio.get_running_loop()
            running = loop.run_in_executor(threads, function, self._wrapped(given), *more)
            while not running.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([running])
            return running.result()

        return call

    def _iterate(self, deliveries: Any) -> Iterator[SyncDelivery]:
        try:
            while (delivery := self._portal.call(anext(deliveries, None))) is not None:
                yield SyncDelivery(self._portal, delivery)
        finally:
            self._portal.call(deliveries.aclose())


class SyncBuffer(BufferShell, over=Buffer):
    """Many small pushes become few large ones; see `Buffer`."""

    @classmethod
    def made(cls, portal: Portal, queue: Queue, messages: int, milliseconds: float) -> SyncBuffer:
        """A buffer that stores on the client's loop."""

        async def make() -> Buffer:
            return Buffer(queue, messages, milliseconds)

        return cls(portal, portal.call(make()))

    def __len__(self) -> int:
        return len(self._inner)


class SyncClient(ClientShell, over=Client):
    """A connection to a store, for programs without an event loop; see `Client`."""

    @classmethod
    def start(cls, open_client: Callable[[], Coroutine[Any, Any, Client]]) -> SyncClient:
        """A client whose loop runs in a thread of its own."""
        portal = Portal()
        try:
            return cls(portal, portal.call(open_client()))
        except BaseException:
            portal.stop()
            raise

    def close(self) -> None:
        """Let the store go, and end the loop's thread; see `Client.close`."""
        try:
            self._portal.call(self._inner.close())
        except Closed:
            return
        self._portal.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
