"""Tokens."""

from __future__ import annotations

from datetime import datetime

import msgspec

from qo.core.access import Scope, Token, read_scopes
from qo.wire.kinds import Name, Seconds


class NewTokenBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A token to make, good until `expires_at`, or for `lasts_seconds`, or until it is revoked.

    Who has made the secret already gives its `id` and the SHA-256 of its secret, in hex.
    """

    name: Name
    scopes: list[Scope]
    prefixes: list[Name] = []
    expires_at: datetime | None = None
    id: str | None = None
    digest: str | None = None
    lasts_seconds: Seconds | None = None


class TokenBody(msgspec.Struct, omit_defaults=True, kw_only=True):
    """A token without its secret."""

    id: str
    name: str
    scopes: list[str]
    prefixes: list[str]
    created_at: datetime
    expires_at: datetime | None = None


class TokensReply(msgspec.Struct):
    tokens: list[TokenBody]


class NewTokenReply(msgspec.Struct, omit_defaults=True):
    """What to send as `Authorization: Bearer …` is shown now and never again; not at all to who made it."""

    token: TokenBody
    secret: str | None = None


def write_token(token: Token) -> TokenBody:
    return TokenBody(
        id=token.id,
        name=token.name,
        scopes=list(token.scopes),
        prefixes=list(token.prefixes),
        created_at=token.created_at,
        expires_at=token.expires_at,
    )


def read_token(body: TokenBody) -> Token:
    """Its digest stays with the server."""
    return Token(
        id=body.id,
        name=body.name,
        digest=b"",
        scopes=read_scopes(body.scopes),
        prefixes=tuple(body.prefixes),
        created_at=body.created_at,
        expires_at=body.expires_at,
    )
