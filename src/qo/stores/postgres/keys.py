"""The keys that payloads are sealed with, as this store has them."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from qo.core.errors import Forbidden
from qo.core.message import SEALED
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.statements import Statements
from qo.stores.sealing import SealingKey, UnknownKey, key_id, new_key, no_such_key


class Keys:
    """The operator's key, if there is one, and those of the store that were read before."""

    def __init__(self, own: SealingKey | None, sql: Statements, run: Callable[..., Awaitable[Any]]) -> None:
        self._own = own
        self._sql = sql
        self._run = run
        self._known: dict[str, bytes] = {} if own is None else {own.id: own.value}
        self._elsewhere: set[str] = set()
        """Keys that the store knows of and does not keep."""
        self.unreadable = 0
        """Messages that were buried because they could not be opened."""

    async def to_seal(self, connection: Connection) -> SealingKey:
        """The operator's, noted in the store so that it is asked for; else the store's newest, made if need be."""
        if self._own is not None:
            await connection.execute(self._sql.note_key, self._own.id, None)
            return self._own
        row = await connection.fetchrow(self._sql.newest_key)
        if row is None:
            made = new_key()
            await connection.execute(self._sql.note_key, made.id, made.value)
            return made
        return SealingKey(row["id"], row["value"])

    def to_open(self, id: str) -> bytes:
        found = self._known.get(id)
        if found is None:
            raise UnknownKey(id) if id in self._elsewhere else no_such_key(id)
        return found

    async def load(self) -> None:
        """Read those of the store. One that is kept elsewhere must be here: its payloads could not be opened."""
        with contextlib.suppress(Forbidden):  # a reader of the database sees what is sealed as it is stored
            await self._read()
        for id in self._elsewhere:
            self.to_open(id)

    async def learn(self, headers: Iterable[str | None]) -> None:
        """Before messages are opened: read the store's keys again, if another process made one of theirs."""
        marks = [json.loads(text) for text in headers if text is not None and SEALED in text]
        if any(id is not None and id not in self._known for id in map(key_id, marks)):
            with contextlib.suppress(Forbidden):
                await self._read()

    async def _read(self) -> None:
        rows = await self._run("keys", lambda connection, _: connection.fetch(self._sql.keys))
        self._known.update({id: value for id, value in rows if value is not None})
        self._elsewhere.update(id for id, value in rows if value is None)
