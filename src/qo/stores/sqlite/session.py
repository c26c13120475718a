"""A thread that owns one connection and commits gathered calls as one transaction.

While a commit is under way further calls gather; the next transaction takes all
of them. If one of several gathered calls fails, nothing of the transaction is
kept and each call is run again alone, so that a bad one fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import apsw

from qo.core.errors import Closed, QoError
from qo.stores.sqlite.failures import translated
from qo.stores.sqlite.transaction import QueueRow, Transaction

T = TypeVar("T")

Verb = Callable[[Transaction], Any]
GATHER_LIMIT = 256


Probe = Callable[[str, list[str]], None]


class Call(NamedTuple):
    name: str
    verb: Verb
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[Any]


class Reply(NamedTuple):
    call: Call
    value: Any
    error: BaseException | None


class News(NamedTuple):
    """Something to tell an event loop after a commit."""

    loop: asyncio.AbstractEventLoop
    hear: Callable[[], None]


class Session:
    """Runs verbs on its own thread. `probe` is told of each step and of the verbs in it, for tests that crash there."""

    def __init__(
        self,
        connect: Callable[[], apsw.Connection],
        begin: Callable[[apsw.Connection, bool, dict[str, QueueRow]], Transaction],
        *,
        writes: bool,
        news: Callable[[Transaction], list[News]],
        probe: Probe | None,
    ) -> None:
        self._connect = connect
        self._begin = begin
        self._begin_sql = "BEGIN IMMEDIATE" if writes else "BEGIN"
        self._news = news
        self._untold: list[News] = []
        self._version: Any = None
        self._queues: dict[str, QueueRow] = {}
        self._probe = probe
        self._calls: queue.SimpleQueue[Call | None] = queue.SimpleQueue()
        self._opened: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="qo-sqlite", daemon=True)

    async def open(self) -> None:
        """Start the thread and its connection; raises what opening raised."""
        self._thread.start()
        error = await asyncio.to_thread(self._opened.get)
        if error is not None:
            raise error

    async def do(self, name: str, verb: Callable[[Transaction], T]) -> T:
        """Run `verb` in the next transaction; answered after its commit."""
        if self._closed:
            raise Closed("this store was closed")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        self._calls.put(Call(name, verb, loop, answer))
        return await answer

    async def close(self) -> None:
        """Finish the calls that are queued, then let the connection go."""
        if not self._closed:
            self._closed = True
            self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _serve(self) -> None:
        try:
            connection = self._connect()
        except BaseException as error:  # noqa: BLE001 - raised where `open` waits
            self._opened.put(error)
            return
        self._opened.put(None)
        going_on = True
        while going_on:
            calls, going_on = self._gather()
            if calls:
                replies = self._answer(connection, calls)
                _tell(self._untold, replies)
                self._untold.clear()
        connection.close()

    def _gather(self) -> tuple[list[Call], bool]:
        calls = []
        call = self._calls.get()
        while call is not None:
            calls.append(call)
            if len(calls) == GATHER_LIMIT or self._calls.empty():
                return calls, True
            call = self._calls.get()
        return calls, False

    def _answer(self, connection: apsw.Connection, calls: list[Call]) -> list[Reply]:
        try:
            values = self._commit(connection, calls, careful=False)
            return [Reply(call, value, None) for call, value in zip(calls, values, strict=True)]
        except apsw.BusyError as error:  # nothing was begun, and each alone would wait as long again
            return [Reply(call, None, translated(error)) for call in calls]
        except Exception:  # noqa: BLE001 - each call meets it again, alone
            return [self._answer_alone(connection, call) for call in calls]

    def _answer_alone(self, connection: apsw.Connection, call: Call) -> Reply:
        try:
            [value] = self._commit(connection, [call], careful=True)
        except QoError as error:
            return Reply(call, None, error)
        except Exception as error:  # noqa: BLE001 - raised where the caller waits
            return Reply(call, None, translated(error, connection.system_errno))
        return Reply(call, value, None)

    def _commit(self, connection: apsw.Connection, calls: list[Call], *, careful: bool) -> list[Any]:
        connection.execute(self._begin_sql)
        try:
            transaction = self._begin(connection, careful, self._known_queues(connection))
            values = [call.verb(transaction) for call in calls]
            self._tell_probe("before commit", calls)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._queues.clear()  # one that was created here is gone
            raise
        self._tell_probe("after commit", calls)
        self._untold += self._news(transaction)
        return values

    def _known_queues(self, connection: apsw.Connection) -> dict[str, QueueRow]:
        """Queues as earlier transactions read them; none, if another connection has written since."""
        version = connection.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            self._version = version
            self._queues.clear()
        return self._queues

    def _tell_probe(self, point: str, calls: list[Call]) -> None:
        if self._probe is not None:
            self._probe(point, [call.name for call in calls])


def _tell(news: list[News], replies: list[Reply]) -> None:
    """Hand news and answers over, with one hop per event loop: each hop wakes a thread."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Callable[[], None]]] = {}
    for loop, hear in news:
        by_loop.setdefault(loop, []).append(hear)
    for reply in replies:
        by_loop.setdefault(reply.call.loop, []).append(partial(_resolve, reply))
    for loop, callbacks in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to hear
            loop.call_soon_threadsafe(_call_all, callbacks)


def _call_all(callbacks: list[Callable[[], None]]) -> None:
    for callback in callbacks:
        callback()


def _resolve(reply: Reply) -> None:
    answer = reply.call.answer
    if answer.done():
        return
    if reply.error is None:
        answer.set_result(reply.value)
    else:
        answer.set_exception(reply.error)
