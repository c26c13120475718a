"""The authenticator: who is calling, and what the caller may do."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import urlsplit

from qo.core.access import Scope, Token, token_parts
from qo.core.errors import Forbidden, Unauthenticated
from qo.core.verbs import Access
from qo.server.jwts import Jwts
from qo.server.settings import is_loopback

REMEMBER_SECONDS = 10.0
"""A token that was looked up is good for so long without asking the store again; so is a stranger's refusal."""
REMEMBER_LIMIT = 10_000

NO_TOKEN = "a token is needed: send it as `Authorization: Bearer qo_…`"  # noqa: S105 - it tells of one
BAD_TOKEN = "this token is not known, was revoked, or is over"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call. No token: authentication is off, and everything is allowed.

    `subject` is who a token of another issuer says it is; it is stamped on what is pushed.
    """

    token: Token | None
    subject: str | None = None

    def check(self, scopes: Collection[Scope], queues: Collection[str] | None) -> None:
        """Refuse, unless the caller has one of these scopes and may reach all of these queues."""
        token = self.token
        if token is None:
            return
        if not token.has(scopes):
            raise Forbidden(f"this token may not {' or '.join(scopes)}")
        if not token.reaches(queues):
            raise Forbidden(f"this token is limited to queues that begin with {' or '.join(token.prefixes)}")

    @property
    def is_limited(self) -> bool:
        """Whether only some queues are within reach."""
        return self.token is not None and bool(self.token.prefixes)

    @property
    def has_own_token(self) -> bool:
        """Whether the token is one of ours; roles of other issuers' tokens mean what they mean to Queen."""
        return self.token is not None and self.token.digest != b""

    def may(self, scopes: Collection[Scope]) -> bool:
        """Whether the caller has one of these scopes."""
        return self.token is None or self.token.has(scopes)

    @property
    def producer(self) -> str | None:
        """Who is said to have pushed a message, where that is asked for."""
        return self.subject or (None if self.token is None or self.token.digest == b"" else self.token.name)

    def sees(self, queue: str) -> bool:
        return self.token is None or self.token.reaches([queue])


ANYONE = Caller(None)


class Remembered(NamedTuple):
    until: float
    token: Token | None


class Authenticator:
    """Looks tokens up, and remembers for a few seconds what it found."""

    def __init__(
        self,
        access: Access,
        now: Callable[[], datetime],
        *,
        auth: str,
        local_only: bool,
        origins: frozenset[str] = frozenset(),
        jwts: Jwts | None = None,
    ) -> None:
        self._access = access
        self._now = now
        self._open = auth == "none"
        self._local_only = local_only and self._open
        self._origins = origins
        self._jwts = jwts
        self._known: dict[str, Remembered] = {}

    def admits(self, origin: bytes) -> bool:
        """Whether web pages of this origin may call."""
        return "*" in self._origins or origin.decode("latin-1") in self._origins

    async def identify(self, headers: Mapping[bytes, bytes]) -> Caller:
        if self._open:
            self._check_origin(headers)
            return ANYONE
        kind, _, text = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if not text:
            raise Unauthenticated(NO_TOKEN)
        parts = token_parts(text.strip()) if kind.lower() == "bearer" else None
        if parts is None and self._jwts is not None and kind.lower() == "bearer":
            return Caller(*await self._jwts.check(text.strip()))
        token = None if parts is None else await self._look_up(parts[0])
        if (
            parts is None
            or token is None
            or not hmac.compare_digest(parts[1], token.digest)
            or token.is_over(self._now())
        ):
            raise Unauthenticated(BAD_TOKEN)
        return Caller(token)

    async def is_still(self, caller: Caller, headers: Mapping[bytes, bytes]) -> bool:
        """Whether a caller who came a while ago would be let in now, as far as that is known without asking the store.

        The store is asked only about a token that was revoked here meanwhile.
        """
        token = caller.token
        if token is not None and token.id in self._known:
            return not token.is_over(self._now())
        try:
            return (await self.identify(headers)).token == token or token is None or token.digest == b""
        except Forbidden:
            return False

    def forget(self, id: str) -> None:
        self._known.pop(id, None)

    async def _look_up(self, id: str) -> Token | None:
        known = self._known.get(id)
        now = time.monotonic()
        if known is None or known.until <= now:
            known = Remembered(now + REMEMBER_SECONDS, await self._access.token(id))
            if len(self._known) >= REMEMBER_LIMIT:
                self._known.clear()
            self._known[id] = known
        return known.token

    def _check_origin(self, headers: Mapping[bytes, bytes]) -> None:
        """Where nobody needs a token, a web page that is open on this machine must not be a caller.

        Browsers say where a page is from; and a name that was made to point to this machine is not this machine's.
        """
        host = headers.get(b"host", b"")
        origin = headers.get(b"origin")
        if origin is not None and self.admits(origin):
            return
        if origin is not None and _place(origin) != host.decode("latin-1"):
            raise Forbidden("pages of other origins may not call a server that asks for no token")
        referer = headers.get(b"referer")
        if referer is not None and _place(referer) != host.decode("latin-1"):  # where a browser says nothing else
            raise Forbidden("pages of other origins may not call a server that asks for no token")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            raise Forbidden("pages of other origins may not call a server that asks for no token")
        if self._local_only and host and not _is_own_name(host):
            raise Forbidden("this server is for this machine only, and the name it was called by is not its own")


def _place(origin: bytes) -> str:
    try:
        return urlsplit(origin.decode("latin-1")).netloc
    except ValueError:
        return ""


@lru_cache(maxsize=64)
def _is_own_name(host: bytes) -> bool:
    name = host.decode("latin-1")
    return is_loopback(name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0])
