"""tokens: who may come in."""

from __future__ import annotations

import secrets

import msgspec

from qo.core.access import SECRET_BYTES, Token, digest_of, read_scopes, token_text
from qo.core.errors import Invalid
from qo.server.house import House
from qo.server.request import Request, Response, reply
from qo.server.router import Route
from qo.wire.looking import DeletedReply, NewTokenBody, NewTokenReply, TokensReply, write_token

_new = msgspec.json.Decoder(NewTokenBody)


async def tokens(house: House, _: Request) -> Response:
    return reply(TokensReply([write_token(each) for each in await house.broker.access.tokens()]))


async def create(house: House, request: Request) -> Response:
    body = request.read(_new)
    if body.expires_at is not None and body.expires_at.tzinfo is None:
        raise Invalid("expires_at", "must have a time zone")
    secret = secrets.token_bytes(SECRET_BYTES)
    token = Token(
        id=secrets.token_hex(6),
        name=body.name,
        digest=digest_of(secret),
        scopes=read_scopes(body.scopes),
        prefixes=tuple(body.prefixes),
        created_at=house.broker.now(),
        expires_at=body.expires_at,
    )
    await house.broker.access.add_token(token)
    return reply(NewTokenReply(write_token(token), token_text(token.id, secret)), 201)


async def revoke(house: House, request: Request) -> Response:
    id = request.path["id"]
    removed = await house.broker.access.remove_token(id)
    house.gate.forget(id)
    return reply(DeletedReply(removed))


ROUTES = [
    Route(
        method="GET",
        path="/v1/tokens",
        name="tokens",
        summary="The tokens there are, without their secrets.",
        handle=tokens,
        answers={200: TokensReply},
    ),
    Route(
        method="POST",
        path="/v1/tokens",
        name="create_token",
        summary="Make a token. Its secret is shown now and never again.",
        handle=create,
        body=NewTokenBody,
        answers={201: NewTokenReply},
    ),
    Route(
        method="DELETE",
        path="/v1/tokens/{id}",
        name="revoke_token",
        summary="Revoke a token; other servers notice within ten seconds.",
        handle=revoke,
        answers={200: DeletedReply},
    ),
]
