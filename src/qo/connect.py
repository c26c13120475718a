"""URL -> wired objects: the composition root."""

from __future__ import annotations

from types import TracebackType

from qo.broker.broker import Broker
from qo.broker.clock import Clock
from qo.client.client import Client
from qo.client.sync import SyncClient
from qo.core.errors import Invalid
from qo.core.polling import PollingStrategy
from qo.stores.opening import DEFAULT_URL, open_engine


class Connecting:
    """What `connect` returns: enter it with `async with` for a `Client`, with `with` for a `SyncClient`."""

    def __init__(self, url: str, polling: PollingStrategy | None, clock: Clock | None) -> None:
        self._url = url
        self._polling = polling
        self._clock = clock
        self._client: Client | None = None
        self._sync: SyncClient | None = None

    async def open(self) -> Client:
        """Open without a context manager; then close the client yourself."""
        store = await open_engine(self._url, clock=None if self._clock is None else self._clock.now)
        return Client(Broker(store, clock=self._clock, polling=self._polling))

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


def connect(
    url: str = DEFAULT_URL, *, polling: PollingStrategy | None = None, clock: Clock | None = None
) -> Connecting:
    """Connect to a store by URL.

    `async with qo.connect("sqlite:///qo.db") as client` gives the async client,
    `with qo.connect(...) as client` the sync one. `polling` says how often to ask
    whether another process wrote, while someone waits. `clock` is for tests.
    """
    if not isinstance(url, str):
        raise Invalid("url", f"must be text, not {type(url).__name__}")
    if polling is not None and not isinstance(polling, PollingStrategy):
        raise Invalid("polling", f"must be a PollingStrategy, not {type(polling).__name__}")
    return Connecting(url, polling, clock)
