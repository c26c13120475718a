"""The worker as users know it: tasks by name, and a run."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Self, TypeVar, Unpack, overload

from qo.client.client import Client
from qo.client.middleware import checked
from qo.client.queue import Queue
from qo.client.schedules import ScheduleOptions, make_plan
from qo.client.traces import describe
from qo.connect import connect, described
from qo.core.durations import Length
from qo.core.errors import Invalid, not_one_of
from qo.core.held import At, at
from qo.core.lease import Delivered, Fail
from qo.core.names import DEFAULT_GROUP, DEFAULT_QUEUE, checked_name
from qo.core.polling import PollingStrategy
from qo.core.retry import RetryPolicy
from qo.core.schedule import Plan, timetable
from qo.environment import ARGUMENT
from qo.metrics.registry import Registry
from qo.worker.fetcher import Fetcher, Finished
from qo.worker.metrics import WorkerMetrics
from qo.worker.metrics_server import exposed
from qo.worker.middleware import RunMiddleware, calling_hooks
from qo.worker.options import WorkerRunOptions
from qo.worker.running import Processes, Runner
from qo.worker.schedules import TAG, put_schedules
from qo.worker.tasks import Context, Task, log_fields, make_task

log = logging.getLogger("qo.worker")

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
Hook = Callable[..., Any]
CLOSE_SECONDS = 5.0
"""How long a worker's client may take to close, when the worker has ended."""
BEGIN_SECONDS = 5.0
"""How long `running` waits, when it is entered, for the store."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
EVENTS = ("start", "success", "failure", "shutdown")


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run of a worker did."""

    succeeded: int
    failed: int
    left_behind: int = 0
    """Threads that still ran tasks when it ended. The process cannot end by itself before they do."""


class Worker:
    """Runs tasks, many at once, in order within a key.

    `where` is a store or server by its URL, and `queues` names what to take from. Without one it is
    the configured store (QO_STORE, qo.toml), read when the worker runs. Or it is a `Queue` of a client
    that is open, whose loop the fetcher then shares.
    """

    def __init__(
        self,
        where: str | Sequence[str] | Queue | None = None,
        *,
        queues: str | Sequence[str] = DEFAULT_QUEUE,
        group: str = DEFAULT_GROUP,
        owner: str | None = None,
        token: str | None = None,
        encryption_key: str = "",
        middleware: Sequence[RunMiddleware] = (),
    ) -> None:
        if isinstance(where, str) and "://" not in where:
            raise Invalid(
                "where", f"must be a URL, such as sqlite:///qo.db, not '{where}'; queues are named with queues="
            )
        if not queues:
            raise Invalid("queues", "must name at least one queue")
        self.where = where
        self.where_from = ARGUMENT
        named = [where.name] if isinstance(where, Queue) else [queues] if isinstance(queues, str) else list(queues)
        self.queues = tuple(checked_name("queues", each) for each in named)
        self.group = checked_name("group", group)
        self.owner = owner or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._options = {"token": token, "encryption_key": encryption_key}
        self.tasks: dict[str, Task] = {}
        self.schedules: dict[str, Plan] = {}
        self._hooks: dict[str, list[Hook]] = {event: [] for event in EVENTS}
        self._middleware = [checked("middleware", each) for each in middleware]
        self._run: Run | None = None
        self._metrics = WorkerMetrics()

    def use(self, **options: str | None) -> None:
        """Have these, of `token` and `encryption_key`, where the worker has none of its own."""
        for name, value in options.items():
            self._options[name] = self._options[name] or value

    @property
    def metrics(self) -> Registry:
        """What this worker has counted."""
        return self._metrics.registry

    @overload
    def task(self, name: F) -> F: ...

    @overload
    def task(
        self,
        name: str | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout: Length | None = None,
        concurrency: int | None = None,
        cpu: bool = False,
        every: Length | None = None,
        cron: str | None = None,
        **schedule: Unpack[ScheduleOptions],
    ) -> Callable[[F], F]: ...

    def task(
        self,
        name: str | F | None = None,
        *,
        retry: RetryPolicy | None = None,
        timeout: Length | None = None,
        concurrency: int | None = None,
        cpu: bool = False,
        every: Length | None = None,
        cron: str | None = None,
        **schedule: Unpack[ScheduleOptions],
    ) -> Callable[[F], F] | F:
        """Have a function handle messages of a kind; by default of the function's own name.

        `@worker.task` and `@worker.task("name", retry=…)` both decorate. `retry` weighs more than the queue's
        policy, `timeout` ends an attempt, `concurrency` limits how many run at once in this worker, `cpu` runs it
        in a process.

        `every` or `cron` give the task a schedule, which is put into the store when a worker starts; its options are
        those of `Schedules.create`, such as `timezone`. Its name is the worker's first queue and the kind, as in
        `default.report`.
        """
        if name is not None and not isinstance(name, str):
            self._register(_name_of(name), name)
            return name

        def register(function: F) -> F:
            own = name if isinstance(name, str) and name else _name_of(function)
            plan = None
            if every is not None or cron is not None or schedule:
                schedule["tags"] = (TAG, *schedule.get("tags", ()))
                plan = make_plan(self.queues[0], None, own, cron=cron, every=every, anchor=None, at=None, **schedule)
                timetable(own, plan)
            self._register(
                own,
                function,
                retry=retry,
                timeout=timeout,
                concurrency=concurrency,
                cpu=cpu,
                may_take_nothing=plan is not None,
            )
            if plan is not None:
                self.schedules[f"{self.queues[0]}.{own}"] = plan
            return function

        return register

    def _register(self, name: str, function: Callable[..., Any], **options: Any) -> None:
        kind = checked_name("task", name)
        if kind in self.tasks:
            raise Invalid("task", f"'{kind}' is there already")
        self.tasks[kind] = make_task(kind, function, **options)

    def on(self, event: str) -> Callable[[F], F]:
        """Have a function called at `start`, after each `success` and `failure` (with the message), at `shutdown`.

        An async one is awaited: work begins when those for `start` have returned, and a run ends when those for
        `shutdown` have.
        """
        if event not in EVENTS:
            raise not_one_of("event", event, EVENTS)

        def register(function: F) -> F:
            self._hooks[event].append(function)
            return function

        return register

    def middleware(self, function: F) -> F:
        """Have a function run around each task of this worker; the first that was given is the outermost.

        It is an async function of the context and of `call_next`, or a generator function of the context that yields
        once; see `qo.client.middleware`.
        """
        self._middleware.append(checked("middleware", function))
        return function

    def runner(
        self, threads: Executor, processes: Processes | None = None, occupied: Callable[[int], None] | None = None
    ) -> Runner:
        """What runs its tasks, with its middleware and hooks around them."""
        hooked = any(self._hooks[event] for event in ("success", "failure"))
        hooks = calling_hooks(self.call_hooks) if hooked else None
        return Runner(threads, processes, occupied, self._middleware, hooks)

    async def run(self, options: WorkerRunOptions | None = None) -> Ran:
        """Work until told to stop: by `stop()`, or by a signal if the options say so.

        In a program of its own use `main`, in an application's loop `running`.
        """
        return await self._ran(self._begun(options))

    def _begun(self, options: WorkerRunOptions | None) -> Run:
        if not self.tasks:
            raise Invalid("worker", "has no tasks; register one with @worker.task")
        if self._run is not None:
            raise Invalid("worker", "is running already")
        if options is not None and not isinstance(options, WorkerRunOptions):
            raise Invalid("options", f"must be WorkerRunOptions(…), not {type(options).__name__}")
        self._run = Run(self, options or WorkerRunOptions(), self._metrics)
        return self._run

    async def _ran(self, run: Run) -> Ran:
        try:
            await run.until_stopped()
        finally:
            self._run = None
        succeeded, failed = run.counted_before
        return Ran(self._metrics.succeeded - succeeded, self._metrics.failed - failed, run.left_behind)

    def main(self, options: WorkerRunOptions | None = None) -> Ran:
        """Run as a program: on a loop of its own, until SIGTERM or SIGINT. Call it where no loop runs."""
        return run_quickly(self.run(replace(options or WorkerRunOptions(), signals=True)))

    @contextlib.asynccontextmanager
    async def running(self, options: WorkerRunOptions | None = None) -> AsyncIterator[Self]:
        """Run beside an application, on its loop; when left, stop as `stop` does, and wait for that.

        It takes no signals: they are the application's. Entering raises why it cannot begin, such as a store that
        cannot be opened or a token that is refused; leaving, why it could not go on. Of a store that does not answer
        within five seconds the log tells, and the worker goes on asking.
        """
        run = self._begun(options)
        running = asyncio.create_task(self._ran(run))
        try:
            works = asyncio.create_task(run.works.wait())
            await asyncio.wait([running, works], timeout=BEGIN_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            works.cancel()
            if running.done():
                await running
                raise Invalid("worker", "was stopped before it began")
            running.add_done_callback(_log_end)
            yield self
        finally:
            run.stop(now=False)
            await running

    @property
    def standing(self) -> tuple[int, int]:
        """Tasks that have ended, and that run now."""
        ended = self._metrics.succeeded + self._metrics.failed
        return ended, 0 if self._run is None else self._run.running

    def stop(self, *, now: bool = False) -> None:
        """Claim no more, and let what runs finish; `now`: give it back instead."""
        if self._run is not None:
            self._run.stop(now=now)

    async def call_hooks(self, event: str, *arguments: Any) -> None:
        """Call, and await, what was registered for an event. What a hook raises is logged."""
        for hook in self._hooks[event]:
            try:
                answer = hook(*arguments)
                if inspect.isawaitable(answer):
                    await answer
            except Exception:
                log.exception("a hook for '%s' failed", event)

    async def connected(self, polling: PollingStrategy | None) -> Client:
        """A client of the store or server that it works on."""
        assert not isinstance(self.where, Queue)
        options = {name: value for name, value in self._options.items() if value}
        return await connect(self.where, polling=polling, **options).open()  # type: ignore[arg-type]


def _name_of(function: Any) -> str:
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "<lambda>":
        raise Invalid("task", "a lambda has no name of its own; say which kind it handles, as in task('name')")
    return name


def _log_end(run: asyncio.Task[Ran]) -> None:
    """Log at once why the worker ended: the code that awaits it learns that only when the application ends."""
    if not run.cancelled() and (error := run.exception()) is not None:
        log.error("the worker has ended: %s", error, exc_info=error)


def run_quickly(main: Coroutine[Any, Any, T]) -> T:
    """On the quickest loop that is installed."""
    try:
        from uvloop import run  # noqa: PLC0415 - it need not be there
    except ImportError:
        run = asyncio.run  # type: ignore[assignment]
    return run(main)


class Run:
    """One run of a worker: the user's side of it."""

    def __init__(self, worker: Worker, options: WorkerRunOptions, metrics: WorkerMetrics) -> None:
        self._worker = worker
        self._options = options
        self._metrics = metrics
        self._loop = asyncio.get_running_loop()
        self._running: dict[At, tuple[asyncio.Task[None], Context]] = {}
        self._lost: set[At] = set()
        self.left_behind = 0
        self.works = asyncio.Event()
        """Its store is open, and has let it register."""
        self._fetcher: Fetcher | None = None
        self._stop_asked: bool | None = None
        self._stop_connecting: Callable[[], None] = lambda: None
        self.counted_before = metrics.succeeded, metrics.failed

    @property
    def running(self) -> int:
        return len(self._running)

    async def until_stopped(self) -> None:
        options, worker = self._options, self._worker
        with contextlib.ExitStack() as stack:
            threads = ThreadPoolExecutor(options.threads, "qo-task")
            stack.callback(threads.shutdown, wait=False, cancel_futures=True)
            processes = Processes(options.processes)
            stack.callback(processes.close)
            self._take_signals(stack)
            async with exposed(self._metrics.registry, options.metrics_port):
                await worker.call_hooks("start")
                self._runner = worker.runner(threads, processes, self._occupy)  # these hooks may register others
                try:
                    await self._work()
                finally:
                    await self._ended()
                    await worker.call_hooks("shutdown")

    def _occupy(self, change: int) -> None:
        if self._fetcher is not None:
            self._fetcher.occupy_soon(change)

    async def _work(self) -> None:
        """Run until stopped. If this task is cancelled, the worker stops now, and first gives back what runs."""
        where = self._worker.where
        working = asyncio.ensure_future(
            self._run_fetcher(where.broker)
            if isinstance(where, Queue)
            else asyncio.to_thread(run_quickly, self._connect_and_run_fetcher())
        )
        canceled = False
        while not working.done():
            try:
                await asyncio.shield(working)
            except asyncio.CancelledError:
                if working.cancelled():
                    break
                canceled = True
                self.stop(now=True)
        if canceled and not working.cancelled() and working.exception() is None:
            raise asyncio.CancelledError
        await working

    async def _connect_and_run_fetcher(self) -> None:
        client = await self._connected()
        if client is None:
            return
        try:
            await self._run_fetcher(client.broker)
        finally:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await client.close()
            except TimeoutError:
                log.warning("the store did not answer within %g s; its connections are cut", CLOSE_SECONDS)

    async def _connected(self) -> Client | None:
        """A client, however long its store takes; None: it was told to stop before."""
        opening = asyncio.ensure_future(self._worker.connected(self._options.polling))
        loop = asyncio.get_running_loop()

        def give_up() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(opening.cancel)

        self._stop_connecting = give_up
        if self._stop_asked is not None:
            opening.cancel()
        await asyncio.wait([opening])
        return None if opening.cancelled() else opening.result()

    async def _run_fetcher(self, broker: Any) -> None:
        worker = self._worker
        self._fetcher = Fetcher(
            broker,
            self,
            self._options,
            queues=worker.queues,
            kinds=frozenset(worker.tasks),
            group=worker.group,
            owner=worker.owner,
            metrics=self._metrics,
        )
        store = "" if isinstance(worker.where, Queue) else f" of {described(worker.where, worker.where_from)}"
        log.info("working on %s%s: %s", ", ".join(worker.queues), store, ", ".join(sorted(worker.tasks)))
        if self._stop_asked is not None:
            self._fetcher.stop_soon(now=self._stop_asked)
        scheduling = asyncio.create_task(put_schedules(broker, worker.schedules))
        try:
            await self._fetcher.run()
        finally:
            scheduling.cancel()
            await asyncio.gather(scheduling, return_exceptions=True)

    def stop(self, *, now: bool) -> None:
        self._stop_asked = now
        if self._fetcher is not None:
            self._fetcher.stop_soon(now=now)
        else:
            self._stop_connecting()

    # From the fetcher's thread

    def registered(self) -> None:
        self._loop.call_soon_threadsafe(self.works.set)

    def start(self, deliveries: Sequence[Delivered]) -> None:
        self._loop.call_soon_threadsafe(self._start, deliveries)

    def give_up(self, places: Sequence[At], *, lost: bool) -> None:
        self._loop.call_soon_threadsafe(self._give_up, places, lost)

    # On the user's loop

    def _start(self, deliveries: Sequence[Delivered]) -> None:
        assert self._fetcher is not None
        create, running = self._loop.create_task, self._running
        for each in deliveries:
            context, place = Context(each, self._fetcher), at(each)
            running[place] = create(self._execute(each, context, place)), context

    def _give_up(self, places: Sequence[At], lost: bool) -> None:
        for place in places:
            known = self._running.get(place)
            if known is None:
                continue
            task, context = known
            if lost:
                self._lost.add(place)
            context.give_up(lost=lost)
            task.cancel()

    async def _execute(self, delivered: Delivered, context: Context, place: At) -> None:
        began, started = time.perf_counter(), datetime.now(UTC)
        try:
            report = await self._runner.run(self._worker.tasks[delivered.kind], context)
        except asyncio.CancelledError:
            report = Fail("canceled")
        except Exception as error:  # a fault of our own must not keep the slot, or the message
            log.exception("qo itself failed while it ran a task", extra=log_fields(delivered))
            context.error, report = error, Fail(f"qo itself failed: {describe(error)}")
        finally:
            self._running.pop(place, None)
        if place in self._lost:
            self._lost.discard(place)
            return
        assert self._fetcher is not None
        seconds = time.perf_counter() - began
        self._fetcher.done(Finished(delivered, report, started, seconds, context.error))

    async def _ended(self) -> None:
        """Cancel the tasks that still run, and log those that go on in threads."""
        left = [task for task, _ in self._running.values()]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        behind = self._runner.left_behind
        self.left_behind = len(behind)
        if behind:
            log.warning(
                "%d tasks still run in threads, which cannot be stopped: %s; their messages were given back",
                len(behind),
                ", ".join(sorted(set(behind.values()))),
            )

    def _take_signals(self, stack: contextlib.ExitStack) -> None:
        if not self._options.signals:
            return
        if threading.current_thread() is not threading.main_thread():
            raise Invalid("signals", "can be taken in the main thread only; say signals=False here")
        asked = 0

        def on_signal(number: int) -> None:
            nonlocal asked
            asked += 1
            log.info("%s: %s", signal.Signals(number).name, "stopping" if asked == 1 else "stopping now")
            self.stop(now=asked > 1)

        for each in SIGNALS:
            self._loop.add_signal_handler(each, on_signal, each)
            stack.callback(self._loop.remove_signal_handler, each)
