"""running: one message, from its payload to what is said about it."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
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
from qo.client.tracing import is_traced, processing
from qo.core.lease import Bury, Complete, Fail, Report
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.tasks import Context, Task

log = logging.getLogger("qo.worker")


class Processes:
    """A pool of processes that starts when it is used, and anew after one of them died.

    They are not forked from here, where threads run: a lock that one of them holds would be held in the copy for ever.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._pool: ProcessPoolExecutor | None = None

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(self._count, multiprocessing.get_context("forkserver"))
        pool = self._pool
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, partial(function, *arguments))
        except BrokenProcessPool:
            if pool is self._pool:
                self.close()
            raise

    def close(self) -> None:
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)


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
            if isinstance(report, Fail | Bury):
                failed(report.error)
            return report

    async def _run(self, task: Task, context: Context) -> Report:
        try:
            payload = task.payload(context.message)
        except Exception as error:  # noqa: BLE001 - whatever a type says is wrong with it
            return Bury(f"the payload is not what task '{task.name}' takes: {_said(error)}")
        try:
            if task.is_simple:
                arguments = (payload, context) if task.wants_context else (payload,)
                return _completed(await task.function(*arguments))
            if task.concurrency is None:
                return _completed(await self._call(task, payload, context))
            async with self._limits.setdefault(task.name, asyncio.Semaphore(task.concurrency)):
                return _completed(await self._call(task, payload, context))
        except Exception as error:  # noqa: BLE001 - a user's task may raise anything
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


def _completed(result: Any) -> Complete:
    return DONE if result is None else Complete(result_bytes(result))


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
