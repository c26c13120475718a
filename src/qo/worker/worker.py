"""The worker as users know it: tasks by name, and a run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from qo.client.client import Client
from qo.client.queue import Queue
from qo.connect import connect
from qo.core.errors import Invalid
from qo.core.lease import Complete, Delivered, Fail
from qo.core.names import DEFAULT_GROUP, DEFAULT_QUEUE, checked_name
from qo.core.polling import PollingStrategy
from qo.core.queue import duration
from qo.core.retry import RetryPolicy
from qo.metrics.registry import Registry
from qo.worker.exposing import exposed
from qo.worker.gauges import Gauges
from qo.worker.machinery import At, Finished, Machinery, at
from qo.worker.options import WorkerRunOptions
from qo.worker.running import Processes, Runner, is_failure
from qo.worker.tasks import Context, Task, make_task

log = logging.getLogger("qo.worker")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Hook = Callable[..., Any]
SIGNALS = (signal.SIGTERM, signal.SIGINT)
EVENTS = ("start", "success", "failure", "shutdown")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of a worker did."""

    succeeded: int
    failed: int


class Worker:
    """Runs tasks, many at once, in order within a key.

    `where` is a store or server by its URL, and `queues` names what to take from; or
    it is a `Queue` of a client that is open, whose loop the machinery then shares.
    """

    def __init__(
        self,
        where: str | Sequence[str] | Queue = "sqlite:///qo.db",
        *,
        queues: str | Sequence[str] = DEFAULT_QUEUE,
        group: str = DEFAULT_GROUP,
        owner: str | None = None,
        token: str | None = None,
        encryption_key: str = "",
    ) -> None:
        self.where = where
        named = [where.name] if isinstance(where, Queue) else [queues] if isinstance(queues, str) else list(queues)
        self.queues = tuple(checked_name("queues", each) for each in named)
        self.group = checked_name("group", group)
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._options = {"token": token, "encryption_key": encryption_key}
        self.tasks: dict[str, Task] = {}
        self._hooks: dict[str, list[Hook]] = {event: [] for event in EVENTS}
        self._run: Run | None = None
        self._gauges = Gauges()

    def use(self, **options: str | None) -> None:
        """Have these, of `token` and `encryption_key`, where the worker has none of its own."""
        for name, value in options.items():
            self._options[name] = self._options[name] or value

    @property
    def metrics(self) -> Registry:
        return self._gauges.registry

    def task(
        self,
        name: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout: timedelta | float | None = None,
        concurrency: int | None = None,
        cpu: bool = False,
    ) -> Callable[[F], F]:
        """Have a function handle messages of a kind; by default of the function's own name.

        `retry` weighs more than the queue's policy, `timeout` ends an attempt,
        `concurrency` limits how many run at once in this worker, `cpu` runs it in a process.
        """
        length = None if timeout is None else duration("timeout", timeout)

        def register(function: F) -> F:
            kind = checked_name("task", name or function.__name__)
            if kind in self.tasks:
                raise Invalid("task", f"'{kind}' is there already")
            self.tasks[kind] = make_task(kind, function, retry=retry, timeout=length, concurrency=concurrency, cpu=cpu)
            return function

        return register

    def on(self, event: str) -> Callable[[F], F]:
        """Have a function called at `start`, after each `success` and `failure` (with the message), at `shutdown`."""
        if event not in EVENTS:
            raise Invalid("event", f"must be one of {', '.join(EVENTS)}, not '{event}'")

        def register(function: F) -> F:
            self._hooks[event].append(function)
            return function

        return register

    async def run(self, options: WorkerRunOptions | None = None) -> Ran:
        """Work until told to stop: by `stop()`, or by a signal."""
        if not self.tasks:
            raise Invalid("worker", "has no tasks; register one with @worker.task()")
        if self._run is not None:
            raise Invalid("worker", "is running already")
        self._run = Run(self, options or WorkerRunOptions(), self._gauges)
        try:
            await self._run.until_stopped()
        finally:
            self._run = None
        return Ran(self._gauges.succeeded, self._gauges.failed)

    @property
    def standing(self) -> tuple[int, int]:
        """Tasks that have ended, and that run now."""
        ended = self._gauges.succeeded + self._gauges.failed
        return ended, 0 if self._run is None else self._run.running

    def stop(self, *, now: bool = False) -> None:
        """Claim no more, and let what runs finish; `now`: give it back instead."""
        if self._run is not None:
            self._run.stop(now=now)

    def hooked(self, event: str, *arguments: Any) -> None:
        for hook in self._hooks[event]:
            try:
                hook(*arguments)
            except Exception:
                log.exception("a hook for '%s' failed", event)

    async def connected(self, polling: PollingStrategy | None) -> Client:
        assert not isinstance(self.where, Queue)
        options = {name: value for name, value in self._options.items() if value}
        return await connect(self.where, polling=polling, **options).open()  # type: ignore[arg-type]


def run_quickly(main: Coroutine[Any, Any, T]) -> T:
    """On the quickest loop that is installed."""
    try:
        from uvloop import run  # noqa: PLC0415 - it need not be there
    except ImportError:
        run = asyncio.run  # type: ignore[assignment]
    return run(main)


class Run:
    """One run of a worker: the user's side of it."""

    def __init__(self, worker: Worker, options: WorkerRunOptions, gauges: Gauges) -> None:
        self._worker = worker
        self._options = options
        self._gauges = gauges
        self._loop = asyncio.get_running_loop()
        self._running: dict[At, tuple[asyncio.Task[None], Context]] = {}
        self._lost: set[At] = set()
        self._machinery: Machinery | None = None
        self._stop_asked: bool | None = None

    @property
    def running(self) -> int:
        return len(self._running)

    async def until_stopped(self) -> None:
        options, worker = self._options, self._worker
        with (
            ThreadPoolExecutor(options.threads, "qo-task") as threads,
            contextlib.ExitStack() as stack,
        ):
            processes = Processes(options.processes)
            stack.callback(processes.close)
            self._runner = Runner(threads, processes)
            self._take_signals(stack)
            async with exposed(self._gauges.registry, options.metrics_port):
                worker.hooked("start")
                try:
                    await self._work()
                finally:
                    await self._ended()
                    worker.hooked("shutdown")

    async def _work(self) -> None:
        if isinstance(self._worker.where, Queue):
            await self._machine(self._worker.where.front)
        else:
            await asyncio.to_thread(run_quickly, self._machine_apart())

    async def _machine_apart(self) -> None:
        client = await self._worker.connected(self._options.polling)
        try:
            await self._machine(client.front)
        finally:
            await client.close()

    async def _machine(self, front: Any) -> None:
        worker = self._worker
        self._machinery = Machinery(
            front,
            self,
            self._options,
            queues=worker.queues,
            kinds=frozenset(worker.tasks),
            group=worker.group,
            owner=worker.owner,
            gauges=self._gauges,
        )
        if self._stop_asked is not None:
            self._machinery.stop_soon(now=self._stop_asked)
        await self._machinery.run()

    def stop(self, *, now: bool) -> None:
        self._stop_asked = now
        if self._machinery is not None:
            self._machinery.stop_soon(now=now)

    # From the machinery's thread

    def start(self, deliveries: Sequence[Delivered]) -> None:
        self._loop.call_soon_threadsafe(self._start, deliveries)

    def give_up(self, places: Sequence[At], *, lost: bool) -> None:
        self._loop.call_soon_threadsafe(self._give_up, places, lost)

    # On the user's loop

    def _start(self, deliveries: Sequence[Delivered]) -> None:
        assert self._machinery is not None
        create, running = self._loop.create_task, self._running
        for each in deliveries:
            context, place = Context(each, log, self._machinery), at(each)
            running[place] = create(self._execute(each, context, place)), context

    def _give_up(self, places: Sequence[At], lost: bool) -> None:
        for place in places:
            known = self._running.get(place)
            if known is None:
                continue
            task, context = known
            if lost:
                self._lost.add(place)
            context.give_up()
            task.cancel()

    async def _execute(self, delivered: Delivered, context: Context, place: At) -> None:
        began, started = time.perf_counter(), datetime.now(UTC)
        task = self._worker.tasks[delivered.kind]
        try:
            report = await self._runner.run(task, context)
        except asyncio.CancelledError:
            report = Fail("canceled")
        finally:
            self._running.pop(place, None)
        if place in self._lost:
            self._lost.discard(place)
            return
        assert self._machinery is not None
        self._machinery.done(Finished(delivered, report, started, time.perf_counter() - began))
        if isinstance(report, Complete):
            self._worker.hooked("success", delivered)
        elif is_failure(report):
            self._worker.hooked("failure", delivered)

    async def _ended(self) -> None:
        """Nothing of the user's is left running, or known to be."""
        left = [task for task, _ in self._running.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def _take_signals(self, stack: contextlib.ExitStack) -> None:
        if not self._options.signals or threading.current_thread() is not threading.main_thread():
            return
        asked = 0

        def told(number: int) -> None:
            nonlocal asked
            asked += 1
            log.info("%s: %s", signal.Signals(number).name, "stopping" if asked == 1 else "stopping now")
            self.stop(now=asked > 1)

        for each in SIGNALS:
            self._loop.add_signal_handler(each, told, each)
            stack.callback(self._loop.remove_signal_handler, each)
