"""OpenTelemetry: the trace that a message was pushed in travels with it, in its headers, as W3C says.

It is there if the application uses it: whoever has not imported OpenTelemetry has no trace, and pays nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from qo.client.traces import traced
from qo.core.lease import Delivered
from qo.core.message import NewMessage, id_text
from qo.core.version import __version__

API = "opentelemetry.trace"
NO_HEADERS: Mapping[str, str] = {}


def is_traced() -> bool:
    """Whether the application uses OpenTelemetry."""
    return API in sys.modules


def trace_headers() -> Mapping[str, str]:
    """What names the current trace; empty, if there is none."""
    if not is_traced():
        return NO_HEADERS
    from opentelemetry import propagate, trace  # noqa: PLC0415 - it is imported already

    if not trace.get_current_span().get_span_context().is_valid:
        return NO_HEADERS
    headers: dict[str, str] = {}
    propagate.inject(headers)
    return headers


def with_trace(messages: Sequence[NewMessage]) -> Sequence[NewMessage]:
    """The messages with the current trace in their headers, if there is one. Headers of their own weigh more."""
    trace = trace_headers()
    if not trace:
        return messages
    return [msgspec.structs.replace(each, headers={**trace, **(each.headers or {})}) for each in messages]


async def processing(
    message: Delivered, run: Callable[[], Awaitable[Any]], is_failure: Callable[[Exception], bool]
) -> Any:
    """Run a task in a span of the message's trace; an error that is a failure is the span's, too."""
    from opentelemetry import propagate, trace  # noqa: PLC0415 - it is imported already

    about: dict[str, str | int] = {
        "messaging.system": "qo",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": message.queue,
        "messaging.message.id": id_text(message.id),
        "qo.kind": message.kind,
        "qo.attempt": message.attempt,
    }
    if message.key is not None:
        about["qo.key"] = message.key
    with trace.get_tracer("qo", __version__).start_as_current_span(
        f"process {message.queue}",
        context=propagate.extract(message.headers),
        kind=trace.SpanKind.CONSUMER,
        attributes=about,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            return await run()
        except Exception as error:
            if is_failure(error):
                text = traced(error)
                span.add_event("exception", {"exception.message": text})
                span.set_status(trace.Status(trace.StatusCode.ERROR, text))
            raise


def in_trace(headers: Mapping[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, in another process, in the trace that these headers name."""
    from opentelemetry import context, propagate  # noqa: PLC0415 - whoever has called uses it

    token = context.attach(propagate.extract(headers))
    try:
        return function(*arguments)
    finally:
        context.detach(token)
