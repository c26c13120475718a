"""Workers: who is registered and lives, what nobody takes, and what there is to do."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import Invalid
from qo.core.lane import Start, StartAt
from qo.core.scaling import Demand
from qo.core.worker import Heartbeat
from qo.testing.clock import START
from tests.conformance.saying import ORDERS, claim, done, failed, message, messages, settle


def heartbeat(id: str = "a", **options) -> Heartbeat:
    said = {
        "queues": (ORDERS,), "group": "default", "kinds": ("send",), "host": "here", "pid": 7, "started_at": START,
        "max_capacity": 10, "available_capacity": 4, "memory_usage": 0.5,
    }  # fmt: skip
    return Heartbeat(id=id, **{**said, **options})


@pytest.fixture
def local(store):
    """The engine itself: a server vouches for workers by itself."""
    return getattr(store, "_engine", store)


async def states(store) -> dict[str, str]:
    return {each.id: each.state.value for each in await store.workers()}


async def test_a_worker_registers_once_and_is_known_to_live_in_silence(store, clock):
    assert await store.heartbeat([heartbeat("a"), heartbeat("b", queues=("other", ORDERS))])
    clock.move(hours=3)
    first, second = await store.workers()
    assert (first.id, first.seen_at, first.state.value) == ("a", START, "alive")
    assert (first.max_capacity, first.available_capacity, first.memory_usage) == (10, 4, 0.5)
    assert (second.id, second.queues, second.state.value) == ("b", ("other", ORDERS), "alive")


async def test_a_worker_that_is_heard_from_again_is_shown_as_it_said_last(store, clock):
    await store.heartbeat([heartbeat("a")])
    clock.move(seconds=10)
    await store.heartbeat([heartbeat("a", available_capacity=0, pressure=("memory",))])
    [worker] = await store.workers()
    assert (worker.available_capacity, worker.pressure) == (0, ("memory",))
    assert worker.seen_at == START + timedelta(seconds=10)


async def test_a_worker_that_leaves_is_not_listed(store):
    await store.heartbeat([heartbeat("a"), heartbeat("b")])
    await store.deregister(["a"])
    assert await states(store) == {"b": "alive"}
    await store.deregister(["a", "never"])


async def test_a_worker_whom_nobody_vouches_for_is_gone_and_forgotten_after_a_day(local, clock):
    await local.heartbeat([heartbeat("a")])
    await local.disown(["a"])
    assert await states(local) == {"a": "gone"}
    assert await local.adopt("a")
    assert not await local.adopt("never")
    assert await states(local) == {"a": "alive"}
    await local.disown(["a"])
    clock.move(days=2)
    await local.heartbeat([heartbeat("b")])
    assert await states(local) == {"b": "alive"}


async def test_a_kind_that_nobody_takes_is_told_after_a_while(store, clock):
    await store.heartbeat([heartbeat("a", kinds=("send",)), heartbeat("b", group="audit", kinds=())])
    await store.push([message(kind="send"), message(kind="sned", key="k"), message(kind="sned"), message("other")])
    assert not await store.unserved()
    clock.move(seconds=10)
    found = {(each.queue, each.group, each.kind): each.oldest_at for each in await store.unserved()}
    assert found == {(ORDERS, "default", "sned"): START, ("other", "default", "default"): START}
    await store.create_group([ORDERS], "audit", Start(StartAt.ALL))
    assert {each.group for each in await store.unserved()} == {"default"}  # the other group takes all kinds
    await store.deregister(["b"])
    assert ("audit", "send") in {(each.group, each.kind) for each in await store.unserved()}


async def test_a_kind_of_which_somebody_holds_one_is_served(store, clock):
    await store.push(messages(2, kind="any"))
    await claim(store, messages=1)
    clock.move(seconds=20)
    assert not await store.unserved()
    clock.move(seconds=20)
    assert [each.kind for each in await store.unserved()] == ["any"]


async def test_nothing_that_a_paused_queue_has_is_unserved_or_demanded(store, clock):
    await store.push([message(kind="any")])
    await store.pause(ORDERS, True)
    clock.move(minutes=1)
    assert not await store.unserved()
    assert await store.demand([ORDERS], "default", None) == Demand()


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"id": ""}, "id"),
        ({"id": "a\0"}, "id"),
        ({"host": "a\0"}, "host"),
        ({"queues": ("",)}, "queues"),
        ({"kinds": ("k",) * 1001}, "kinds"),
        ({"memory_usage": 1.5}, "memory_usage"),
        ({"available_capacity": 11}, "available_capacity"),
    ],
)
def test_what_a_worker_cannot_say_is_refused(options, field):
    with pytest.raises(Invalid, match=field):
        heartbeat(**{"id": "a", **options})


async def test_demand_counts_what_could_run_at_once(store, clock):
    assert await store.demand(["nowhere"], "default", None) == Demand()
    await store.push(messages(3, kind="a") + messages(2, kind="a", key="k") + messages(4, kind="b"))
    found = await store.demand([ORDERS, ORDERS, "nowhere"], "default", ["a"])
    assert (found.waiting, found.runnable, found.running, found.oldest_at) == (5, 4, 0, START)
    assert (await store.demand([ORDERS], "default", None)).runnable == 8
    taken = await claim(store, messages=2, kinds=frozenset({"b"}))
    found = await store.demand([ORDERS], "default", None)
    assert (found.runnable, found.running) == (6, 2)
    assert found.next_at == START + timedelta(seconds=30)
    assert (await store.demand([ORDERS], "default", ["a"])).running == 0
    await settle(store, *map(done, taken))
    assert (await store.demand([ORDERS], "default", ["b"])).depth == 2


async def test_demand_of_a_lost_lease_waits_again(store, clock):
    await store.push(messages(2, key="k") + messages(2))
    await claim(store, lane_messages=2)
    clock.move(seconds=31)
    found = await store.demand([ORDERS], "default", None)
    assert (found.runnable, found.running) == (4, 0)


async def test_what_is_not_due_is_no_demand_but_says_when_it_is(store, clock):
    later = START + timedelta(minutes=5)
    await store.push([message(due_at=later), message(kind="a"), message(key="k")])
    [first, second] = await claim(store)
    await settle(store, failed(first, after=60), failed(second, after=120))
    found = await store.demand([ORDERS], "default", None)
    assert (found.waiting, found.depth, found.next_at) == (0, 0, START + timedelta(seconds=60))
    clock.move(seconds=60)
    found = await store.demand([ORDERS], "default", None)
    assert (found.depth, found.next_at) == (1, START + timedelta(seconds=120))
    clock.move(seconds=60)
    assert (await store.demand([ORDERS], "default", None)).depth == 2
    clock.move(minutes=3)
    found = await store.demand([ORDERS], "default", None)
    assert (found.depth, found.next_at) == (3, None)
