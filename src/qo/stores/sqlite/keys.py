"""The keys that payloads are sealed with, as this store has them."""

from __future__ import annotations

from qo.stores.sealing import SealingKey, UnknownKey, new_key, no_such_key
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("keys")


class Keys:
    """The operator's key, if there is one, and those of the store that were read before."""

    def __init__(self, own: SealingKey | None) -> None:
        self._own = own
        self._known: dict[str, bytes] = {} if own is None else {own.id: own.value}
        self.unreadable = 0
        """Messages that were buried because they could not be opened."""

    def to_seal(self, tx: Transaction) -> SealingKey:
        """The operator's, noted in the store so that it is asked for; else the store's newest, made if need be."""
        if self._own is not None:
            tx.run(SQL.note, self._own.id, None, tx.now)
            return self._own
        row = tx.row(SQL.newest)
        if row is not None:
            return SealingKey(*row)
        made = new_key()
        tx.run(SQL.note, made.id, made.value, tx.now)
        return made

    def to_open(self, tx: Transaction, id: str) -> bytes:
        found = self._known.get(id)
        if found is None:
            row = tx.row(SQL.value, id)
            if row is None:
                raise no_such_key(id)
            found = row[0]
            if found is None:
                raise UnknownKey(id)
            self._known[id] = found
        return found

    def check(self, tx: Transaction) -> None:
        """Refuse a store that has payloads which could not be opened."""
        for (id,) in tx.rows(SQL.kept_elsewhere):
            if id not in self._known:
                raise UnknownKey(id)
