"""access: tokens, kept by a server."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from qo.client.remote.transport import Transport
from qo.core.access import Token
from qo.wire.queues import DeletedReply
from qo.wire.tokens import NewTokenBody, TokensReply, read_token


class RemoteAccess:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def add_token(self, token: Token, lasts: timedelta | None = None) -> None:
        """The secret does not travel: its digest does."""
        body = NewTokenBody(
            token.name,
            list(token.scopes),
            list(token.prefixes),
            token.expires_at,
            token.id,
            token.digest.hex(),
            None if lasts is None else lasts.total_seconds(),
        )
        await self._transport.call("POST", "/v1/tokens", body)

    async def token(self, id: str) -> Token | None:
        return next((token for token in await self.tokens() if token.id == id), None)

    async def tokens(self) -> Sequence[Token]:
        answer = await self._transport.call("GET", "/v1/tokens")
        return [read_token(each) for each in msgspec.json.decode(answer.body, type=TokensReply).tokens]

    async def remove_token(self, id: str) -> bool:
        answer = await self._transport.call("DELETE", f"/v1/tokens/{id}")
        return msgspec.json.decode(answer.body, type=DeletedReply).deleted
