"""Tokens that others issue: JWTs, checked with a secret, a public key, or a set of keys that is looked up.

Which algorithm a key is good for is the key's to say, never the token's. A set of
keys is read when it is first needed, and again, at most once a minute, when a
token names a key that it does not have.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import time
import urllib.request
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from qo.core.access import ID_BYTES, Scope, Token
from qo.core.errors import Forbidden, Invalid, Unauthenticated, Unavailable
from qo.core.names import checked_name
from qo.server.settings import JwtSettings, is_loopback

ROLES: Mapping[str, tuple[Scope, ...]] = {
    "admin": (Scope.ADMIN,),
    "read-write": (Scope.PRODUCE, Scope.CONSUME, Scope.READ),
    "read-only": (Scope.READ,),
    "write-only": (Scope.PRODUCE,),
}
SET_BYTES = 1024 * 1024
SET_SECONDS = 5
REFRESH_SECONDS = 60.0
FAILED_SECONDS = 10.0
"""So long everyone is told at once that keys could not be read, before it is tried again."""
KEEP_SECONDS = 600.0


class Key(NamedTuple):
    """A key, and what it is good for."""

    algorithm: str
    value: Any


class Bearer(NamedTuple):
    """Who a token says it is, and what that one may do."""

    token: Token
    subject: str | None


class Jwts:
    """Checks tokens by what the settings say."""

    def __init__(self, settings: JwtSettings) -> None:
        self._settings = settings
        self._fixed = _fixed_key(settings)
        self._set = KeySet(settings.jwks) if settings.jwks else None

    async def check(self, text: str) -> Bearer:
        key = self._fixed if self._set is None else await self._set.find(_key_id(text))
        if key is None:
            raise Unauthenticated("this token is signed with a key that is not known here")
        settings = self._settings
        try:
            claims = jwt.decode(
                text,
                key.value,
                algorithms=[key.algorithm],
                issuer=settings.issuer or None,
                audience=settings.audience or None,
                leeway=settings.leeway_seconds,
                options={
                    "verify_aud": bool(settings.audience),
                    "verify_iss": bool(settings.issuer),
                    "require": ["exp"] if settings.require_exp else [],
                },
            )
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"this token is not good: {error}") from None
        return _bearer(claims)


def _bearer(claims: Mapping[str, Any]) -> Bearer:
    roles = claims.get("roles", [])
    named = [claims.get("role"), *(roles if isinstance(roles, list) else [])]
    scopes = {scope for role in named if isinstance(role, str) for scope in ROLES.get(role, ())}
    if not scopes:
        raise Forbidden(f"this token has no role of {', '.join(ROLES)}")
    subject = claims.get("sub")
    if subject is not None:
        try:
            checked_name("sub", subject)
        except Invalid as error:
            raise Unauthenticated(f"the token's {error}") from None
    token = Token(
        id=hashlib.sha256(b"sub " + (subject or "").encode()).hexdigest()[: 2 * ID_BYTES],
        name="jwt",
        digest=b"",
        scopes=tuple(sorted(scopes)),
        created_at=datetime.now(UTC),
    )
    return Bearer(token, subject)


def _key_id(text: str) -> str | None:
    try:
        found = jwt.get_unverified_header(text).get("kid")
    except jwt.PyJWTError:
        raise Unauthenticated("this is not a token") from None
    return found if isinstance(found, str) else None


def _fixed_key(settings: JwtSettings) -> Key | None:
    if settings.secret:
        return Key("HS256", settings.secret)
    if not settings.public_key:
        return None
    text = settings.public_key
    if "-----BEGIN" not in text:
        try:
            text = Path(text).read_text()
        except OSError as error:
            raise Invalid("jwt.public_key", f"cannot be read from {text}: {error.strerror}") from None
    try:
        return _good_for(load_pem_public_key(text.encode()))
    except ValueError:
        raise Invalid("jwt.public_key", "is not a public key in PEM") from None


def _good_for(value: Any) -> Key:
    if isinstance(value, RSAPublicKey):
        return Key("RS256", value)
    if isinstance(value, Ed25519PublicKey):
        return Key("EdDSA", value)
    raise Invalid("jwt.public_key", "must be an RSA or an Ed25519 key")


class KeySet:
    """Keys by their ids, from a file or an address that the operator gave."""

    def __init__(self, source: str) -> None:
        parts = urlsplit(source)
        self._is_address = parts.scheme in ("http", "https")
        if self._is_address and parts.scheme != "https" and not is_loopback(parts.hostname or ""):
            raise Invalid("jwt.jwks", "must be a file, or an address that begins with https://")
        self._source = source
        self._keys: dict[str | None, Key] = {}
        self._read_at = self._failed_at = float("-inf")
        self._failure = ""
        self._reading = asyncio.Lock()

    async def find(self, id: str | None) -> Key | None:
        now = time.monotonic()
        found = self._chosen(id)
        if found is not None and now - self._read_at < KEEP_SECONDS:
            return found
        async with self._reading:
            if time.monotonic() - max(self._read_at + REFRESH_SECONDS, self._failed_at + FAILED_SECONDS) >= 0:
                await self._refresh()
        if not self._keys:
            raise Unavailable(f"the keys that tokens are checked with cannot be read: {self._failure}")
        return self._chosen(id)

    def _chosen(self, id: str | None) -> Key | None:
        if id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(id)

    async def _refresh(self) -> None:
        try:
            data = await asyncio.to_thread(self._fetch if self._is_address else self._read)
            self._keys = _keys_of(data)
            self._failure = "it has no key that is good for this"
            self._read_at = time.monotonic()
        except (OSError, ValueError) as error:
            self._failure = str(error)
            self._failed_at = time.monotonic()

    def _read(self) -> bytes:
        return Path(self._source).read_bytes()

    def _fetch(self) -> bytes:
        opener = urllib.request.build_opener(_NoRedirects())
        with opener.open(self._source, timeout=SET_SECONDS) as answer:
            data: bytes = answer.read(SET_BYTES + 1)
        if len(data) > SET_BYTES:
            raise ValueError("the set of keys is too large")
        return data


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """The address is the operator's word, not that of whoever answers there."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _keys_of(data: bytes) -> dict[str | None, Key]:
    found: dict[str | None, Key] = {}
    document = json.loads(data)
    listed = document.get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it has no list of keys")  # noqa: TRY004 - it is told as what cannot be read
    for each in listed:
        if isinstance(each, dict) and each.get("kty") in ("RSA", "OKP") and each.get("use", "sig") == "sig":
            try:
                found[each.get("kid")] = _good_for(jwt.PyJWK(each, "RS256" if each["kty"] == "RSA" else "EdDSA").key)
            except (jwt.PyJWTError, Invalid, KeyError):
                continue  # a key for something else
    return found
