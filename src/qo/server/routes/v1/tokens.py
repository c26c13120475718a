"""tokens: who may come in."""

from __future__ import annotations

import secrets

import msgspec

from qo.core.access import DIGEST_BYTES, ID_BYTES, SECRET_BYTES, Token, new_token
from qo.core.durations import duration
from qo.core.errors import Invalid
from qo.server.context import ServerContext
from qo.server.request import Request, Response, reply
from qo.wire.queues import DeletedReply
from qo.wire.tokens import NewTokenBody, NewTokenReply, write_token

_new = msgspec.json.Decoder(NewTokenBody)


async def create(context: ServerContext, request: Request) -> Response:
    body = request.read(_new)
    id, secret = secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
    now = context.broker.store_now()
    lasts = None if body.lasts_seconds is None else duration("lasts_seconds", body.lasts_seconds)
    token, text = new_token(id, secret, body.name, body.scopes, body.prefixes, now, body.expires_at)
    token = token.lasting(lasts, now)
    shown: str | None = text
    if body.id is not None or body.digest is not None:
        token, shown = _with_digest(token, body), None
    await context.broker.access.add_token(token)
    return reply(NewTokenReply(write_token(token), shown), 201)


def _with_digest(token: Token, body: NewTokenBody) -> Token:
    if body.id is None or body.digest is None:
        raise Invalid("digest", "goes with an id, and an id with a digest")
    try:
        digest = bytes.fromhex(body.digest)
    except ValueError:
        raise Invalid("digest", "must be hexadecimal") from None
    if len(digest) != DIGEST_BYTES:
        raise Invalid("digest", f"must be a SHA-256, {DIGEST_BYTES} bytes")
    return msgspec.structs.replace(token, id=body.id, digest=digest)


async def revoke(context: ServerContext, request: Request) -> Response:
    id = request.path["id"]
    removed = await context.broker.access.remove_token(id)
    context.authenticator.forget(id)
    return reply(DeletedReply(removed))
