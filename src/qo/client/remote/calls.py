"""Calls of operations: the path, the query and the body come from the declaration."""

from __future__ import annotations

import functools
import inspect
import secrets
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

import msgspec

from qo.client.remote.transport import Answer, Transport
from qo.core.verbs import Access, Admin, Inspect, Schedules
from qo.wire.operation import Operation
from qo.wire.operations import of_verb

PARTS: Mapping[str, type] = {"admin": Admin, "inspect": Inspect, "access": Access, "schedules": Schedules}


def path_of(operation: Operation, fields: Mapping[str, Any], query: Mapping[str, Any] | None = None) -> str:
    """The path with its names, each one segment, and what is asked in the query; None: not said."""
    path = operation.path.format_map({name: quote(str(fields[name]), safe="") for name in operation.parameters})
    given = [(name, value) for name, value in (query or {}).items() if value is not None]
    return f"{path}?{urlencode(given, doseq=True, quote_via=quote)}" if given else path


async def call(
    transport: Transport, operation: Operation, fields: Mapping[str, Any], nonce: str | None = None
) -> Answer:
    """Ask for an operation. Fields go to the path, then to the body if there is one, else to the query."""
    rest = {name: value for name, value in fields.items() if name not in operation.parameters}
    key = (nonce or secrets.token_hex(16)) if operation.takes_key else None
    if operation.body is None:
        return await transport.call(operation.method, path_of(operation, fields, rest), key=key)
    whole = operation.verb is not None and operation.verb.body is not None
    body = rest.popitem()[1] if whole else operation.body(**rest)
    return await transport.call(operation.method, path_of(operation, fields), body, key=key)


class RemotePart:
    """The verbs of one part of a broker, each made by the operation that is declared for it."""

    PART: str

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def __getattr__(self, name: str) -> Any:
        operations = of_verb(self.PART, name)
        if not operations:
            raise AttributeError(f"no operation makes the verb {self.PART}.{name}")
        signature = inspect.signature(getattr(PARTS[self.PART], name))
        verb = functools.partial(_make, self._transport, operations, signature)
        setattr(self, name, verb)
        return verb


async def _make(
    transport: Transport, operations: list[Operation], signature: inspect.Signature, *given: Any, **named: Any
) -> Any:
    bound = signature.bind(None, *given, **named)
    bound.apply_defaults()
    arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
    nonce = arguments.pop("nonce", None)
    for operation in operations:
        verb = operation.verb
        if verb is not None and all(arguments[name] == value for name, value in verb.fixed.items()):
            answer = await call(transport, operation, operation.write_arguments(arguments), nonce)
            return verb.answer.read(msgspec.json.decode(answer.body, type=operation.reply))
    raise AssertionError(f"no operation has these arguments: {arguments}")
