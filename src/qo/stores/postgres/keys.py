"""The keys that payloads are sealed with, as this store has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from qo.stores.postgres.pool import Connection
from qo.stores.sealing import SealingKey, UnknownKey, new_key

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

T = TypeVar("T")


class Keys:
    """The operator's key, if there is one, and those of the store that were read before."""

    def __init__(self, own: SealingKey | None) -> None:
        self._own = own
        self._known: dict[str, bytes] = {} if own is None else {own.id: own.value}

    async def to_seal(self, engine: PostgresEngine, connection: Connection) -> SealingKey:
        """The operator's, noted in the store so that it is asked for; else the store's newest, made if need be."""
        if self._own is not None:
            await connection.execute(engine.sql.note_key, self._own.id, None)
            return self._own
        row = await connection.fetchrow(engine.sql.newest_key)
        if row is None:
            made = new_key()
            await connection.execute(engine.sql.note_key, made.id, made.value)
            return made
        return SealingKey(row["id"], row["value"])

    def to_open(self, id: str) -> bytes:
        found = self._known.get(id)
        if found is None:
            raise UnknownKey(id)
        return found

    async def load(self, engine: PostgresEngine) -> None:
        """Read those of the store. One that is kept elsewhere must be here: its payloads could not be opened."""
        rows = await engine.call("keys", lambda connection, _: connection.fetch(engine.sql.keys))
        for id, value in rows:
            if value is not None:
                self._known[id] = value
            self.to_open(id)


async def opening(engine: PostgresEngine, read: Callable[[], T]) -> T:
    """Read rows, some of which may be sealed with a key that another process made since we last looked."""
    try:
        return read()
    except UnknownKey:
        await engine.keys.load(engine)
        return read()
