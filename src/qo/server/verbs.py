"""Operations that make one of the broker's verbs and nothing else: their handlers come from the declaration."""

from __future__ import annotations

from typing import Any

import msgspec

from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.server.router import Handler
from qo.wire.operation import Operation


def handler_of(operation: Operation) -> Handler:
    """Read the verb's arguments from the request, make the verb, write its answer."""
    verb = operation.verb
    assert verb is not None
    decoder = None if operation.body is None else msgspec.json.Decoder(operation.body)

    async def handle(context: ServerContext, request: Request) -> Response:
        fields: dict[str, Any] = dict(request.path)
        if operation.query is not None:
            fields |= msgspec.structs.asdict(request.query(operation.query))
        if decoder is not None:
            body = request.read(decoder)
            fields |= msgspec.structs.asdict(body) if verb.body is None else {verb.body: body}
        for name, value in fields.items():
            if isinstance(value, list):
                context.check_count(name, value)
        arguments = operation.read_arguments(fields)
        if operation.takes_key:
            arguments["nonce"] = request.nonce
        answer = await getattr(getattr(context.broker, verb.part), verb.name)(**arguments)
        return reply(verb.answer.write(answer))

    return handle
