"""tokens: who may come in. Each is a record."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from qo.core.access import Token
from qo.core.errors import AlreadyExists
from qo.core.record import ABSENT, LIST_LIMIT, Put, Record
from qo.core.verbs import Engine

KIND = "token"

_decode = msgspec.json.Decoder(Token).decode


class TokenRecords:
    """Tokens, kept as records by their ids."""

    def __init__(self, store: Engine) -> None:
        self._store = store

    async def add_token(self, token: Token, lasts: timedelta | None = None) -> None:
        kept = token.lasting(lasts, self._store.store_now())
        put = Put(kind=KIND, name=kept.id, body=msgspec.json.encode(kept), expected=ABSENT)
        try:
            await self._store.put_record(put)
        except AlreadyExists:
            known = await self.token(kept.id)
            if known is None or known.digest != kept.digest:  # else it was added before, and the answer was lost
                raise AlreadyExists(f"there is a token {kept.id} already") from None

    async def token(self, id: str) -> Token | None:
        found = await self._store.record(KIND, id)
        return None if found is None else _token(found)

    async def tokens(self) -> Sequence[Token]:
        found = [_token(each) for each in await self._store.records(KIND, "", LIST_LIMIT)]
        return sorted(found, key=lambda token: (token.created_at, token.id))

    async def remove_token(self, id: str) -> bool:
        return await self._store.delete_record(KIND, id)


def _token(record: Record) -> Token:
    return _decode(record.body)
