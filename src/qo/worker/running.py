"""running: one message, from its payload to what is said about it."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from contextvars import copy_context
from functools import partial
from random import random
from typing import Any

import msgspec

from qo.client.delivery import describe
from qo.client.payload import result_bytes
from qo.client.tracing import processing
from qo.core.lease import Bury, Complete, Fail, Report
from qo.worker.errors import PermanentError, RetryableError, Snooze
from qo.worker.tasks import Context, Task

log = logging.getLogger("qo.worker")


class Runner:
    """Runs tasks on the user's loop, in threads and in processes. Lives on the user's loop."""

    def __init__(self, threads: Executor, processes: Executor) -> None:
        self._threads = threads
        self._processes = processes
        self._limits: dict[str, asyncio.Semaphore] = {}

    async def run(self, task: Task, context: Context) -> Report:
        """What became of the message. Raises nothing but cancellation."""
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
            if task.concurrency is None:
                return Complete(result_bytes(await self._call(task, payload, context)))
            async with self._limits.setdefault(task.name, asyncio.Semaphore(task.concurrency)):
                return Complete(result_bytes(await self._call(task, payload, context)))
        except Exception as error:  # noqa: BLE001 - a user's task may raise anything
            return report_of(error, task, context.attempt)

    async def _call(self, task: Task, payload: Any, context: Context) -> Any:
        arguments = (payload, context) if task.wants_context else (payload,)
        seconds = None if task.timeout is None else task.timeout.total_seconds()
        try:
            async with asyncio.timeout(seconds):
                if task.is_async:
                    return await task.function(*arguments)
                loop = asyncio.get_running_loop()
                if task.cpu:
                    return await loop.run_in_executor(self._processes, partial(task.function, *arguments))
                run = copy_context().run  # a thread sees what its task would have seen
                return await loop.run_in_executor(self._threads, partial(run, task.function, *arguments))
        except TimeoutError as error:
            if seconds is None or str(error):
                raise
            raise TimeoutError(f"task '{task.name}' took longer than {seconds:g} s") from None


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
