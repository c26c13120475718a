"""The broker: group commit, waiters, timers, hints, lost callers, a graceful close."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest

from qo.broker import batcher
from qo.broker.backoff import Backoffs
from qo.broker.batcher import Batcher
from qo.broker.broker import LocalBroker
from qo.broker.line import Line, Waiter
from qo.core.errors import Closed, Conflict, Invalid, StoreFull, TimedOut
from qo.core.lane import Start, StartAt
from qo.core.lease import Claimed, Nothing
from qo.core.message import Refused
from qo.core.polling import GroupBackoff, PollingStrategy
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.conformance.saying import ORDERS, done, failed, message, messages, want


class Counted(SqliteEngine):
    """Counts the calls that reach the store, and can be made to wait."""

    calls: dict[str, list[int]]
    authenticator: asyncio.Event | None = None

    async def _counted(self, name: str, size: int) -> None:
        self.calls.setdefault(name, []).append(size)
        if self.authenticator is not None:
            await self.authenticator.wait()

    async def push(self, messages, *, nonce=None):
        await self._counted("push", len(messages))
        return await super().push(messages, nonce=nonce)

    async def claim(self, wants):
        await self._counted("claim", len(wants))
        return await super().claim(wants)

    async def settle(self, settlements, then=()):
        await self._counted("settle", len(settlements))
        return await super().settle(settlements, then)

    async def tidy(self):
        await self._counted("tidy", 1)
        return await super().tidy()

    async def others_wrote(self):
        await self._counted("others_wrote", 1)
        return await super().others_wrote()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def store(clock) -> Counted:
    engine = await Counted.open(":memory:", clock=clock.now, draw=lambda: 0.5)
    engine.calls = {}
    return engine


@pytest.fixture
async def broker(store, clock) -> AsyncIterator[LocalBroker]:
    broker = LocalBroker(store, clock=clock)
    yield broker
    await broker.close()


async def settled() -> None:
    """Let everything that can happen now happen; what happens in threads is waited for."""
    for _ in range(20):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


async def parked(broker: LocalBroker, count: int) -> None:
    while broker.waiting < count:
        await asyncio.sleep(0.001)


def delivered(answer) -> list[bytes]:
    assert isinstance(answer, Claimed), answer
    return [each.payload for each in answer.deliveries]


async def test_calls_gather_while_a_commit_is_under_way(broker, store):
    store.authenticator = asyncio.Event()
    first = asyncio.create_task(broker.push([message()]))
    await settled()
    others = [asyncio.create_task(broker.push(messages(2))) for _ in range(50)]
    await settled()
    store.authenticator.set()
    await asyncio.gather(first, *others)
    assert store.calls["push"] == [1, 100]


async def test_each_caller_gets_its_own_answers(broker, store):
    store.authenticator = asyncio.Event()
    batches = [messages(3) for _ in range(10)]
    pushes = [asyncio.create_task(broker.push(batch)) for batch in batches]
    await settled()
    store.authenticator.set()
    for push, batch in zip(pushes, batches, strict=True):
        assert [answer.id for answer in await push] == [each.id for each in batch]


async def test_a_call_cancelled_before_it_is_sent_is_dropped(broker, store):
    store.authenticator = asyncio.Event()
    first = asyncio.create_task(broker.push([message()]))
    await settled()
    dropped = asyncio.create_task(broker.push([message()]))
    await settled()
    dropped.cancel()
    await settled()
    store.authenticator.set()
    await first
    await settled()
    assert store.calls["push"] == [1]


async def test_a_bad_call_fails_alone(broker, store, clock):
    store.authenticator = asyncio.Event()
    ahead = Start(StartAt.TIME, clock.now() + timedelta(days=1))
    first = asyncio.create_task(broker.claim(want()))
    await settled()
    bad = asyncio.create_task(broker.claim(want(group="g", start=ahead)))
    good = asyncio.create_task(broker.claim(want()))
    await settled()
    store.authenticator.set()
    await first
    with pytest.raises(Invalid, match="future"):
        await bad
    assert isinstance(await good, Nothing)


async def test_a_store_that_is_full_fails_all_of_the_batch_once():
    sent = []

    async def send(calls):
        sent.append(len(calls))
        await asyncio.sleep(0)
        raise StoreFull("full")

    batching = Batcher[int, int](send, weigh=lambda _: 1, limit=10)
    answers = await asyncio.gather(*(batching.ask(n) for n in range(3)), return_exceptions=True)
    assert [type(answer) for answer in answers] == [StoreFull] * 3
    assert sent == [1, 2]


async def test_batches_have_a_limit_but_a_large_call_passes():
    sent = []

    async def send(calls):
        sent.append(calls)
        await asyncio.sleep(0)
        return calls

    batching = Batcher[int, int](send, weigh=lambda call: call, limit=10)
    await asyncio.gather(*(batching.ask(size) for size in (1, 6, 3, 4, 50, 5, 5)))
    assert sent == [[1], [6, 3], [4], [50], [5, 5]]


async def test_a_waiter_is_woken_by_a_push(broker, clock):
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    await broker.push([message(payload=b"hello")])
    assert delivered(await waiting) == [b"hello"]


async def test_a_waiter_s_time_runs_out(broker, clock):
    waiting = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(seconds=5)))
    await parked(broker, 1)
    clock.move(seconds=4.9)
    await settled()
    assert not waiting.done()
    clock.move(seconds=0.1)
    assert isinstance(await waiting, Nothing)
    assert broker.waiting == 0


async def test_one_push_into_many_waiters_wakes_one_and_costs_few_calls(broker, store):
    waiting = [asyncio.create_task(broker.claim_or_wait(want(), None)) for _ in range(500)]
    await parked(broker, 500)
    store.calls.clear()
    await broker.push([message()])
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    await settled()
    assert [task for task in waiting if task.done()] == [waiting[0]]
    assert sum(store.calls["claim"]) <= 10  # and not five hundred
    await broker.close()


async def test_many_waiters_are_served_together_longest_waiting_first(broker, store):
    waiting = [asyncio.create_task(broker.claim_or_wait(want(), None)) for _ in range(100)]
    await parked(broker, 100)
    store.calls.clear()
    await broker.push(messages(60))
    while broker.waiting > 40:
        await asyncio.sleep(0.001)
    await settled()
    assert all(task.done() for task in waiting[:60])
    assert not any(task.done() for task in waiting[60:])
    assert len(store.calls["claim"]) <= 10
    tokens = {each.token for task in waiting[:60] for each in task.result().deliveries}
    assert len(tokens) == 60
    await broker.close()


async def test_waiting_costs_the_store_nothing(broker, store, clock):
    waiting = [asyncio.create_task(broker.claim_or_wait(want(), None)) for _ in range(1000)]
    await parked(broker, 1000)
    await settled()
    store.calls.clear()
    clock.move(days=30)
    await settled()
    assert store.calls == {}
    await broker.close()
    assert all(isinstance(task.result(), Nothing) for task in waiting)


async def test_a_retry_wakes_exactly_when_it_is_due(broker, store, clock):
    await broker.push([message()])
    claimed = await broker.claim(want())
    await broker.settle([failed(claimed.deliveries[0], after=20)])
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    store.calls.clear()
    clock.move(seconds=19.999)
    await settled()
    assert "claim" not in store.calls
    clock.move(seconds=0.001)
    assert (await waiting).deliveries[0].attempt == 2


async def test_a_dead_consumer_s_lease_wakes_a_waiter(broker, clock):
    await broker.push([message()])
    await broker.claim(want())
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    clock.move(seconds=30)
    assert delivered(await waiting) == [b"1"]


async def test_a_waiter_of_another_kind_stays_asleep(broker, store):
    mine = asyncio.create_task(broker.claim_or_wait(want(kinds=frozenset(["a"])), None))
    other = asyncio.create_task(broker.claim_or_wait(want("elsewhere"), None))
    await parked(broker, 2)
    await broker.push([message(kind="b")])
    await settled()
    assert not mine.done()
    assert not other.done()
    await broker.push([message(kind="a")])
    await mine
    assert not other.done()
    await broker.close()


async def test_a_hint_during_an_empty_claim_is_not_lost(broker, store):
    """The store said nothing, but a push came in between: ask again instead of waiting."""
    store.authenticator = asyncio.Event()
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await settled()
    real_claim = SqliteEngine.claim
    answered: list[object] = []

    async def claim_then_push(self, wants):
        answer = await real_claim(self, wants)
        if not answered:
            answered.append(answer)
            await SqliteEngine.push(store, [message()])
            await settled()
        return answer

    store.claim = claim_then_push.__get__(store)
    broker._claims._batcher._send = store.claim
    store.authenticator.set()
    waiting.cancel()
    again = asyncio.create_task(broker.claim_or_wait(want(), None))
    assert isinstance(await asyncio.wait_for(again, 5), Claimed)


async def test_a_claim_for_a_caller_who_has_gone_goes_to_the_next_in_line(broker, store):
    first = asyncio.create_task(broker.claim_or_wait(want(), None))
    second = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 2)
    store.authenticator = asyncio.Event()
    push = asyncio.create_task(SqliteEngine.push(store, [message()]))
    await settled()
    first.cancel()
    await settled()
    store.authenticator.set()
    await push
    assert delivered(await asyncio.wait_for(second, 5)) == [b"1"]


async def test_a_claim_under_a_token_of_the_caller_s_own_is_not_handed_to_another(broker, store):
    """Whoever comes again with that token must not meet the lease of another: it is released, and claimed anew."""
    gone, again = want(named=True), want(named=True)
    first = asyncio.create_task(broker.claim_or_wait(gone, None))
    second = asyncio.create_task(broker.claim_or_wait(again, None))
    await parked(broker, 2)
    store.authenticator = asyncio.Event()
    push = asyncio.create_task(SqliteEngine.push(store, [message()]))
    await settled()
    first.cancel()
    await settled()
    store.authenticator.set()
    await push
    answer = await asyncio.wait_for(second, 5)
    assert {each.token for each in answer.deliveries} == {again.token}
    with pytest.raises(Conflict, match="used before"):
        await broker.claim(gone)


async def test_of_two_that_wait_with_one_token_one_is_refused(broker):
    one = want(named=True)
    waiting = [asyncio.create_task(broker.claim_or_wait(one, None)) for _ in range(2)]
    other = asyncio.create_task(broker.claim_or_wait(want(named=True), None))
    await parked(broker, 3)
    await broker.push([message(key=key) for key in "abc"])
    answers = await asyncio.wait_for(asyncio.gather(*waiting, other, return_exceptions=True), 5)
    assert [type(each) for each in answers] == [Claimed, Conflict, Claimed]


async def test_a_stalled_batch_does_not_stop_the_next(monkeypatch):
    monkeypatch.setattr(batcher, "STALL_SECONDS", 0.02)
    sent: list[list[int]] = []
    stalled = asyncio.Event()

    async def send(calls: Any) -> Any:
        sent.append(list(calls))
        if 0 in calls:
            await stalled.wait()
        return calls

    gathered = Batcher[int, int](send, weigh=lambda _: 1, limit=100)
    first = asyncio.create_task(gathered.ask(0))
    await settled()
    others = [asyncio.create_task(gathered.ask(number)) for number in range(1, 6)]
    assert await asyncio.wait_for(asyncio.gather(*others), 5) == [1, 2, 3, 4, 5]
    assert sent == [[0], [1, 2, 3, 4, 5]], "they went together, as ever"
    assert await gathered.ask(6) == 6
    stalled.set()
    assert await first == 0
    await gathered.close()


async def test_only_so_many_batches_are_under_way_though_all_stall(monkeypatch):
    monkeypatch.setattr(batcher, "STALL_SECONDS", 0.005)
    under_way = most = 0
    go_on = asyncio.Event()

    async def send(calls: Any) -> Any:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await go_on.wait()
        under_way -= 1
        return calls

    gathered = Batcher[int, int](send, weigh=lambda _: 1, limit=1)
    asked = [asyncio.create_task(gathered.ask(number)) for number in range(30)]
    await asyncio.sleep(0.3)
    assert most == batcher.AT_ONCE_LIMIT
    go_on.set()
    assert await asyncio.wait_for(asyncio.gather(*asked), 5) == list(range(30))
    await gathered.close()


async def test_hints_are_verified_only_while_someone_waits(store, clock, monkeypatch):
    verified: list[Any] = []

    async def verify() -> None:
        verified.append(clock.now())

    monkeypatch.setattr(store, "verify", verify)
    monkeypatch.setattr(type(store), "check_seconds", 180.0)
    broker = LocalBroker(store, clock=clock)
    await broker.push([message("other")])
    clock.move(hours=1)
    await settled()
    assert verified == [], "nobody waits"
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    for _ in range(4):
        clock.move(seconds=180)
        await settled()
    assert len(verified) == 4, "and one statement each"
    waiting.cancel()
    await settled()
    clock.move(hours=1)
    await settled()
    assert len(verified) <= 5
    seen = len(verified)
    clock.move(hours=1)
    await settled()
    assert len(verified) == seen
    await broker.close()


async def test_a_claim_for_nobody_is_released_at_once(broker, store):
    await broker.push([message()])
    store.authenticator = asyncio.Event()
    gone = asyncio.create_task(broker.claim(want()))
    await settled()
    gone.cancel()
    await settled()
    store.authenticator.set()
    while "settle" not in store.calls:
        await asyncio.sleep(0.001)
    await settled()
    [delivery] = (await broker.claim(want())).deliveries
    assert delivery.attempt == 1


async def test_what_was_settled_at_delivery_and_not_delivered_is_counted(broker, store):
    await broker.push([message()])
    store.authenticator = asyncio.Event()
    gone = asyncio.create_task(broker.claim(want(auto_settle=True)))
    await settled()
    gone.cancel()
    await settled()
    store.authenticator.set()
    while not broker._claims.undelivered:
        await asyncio.sleep(0.001)


async def test_results_are_awaited_without_polling(broker, store, clock):
    [stored] = await broker.push([message()])
    result = asyncio.create_task(broker.finished(stored.id, None))
    claimed = await broker.claim(want())
    await settled()
    assert not result.done()
    await broker.settle([done(claimed.deliveries[0], b"42")])
    job = await result
    assert (job.state, job.result) == ("succeeded", b"42")


async def test_waiting_for_a_result_ends_in_time(broker, clock):
    [stored] = await broker.push([message()])
    result = asyncio.create_task(broker.finished(stored.id, clock.now() + timedelta(seconds=3)))
    await settled()
    clock.move(seconds=3)
    with pytest.raises(TimedOut, match="queued"):
        await result


async def test_housekeeping_runs_after_traffic_and_at_its_own_time_only(broker, store, clock):
    await settled()
    assert store.calls.pop("tidy") == [1]  # one look at the start
    clock.move(days=1)
    await settled()
    assert "tidy" not in store.calls
    await broker.push([message()])
    claimed = await broker.claim(want())
    await broker.settle([done(claimed.deliveries[0])])
    for _ in range(40):
        again = clock.next_timer
        if again is None:
            break
        clock.move_to(again)
        await settled()
    assert clock.next_timer is None
    assert 3 <= len(store.calls["tidy"]) <= 20


async def test_closing_answers_waiters_and_finishes_what_is_under_way(broker, store):
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    store.authenticator = asyncio.Event()
    push = asyncio.create_task(broker.push([message(key="k")]))
    await settled()
    closing = asyncio.create_task(broker.close())
    await settled()
    store.authenticator.set()
    await closing
    assert isinstance(await waiting, Nothing)
    assert not isinstance((await push)[0], Refused)
    for call in (broker.push([message()]), broker.claim(want()), broker.claim_or_wait(want(), None)):
        with pytest.raises(Closed):
            await call


async def test_another_process_is_noticed_by_polling_while_someone_waits(tmp_path, clock):
    path = str(tmp_path / "qo.db")
    store = await Counted.open(path, clock=clock.now)
    store.calls = {}
    broker = LocalBroker(store, clock=clock, polling=PollingStrategy.adaptive())
    other = await SqliteEngine.open(path, clock=clock.now)
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    for _ in range(3):
        clock.move(seconds=6)
        await settled()
    assert not waiting.done()
    await other.push([message(payload=b"from afar")])
    clock.move(seconds=6)
    assert delivered(await asyncio.wait_for(waiting, 5)) == [b"from afar"]
    clock.move(seconds=6)
    await settled()
    polls = len(store.calls["others_wrote"])
    clock.move(hours=1)
    await settled()
    assert len(store.calls["others_wrote"]) == polls  # nobody waits any more
    await other.close()
    await broker.close()


async def test_a_message_of_a_queue_that_does_not_exist_yet_wakes_a_waiter(broker):
    waiting = asyncio.create_task(broker.claim_or_wait(want("not yet"), None))
    await parked(broker, 1)
    await broker.push([message("not yet", b"first")])
    assert delivered(await waiting) == [b"first"]


async def test_resuming_a_queue_wakes_its_waiters(broker):
    await broker.push([message()])
    await broker.admin.pause(ORDERS, True)
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    await broker.admin.pause(ORDERS, False)
    assert delivered(await waiting) == [b"1"]


async def test_a_waiter_that_parks_as_another_times_out_still_hears_hints(broker, clock):
    first = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(seconds=1)))
    await parked(broker, 1)
    [wait_group] = broker._claims.waiters._wait_groups.values()
    wait_group.answer(next(iter(wait_group.waiters)), Nothing(None))
    second = asyncio.create_task(broker._claims.waiters.park(want(), None, Nothing(None), 0))
    await first
    await parked(broker, 1)
    await broker.push([message()])
    assert delivered(await asyncio.wait_for(second, 5)) == [b"1"]


@pytest.mark.parametrize("waits", [True, False])
async def test_a_caller_cancelled_just_as_its_answer_arrives_leaks_no_claim(broker, store, waits):
    if waits:
        waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
        await parked(broker, 1)
        [wait_group] = broker._claims.waiters._wait_groups.values()
        original = wait_group.answer
        wait_group.answer = lambda waiter, answer: (original(waiter, answer), waiting.cancel())
        await broker.push([message()])
    else:
        await broker.push([message()])
        original_send = broker._claims._batcher._send

        async def send(wants):
            answers = await original_send(wants)
            asyncio.get_running_loop().call_soon(waiting.cancel)
            return answers

        broker._claims._batcher._send = send
        waiting = asyncio.create_task(broker.claim(want()))
    await asyncio.gather(waiting, return_exceptions=True)
    assert waiting.cancelled()
    while "settle" not in store.calls:
        await asyncio.sleep(0.001)
    await settled()
    assert (await store.depth(ORDERS, "default")).leased == 0


async def test_what_was_claimed_on_for_a_caller_who_has_gone_is_given_back(broker, store):
    await broker.push(messages(2))
    claimed = await broker.claim(want())
    store.authenticator = asyncio.Event()
    gone = asyncio.create_task(broker.settle([done(claimed.deliveries[0])], [want()]))
    await settled()
    gone.cancel()
    await settled()
    store.authenticator.set()
    while len(store.calls["settle"]) < 2:
        await asyncio.sleep(0.001)
    await settled()
    assert (await store.depth(ORDERS, "default")).leased == 0


async def test_closing_leaves_nobody_waiting(broker, store):
    [stored] = await broker.push([message("other")])
    result = asyncio.create_task(broker.finished(stored.id, None))
    await settled()
    store.authenticator = asyncio.Event()
    asking = asyncio.create_task(broker.claim_or_wait(want(), None))
    await settled()
    closing = asyncio.create_task(broker.close())
    await settled()
    store.authenticator.set()
    await asyncio.wait_for(closing, 5)
    assert isinstance(await asyncio.wait_for(asking, 5), Nothing)
    with pytest.raises(Closed):
        await asyncio.wait_for(result, 5)


async def test_polling_goes_on_while_a_slow_claim_is_asked(tmp_path, clock):
    store = await Counted.open(str(tmp_path / "qo.db"), clock=clock.now)
    store.calls = {}
    broker = LocalBroker(store, clock=clock)
    await settled()
    store.authenticator = asyncio.Event()
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await settled()
    clock.move(seconds=6)
    await settled()
    store.authenticator.set()
    await parked(broker, 1)
    other = await SqliteEngine.open(str(tmp_path / "qo.db"), clock=clock.now)
    await other.push([message(payload=b"from afar")])
    for _ in range(3):
        clock.move(seconds=6)
        await settled()
    assert delivered(await asyncio.wait_for(waiting, 5)) == [b"from afar"]
    await other.close()
    await broker.close()


async def test_a_result_is_not_missed_while_its_commit_is_under_way(tmp_path):
    """Watching begins, and the job is looked at, between the verb and its commit."""
    reached, go_on = threading.Event(), threading.Event()

    def probe(point: str, verbs: list[str]) -> None:
        if point == "before commit" and "settle" in verbs:
            reached.set()
            go_on.wait(5)

    store = await SqliteEngine.open(str(tmp_path / "qo.db"), probe=probe)
    broker = LocalBroker(store)
    [stored] = await broker.push([message()])
    claimed = await broker.claim(want())
    settling = asyncio.create_task(broker.settle([done(claimed.deliveries[0])]))
    await asyncio.to_thread(reached.wait)
    result = asyncio.create_task(broker.finished(stored.id, None))
    await settled()
    go_on.set()
    await settling
    assert (await asyncio.wait_for(result, 5)).state == "succeeded"
    await broker.close()


async def test_a_group_that_is_asked_for_in_vain_rests_longer(tmp_path, clock):
    """Others write to another queue all the time; what is waited for is looked for less and less often."""
    store = Counted(str(tmp_path / "qo.db"), synchronous="off", clock=clock.now)
    store.calls = {}
    await store._writer.open()
    await store._reader.open()
    other = await SqliteEngine.open(str(tmp_path / "qo.db"), synchronous="off", clock=clock.now)
    broker = LocalBroker(store, clock=clock, polling=PollingStrategy.fixed(10))
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    for _ in range(200):  # two seconds
        await other.push([message("busy")])
        await tick(store, clock)
    asked = len(store.calls["claim"])
    assert 4 <= asked <= 8  # at once, and after 200, 400, 800 ms
    assert len(broker._backoffs) == 1
    assert broker._backoffs.longest <= 2
    await other.push([message()])
    while not waiting.done():
        clock.move(milliseconds=5)
        await asyncio.sleep(0.001)
    assert delivered(await waiting) == [b"1"]
    assert len(broker._backoffs) == 0  # back to the least, because something was found
    await broker.close()
    await other.close()


async def tick(store: Counted, clock: ManualClock) -> None:
    """Move on until the store was asked whether others wrote."""
    before = len(store.calls.get("others_wrote", []))
    while len(store.calls.get("others_wrote", [])) == before:
        clock.move(milliseconds=1)
        await asyncio.sleep(0.0005)


async def test_a_group_that_nobody_waits_in_is_forgotten(clock):
    backoffs = Backoffs(clock, GroupBackoff(forget_after=timedelta(seconds=10)))
    backoffs.asked("a", found=False)
    clock.move(seconds=5)
    backoffs.asked("b", found=False)
    assert len(backoffs) == 2
    clock.move(seconds=6)
    backoffs.asked("b", found=False)
    assert len(backoffs) == 1
    assert backoffs.due("a") is None
    assert backoffs.due("b") == clock.now() + timedelta(milliseconds=400)
    assert backoffs.times == 3


async def test_higher_priority_is_served_first_then_who_waits_longest(broker):
    order = []

    async def wait(name: str, priority: int) -> None:
        await broker.claim_or_wait(want(), None, priority)
        order.append(name)

    tasks = []
    for number, (name, priority) in enumerate([("low", -1), ("first", 0), ("second", 0), ("high", 9)], 1):
        tasks.append(asyncio.create_task(wait(name, priority)))
        await parked(broker, number)
    for left in (3, 2, 1, 0):
        await broker.push([message()])
        while len(order) < 4 - left:
            await asyncio.sleep(0)
    assert order == ["high", "first", "second", "low"]
    await asyncio.gather(*tasks)


async def test_stopping_to_wait_answers_waiters_and_lets_the_rest_go_on(broker):
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    await broker.stop_waiting()
    assert await waiting == Nothing(None)
    assert await broker.claim_or_wait(want(), None) == Nothing(None)
    await broker.push([message()])
    assert delivered(await broker.claim(want())) == [b"1"]


async def test_housekeeping_is_expected_once_for_much_traffic(broker, store, clock):
    for _ in range(5):
        await broker.push([message()])
    before = len(store.calls.get("tidy", []))
    clock.move(seconds=61)
    while len(store.calls["tidy"]) == before:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.01)
    assert len(store.calls["tidy"]) == before + 1
    await broker.push([message()])
    clock.move(seconds=61)
    while len(store.calls["tidy"]) < before + 2:
        await asyncio.sleep(0.001)


async def test_a_claim_whose_time_is_up_while_the_store_answers_gets_the_answer(broker, store, clock):
    """It was settled at delivery: there is nobody else to give it to."""
    waiting = asyncio.create_task(broker.claim_or_wait(want(auto_settle=True), clock.now() + timedelta(seconds=5)))
    await parked(broker, 1)
    store.authenticator = asyncio.Event()
    asked = len(store.calls["claim"])
    pushing = asyncio.create_task(store.push([message()]))
    while len(store.calls.get("push", [])) < 1:
        await asyncio.sleep(0)
    store.authenticator.set()
    await pushing
    store.authenticator = asyncio.Event()
    while len(store.calls["claim"]) == asked:
        await asyncio.sleep(0)
    clock.move(seconds=6)
    await asyncio.sleep(0)
    store.authenticator.set()
    assert delivered(await asyncio.wait_for(waiting, 5)) == [b"1"]


async def test_who_waits_again_and_again_does_not_ask_again(broker, store, clock):
    for _ in range(5):
        waiting = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(seconds=30)))
        await parked(broker, 1)
        clock.move(seconds=31)
        assert await waiting == Nothing(None)
    assert len(store.calls["claim"]) == 1
    await broker.push([message()])
    waiting = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(seconds=30)))
    assert delivered(await asyncio.wait_for(waiting, 5)) == [b"1"]


async def test_who_waits_again_asks_when_time_may_have_brought_something(broker, store, clock):
    await broker.push([message(due_at=clock.now() + timedelta(seconds=40))])
    for _ in range(2):
        waiting = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(seconds=15)))
        await parked(broker, 1)
        clock.move(seconds=16)
        assert await waiting == Nothing(None)
    assert len(store.calls["claim"]) == 1
    clock.move(seconds=10)
    assert delivered(await broker.claim_or_wait(want(), clock.now() + timedelta(seconds=15))) == [b"1"]


async def test_who_hardly_waits_always_asks(broker, store, clock):
    waiting = asyncio.create_task(broker.claim_or_wait(want(), None))
    await parked(broker, 1)
    asked = len(store.calls["claim"])
    short = asyncio.create_task(broker.claim_or_wait(want(), clock.now() + timedelta(milliseconds=100)))
    while len(store.calls["claim"]) == asked:
        await asyncio.sleep(0.001)
    clock.move(seconds=1)
    assert await short == Nothing(None)
    await broker.push([message()])
    assert delivered(await waiting) == [b"1"]


async def test_a_line_counts_and_keeps_its_order():
    line = Line()
    waiters = [Waiter(want(), asyncio.get_running_loop().create_future(), priority) for priority in (0, 5, -5, 5)]
    for waiter in waiters:
        line.add(waiter)
    assert [waiters.index(each) for each in line] == [1, 3, 0, 2]
    assert line.remove(waiters[3])
    assert not line.remove(waiters[3])
    assert len(line) == 3
    for waiter in waiters[:3]:
        line.remove(waiter)
    assert len(line) == 0
    assert list(line) == []


@pytest.mark.parametrize("path", [":memory:", "file"])
async def test_who_waits_for_demand_is_answered_in_time_and_asks_seldom(path, tmp_path, clock):
    engine = await SqliteEngine.open(str(tmp_path / "qo.db") if path == "file" else path, clock=clock.now)
    looks = 0
    look = engine.demand

    async def counted(*wish: Any) -> Any:
        nonlocal looks
        looks += 1
        return await look(*wish)

    engine.demand = counted  # type: ignore[method-assign,assignment]
    broker = LocalBroker(engine, clock=clock)
    waiting = asyncio.create_task(broker.demand_or_wait(["q"], "default", None, clock.now() + timedelta(seconds=5)))
    await settled()
    clock.move(seconds=5)
    assert (await asyncio.wait_for(waiting, 30)).depth == 0
    assert looks <= 3 if path == "file" else looks == 1
    again = asyncio.create_task(broker.demand_or_wait(["q"], "default", None, clock.now() + timedelta(seconds=5)))
    await settled()
    if path != "file":
        assert looks == 1, "that there is nothing is remembered"
    await broker.push([message("q")])
    for _ in range(100):
        await settled()
        clock.move(seconds=0.1)
        if again.done():
            break
    assert (await asyncio.wait_for(again, 30)).depth == 1
    await broker.close()
