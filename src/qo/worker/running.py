"""running: one message, from its payload to what is said about it."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextvars import copy_context
from functools import partial
from random import random
from typing import Any

import msgspec

from qo.client.delivery import describe
from qo.client.payload import result_bytes
from qo.client.tracing import in_trace, is_traced, processing, trace_headers
from qo.core.lease import Bury, Complete, Fail, Report
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.tasks import Context, Task

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
    """Runs tasks on the user's loop, in threads and in processes (if it has any). Lives on the user's loop."""

    def __init__(self, threads: Executor, processes: Processes | None = None) -> None:
        self._threads = threads
        self._processes = processes
        self._limits: dict[str, asyncio.Semaphore] = {}

    async def run(self, task: Task, context: Context) -> Report:
        """What became of the message. Raises nothing but cancellation."""
        if not is_traced():
            return await self._run(task, context)
        with processing(context.message) as failed:
            report = await self._run(task, context)
            if is_failure(report):
                failed(getattr(report, "error", ""))
            return report

    async def _run(self, task: Task, context: Context) -> Report:
        try:
            payload = task.payload(context.message)
        except Exception as error:  # noqa: BLE001 - whatever a type says is wrong with it
            return Bury(f"the payload is not what task '{task.name}' takes: {_said(error)}")
        await context.check_lease()
        try:
            if task.is_simple:
                arguments = (payload, context) if task.wants_context else (payload,)
                return _completed(await task.function(*arguments))
            if task.concurrency is None:
                return _completed(await self._call(task, payload, context))
            async with self._limits.setdefault(task.name, asyncio.Semaphore(task.concurrency)):
                await context.check_lease()
                return _completed(await self._call(task, payload, context))
        except Exception as error:  # noqa: BLE001 - a user's task may raise anything
            _log_failure(error, task, context)
            return report_of(error, task, context.attempt)

    async def _call(self, task: Task, payload: Any, context: Context) -> Any:
        arguments = (payload, context) if task.wants_context else (payload,)
        seconds = None if task.timeout is None else task.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                if task.is_async:
                    return await task.function(*arguments)
                if task.cpu and self._processes is not None:
                    return await self._processes.run(task.function, *arguments)
                run = partial(copy_context().run, task.function)  # a thread sees what its task would have seen
                return await asyncio.get_running_loop().run_in_executor(self._threads, run, *arguments)
        except TimeoutError as error:
            if seconds is None or str(error):
                raise
            raise TimeoutError(f"task '{task.name}' took longer than {seconds:g} s") from None


DONE = Complete()


def is_failure(report: Report) -> bool:
    """Not a success, and not put off."""
    return isinstance(report, Bury) or (isinstance(report, Fail) and not report.free)


def _completed(result: Any) -> Complete:
    return DONE if result is None else Complete(result_bytes(result))


def _log_failure(error: Exception, task: Task, context: Context) -> None:
    """With its trace, unless the task said that it would fail."""
    if isinstance(error, Snooze):
        log.debug("task '%s' snoozed, message %s: %s", task.name, context.id, error)
        return
    meant = isinstance(error, RetryableError | PermanentError)
    log.warning(
        "task '%s' failed, message %s, attempt %d: %s", task.name, context.id, context.attempt, describe(error),
        exc_info=None if meant else error,
    )  # fmt: skip


def report_of(error: BaseException, task: Task, attempt: int) -> Report:
    """What an error of a task makes of its message."""
    match error:
        case Snooze():
            return Fail(str(error), error.after, free=True)
        case PermanentError():
            return Bury(describe(error))
    after = error.after if isinstance(error, RetryableError) else None
    if task.retry is not None:
        if task.retry.exhausted(attempt):
            return Bury(describe(error))
        after = task.retry.rest(attempt, random()) if after is None else after  # noqa: S311 - it spreads retries
    return Fail(describe(error), after)


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.ValidationError) else describe(error)
