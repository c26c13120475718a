"""URL -> wired objects: the composition root."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from types import TracebackType

from qo.broker.broker import LocalBroker
from qo.broker.clock import Clock, SystemClock
from qo.client.client import Client
from qo.client.middleware import PushMiddleware
from qo.client.sync import SyncClient
from qo.core.errors import Invalid
from qo.core.polling import PollingStrategy
from qo.core.verbs import Broker
from qo.environment import ARGUMENT, Chosen, chosen_store, token_for
from qo.stores.opening import open_engine, without_password


class Connecting:
    """What `connect` returns: enter it with `async with` for a `Client`, with `with` for a `SyncClient`."""

    def __init__(
        self,
        url: str | Sequence[str] | None,
        polling: PollingStrategy | None,
        clock: Clock | None,
        token: str | None,
        patience: float | None,
        encryption_key: str,
        middleware: Sequence[PushMiddleware],
    ) -> None:
        self._middleware = middleware
        self._encryption_key = encryption_key
        self._url = url
        self._polling = polling
        self._clock = clock
        self._token = token
        self._patience = patience
        self._client: Client | None = None
        self._sync: SyncClient | None = None

    async def open(self) -> Client:
        """Open without a context manager; then close the client yourself."""
        url, token, key = self._chosen()
        now = None if self._clock is None else self._clock.now
        if not isinstance(url, str) or is_server(url):
            return Client(_remote_broker(url, token, self._patience, now or SystemClock().now), self._middleware)
        if token is not None:
            raise Invalid("token", "is for http:// and https:// URLs")
        store = await open_engine(url, clock=now, encryption_key=key)
        return Client(LocalBroker(store, clock=self._clock, polling=self._polling), self._middleware)

    def _chosen(self) -> tuple[str | Sequence[str], str | None, str]:
        """Where to, with which token and key: what was given; without a URL, what the environment or qo.toml say."""
        if self._url is not None:
            return self._url, self._token, self._encryption_key
        chosen = chosen_store()
        token = token_for(chosen, self._token) if is_server(chosen.url) else self._token
        return chosen.url, token, self._encryption_key or chosen.encryption_key

    def open_sync(self) -> SyncClient:
        """The same for programs without an event loop."""
        return SyncClient.start(self.open)

    async def __aenter__(self) -> Client:
        self._client = await self.open()
        return self._client

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()

    def __enter__(self) -> SyncClient:
        self._sync = self.open_sync()
        return self._sync

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sync is not None:
            self._sync.close()


def is_server(url: str) -> bool:
    return url.startswith(("http://", "https://"))


def described(url: str | Sequence[str] | None, source: str = ARGUMENT) -> str:
    """The store that a URL names (None: the one that is configured) and where that came from, for people."""
    chosen = chosen_store() if url is None else Chosen(url if isinstance(url, str) else ",".join(url), source)
    return f"{without_password(chosen.url)} ({chosen.where})"


def _remote_broker(
    url: str | Sequence[str], token: str | None, patience: float | None, now: Callable[[], datetime]
) -> Broker:
    try:
        from qo.client.remote.broker import RemoteBroker  # noqa: PLC0415 - only when asked for
        from qo.client.remote.transport import Transport, read_addresses  # noqa: PLC0415
    except ImportError as error:
        if error.name not in ("aiohttp", "yarl"):
            raise
        raise Invalid("url", "needs the HTTP client; install it with: pip install 'qo-queue[http]'") from None
    return RemoteBroker(Transport(read_addresses(url), token, patience), now)


def connect(
    url: str | Sequence[str] | None = None,
    *,
    polling: PollingStrategy | None = None,
    clock: Clock | None = None,
    token: str | None = None,
    patience: float | None = None,
    encryption_key: str = "",
    middleware: Sequence[PushMiddleware] = (),
) -> Connecting:
    """Connect to a store, or to a server, by URL.

    `async with qo.connect("sqlite:///qo.db") as client` gives the async client,
    `with qo.connect(...) as client` the sync one. Without a URL it is the configured store: the variable QO_STORE,
    else `store` in qo.toml, else `sqlite:///qo.db`; then its token (QO_TOKEN) and encryption key are, too.
    Several servers may be given in a list, or with commas between them; a call goes to the next when one fails.
    `token` is what a server asks for, `patience` how many seconds a call looks for
    a server that answers (30). `polling` says how often to ask a store
    whether another process wrote, while someone waits. `encryption_key` is yours for
    queues that encrypt their payloads, if you keep it yourself. `middleware` are functions of
    yours around each push, the first outermost. `clock` is for tests.
    """
    if (
        url is not None
        and not isinstance(url, str)
        and not (isinstance(url, list | tuple) and all(isinstance(each, str) for each in url))
    ):
        raise Invalid("url", f"must be text, or a list of servers, not {type(url).__name__}")
    if url is not None and not url:
        raise Invalid("url", "must not be empty")
    if polling is not None and not isinstance(polling, PollingStrategy):
        raise Invalid("polling", f"must be a PollingStrategy, not {type(polling).__name__}")
    if patience is not None and not patience > 0:
        raise Invalid("patience", f"must be seconds above 0, not {patience!r}")
    return Connecting(url, polling, clock, token, patience, encryption_key, tuple(middleware))
