"""A store URL: what is PostgreSQL's, and what is qo's."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from qo.core.errors import Invalid, not_one_of
from qo.core.names import DEFAULT_SCHEMA, checked_schema, suggestion

DEFAULT_POOL = 8
POOL_LIMIT = 1000
WAKES = ("auto", "notify", "poll")
POOLERS = ("session", "transaction")

DEFAULT_CHECK_SECONDS = 180.0
"""So nothing that somebody waits for is missed for longer than four minutes, though a connection falls mute."""
LONGEST_CHECK_SECONDS = 86_400

_OURS = ("schema", "wake", "pooler", "pool", "check")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where the store is and how to talk to it.

    dsn     the URL without our own options, as libpq writes it
    schema  where the tables are, so that several installations can share a database
    wake    how other processes' commits are noticed: auto probes, notify insists, poll never listens
    pooler  transaction: nothing is kept in a session, not even prepared statements
    pool    connections at most
    check   seconds after which it is made sure that notifications still come, while someone waits; 0: never, for hosts
            that bill or suspend a database by its silence
    """

    dsn: str
    schema: str = DEFAULT_SCHEMA
    wake: str = "auto"
    pooler: str = "session"
    pool: int = DEFAULT_POOL
    check: float = DEFAULT_CHECK_SECONDS

    def __post_init__(self) -> None:
        checked_schema("schema", self.schema)
        if self.wake not in WAKES:
            raise not_one_of("url", self.wake, WAKES, "wake ")
        if self.pooler not in POOLERS:
            raise not_one_of("url", self.pooler, POOLERS, "pooler ")
        if not 1 <= self.pool <= POOL_LIMIT:
            raise Invalid("url", f"pool must be from 1 to {POOL_LIMIT}, not {self.pool}")
        if not 0 <= self.check <= LONGEST_CHECK_SECONDS:
            raise Invalid("url", f"check must be from 0 to {LONGEST_CHECK_SECONDS} seconds, not {self.check:g}")


def read_address(url: str) -> Address:
    """Split our options from PostgreSQL's, which pass as they are."""
    parts = urlsplit(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OURS}
    rest = [(name, value) for name, value in given if name not in _OURS]
    for name, _ in rest:
        near = suggestion(name, _OURS)
        if near and len(name) > 3:
            raise Invalid("url", f"has an unknown option '{name}'{near}")
    pool = ours.pop("pool", str(DEFAULT_POOL))
    if not pool.isdecimal():
        raise Invalid("url", f"pool must be a whole number, not '{pool}'")
    check = ours.pop("check", str(DEFAULT_CHECK_SECONDS))
    try:
        seconds = float(check)
    except ValueError:
        raise Invalid("url", f"check must be a number of seconds, not '{check}'") from None
    dsn = urlunsplit(("postgresql", parts.netloc, parts.path, urlencode(rest), ""))
    return Address(dsn=dsn, pool=int(pool), check=seconds, **ours)
