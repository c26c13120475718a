"""What can be set on a server: defaults written once, validated on construction."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from datetime import timedelta

from qo.core.errors import Invalid, not_one_of
from qo.core.polling import (
    DEFAULT_BACKOFF_MULTIPLIER,
    DEFAULT_BACKOFF_THRESHOLD,
    DEFAULT_FORGET_AFTER_SECONDS,
    DEFAULT_GROUP_INTERVAL_MS,
    DEFAULT_GROUP_MAX_INTERVAL_MS,
    GroupBackoff,
    PollingStrategy,
)
from qo.stores.sealing import read_key

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 6632
AUTH = ("none", "token")
SUBSCRIPTIONS = ("new", "all")
LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")
MEBIBYTE = 1024 * 1024
SHORTEST_SECRET = 32
"""Of HS256: less could be searched."""
MOST_CAP_SECONDS = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenSettings:
    """Where the server listens, and to whom.

    host           the address to listen on; anything but loopback needs authentication
    port           0 lets the system choose one
    workers        processes that share the port (PostgreSQL only)
    auth           none, or token: every call but the health checks needs a token
    insecure       listen beyond loopback without authentication; whoever reaches the port may do everything
    stop_seconds   how long a server that is told to stop lets calls that are under way finish
    cors_origins   web pages of these origins may call, with commas between them; *: of any
    """

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    workers: int = 1
    auth: str = AUTH[0]
    insecure: bool = False
    stop_seconds: float = 30
    cors_origins: str = ""

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(each.strip() for each in self.cors_origins.split(",") if each.strip())

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise Invalid("server.port", f"must be from 0 to 65535, not {self.port}")
        if self.workers < 1:
            raise Invalid("server.workers", f"must be at least 1, not {self.workers}")
        if self.auth not in AUTH:
            raise not_one_of("server.auth", self.auth, AUTH)
        if self.stop_seconds < 0:
            raise Invalid("server.stop_seconds", "must not be negative")
        if self.auth == "none" and not self.insecure and not is_loopback(self.host):
            raise Invalid(
                "server.host",
                f"'{self.host}' can be reached from other machines, so it needs authentication: set auth to 'token' "
                "(and make one with `qo token create`), or say `--insecure` if everyone who can reach it may do "
                "everything",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSettings:
    """What one request, one client and all of them together may ask for.

    body_bytes           of one request
    queen_body_bytes     of one request of Queen's wire
    batch                messages, settlements or ids in one request
    header_bytes         the request line and all headers of one request
    wait_ms              how long one request may wait
    waiters              requests that wait at once, in one process
    waiters_per_client   the same, of one token or, without tokens, of one address
    request_seconds      a request must have arrived this long after it began, a connection's first one after it opened
    stall_seconds        a client that takes nothing of its answer for so long is cut off
    connections          open at once, in one process; fewer where the system allows fewer descriptors
    connections_per_address  the same, of one address
    streams_per_client   streams at once, of one token or, without tokens, of one address
    keys                 different keys in one push or unit that is one commit
    lanes                lanes that one claim takes from
    keep_alive_seconds   a connection with nothing to say is closed after this
    """

    body_bytes: int = 16 * MEBIBYTE
    queen_body_bytes: int = 64 * MEBIBYTE
    batch: int = 10_000
    header_bytes: int = 32 * 1024
    wait_ms: int = 600_000
    waiters: int = 20_000
    waiters_per_client: int = 10_000
    request_seconds: float = 30
    stall_seconds: float = 30
    connections: int = 20_000
    connections_per_address: int = 10_000
    streams_per_client: int = 100
    keys: int = 1000
    lanes: int = 200
    keep_alive_seconds: float = 75

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if not getattr(self, name) > 0:
                raise Invalid(f"limits.{name}", "must be greater than 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class PollSettings:
    """How waiting claims are served from a store that cannot wake us; see `core.polling`.

    check_interval_ms     at first, how often the store is asked whether others wrote, while someone waits
    group_interval_ms     the least rest between two looks for one group of waiting claims
    max_interval_ms       the longest of both
    backoff_threshold     looks in vain before a group rests longer
    backoff_multiplier    how the rest grows
    forget_after_seconds  a group that nobody waits in for so long begins anew
    """

    check_interval_ms: float = 50
    group_interval_ms: float = DEFAULT_GROUP_INTERVAL_MS
    max_interval_ms: float = DEFAULT_GROUP_MAX_INTERVAL_MS
    backoff_threshold: int = DEFAULT_BACKOFF_THRESHOLD
    backoff_multiplier: float = DEFAULT_BACKOFF_MULTIPLIER
    forget_after_seconds: float = DEFAULT_FORGET_AFTER_SECONDS

    def __post_init__(self) -> None:
        self.strategy()
        self.backoff()

    def strategy(self) -> PollingStrategy:
        return PollingStrategy.adaptive(self.check_interval_ms, self.max_interval_ms, self.backoff_multiplier)

    def backoff(self) -> GroupBackoff:
        return GroupBackoff(
            interval=timedelta(milliseconds=self.group_interval_ms),
            max_interval=timedelta(milliseconds=self.max_interval_ms),
            threshold=self.backoff_threshold,
            multiplier=self.backoff_multiplier,
            forget_after=timedelta(seconds=self.forget_after_seconds),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtSettings:
    """Tokens that others issue (JWT), taken beside our own where `auth` is token.

    secret          for HS256
    public_key      for RS256 and EdDSA: a key in PEM, or the path of a file that has one
    jwks            for RS256 and EdDSA: the path of a file with a JWKS, or its https:// address
    issuer          what `iss` must say; empty: anything
    audience        what `aud` must name; empty: anything
    leeway_seconds  by how much clocks may differ
    require_exp     whether a token must say when it ends; one that does not is good for ever
    """

    secret: str = ""
    public_key: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""
    leeway_seconds: float = 30
    require_exp: bool = True

    @property
    def given(self) -> bool:
        return bool(self.secret or self.public_key or self.jwks)

    def __post_init__(self) -> None:
        if sum(map(bool, (self.secret, self.public_key, self.jwks))) > 1:
            raise Invalid("jwt.secret", "give one of jwt.secret, jwt.public_key and jwt.jwks")
        if self.secret and len(self.secret.encode()) < SHORTEST_SECRET:
            raise Invalid("jwt.secret", f"must have at least {SHORTEST_SECRET} bytes")
        if self.leeway_seconds < 0:
            raise Invalid("jwt.leeway_seconds", "must not be negative")
        if (self.issuer or self.audience) and not self.given:
            raise Invalid("jwt.issuer", "needs a key to check tokens with: jwt.secret, jwt.public_key or jwt.jwks")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueenSettings:
    """How Queen's wire behaves where its clients leave it to the server.

    default_subscription  where a group starts whose first pop does not say: new messages, or all
    """

    default_subscription: str = SUBSCRIPTIONS[0]

    def __post_init__(self) -> None:
        if self.default_subscription not in SUBSCRIPTIONS:
            raise not_one_of("queen.default_subscription", self.default_subscription, SUBSCRIPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    """Payloads of queues that encrypt them.

    key   64 hexadecimal digits, kept by you; empty: the store makes one and keeps it
    """

    key: str = ""

    def __post_init__(self) -> None:
        read_key(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What is written to standard error. Never a payload, never a secret.

    level     debug, info, warning or error
    format    text, or json: one object per line
    requests  a line for each request: its id, route, status and time
    """

    level: str = "info"
    format: str = LOG_FORMATS[0]
    requests: bool = False

    def __post_init__(self) -> None:
        if self.level not in LOG_LEVELS:
            raise not_one_of("log.level", self.level, LOG_LEVELS)
        if self.format not in LOG_FORMATS:
            raise not_one_of("log.format", self.format, LOG_FORMATS)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSettings:
    """What the metrics show.

    queues   how many queues are shown by name, the first ones in the alphabet; 0: none
    public   whether they are shown without a token
    """

    queues: int = 100
    public: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.queues <= 1000:
            raise Invalid("metrics.queues", f"must be from 0 to 1000, not {self.queues}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSettings:
    """How schedules are waited for.

    keepalive_cap_seconds   while any schedule is active, look at least so often: for hosts that suspend an idle
                            machine, whose timers then stand still; 0: only when one is due
    """

    keepalive_cap_seconds: float = 0

    def __post_init__(self) -> None:
        if not 0 <= self.keepalive_cap_seconds <= MOST_CAP_SECONDS:
            raise Invalid("schedules.keepalive_cap_seconds", f"must be from 0 to {MOST_CAP_SECONDS:.0f}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Everything that can be set on a server."""

    store: str
    server: ListenSettings = field(default_factory=ListenSettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    long_polling: PollSettings = field(default_factory=PollSettings)
    log: LogSettings = field(default_factory=LogSettings)
    metrics: MetricSettings = field(default_factory=MetricSettings)
    jwt: JwtSettings = field(default_factory=JwtSettings)
    encryption: EncryptionSettings = field(default_factory=EncryptionSettings)
    queen: QueenSettings = field(default_factory=QueenSettings)
    schedules: ScheduleSettings = field(default_factory=ScheduleSettings)

    def __post_init__(self) -> None:
        if self.jwt.given and self.server.auth == "none":
            raise Invalid("jwt", "has no effect unless server.auth is 'token'")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
