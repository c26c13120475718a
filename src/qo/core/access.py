"""Who may do what: tokens, their scopes, and the queues that they are limited to.

A token is shown once, when it is made. What is stored is its digest: the secret
has 256 random bits, so a plain SHA-256 of it cannot be searched.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection
from datetime import datetime, timedelta
from enum import StrEnum

import msgspec

from qo.core.errors import Invalid
from qo.core.moments import checked_time
from qo.core.names import checked_name

TOKEN_PREFIX = "qo"  # noqa: S105 - it begins every token, and opens nothing
SECRET_BYTES = 32
ID_BYTES = 6
DIGEST_BYTES = 32
_TOKEN = re.compile(r"qo_([0-9a-f]{12})_([0-9a-f]{64})")
_ID = re.compile(r"[0-9a-f]{12}")


class Scope(StrEnum):
    """What a token is good for: to push, to claim and settle, to look; `admin` may do everything."""

    PRODUCE = "produce"
    CONSUME = "consume"
    READ = "read"
    ADMIN = "admin"


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A token as it is stored. No prefixes: every queue."""

    id: str
    name: str
    digest: bytes
    scopes: tuple[Scope, ...]
    prefixes: tuple[str, ...] = ()
    created_at: datetime
    expires_at: datetime | None = None

    def lasting(self, length: timedelta | None, now: datetime) -> Token:
        """A copy of the token that expires `length` from now; None: the token unchanged."""
        if length is None:
            return self
        if self.expires_at is not None:
            raise Invalid("lasts", "give a length or a time, not both")
        if length <= timedelta(0):
            raise Invalid("lasts", "must be greater than 0")
        return msgspec.structs.replace(self, expires_at=now + length)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise Invalid("id", f"must be {2 * ID_BYTES} hexadecimal digits, not '{self.id}'")
        if len(self.digest) not in (0, DIGEST_BYTES):
            raise Invalid("digest", f"must be a SHA-256, {DIGEST_BYTES} bytes")
        checked_name("name", self.name)
        if not self.scopes:
            raise Invalid("scopes", f"must name at least one of {', '.join(Scope)}")
        for prefix in self.prefixes:
            checked_name("prefixes", prefix)

    def has(self, scopes: Collection[Scope]) -> bool:
        """Whether the token has one of these scopes."""
        return Scope.ADMIN in self.scopes or any(scope in self.scopes for scope in scopes)

    def reaches(self, queues: Collection[str] | None) -> bool:
        """Whether all of these queues are within its limits. None: something that is not a queue's, or any queue."""
        if not self.prefixes:
            return True
        return queues is not None and all(queue.startswith(self.prefixes) for queue in queues)

    def is_over(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


def token_text(id: str, secret: bytes) -> str:
    """A token as its holder writes it."""
    return f"{TOKEN_PREFIX}_{id}_{secret.hex()}"


def token_parts(text: str) -> tuple[str, bytes] | None:
    """The id of a token and the digest of its secret; None if it does not look like one."""
    found = _TOKEN.fullmatch(text)
    return None if found is None else (found[1], digest_of(bytes.fromhex(found[2])))


def digest_of(secret: bytes) -> bytes:
    return hashlib.sha256(secret).digest()


def new_token(
    id: bytes,
    secret: bytes,
    name: str,
    scopes: Collection[str],
    prefixes: Collection[str],
    now: datetime,
    expires_at: datetime | None,
) -> tuple[Token, str]:
    """A token to store, and the text to give to its holder. `id` and `secret` are random."""
    if expires_at is not None:
        checked_time("expires_at", expires_at)
    token = Token(
        id=id.hex(),
        name=name,
        digest=digest_of(secret),
        scopes=read_scopes(scopes),
        prefixes=tuple(prefixes),
        created_at=now,
        expires_at=expires_at,
    )
    return token, token_text(token.id, secret)


def read_scopes(values: Collection[str]) -> tuple[Scope, ...]:
    try:
        return tuple(dict.fromkeys(Scope(value) for value in values))
    except ValueError:
        raise Invalid("scopes", f"must be of {', '.join(Scope)}, not {', '.join(values)}") from None
