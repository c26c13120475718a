"""Tasks: the functions that a worker knows, by the kind of message that each handles."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, MutableMapping
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from qo.client.payload import unpacked
from qo.core.durations import Length, duration
from qo.core.errors import Invalid
from qo.core.lease import Delivered
from qo.core.message import id_text
from qo.core.retry import RetryPolicy

if TYPE_CHECKING:
    from qo.worker.fetcher import Fetcher

log = logging.getLogger("qo.worker")


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
    takes_payload: bool
    context_parameter: str | None
    """The parameter that takes the context, by its name; None: there is none."""
    payload_parameter: str | None
    """The parameter that takes the payload, by its name, if it is not the first; None: by its place."""
    payload_type: Any

    @property
    def is_simple(self) -> bool:
        """It is awaited as it is."""
        return self.is_async and self.timeout is None and self.concurrency is None

    def payload(self, delivered: Delivered) -> Any:
        """The payload as the function wants it. Raises what says what is wrong with it."""
        if not self.takes_payload:
            return None
        value = unpacked(delivered.payload, delivered.headers)
        if value.__class__ is self.payload_type or self.payload_type in (Any, inspect.Parameter.empty):
            return value
        validate = getattr(self.payload_type, "model_validate", None)  # pydantic's way
        if validate is not None:
            return validate(value)
        return msgspec.convert(value, self.payload_type)

    def bound(self, payload: Any, context: Context) -> Callable[[], Any]:
        """The function with its arguments."""
        named = {} if self.context_parameter is None else {self.context_parameter: context}
        if self.payload_parameter is not None:
            return partial(self.function, **{self.payload_parameter: payload, **named})
        return partial(self.function, *((payload,) if self.takes_payload else ()), **named)


def make_task(
    name: str,
    function: Callable[..., Any],
    *,
    retry: RetryPolicy | None = None,
    timeout: Length | None = None,
    concurrency: int | None = None,
    cpu: bool = False,
    may_take_nothing: bool = False,
) -> Task:
    """Check how a function is to be run, and look at it: whether it is async, and what it takes."""
    if not callable(function):
        raise Invalid("task", f"'{name}' must be a function, not {type(function).__name__}")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise Invalid(
            "retry", f"of task '{name}' must be a RetryPolicy, as in qo.RetryPolicy(attempts=3), not {retry!r}"
        )
    if concurrency is not None and (type(concurrency) is not int or concurrency < 1):
        raise Invalid("concurrency", f"of task '{name}' must be a whole number of at least 1, not {concurrency!r}")
    if type(cpu) is not bool:
        raise Invalid("cpu", f"of task '{name}' must be True or False, not {cpu!r}")
    length = None if timeout is None else duration("timeout", timeout)
    if length is not None and length <= timedelta(0):
        raise Invalid("timeout", f"of task '{name}' must be greater than 0, not {timeout!r}")
    is_async = inspect.iscoroutinefunction(function)
    if cpu and is_async:
        raise Invalid("cpu", f"task '{name}' is async; what runs in a process is a plain function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise Invalid("task", f"'{name}' is a generator, which does nothing when it is called; return what it yields")
    payload, context = _parameters(name, function, may_take_nothing)
    if cpu and context is not None:
        raise Invalid("cpu", f"task '{name}' runs in another process, and cannot take a context")
    if cpu and not _can_be_imported(function):
        raise Invalid("cpu", f"task '{name}' runs in another process; define it with `def` at the top of a module")
    takes_payload = payload is not None
    wanted = Any if payload is None else payload.annotation
    first = next(iter(inspect.signature(function).parameters), None)
    by_name = payload.name if payload is not None and payload.name != first else None
    parameter = None if context is None else context.name
    return Task(name, function, retry, length, concurrency, cpu, is_async, takes_payload, parameter, by_name, wanted)


def _can_be_imported(function: Callable[..., Any]) -> bool:
    """Whether another process can find it by its name."""
    name = getattr(function, "__qualname__", "")
    return "<locals>" not in name and "<lambda>" not in name


def _parameters(
    name: str, function: Callable[..., Any], may_take_nothing: bool
) -> tuple[inspect.Parameter | None, inspect.Parameter | None]:
    """The parameter that takes the payload, and the one that takes the context.

    The context's is annotated as `Context`, or it is called `context`, or it is the second one.
    """
    found = [each for each in _resolved(name, function) if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
    contexts = [each for each in found if each.annotation is Context]
    contexts = contexts or [each for each in found[1:] if each.name == "context"]
    needed = [each for each in found if each.default is each.empty or each.annotation is Context]
    if not contexts and len(needed) == 2 and all(each.kind is not each.KEYWORD_ONLY for each in needed):
        contexts = needed[1:]
    payloads = [each for each in needed if each not in contexts] or [each for each in found if each not in contexts][:1]
    positional = all(each.kind is not each.KEYWORD_ONLY for each in payloads)
    if (not found and not may_take_nothing) or len(payloads) > 1 or len(contexts) > 1 or not positional:
        raise Invalid("task", f"'{name}' must take the payload, a qo.Context, or the payload and a qo.Context")
    context = contexts[0] if contexts else None
    if context is not None and context.kind is context.POSITIONAL_ONLY:
        raise Invalid("task", f"'{name}' takes its context by position only; remove the '/' after it")
    return payloads[0] if payloads else None, context


def _resolved(name: str, function: Callable[..., Any]) -> list[inspect.Parameter]:
    """The parameters, with their annotations as types."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        raise Invalid("task", f"'{name}' does not say what it takes; wrap it in a function that does") from None
    try:
        hints = get_type_hints(function, localns={"Context": Context})
    except NameError as error:
        if any(isinstance(each.annotation, str) for each in parameters):
            raise Invalid(
                "task",
                f"'{name}' has an annotation that cannot be resolved ({error}); import the type where the function is "
                "defined, outside `if TYPE_CHECKING`",
            ) from None
        hints = {}
    except TypeError:
        hints = {}
    return [each.replace(annotation=hints.get(each.name, each.annotation)) for each in parameters]


def log_fields(message: Delivered) -> dict[str, Any]:
    """What a line of the log carries about the message that it is about."""
    return {
        "queue": message.queue,
        "kind": message.kind,
        "message_id": id_text(message.id),
        "attempt": message.attempt,
    }


class MessageLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds to each line what it is about, beside what its caller adds."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, {**kwargs, "extra": {**(kwargs.get("extra") or {}), **(self.extra or {})}}


@dataclass(slots=True)
class Context:
    """What a task may know, and do, about the message that it handles."""

    message: Delivered
    _fetcher: Fetcher | None
    _cancelled: bool = False
    error: BaseException | None = None
    """What the task raised, if it did."""
    thread: Future[Any] | None = None
    """What goes on with the task in a thread, after its message was settled."""
    lost: bool = False
    """Whether its lease was lost: the message is another's now."""
    _logger: MessageLogger | None = None

    @property
    def logger(self) -> MessageLogger:
        """A logger whose lines carry the message's queue, kind, id and attempt."""
        if self._logger is None:
            self._logger = MessageLogger(log, log_fields(self.message))
        return self._logger

    @property
    def id(self) -> str:
        """The message's id, as text."""
        return id_text(self.message.id)

    @property
    def headers(self) -> Mapping[str, str]:
        """What the message carries beside its payload; of one that a schedule pushed, its slot."""
        return self.message.headers

    @property
    def attempt(self) -> int:
        """From 1."""
        return self.message.attempt

    @property
    def cancelled(self) -> bool:
        """Whether the task should stop: it was canceled, or its lease was lost. A task in a thread looks here."""
        return self._cancelled

    def give_up(self, *, lost: bool = False) -> None:
        """The worker says that it should stop."""
        self._cancelled = True
        self.lost = self.lost or lost

    async def check_lease(self) -> None:
        """Before the task starts: make sure of the lease, if it may have ended. If it has, this is canceled."""
        if self._fetcher is not None and self._fetcher.may_be_over(self.message):
            await self._fetcher.verified(self.message)

    def extend(self, length: Length) -> None:
        """Hold the message for at least so long from now; the worker does this by itself as long as the task runs."""
        held = duration("length", length)
        if held <= timedelta(0):
            raise Invalid("length", f"must be greater than 0, not {length!r}")
        if self._fetcher is not None:  # in a test there may be none
            self._fetcher.extend_soon(self.message, held)

    def progress(self, note: str) -> None:
        """Say how far it is, for people who read the log."""
        self.logger.info("%s", note)
