"""Arguments that users get wrong, refused with a sentence."""

from __future__ import annotations

import inspect
from collections.abc import Collection
from datetime import timedelta
from typing import Any

from qo.core.durations import Length, duration
from qo.core.errors import Invalid, not_one_of
from qo.core.outcome import JobState


def checked_kinds(kinds: Collection[str] | None) -> frozenset[str] | None:
    if isinstance(kinds, str):
        raise Invalid("kinds", f"must be a collection of names, as in ['{kinds}'], not one text")
    return None if kinds is None else frozenset(kinds)


def positive(field: str, value: Length) -> timedelta:
    length = duration(field, value)
    if length < timedelta(0):
        raise Invalid(field, "must not be negative")
    return length


def at_least_one(field: str, value: int) -> int:
    if type(value) is not int or value < 1:
        raise Invalid(field, f"must be a whole number of at least 1, not {value!r}")
    return value


def check_handler(handler: Any) -> None:
    if handler is not None and not callable(handler):
        raise Invalid("handler", f"must be a function of one delivery, not {type(handler).__name__}")


def is_async(handler: Any) -> bool:
    """Whether calling it gives something to await; objects that cannot tell are taken at their word."""
    called = handler if inspect.isroutine(handler) else getattr(handler, "__call__", handler)  # noqa: B004
    plain = inspect.isfunction(called) or inspect.ismethod(called)
    return not plain or inspect.iscoroutinefunction(called) or _wraps_async(called)


def _wraps_async(function: Any) -> bool:
    """A plain function may return an awaitable: believe its annotation."""
    returns = getattr(function, "__annotations__", {}).get("return", "")
    return "Awaitable" in str(returns) or "Coroutine" in str(returns) or "Future" in str(returns)


def read_state(state: JobState | str) -> JobState:
    try:
        return JobState(state)
    except ValueError:
        raise not_one_of("state", state, JobState) from None
