"""Middleware of a worker: functions around each run of a task; see `qo.client.middleware` for their two forms."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any

from qo.client.middleware import checked, through
from qo.worker.errors import Snooze
from qo.worker.tasks import Context, Task

CallNext = Callable[[], Awaitable[Any]]
"""Runs the task; its result, or what it raises."""

RunMiddleware = Callable[[Context, CallNext], Awaitable[Any]] | Callable[[Context], Generator[None, Any, None]]
"""Around a run of a task. An async one may answer another result than the task's."""

Invoke = Callable[[Task, Context], Awaitable[Any]]
CallHooks = Callable[..., Awaitable[None]]


def around_runs(middleware: Sequence[RunMiddleware], invoke: Invoke) -> Invoke:
    """`invoke` with the middleware around it, the first one outermost."""
    for each in reversed(middleware):
        invoke = partial(_around, checked("middleware", each), invoke)
    return invoke


async def _around(middleware: RunMiddleware, invoke: Invoke, task: Task, context: Context) -> Any:
    if inspect.isgeneratorfunction(middleware):
        return await through(middleware(context), lambda _: invoke(task, context))
    return await middleware(context, partial(invoke, task, context))  # type: ignore[call-arg, misc]


def calling_hooks(call_hooks: CallHooks) -> RunMiddleware:
    """The hooks for `success` and `failure`, as a middleware. What is put off is neither."""

    async def around(context: Context, call_next: CallNext) -> Any:
        try:
            result = await call_next()
        except Snooze:
            raise
        except asyncio.CancelledError:
            if context.cancelled and not context.lost:
                await call_hooks("failure", context.message)
            raise
        except Exception:
            await call_hooks("failure", context.message)
            raise
        await call_hooks("success", context.message)
        return result

    return around
