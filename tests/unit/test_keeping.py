"""Workers that come over HTTP: their server vouches for them while a claim of theirs waits, and a while longer."""

from __future__ import annotations

import asyncio
import contextlib

import msgspec
import pytest

import qo
from qo.broker.broker import LocalBroker
from qo.core.errors import Invalid
from qo.server import keeping
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.remote import serving
from tests.conformance.test_workers import heartbeat, states


@pytest.fixture
async def store():
    engine = await SqliteEngine.open(":memory:")
    yield engine
    await engine.close()


async def test_who_is_not_seen_any_longer_is_let_go(store, monkeypatch):
    monkeypatch.setattr(keeping, "HOLD_SECONDS", 0.05)
    keeper = keeping.Keeper(store)
    await keeper.heartbeat(heartbeat("parked"))
    await keeper.heartbeat(heartbeat("gone"))
    with keeper.parked("parked"), keeper.parked("no worker"), keeper.parked(None):
        async with asyncio.timeout(30):
            while await states(store) != {"parked": "alive", "gone": "gone"}:
                await asyncio.sleep(0.01)
        await asyncio.sleep(0.2)
        assert await states(store) == {"parked": "alive", "gone": "gone"}
    async with asyncio.timeout(30):
        while await states(store) != {"parked": "gone", "gone": "gone"}:
            await asyncio.sleep(0.01)
    await keeper.stop()


async def test_who_waits_at_another_server_is_taken_over(store):
    first, second = keeping.Keeper(store), keeping.Keeper(store)
    await first.heartbeat(heartbeat("a"))
    await store.disown(["a"])  # the first server is gone
    assert await states(store) == {"a": "gone"}
    with second.parked("a"):
        async with asyncio.timeout(30):
            while await states(store) != {"a": "alive"}:
                await asyncio.sleep(0.01)
    await second.deregister("a")
    assert await states(store) == {}
    await first.stop()
    await second.stop()


@contextlib.asynccontextmanager
async def at_a_server():
    broker = LocalBroker(await SqliteEngine.open(":memory:"))
    async with serving(broker) as running, qo.connect(running.url) as client:
        yield running, client
    await broker.close()


async def test_scaling_says_what_there_is_to_do_and_waits_for_it():
    async with at_a_server() as (_, client):
        broker = client.broker
        waiting = asyncio.create_task(broker.demand_or_wait(["q", "r"], "default", ["a"], None))
        await client.queue("q").push(1, kind="b")
        await client.queue("r").push(1, kind="a")
        demand = await asyncio.wait_for(waiting, 30)
        assert (demand.depth, demand.waiting, demand.running) == (1, 1, 0)
        await broker.workers.heartbeat([heartbeat("w", queues=("q",), kinds=())])
        answer = await broker._transport.call("GET", "/v1/scaling?queue=q&queue=r&min=0&max=5")
        said = msgspec.json.decode(answer.body)
        assert (said["depth"], said["desired"], said["workers"], said["max_capacity"]) == (2, 2, 1, 10)
        assert said["oldest_seconds"] >= 0


@pytest.mark.parametrize(
    ("query", "field"),
    [("min=9&max=3", "max"), ("queue=", "queue"), ("kind=%20", "kind"), ("qeue=q", "qeue")],
)
async def test_a_wrong_question_about_scaling_is_named(query, field):
    async with at_a_server() as (_, client):
        with pytest.raises(Invalid, match=field):
            await client.broker._transport.call("GET", f"/v1/scaling?{query}")


async def test_a_worker_is_registered_under_the_name_in_the_path():
    async with at_a_server() as (_, client):
        with pytest.raises(Invalid, match="as in the path"):
            await client.broker._transport.call("PUT", "/v1/workers/b", heartbeat("a"))
