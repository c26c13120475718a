"""Middleware: functions of yours around each push and around each run of a task.

A middleware is either an async function, which is given what it is around and a function that goes on::

    async def timed(context: qo.Context, call_next):
        began = time.perf_counter()
        try:
            return await call_next()
        finally:
            print(context.message.kind, time.perf_counter() - began)

or a generator function that yields once, for what need not wait::

    def timed(context: qo.Context):
        began = time.perf_counter()

Yield:
        print(context.message.kind, time.perf_counter() - began)

The first one that was given is the outermost. An error that a middleware raises is the push's, or
the run's. An error that comes from within is raised at the `yield`; a generator cannot swallow it.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from qo.client.tracing import is_traced, with_trace
from qo.core.errors import Invalid
from qo.core.message import NewMessage, Pushed

A = TypeVar("A")

CallNext = Callable[[Sequence[NewMessage]], Awaitable[Sequence[Pushed]]]
"""Stores the messages that it is given, and answers what became of each."""

AsyncPushMiddleware = Callable[[Sequence[NewMessage], CallNext], Awaitable[Sequence[Pushed]]]
PushGenerator = Generator["Sequence[NewMessage] | None", Sequence[Pushed], None]
PushMiddleware = AsyncPushMiddleware | Callable[[Sequence[NewMessage]], PushGenerator]
"""Around a push. It may hand on other messages than it was given; a generator yields these, or None."""


class Pushes(Protocol):
    """Pushes with the middleware of a client around them."""

    async def __call__(self, messages: Sequence[NewMessage], last: CallNext) -> Sequence[Pushed]: ...


class AroundPushes:
    """The middleware of a client. Traces, if the application has any, begin outside all of it."""

    def __init__(self, middleware: Sequence[PushMiddleware] = ()) -> None:
        self._middleware = tuple(checked("middleware", each) for each in middleware)

    async def __call__(self, messages: Sequence[NewMessage], last: CallNext) -> Sequence[Pushed]:
        """Have `last` store the messages, with the middleware around it."""
        call = last
        for each in reversed(self._middleware):
            call = partial(_around, each, call)
        return await call(with_trace(messages) if is_traced() else messages)


async def _around(middleware: PushMiddleware, call_next: CallNext, messages: Sequence[NewMessage]) -> Sequence[Pushed]:
    if not inspect.isgeneratorfunction(middleware):
        answers: Sequence[Pushed] = await middleware(messages, call_next)  # type: ignore[call-arg, misc]
    else:
        answers = await through(middleware(messages), lambda given: call_next(messages if given is None else given))
    if len(answers) != len(messages):
        raise Invalid("middleware", f"answered {len(answers)} pushes for {len(messages)} messages; answer each of them")
    return answers


async def through(steps: Generator[Any, Any, None], call: Callable[[Any], Awaitable[A]]) -> A:
    """Run a generator up to its `yield`, make the call with what it yields, and then run it to its end."""
    try:
        given = next(steps)
    except StopIteration:
        raise Invalid("middleware", "must yield once; this generator ended before that") from None
    try:
        answer = await call(given)
    except BaseException as error:
        try:
            steps.throw(error)
        except StopIteration:
            pass  # it cannot swallow the error
        finally:
            steps.close()
        raise
    try:
        steps.send(answer)
    except StopIteration:
        return answer
    steps.close()
    raise Invalid("middleware", "must yield once; this generator yielded again")


F = TypeVar("F", bound=Callable[..., Any])


def checked(name: str, middleware: F) -> F:
    """A middleware, if it can be one: an async function or a generator function."""
    call = middleware if inspect.isroutine(middleware) else getattr(middleware, "__call__", middleware)  # noqa: B004
    if inspect.iscoroutinefunction(call) or inspect.isgeneratorfunction(call):
        return middleware if call is middleware else call
    raise Invalid(name, f"must be async functions, or generator functions that yield once, not {middleware!r}")
