"""OpenTelemetry: the trace that a message was pushed in travels with it, in its headers, as W3C says.

It is there if the application uses it: whoever has not imported OpenTelemetry has no trace, and pays nothing.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from qo.core.lease import Delivered
from qo.core.message import id_text
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


@contextlib.contextmanager
def processing(message: Delivered) -> Iterator[Callable[[str], None]]:
    """A span in the message's trace, while a task runs it. What it gives is to be called with an error."""
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
    ) as span:

        def failed(error: str) -> None:
            span.add_event("exception", {"exception.message": error})
            span.set_status(trace.Status(trace.StatusCode.ERROR, error))

        yield failed


def in_trace(headers: Mapping[str, str], function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function, in another process, in the trace that these headers name."""
    from opentelemetry import context, propagate  # noqa: PLC0415 - whoever has called uses it

    token = context.attach(propagate.extract(headers))
    try:
        return function(*arguments)
    finally:
        context.detach(token)
