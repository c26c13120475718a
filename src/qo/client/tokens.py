"""Tokens for the server: who may come in."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime

from qo.core.access import ID_BYTES, SECRET_BYTES, Token, new_token
from qo.core.durations import Length, duration
from qo.core.verbs import Broker


@dataclass(frozen=True, slots=True)
class Tokens:
    """Who may come in: making tokens, listing them, revoking them."""

    broker: Broker

    async def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        prefixes: Collection[str] = (),
        expires_at: datetime | None = None,
        lasts: Length | None = None,
    ) -> tuple[Token, str]:
        """Make a token with scopes of produce, consume and admin, for all queues or those with a prefix.

        It is good until `expires_at`, or for as long as `lasts` says (a timedelta or seconds), or until it is revoked.

        Answers it and its text, which is shown only now: what is stored is a digest of its secret.
        """
        id, secret = secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES)
        token, text = new_token(id, secret, name, scopes, prefixes, self.broker.now(), expires_at)
        await self.broker.access.add_token(token, None if lasts is None else duration("lasts", lasts))
        return token, text

    async def list(self) -> Sequence[Token]:
        """Oldest first."""
        return await self.broker.access.tokens()

    async def revoke(self, id: str) -> bool:
        """It opens nothing any more; servers notice within ten seconds. Whether there was one."""
        return await self.broker.access.remove_token(id)
