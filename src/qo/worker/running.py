"""running: one message, from its payload to what is said about it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import multiprocessing
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from functools import partial
from random import random
from typing import Any

import msgspec

from qo.client.payload import result_bytes
from qo.client.traces import describe, traced
from qo.client.tracing import in_trace, is_traced, processing, trace_headers
from qo.core.errors import Invalid
from qo.core.lease import Bury, Complete, Fail, Report
from qo.worker.errors import PermanentError, RetryableError, Snooze, UnusablePayload, UnusableResult
from qo.worker.middleware import RunMiddleware, around_runs
from qo.worker.tasks import Context, Task, log_fields

log = logging.getLogger("qo.worker")


class Processes:
    """A pool of processes that starts when it is used, and anew after one of them died.

    They are not forked from here, where threads run: a lock that one of them holds would be held in the copy for ever.
    Whatever ran beside one that died is tried again, alone: whose process then dies was the cause.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None
        self._alone = asyncio.Lock()

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        pool = self._pool = self._pool or _pool(self._count)
        try:
            return await _run_in(pool, function, *arguments)
        except BrokenProcessPool:
            if pool is self._pool:
                self.close()
        async with self._alone:
            pool = _pool(1)
            try:
                return await _run_in(pool, function, *arguments)
            finally:
                _end(pool)

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            _end(pool)


def _pool(count: int | None) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(count, multiprocessing.get_context("forkserver"), initializer=_leave_signals_alone)


def _leave_signals_alone() -> None:
    """A terminal sends its signals to all processes; the worker decides when these end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


async def _run_in(pool: Executor, function: Callable[..., Any], *arguments: Any) -> Any:
    call = (
        partial(function, *arguments) if not is_traced() else partial(in_trace, trace_headers(), function, *arguments)
    )
    return await asyncio.get_running_loop().run_in_executor(pool, call)


def _end(pool: ProcessPoolExecutor) -> None:
    """Now: what still runs is given back already."""
    processes = list((pool._processes or {}).values())  # noqa: SLF001 - from 3.14 on there is kill_workers
    pool.shutdown(wait=False, cancel_futures=True)
    for each in processes:
        each.kill()


class Runner:
    """Runs tasks on the user's loop, in threads and in processes (if it has any). Lives on the user's loop.

    `occupied` is told when a thread is left behind by its message (+1) and when it returns (-1).
    """

    def __init__(
        self,
        threads: Executor,
        processes: Processes | None = None,
        occupied: Callable[[int], None] | None = None,
        middleware: Sequence[RunMiddleware] = (),
        hooks: RunMiddleware | None = None,
    ) -> None:
        self._invoke = around_runs(middleware, self._invoke_task)
        self._run = self._encoded if hooks is None else around_runs([hooks], self._encoded)
        self._threads = threads
        self._processes = processes
        self._occupied = occupied or (lambda _: None)
        self._limits: dict[str, asyncio.Semaphore] = {}
        self.left_behind: dict[Future[Any], str] = {}
        """Threads that go on though nothing waits for them any more, and the task that each runs."""

    async def run(self, task: Task, context: Context) -> Report:
        """What became of the message. Raises nothing but cancellation."""
        try:
            if is_traced():
                run = partial(self._run, task, context)
                result = await processing(context.message, run, lambda error: not isinstance(error, Snooze))
            else:
                result = await self._run(task, context)
            return DONE if result is None else Complete(result)
        except Exception as error:  # noqa: BLE001 - a user's task, and middleware, may raise anything
            context.error = error.__cause__ if isinstance(error, UnusablePayload) else error
            return report_of(error, task, context.attempt)

    async def _encoded(self, task: Task, context: Context) -> bytes | None:
        """The result as it is kept, after the user's middleware and before the hooks have seen the run."""
        result = await self._invoke(task, context)
        if result is None:
            return None
        try:
            return result_bytes(result)
        except Invalid as error:
            problem = error.problem.partition(";")[0]
            raise UnusableResult(
                f"task '{task.name}' ran, but its result {problem}; return plain data or None"
            ) from None

    async def _invoke_task(self, task: Task, context: Context) -> Any:
        try:
            payload = task.payload(context.message)
        except Exception as error:
            problem = f"the payload is not what task '{task.name}' takes: {_error_text(error)}"
            raise UnusablePayload(problem) from error
        await context.check_lease()
        call = task.bound(payload, context)
        if task.is_simple:
            return await call()
        if task.concurrency is None:
            return await self._call(task, call, context)
        return await self._limited(task, call, context)

    async def _limited(self, task: Task, call: Callable[[], Any], context: Context) -> Any:
        """Not more at once than the task allows; a thread that is left behind still counts."""
        assert task.concurrency is not None
        limit = self._limits.setdefault(task.name, asyncio.Semaphore(task.concurrency))
        await limit.acquire()
        try:
            await context.check_lease()
            return await self._call(task, call, context)
        finally:
            if context.thread is None:
                limit.release()
            else:
                _once_ended(context.thread, limit.release)

    async def _call(self, task: Task, call: Callable[[], Any], context: Context) -> Any:
        seconds = None if task.timeout is None else task.timeout.total_seconds()
        try:
            if not task.is_async and not (task.cpu and self._processes is not None):
                return await self._in_thread(task, call, context, seconds)
            async with asyncio.timeout(seconds):
                if task.is_async:
                    return await call()
                assert self._processes is not None
                return await self._processes.run(call)
        except TimeoutError as error:
            if seconds is None or str(error):
                raise
            raise TimeoutError(f"task '{task.name}' took longer than {seconds:g} s") from None

    async def _in_thread(self, task: Task, call: Callable[[], Any], context: Context, seconds: float | None) -> Any:
        """A thread sees what its task would have seen. It cannot be stopped: its slot stays taken until it ends."""
        async with asyncio.timeout(None) as limit:
            if seconds is not None:
                call = _beginning(limit, seconds, call)
            job = self._threads.submit(copy_context().run, call)
            try:
                return await asyncio.wrap_future(job)
            finally:
                if not job.cancel() and not job.done():
                    context.give_up()
                    context.thread = job
                    self._leave_behind(job, task, context)

    def _leave_behind(self, job: Future[Any], task: Task, context: Context) -> None:
        fields = log_fields(context.message)
        log.warning(
            "task '%s' goes on in its thread after its time-out, its lease or its cancellation; a thread cannot be "
            "stopped, so that its slot stays taken until it returns (it can look at `context.cancelled`)",
            task.name,
            extra=fields,
        )
        self.left_behind[job] = task.name
        self._occupied(1)

        def returned() -> None:
            log.info("task '%s' has returned from its thread, too late", task.name, extra=fields)
            self.left_behind.pop(job, None)
            self._occupied(-1)

        _once_ended(job, returned)


def _beginning(limit: asyncio.Timeout, seconds: float, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, whose time begins when a thread has taken it up."""
    loop = asyncio.get_running_loop()

    def begin() -> None:
        with contextlib.suppress(RuntimeError):  # it was given up meanwhile
            limit.reschedule(loop.time() + seconds)

    def run() -> Any:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(begin)
        return call()

    return run


def _once_ended(job: Future[Any], then: Callable[[], None]) -> None:
    """Have the loop call this when a thread has ended."""
    loop = asyncio.get_running_loop()

    def tell(_: Future[Any]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(then)

    job.add_done_callback(tell)


DONE = Complete()


def report_of(error: BaseException, task: Task, attempt: int) -> Report:
    """What an error of a task makes of its message. The task's own policy weighs more than the queue's."""
    match error:
        case Snooze():
            return Fail(str(error), error.after, free=True)
        case UnusablePayload() | UnusableResult():
            return Bury(str(error))
        case PermanentError():
            return Bury(traced(error))
    after = error.after if isinstance(error, RetryableError) else None
    if task.retry is None:
        return Fail(traced(error), after)
    after = task.retry.rest(attempt, random()) if after is None else after  # noqa: S311 - it spreads retries
    return Fail(traced(error), after, limit=task.retry.attempts)


def _error_text(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.ValidationError) else describe(error)
