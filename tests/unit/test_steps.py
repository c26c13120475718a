"""The fluent form, in the same process and over HTTP, async and sync; and buffered pushes."""

from __future__ import annotations

import asyncio
import logging

import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.client.client import Client
from qo.core.errors import Invalid, TooLarge, Unavailable
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.remote import serving


@pytest.fixture(params=["here", "http"])
async def client(request):
    engine = await SqliteEngine.open(":memory:")
    broker = LocalBroker(engine)
    if request.param == "here":
        async with Client(broker) as client:
            yield client
    else:
        async with serving(broker) as running, qo.connect(running.url) as client:
            yield client


@pytest.fixture(autouse=True)
def quiet(caplog):
    caplog.set_level(logging.ERROR, logger="qo.client")


async def test_the_whole_sentence(client):
    queue = client.queue("events")
    await queue.push_many([qo.Message(number) for number in range(20)])
    processors = queue.group("processors").batch(10).concurrency(5).timeout(30_000)
    seen = []

    async def handle(delivery):
        seen.append(delivery.payload)

    assert await processors.limit(20).consume(handle) == 20
    assert sorted(seen) == list(range(20))
    assert (await processors.depth()).leased == 0
    assert (await queue.depth()).ready == 20


async def test_steps_change_nothing_behind_them(client):
    queue = client.queue("events")
    steps = queue.batch(5).concurrency(2).key("a").limit(3).idle(1)
    assert queue.options == type(queue.options)()
    assert (steps.options.batch, steps.options.concurrency, steps.options.key) == (5, 2, "a")
    assert steps.batch(7).options.key == "a"
    assert steps.options.batch == 5
    assert steps.partition("b").options.key == "b"


async def test_a_key_narrows_pushes_and_claims(client):
    queue = client.queue("events")
    await queue.key("a").push(1)
    await queue.partition("b").push(2)
    [delivery] = await queue.key("b").batch(10).claim()
    assert (delivery.key, delivery.payload) == ("b", 2)
    [other] = await queue.batch(10).claim()
    assert other.key == "a"


async def test_a_handler_may_take_what_a_claim_took(client):
    queue = client.queue("events")
    await queue.push_many([qo.Message(number) for number in range(6)])
    batches = []

    async def handle(deliveries):
        batches.append([each.payload for each in deliveries])

    assert await queue.batch(4).concurrency(1).each(False).limit(6).consume(handle) == 6
    assert batches == [[0, 1, 2, 3], [4, 5]]
    assert (await queue.depth()).leased == 0


async def test_a_batch_that_fails_is_tried_again_as_a_whole(client):
    queue = client.queue("events")
    await queue.configure(retry={"delay": 0.001})
    await queue.push_many([qo.Message(number, key="k") for number in range(3)])
    runs = []

    async def handle(deliveries):
        runs.append([(each.payload, each.attempt) for each in deliveries])
        if len(runs) == 1:
            raise RuntimeError("not now")

    await queue.batch(3).each(False).limit(6).idle(0.2).consume(handle)
    assert runs[0] == [(0, 1), (1, 1), (2, 1)]
    assert [payload for run in runs[1:] for payload, _ in run] == [0, 1, 2]


async def test_without_auto_ack_the_handler_settles(client):
    queue = client.queue("events")
    await queue.push_many([qo.Message(number) for number in range(3)])
    held = []

    async def handle(delivery):
        if delivery.payload == 0:
            await delivery.complete()
        elif delivery.payload == 1:
            raise RuntimeError("this changes nothing")
        held.append(delivery)

    assert await queue.auto_ack(False).limit(3).consume(handle) == 3
    depth = await queue.depth()
    assert (depth.leased, depth.retrying) == (2, 0)


async def test_on_error_is_told_and_may_fail_itself(client):
    queue = client.queue("events")
    await queue.push("a")
    told = []

    async def handle(delivery):
        raise RuntimeError("broken")

    def on_error(delivery, error):
        told.append((delivery.payload, str(error)))
        raise ValueError("that too")

    logging.getLogger("qo.client").setLevel(logging.CRITICAL)
    await queue.limit(1).on_error(on_error).consume(handle)
    assert told == [("a", "broken")]
    assert (await queue.depth()).retrying == 1


async def test_polling_asks_again_and_ends_when_idle(client):
    queue = client.queue("events").polling(5).idle(0.3)
    seen = []

    async def handle(delivery):
        seen.append(delivery.payload)

    consuming = asyncio.create_task(queue.consume(handle))
    await queue.push(1)
    await asyncio.wait_for(consuming, 10)
    assert seen == [1]


async def test_a_timeout_makes_the_claim_again_and_idle_ends(client):
    queue = client.queue("events")

    async def handle(delivery): ...

    consuming = asyncio.create_task(queue.timeout(20).limit(1).consume(handle))
    await asyncio.sleep(0.1)
    await queue.push(1)
    assert await asyncio.wait_for(consuming, 10) == 1
    assert await queue.timeout(10).idle(0.05).consume(handle) == 0


async def test_iterating_follows_the_steps(client):
    queue = client.queue("events")
    await queue.push_many([qo.Message(number) for number in range(10)])
    seen = []
    async for delivery in queue.batch(3).limit(5).consume():
        seen.append(delivery.payload)
        await delivery.complete()
    assert seen == [0, 1, 2, 3, 4]
    assert (await queue.depth()).leased == 0


async def test_leases_are_renewed_as_often_as_said_or_not_at_all(client):
    queue = client.queue("events")
    await queue.configure(lease=0.4)
    await queue.push(1)
    attempts = []

    async def handle(delivery):
        attempts.append(delivery.expires_at)
        await asyncio.sleep(1.0)

    assert await queue.renew_lease(True, interval_ms=50).limit(1).consume(handle) == 1
    assert (await queue.depth()).leased == 0
    await queue.push(2)
    assert await queue.renew_lease(False).limit(1).consume(handle) == 1
    assert len(await queue.claim()) == 1  # it was lost meanwhile


@pytest.mark.parametrize(
    ("step", "field"),
    [
        (lambda queue: queue.batch(0), "batch"),
        (lambda queue: queue.concurrency("many"), "concurrency"),
        (lambda queue: queue.timeout(-1), "timeout"),
        (lambda queue: queue.timeout(True), "timeout"),
        (lambda queue: queue.limit(0), "limit"),
        (lambda queue: queue.polling(0), "interval_ms"),
        (lambda queue: queue.renew_lease(True, interval_ms=0), "interval_ms"),
        (lambda queue: queue.key(""), "key"),
        (lambda queue: queue.on_error("print"), "on_error"),
        (lambda queue: queue.idle(-1), "idle"),
        (lambda queue: queue.lease(0), "lease"),
        (lambda queue: queue.buffered(messages=0), "messages"),
        (lambda queue: queue.buffered(milliseconds=0), "milliseconds"),
    ],
)
async def test_a_bad_step_is_named(client, step, field):
    with pytest.raises(Invalid) as raised:
        step(client.queue("q"))
    assert raised.value.field == field


async def test_a_buffer_stores_when_full_when_old_and_when_left(client):
    queue = client.queue("events")
    async with queue.key("k").buffered(messages=3, milliseconds=60_000) as buffer:
        for number in range(4):
            await buffer.push(number)
        while len(buffer) > 0 and (await depth(queue)) < 3:
            await asyncio.sleep(0.001)
        await buffer.push(4)
    assert len(buffer) == 0
    assert [each.payload for each in await queue.claim(10)] == [0, 1, 2, 3, 4]
    async with queue.buffered(messages=100, milliseconds=1) as buffer:
        await buffer.push(5)
        while len(buffer):
            await asyncio.sleep(0.001)


async def depth(queue) -> int:
    return (await queue.depth()).ready if await queue.exists() else 0


async def test_a_buffer_makes_its_producer_wait_when_it_is_full(client):
    queue = client.queue("events")
    async with queue.buffered(messages=1, milliseconds=60_000) as buffer:
        for number in range(100):
            await buffer.push(number)
            assert len(buffer) <= 10
    assert (await queue.depth()).ready == 100


async def test_what_a_buffer_could_not_store_is_held_and_stored_once(client, monkeypatch):
    queue = client.queue("events")
    push, failures = client.broker.push, [Unavailable("away"), Unavailable("away")]

    async def sometimes(messages, nonce=None):
        if failures:
            await push(messages, nonce)  # it was stored, and the answer was lost
            raise failures.pop()
        return await push(messages, nonce)

    monkeypatch.setattr(client.broker, "push", sometimes)
    buffer = queue.buffered(messages=10)
    handles = [await buffer.push(number) for number in range(5)]
    for _ in range(2):
        with pytest.raises(Unavailable):
            await buffer.flush()
        assert len(buffer) == 5
    await buffer.close()
    taken = await queue.claim(100)
    assert [each.id for each in taken] == [handle.id for handle in handles]


async def test_a_refused_message_is_told_of_and_the_others_are_stored(client):
    queue = client.queue("events")
    await queue.configure(max_payload=10)
    buffer = queue.buffered(messages=10)
    for payload in ("fits", "x" * 100, "fits too"):
        await buffer.push(payload)
    with pytest.raises(TooLarge, match="max_payload"):
        await buffer.flush()
    assert [each.payload for each in await queue.claim(10)] == ["fits", "fits too"]


async def test_a_buffer_that_is_full_and_cannot_store_does_not_accept(client, monkeypatch):
    """Who tries again does not store twice."""
    queue = client.queue("events")
    push, away = client.broker.push, [True]

    async def sometimes(messages, nonce=None):
        if away:
            raise Unavailable("away")
        return await push(messages, nonce)

    monkeypatch.setattr(client.broker, "push", sometimes)
    buffer = queue.buffered(messages=1, milliseconds=60_000)
    accepted = 0
    for number in range(12):
        try:
            await buffer.push(number)
            accepted += 1
        except Unavailable:
            continue
    assert (accepted, len(buffer)) == (10, 10)
    away.clear()
    await buffer.push(10)
    await buffer.close()
    assert [each.payload for each in await queue.claim(100)] == list(range(11))


async def test_a_batch_that_is_too_large_for_one_call_goes_in_halves(client, monkeypatch):
    queue = client.queue("events")
    push = client.broker.push

    async def small(messages, nonce=None):
        if sum(len(message.payload) for message in messages) > 250:
            raise TooLarge("body", "must have at most 250 bytes")
        return await push(messages, nonce)

    monkeypatch.setattr(client.broker, "push", small)
    buffer = queue.buffered(messages=100)
    for number in range(10):
        await buffer.push("x" * 98 if number != 7 else "y" * 300)
    with pytest.raises(TooLarge, match="250"):
        await buffer.close()
    assert len(buffer) == 0
    assert (await queue.depth()).ready == 9


async def test_a_consumer_that_is_cancelled_as_its_client_is_left_gives_back(client):
    queue = client.queue("events")
    await queue.push("a")
    running = asyncio.Event()

    async def handle(delivery):
        running.set()
        await asyncio.sleep(60)

    if not hasattr(client.broker, "_transport"):
        other = client
    else:
        [address] = client.broker._transport._addresses
        other = await qo.connect(address).open()
    consuming = asyncio.create_task(other.queue("events").consume(handle))
    await running.wait()
    consuming.cancel()
    if other is not client:
        await other.close()
    await asyncio.gather(consuming, return_exceptions=True)
    depth = await queue.depth()
    assert (depth.leased, depth.ready + depth.retrying) == (0, 1)


async def test_a_handler_that_has_finished_is_believed_though_its_consumer_is_stopped(client, monkeypatch):
    queue = client.queue("events")
    await queue.push("a")
    settle, saying, go_on = client.broker.settle, asyncio.Event(), asyncio.Event()

    async def slowly(settlements, then=()):
        saying.set()
        await go_on.wait()
        return await settle(settlements, then)

    async def handle(delivery):
        return "done"

    monkeypatch.setattr(client.broker, "settle", slowly)
    consuming = asyncio.create_task(queue.consume(handle))
    await saying.wait()
    consuming.cancel()
    await asyncio.sleep(0.01)
    go_on.set()
    await asyncio.gather(consuming, return_exceptions=True)
    depth = await queue.depth()
    assert (depth.ready, depth.leased, depth.retrying) == (0, 0, 0)


def test_the_sync_client_has_the_same_steps():
    with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("events")
        with queue.key("k").buffered(messages=2) as buffer:
            for number in range(5):
                buffer.push(number)
            assert isinstance(buffer.push(5).id, str)
        seen, told = [], []

        def handle(deliveries):
            seen.append([each.payload for each in deliveries])
            if len(seen) == 1:
                raise RuntimeError("not now")

        def on_error(deliveries, error):
            told.append((len(deliveries), str(error)))

        queue.configure(retry={"delay": 0.001})
        steps = queue.batch(4).concurrency(2).each(False).on_error(on_error).idle(0.3)
        steps.consume(handle)
        assert told == [(4, "not now")]
        assert sorted(payload for run in seen[1:] for payload in run) == [0, 1, 2, 3, 4, 5]
        assert type(steps) is type(queue)
