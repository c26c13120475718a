"""Tokens: who may come in."""

from __future__ import annotations

from qo.wire.operation import Codec, Operation, Verb
from qo.wire.operations.queues import DELETED
from qo.wire.queues import DeletedReply
from qo.wire.tokens import NewTokenBody, NewTokenReply, TokensReply, read_token, write_token

TOKENS = Operation(
    method="GET",
    path="/v1/tokens",
    name="tokens",
    summary="The tokens there are, without their secrets.",
    replies={200: TokensReply},
    verb=Verb(
        "access",
        "tokens",
        Codec(
            lambda reply: [read_token(each) for each in reply.tokens],
            lambda found: TokensReply([write_token(each) for each in found]),
        ),
    ),
)
CREATE_TOKEN = Operation(
    method="POST",
    path="/v1/tokens",
    name="create_token",
    summary="Make a token. Its secret is shown now and never again.",
    body=NewTokenBody,
    replies={201: NewTokenReply},
    repeatable=True,
)
REVOKE_TOKEN = Operation(
    method="DELETE",
    path="/v1/tokens/{id}",
    name="revoke_token",
    summary="Revoke a token; other servers notice within ten seconds.",
    replies={200: DeletedReply},
    repeatable=True,
    verb=Verb("access", "remove_token", DELETED),
)
