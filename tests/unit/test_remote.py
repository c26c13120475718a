"""The client over HTTP: servers that fail, answers that are lost, and nothing done twice."""

from __future__ import annotations

import asyncio
import contextlib
import threading

import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.broker.clock import SystemClock
from qo.client.remote import transport
from qo.client.remote.broker import RemoteBroker
from qo.client.remote.transport import Transport, read_addresses
from qo.core.errors import Closed, Forbidden, Invalid, NotFound, Throttled, TimedOut, Unauthenticated, Unavailable
from qo.server.settings import LimitSettings, ListenSettings
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.remote import serving


@pytest.fixture(autouse=True)
def quickly(monkeypatch):
    monkeypatch.setattr(transport, "FIRST_REST_SECONDS", 0.001)
    monkeypatch.setattr(transport, "LONGEST_REST_SECONDS", 0.01)


@pytest.fixture
async def engine():
    engine = await SqliteEngine.open(":memory:")
    yield engine
    await engine.close()


def length_after(head: bytes) -> int:
    """How many bytes of a body follow."""
    _, found, rest = head.lower().partition(b"content-length: ")
    return int(rest.partition(b"\r\n")[0]) if found else 0


class Flaky:
    """A way to a server that cuts connections: before the request goes on, or before its answer comes back."""

    def __init__(self, url: str) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self.cut: list[str] = []
        self.served = 0

    @contextlib.asynccontextmanager
    async def open(self):
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        yield self
        server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection(*self._to)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                request = head + await reader.readexactly(length_after(head))
                fate = self.cut.pop(0) if self.cut else None
                if fate == "request":
                    return
                back.write(request)
                answer = await there.readuntil(b"\r\n\r\n")
                answer += await there.readexactly(length_after(answer))
                if fate == "answer":
                    return
                self.served += 1
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            back.close()
            writer.close()


@pytest.fixture
async def flaky(engine):
    async with serving(LocalBroker(engine)) as running, Flaky(running.url).open() as flaky:
        yield flaky


@pytest.mark.parametrize("fate", ["request", "answer"])
async def test_a_push_whose_answer_is_lost_is_stored_once(flaky, fate):
    async with qo.connect(flaky.url) as client:
        queue = client.queue("q")
        flaky.cut = [fate] * 3
        handles = await queue.push_many([qo.Message(number, dedupe=f"d{number}") for number in range(3)])
        assert [handle.duplicate for handle in handles] == [False] * 3
        taken = await queue.claim(10)
        assert [each.id for each in taken] == [handle.id for handle in handles]


async def test_every_write_may_lose_its_answer(flaky):
    async with qo.connect(flaky.url) as client:
        queue = client.queue("q")
        await queue.push_many([qo.Message(number) for number in range(4)])
        flaky.cut = ["answer"]
        first, second = await queue.claim(2, lease=0.2)
        assert {first.payload, second.payload} == {2, 3}  # 0 and 1 come back when their lease is over
        flaky.cut = ["answer"]
        assert await first.complete("done") == "completed"
        flaky.cut = ["answer"]
        assert await second.bury("no") == "buried"
        flaky.cut = ["answer"]
        assert len(await queue.dead.retry()) == 1
        flaky.cut = ["answer"]
        assert await queue.group("g").register() is True
        flaky.cut = ["answer"]
        await client.transact((), queue.prepare([qo.Message("once")]))
        flaky.cut = ["answer"]
        purged = await queue.purge()
        assert purged == 6
        assert (await queue.depth()).ready == 0


async def test_a_client_goes_to_the_next_server_and_stays_there(engine):
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(serving(LocalBroker(engine)))
        other = await stack.enter_async_context(serving(LocalBroker(engine)))
        async with qo.connect(f"{one.url},{other.url}") as client:
            await client.queue("q").push(1)
            assert (one.state.total_requests, other.state.total_requests) == (1, 0)
            await one.stop()
            await client.queue("q").push(2)
            await client.queue("q").push(3)
            assert other.state.total_requests == 2
            assert (await client.queue("q").depth()).ready == 3


async def test_a_waiting_claim_goes_to_another_server_when_its_own_stops(engine):
    async with contextlib.AsyncExitStack() as stack:
        one = await stack.enter_async_context(serving(LocalBroker(engine)))
        other = await stack.enter_async_context(serving(LocalBroker(engine)))
        async with qo.connect([one.url, other.url]) as client:
            claim = asyncio.create_task(client.queue("q").claim(wait=30))
            while not one.context.all_waiting:
                await asyncio.sleep(0.001)
            await one.stop()
            while not other.context.all_waiting:
                await asyncio.sleep(0.001)
            await client.queue("q").push(1)
            [delivery] = await asyncio.wait_for(claim, 10)
            assert delivery.payload == 1


async def test_patience_is_the_caller_s():
    with pytest.raises(Invalid, match="patience"):
        qo.connect("http://127.0.0.1:9", patience=0)
    async with qo.connect("http://127.0.0.1:9", patience=0.01) as client:
        with pytest.raises(Unavailable):
            await client.queues()


async def test_no_server_at_all_is_unavailable_in_the_end():
    broker = RemoteBroker(Transport(["http://127.0.0.1:9", "http://127.0.0.1:10"], None), SystemClock().now)
    broker._transport.deadline_seconds = 0.05
    with pytest.raises(Unavailable, match=r"no answer from http://127\.0\.0\.1"):
        await broker.inspect.health()
    await broker.close()


async def test_something_that_is_not_qo_is_said_to_be_so():
    async def other(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 500 Oh\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno")
        writer.close()

    server = await asyncio.start_server(other, "127.0.0.1", 0)
    broker = RemoteBroker(
        Transport([f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"], None), SystemClock().now
    )
    with pytest.raises(Unavailable, match="is it a qo server"):
        await broker.inspect.health()
    await broker.close()
    server.close()


async def test_what_will_not_get_better_is_not_tried_again(engine, monkeypatch):
    async with serving(LocalBroker(engine)) as running, qo.connect(running.url) as client:
        calls = []

        async def broken(*_, **__):
            calls.append(1)
            raise RuntimeError("ours")

        monkeypatch.setattr(running.context.broker, "push_in_parts", broken)
        with pytest.raises(Unavailable, match="an error of its own"):
            await client.queue("q").push(1)
        assert calls == [1]


async def test_a_thousand_that_wait_do_not_keep_one_from_pushing(engine):
    async with serving(LocalBroker(engine)) as running, qo.connect(running.url) as client:
        claims = [asyncio.create_task(client.queue("q").claim(wait=60)) for _ in range(1100)]
        while running.context.all_waiting < 1100:
            await asyncio.sleep(0.01)
        await asyncio.wait_for(client.queue("other").push(1), 10)
        for claim in claims:
            claim.cancel()
        await asyncio.gather(*claims, return_exceptions=True)


async def test_errors_come_back_as_what_they_are(engine):
    async with serving(LocalBroker(engine)) as running, qo.connect(running.url) as client:
        with pytest.raises(NotFound, match="no queue 'nowhere'"):
            await client.queue("nowhere").purge()
        with pytest.raises(Invalid) as raised:
            await client.queue("q").configure(lease=-1)
        assert raised.value.field == "lease"
        job = await client.queue("q").push(1)
        with pytest.raises(TimedOut, match="is queued"):
            await job.result(timeout=0.01)
        with pytest.raises(qo.RolledBack) as undone:
            await client.transact([(await client.queue("q").claim())[0].settlement(qo.Complete())] * 2)
        assert undone.value.item == 1


async def test_tokens_are_sent_and_missed(engine):
    async with serving(LocalBroker(engine), listen=ListenSettings(port=0, auth="token")) as running:
        _, text = await qo.Client(running.context.broker).tokens.create("c", ["consume"])
        async with qo.connect(running.url) as client:
            with pytest.raises(Unauthenticated, match="a token is needed"):
                await client.queues()
        async with qo.connect(running.url, token=text) as client:
            assert await client.queues() == []
            with pytest.raises(Forbidden, match="may not produce"):
                await client.queue("q").push(1)


async def test_a_throttled_call_waits_as_it_was_told(engine, monkeypatch):
    rests = []
    sleep = asyncio.sleep

    async def noted(seconds, *rest):
        if seconds >= 1:
            rests.append(seconds)
            seconds = 0
        await sleep(seconds, *rest)

    async with (
        serving(LocalBroker(engine), limits=LimitSettings(waiters=1)) as running,
        qo.connect(running.url) as client,
    ):
        first = asyncio.create_task(client.queue("q").claim(wait=0.3))
        while not running.context.all_waiting:
            await sleep(0.001)
        monkeypatch.setattr(asyncio, "sleep", noted)
        assert await client.queue("q").claim(wait=0.1) == []
        assert rests
        assert await first == []
        assert isinstance(Throttled("x"), Unavailable)


async def test_closing_answers_those_who_wait(engine):
    async with serving(LocalBroker(engine)) as running:
        client = await qo.connect(running.url).open()
        claim = asyncio.create_task(client.queue("q").claim(wait=30))
        result = asyncio.create_task((await client.queue("p").push(1)).result())
        while running.context.all_waiting < 2:
            await asyncio.sleep(0.001)
        await client.close()
        assert await asyncio.wait_for(claim, 10) == []
        with pytest.raises(Closed):
            await asyncio.wait_for(result, 10)
        with pytest.raises(Closed):
            await client.queue("q").push(1)
        while running.context.all_waiting:
            await asyncio.sleep(0.001)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://a:port",
        "http://a:99999",
        "http://a/v1",
        "http://a,ftp://b",
        "http://a?x=1",
        "http://user:password@a",
        [],
        ["http://a", 1],
        7,
        "",
    ],
)
def test_a_bad_address_is_refused(url):
    with pytest.raises(Invalid):
        qo.connect(url).open_sync()


def test_addresses_are_read():
    assert read_addresses("http://a:1/, https://b") == ("http://a:1", "https://b")


def test_a_token_is_for_servers():
    with pytest.raises(Invalid, match="token"):
        qo.connect("sqlite://:memory:", token="x").open_sync()


def test_the_sync_client_works_over_http(tmp_path):
    """On a server in another thread's event loop."""
    url = []

    async def run(stop: asyncio.Event):
        engine = await SqliteEngine.open(":memory:")
        async with serving(LocalBroker(engine)) as running:
            url.append(running.url)
            await stop.wait()

    loop = asyncio.new_event_loop()
    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(run(stop)))
    thread.start()
    try:
        while not url:
            thread.join(0.001)
        with qo.connect(url[0]) as client:
            queue = client.queue("q")
            queue.push({"n": 1})
            assert queue.limit(1).consume(lambda delivery: delivery.payload["n"]) == 1
            token, text = client.tokens.create("x", ["admin"])
            assert [each.id for each in client.tokens.list()] == [token.id]
            assert text.startswith(f"qo_{token.id}_")
            assert client.tokens.revoke(token.id)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
