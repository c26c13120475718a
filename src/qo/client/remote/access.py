"""access: tokens, kept by a server."""

from __future__ import annotations

from datetime import timedelta

from qo.client.remote.calls import RemotePart, call
from qo.core.access import Token
from qo.wire.operations.tokens import CREATE_TOKEN


class RemoteAccess(RemotePart):
    PART = "access"

    async def add_token(self, token: Token, lasts: timedelta | None = None) -> None:
        """The secret does not travel: its digest does."""
        fields = {
            "name": token.name,
            "scopes": list(token.scopes),
            "prefixes": list(token.prefixes),
            "expires_at": token.expires_at,
            "id": token.id,
            "digest": token.digest.hex(),
            "lasts_seconds": None if lasts is None else lasts.total_seconds(),
        }
        await call(self._transport, CREATE_TOKEN, fields)

    async def token(self, id: str) -> Token | None:
        return next((token for token in await self.tokens() if token.id == id), None)
