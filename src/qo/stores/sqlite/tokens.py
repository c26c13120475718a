"""tokens: who may come in."""

from __future__ import annotations

import json

from qo.core.access import Scope, Token
from qo.core.errors import AlreadyExists
from qo.stores.sqlite.moments import micros, moment
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Row, Transaction

SQL = statements("tokens")


def add(tx: Transaction, token: Token) -> None:
    known = find(tx, token.id)
    if known is not None:
        if known.digest != token.digest:
            raise AlreadyExists(f"there is a token {token.id} already")
        return  # it was added before, and the answer was lost
    tx.run(
        SQL.add,
        token.id,
        token.name,
        token.digest,
        json.dumps(token.scopes),
        json.dumps(token.prefixes),
        micros(token.created_at),
        None if token.expires_at is None else micros(token.expires_at),
    )


def find(tx: Transaction, id: str) -> Token | None:
    row = tx.row(SQL.one, id)
    return None if row is None else _token(row)


def every(tx: Transaction) -> list[Token]:
    return [_token(row) for row in tx.rows(SQL.list)]


def remove(tx: Transaction, id: str) -> bool:
    return tx.run(SQL.remove, id) > 0


def _token(row: Row) -> Token:
    return Token(
        id=row[0],
        name=row[1],
        digest=row[2],
        scopes=tuple(Scope(each) for each in json.loads(row[3])),
        prefixes=tuple(json.loads(row[4])),
        created_at=moment(row[5]),
        expires_at=None if row[6] is None else moment(row[6]),
    )
