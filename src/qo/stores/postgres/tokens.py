"""tokens: who may come in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qo.core.access import Scope, Token
from qo.core.errors import AlreadyExists

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine


async def add(engine: PostgresEngine, token: Token) -> None:
    await engine.value(
        "add_token",
        engine.sql.add_token,
        token.id,
        token.name,
        token.digest,
        list(token.scopes),
        list(token.prefixes),
        token.created_at,
        token.expires_at,
    )
    known = await find(engine, token.id)
    if known is not None and known.digest != token.digest:
        raise AlreadyExists(f"there is a token {token.id} already")


async def find(engine: PostgresEngine, id: str) -> Token | None:
    rows = await engine.call("token", lambda connection, _: connection.fetch(engine.sql.token, id))
    return _token(rows[0]) if rows else None


async def every(engine: PostgresEngine) -> list[Token]:
    rows = await engine.call("tokens", lambda connection, _: connection.fetch(engine.sql.tokens))
    return [_token(row) for row in rows]


async def remove(engine: PostgresEngine, id: str) -> bool:
    return await engine.value("remove_token", engine.sql.remove_token, id) is not None


def _token(row: Any) -> Token:
    return Token(
        id=row["id"],
        name=row["name"],
        digest=bytes(row["digest"]),
        scopes=tuple(Scope(each) for each in row["scopes"]),
        prefixes=tuple(row["prefixes"]),
        created_at=row["created_at"],
        expires_at=row["expires_at"],
    )
