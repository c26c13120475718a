"""Tasks: the functions that a worker knows, by the kind of message that each handles."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from qo.client.payload import unpacked
from qo.core.errors import Invalid
from qo.core.lease import Delivered
from qo.core.message import id_text
from qo.core.retry import RetryPolicy

if TYPE_CHECKING:
    from qo.worker.machinery import Machinery


@dataclass(frozen=True, slots=True)
class Task:
    """A function, and how it is run."""

    name: str
    function: Callable[..., Any]
    retry: RetryPolicy | None
    timeout: timedelta | None
    concurrency: int | None
    cpu: bool
    is_async: bool
    wants_context: bool
    payload_type: Any

    @property
    def is_simple(self) -> bool:
        """It is awaited as it is."""
        return self.is_async and self.timeout is None and self.concurrency is None

    def payload(self, delivered: Delivered) -> Any:
        """The payload as the function wants it. Raises what says what is wrong with it."""
        value = unpacked(delivered.payload, delivered.headers)
        if value.__class__ is self.payload_type or self.payload_type in (Any, inspect.Parameter.empty):
            return value
        validate = getattr(self.payload_type, "model_validate", None)  # pydantic's way
        if validate is not None:
            return validate(value)
        return msgspec.convert(value, self.payload_type)


def make_task(
    name: str,
    function: Callable[..., Any],
    *,
    retry: RetryPolicy | None = None,
    timeout: timedelta | None = None,
    concurrency: int | None = None,
    cpu: bool = False,
) -> Task:
    """Look at a function: whether it is async, what its payload is, whether it takes a context too."""
    is_async = inspect.iscoroutinefunction(function)
    if cpu and is_async:
        raise Invalid("cpu", f"task '{name}' is async; what runs in a process is a plain function")
    if concurrency is not None and concurrency < 1:
        raise Invalid("concurrency", f"must be at least 1, not {concurrency}")
    parameters = [
        each
        for each in inspect.signature(function).parameters.values()
        if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    try:
        hints = get_type_hints(function)
    except NameError:
        hints = {}
    wanted = [hints.get(each.name, each.annotation) for each in parameters]
    if not 1 <= len(parameters) <= 2:
        raise Invalid("task", f"'{name}' must take the payload, or the payload and a Context")
    wants_context = len(parameters) == 2
    if cpu and wants_context:
        raise Invalid("cpu", f"task '{name}' runs in another process, and cannot take a context")
    return Task(name, function, retry, timeout, concurrency, cpu, is_async, wants_context, wanted[0])


@dataclass(slots=True)
class Context:
    """What a task may know, and do, about the message that it handles."""

    message: Delivered
    logger: logging.Logger
    _machinery: Machinery | None
    _cancelled: bool = False

    @property
    def id(self) -> str:
        return id_text(self.message.id)

    @property
    def attempt(self) -> int:
        """From 1."""
        return self.message.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the task should stop: it was canceled, or its lease was lost. A task in a thread looks here."""
        return self._cancelled

    def give_up(self) -> None:
        """The worker says that it should stop."""
        self._cancelled = True

    async def check_lease(self) -> None:
        """Before the task starts: make sure of the lease, if it may have ended. If it has, this is canceled."""
        if self._machinery is not None and self._machinery.may_be_over(self.message):
            await self._machinery.verified(self.message)

    def extend(self, length: timedelta) -> None:
        """Hold the message for at least so long from now; the worker does this by itself as long as the task runs."""
        if self._machinery is not None:  # in a test there may be none
            self._machinery.extend_soon(self.message, length)

    def progress(self, note: str) -> None:
        """Say how far it is, for people who read the log."""
        self.logger.info("%s", note, extra={"message_id": self.id})
