"""settle, extend and transact."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.lane import LaneId
from qo.core.lease import (
    AckAnswer,
    AckByName,
    Answer,
    Claimed,
    Complete,
    Done,
    Extended,
    Fail,
    LeaseToken,
    Lost,
    Nothing,
    Obstacle,
    Release,
    Settlement,
    Undone,
    Unit,
    Verdict,
)
from qo.core.message import Dedupe, DedupeScope, Stored
from qo.core.retry import RetryPolicy
from qo.testing.clock import START
from tests.conformance.saying import (
    ORDERS,
    answers,
    buried,
    claim,
    done,
    extension,
    failed,
    message,
    messages,
    nothing,
    payloads,
    released,
    say,
    settle,
    want,
)


async def test_the_design_s_example(store, clock):
    """[0,5) claimed, 0 and 1 completed, 2 failed: position 2, attempt 1, no lease; settling 3 is lost."""
    await store.push(messages(5, key="k"))
    run = await claim(store)
    assert await answers(store, done(run[1])) == ["settled"]
    [answer] = await settle(store, failed(run[2], after=5))
    assert (answer.answer, answer.verdict, answer.lease_ended) == ("settled", "retrying", True)
    assert await answers(store, done(run[3])) == ["lost"]
    await nothing(store)
    clock.move(seconds=5)
    again = await claim(store)
    assert [(each.payload, each.attempt) for each in again] == [(b"2", 2), (b"3", 1), (b"4", 1)]


async def test_completing_n_completes_what_is_before_it(store):
    await store.push(messages(3, key="k"))
    run = await claim(store)
    [answer] = await settle(store, done(run[2]))
    assert answer.lease_ended
    assert await answers(store, done(run[0])) == ["repeated"]
    assert (await store.depth(ORDERS, "default")).leased == 0


async def test_items_of_one_call_on_a_run_are_judged_together(store):
    await store.push(messages(5, key="k"))
    run = await claim(store)
    said = await settle(store, done(run[4]), failed(run[2], after=0), done(run[0]), done(run[3]))
    assert [each.answer for each in said] == ["given_back", "settled", "settled", "given_back"]
    assert payloads(await claim(store)) == [b"2", b"3", b"4"]


async def test_release_cuts_a_run_and_completes_nothing(store):
    await store.push(messages(5, key="k"))
    run = await claim(store)
    [answer] = await settle(store, released(run[2]))
    assert (answer.answer, answer.lease_ended) == ("settled", False)
    await nothing(store)  # 0 and 1 are still held
    assert await answers(store, done(run[3])) == ["lost"]
    [answer] = await settle(store, done(run[1]))
    assert answer.lease_ended
    again = await claim(store)
    assert [(each.payload, each.attempt) for each in again] == [(b"2", 1), (b"3", 1), (b"4", 1)]


async def test_bury_passes_the_message_and_the_lane_goes_on(store):
    await store.push(messages(3, key="k"))
    run = await claim(store)
    await settle(store, buried(run[1], "bad"))
    assert payloads(await claim(store)) == [b"2"]
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert (letter.payload, letter.reason, letter.error) == (b"1", "buried", "bad")


async def test_open_lanes_settle_in_any_order(store):
    await store.push(messages(4))
    each = await claim(store)
    said = await settle(store, done(each[3]), failed(each[1], after=0), done(each[0]))
    assert [answer.lease_ended for answer in said] == [False, False, False]
    [retry] = await claim(store)
    assert (retry.payload, retry.attempt) == (b"1", 2)
    [last] = await settle(store, done(each[2]))
    assert last.lease_ended


async def test_release_gives_back_with_no_attempt_used(store):
    await store.push(messages(1) + messages(1, key="k"))
    held = await claim(store)
    await settle(store, *map(released, held))
    assert sorted((each.key or "", each.attempt) for each in await claim(store)) == [("", 1), ("k", 1)]


@pytest.mark.parametrize("key", [None, "k"])
async def test_attempts_run_out_and_the_message_is_buried(store, clock, key):
    await store.configure(ORDERS, {"retry": RetryPolicy(attempts=3, delay=timedelta(seconds=1), jitter=0.0)})
    await store.push([message(key=key)])
    rests = []
    for attempt in (1, 2, 3):
        [each] = await claim(store)
        assert each.attempt == attempt
        [answer] = await settle(store, failed(each, f"error {attempt}"))
        again = (await nothing(store)).ask_again
        if again is not None:
            rests.append((again - clock.now()).total_seconds())
            clock.move_to(again)
    assert answer.verdict == "buried"
    assert rests == [1.0, 2.0]
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert (letter.attempts, letter.reason, letter.error) == (3, "failed", "error 3")


async def test_attempts_start_anew_when_the_head_is_passed(store):
    await store.push(messages(2, key="k"))
    [head] = await claim(store, messages=1)
    await settle(store, failed(head, after=0))
    [head] = await claim(store, messages=1)
    await settle(store, done(head))
    [following] = await claim(store, messages=1)
    assert (following.payload, following.attempt) == (b"1", 1)


async def test_one_message_said_twice_in_a_call_counts_once(store):
    await store.push(messages(1))
    [each] = await claim(store)
    first, second = await settle(store, done(each), failed(each))
    assert (first.answer, second.answer, second.verdict) == ("settled", "repeated", "completed")


async def test_a_token_that_never_existed_is_unknown(store):
    await store.push(messages(1))
    [each] = await claim(store)
    bogus = Settlement(token=LeaseToken("made up"), lane=each.lane, offset=each.offset, report=Complete())
    outside = Settlement(token=each.token, lane=each.lane, offset=77, report=Complete())
    assert await answers(store, bogus, outside) == ["unknown", "unknown"]
    assert await answers(store, done(each)) == ["settled"]


async def test_leases_end_lane_by_lane(store):
    await store.push(messages(1) + messages(1, key="k"))
    first, second = await claim(store)
    [answer] = await settle(store, done(first))
    assert answer.lease_ended
    [answer] = await settle(store, done(second))
    assert (answer.answer, answer.lease_ended) == ("settled", True)


async def test_settle_and_claim_on_in_one_call(store):
    await store.push(messages(3, key="k"))
    [head] = await claim(store, messages=1)
    settled, [claimed] = await store.settle([done(head)], [want(messages=1)])
    assert settled[0].answer == "settled"
    assert payloads(list(claimed.deliveries)) == [b"1"]


async def test_extend_moves_everything_under_the_token(store, clock):
    await store.push(messages(2) + messages(2, key="k"))
    first = await claim(store)
    await settle(store, failed(first[0], after=0))
    held = await claim(store)  # a retry, under another token
    clock.move(seconds=20)
    answer, other = await store.extend([extension(first[1], 30), extension(held[0], 30)])
    assert isinstance(answer, Extended)
    assert isinstance(other, Extended)
    assert (answer.expires_at, answer.lanes) == (clock.now() + timedelta(seconds=30), 2)
    clock.move(seconds=29)
    await nothing(store)
    assert await answers(store, done(first[1]), done(first[3]), done(held[0])) == ["settled"] * 3


async def test_extend_never_shortens(store, clock):
    await store.push([message()])
    [each] = await claim(store, lease=timedelta(seconds=100))
    [answer] = await store.extend([extension(each, 1)])
    assert answer.expires_at == each.expires_at


async def test_extend_of_a_dead_lease_is_lost(store, clock):
    await store.push([message()])
    [each] = await claim(store)
    clock.move(seconds=30)
    assert await store.extend([extension(each)]) == [Lost()]


async def test_extend_carries_what_has_started(store, clock):
    await store.push([message()])
    [each] = await claim(store, owner="w1")
    [job] = await store.jobs([each.id])
    assert (job.state, job.lease_owner) == ("assigned", "w1")
    clock.move(seconds=1)
    await store.extend([extension(each, started=True)])
    [job] = await store.jobs([each.id])
    assert (job.state, job.started_at, job.heartbeat_at) == ("running", clock.now(), clock.now())


async def test_a_unit_is_done_as_a_whole(store):
    await store.push([message()])
    [each] = await claim(store)
    follow_up = message("mail", b"follow up")
    [answer] = await store.transact([Unit(settlements=(done(each),), pushes=(follow_up,))])
    assert isinstance(answer, Done)
    assert answer.pushed == (Stored(follow_up.id),)
    assert payloads(await claim(store, "mail")) == [b"follow up"]


async def test_a_unit_with_a_lost_lease_does_nothing(store, clock):
    await store.push([message()])
    [each] = await claim(store)
    clock.move(seconds=31)
    [answer] = await store.transact([Unit(settlements=(done(each),), pushes=(message("mail"),))])
    assert isinstance(answer, Undone)
    assert "lost" in answer.reason
    await nothing(store, "mail")
    assert len(await claim(store)) == 1


async def test_a_unit_may_refuse_duplicates(store):
    await store.push([message("mail", dedupe=Dedupe("k")), message()])
    [each] = await claim(store)
    unit = Unit(settlements=(done(each),), pushes=(message("new"), message("mail", dedupe=Dedupe("k"))))
    strict = Unit(settlements=unit.settlements, pushes=unit.pushes, refuse_duplicates=True)
    [answer] = await store.transact([strict])
    assert isinstance(answer, Undone)
    assert "duplicate" in answer.reason
    await nothing(store, "new")
    [answer] = await store.transact([unit])
    assert isinstance(answer, Done)


async def test_a_unit_that_is_rolled_back_leaves_the_others_of_its_batch_alone(store):
    await store.push(messages(2))
    one, two = await claim(store)
    bad = Unit(settlements=(Settlement(token=LeaseToken("no"), lane=one.lane, offset=0, report=Complete()),))
    first, second, third = await store.transact([Unit(settlements=(done(one),)), bad, Unit(settlements=(done(two),))])
    assert isinstance(first, Done)
    assert isinstance(second, Undone)
    assert isinstance(third, Done)


async def test_a_unit_with_a_nonce_may_be_repeated(store):
    await store.push([message()])
    [each] = await claim(store)
    unit = Unit(settlements=(done(each),), pushes=(message("mail"),), nonce="n")
    [first] = await store.transact([unit])
    [second] = await store.transact([unit])
    assert first == second
    assert len(await claim(store, "mail")) == 1


async def test_claiming_on_sees_the_lane_that_the_settle_made_ready(store):
    await store.push([*messages(2, key="k", priority=10), message(payload=b"open")])
    [first] = await claim(store, messages=1)
    assert first.payload == b"0"
    _, [claimed] = await store.settle([done(first)], [want(messages=1)])
    assert payloads(list(claimed.deliveries)) == [b"1"]


async def test_many_lanes_are_completed_and_claimed_on_in_one_call(store):
    keys = [f"k{number}" for number in range(20)]
    for round_ in range(3):
        await store.push([message(key=key, payload=str(round_).encode()) for key in keys])
    held = await claim(store, lane_messages=1)
    for round_ in range(3):
        assert payloads(held) == [str(round_).encode()] * 20
        settled, [claimed] = await store.settle([done(each) for each in held], [want(messages=50, lane_messages=1)])
        assert {(each.answer, each.verdict, each.lease_ended) for each in settled} == {("settled", "completed", True)}
        held = list(claimed.deliveries) if isinstance(claimed, Claimed) else []
    assert held == []
    assert (await store.depth(ORDERS, "default")).ready == 0


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_failure_that_is_free_uses_no_attempt(store, clock, key):
    await store.configure(ORDERS, {"retry": {"attempts": 1}})
    await store.push([message(key=key)])
    for _ in range(3):
        [held] = await claim(store)
        assert held.attempt == 1
        [answer] = await settle(store, say(held, Fail("later", timedelta(seconds=5), free=True)))
        assert answer.verdict is Verdict.RETRYING
        assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=5)
        clock.move(seconds=5)
    [held] = await claim(store)
    [answer] = await settle(store, failed(held))
    assert answer.verdict is Verdict.BURIED


async def test_when_each_was_started_is_kept_with_its_outcome(store, clock):
    """Of many that are completed in one call, some in keyed lanes, some of which nobody says when."""
    pushed = messages(4, kind="a") + messages(2, kind="a", key="k")
    await store.push(pushed)
    taken = [*await claim(store, kinds=frozenset({"a", "b"})), *await claim(store, messages=1)]
    clock.move(seconds=5)
    started = {each.id: START + timedelta(seconds=1, microseconds=number) for number, each in enumerate(taken)}
    del started[taken[0].id]
    said = await settle(store, *(say(each, Complete(), started_at=started.get(each.id)) for each in taken))
    assert {each.answer.value for each in said} == {"settled"}
    jobs = await store.jobs([each.id for each in taken])
    assert [each.started_at for each in jobs] == [started.get(each.id) for each in taken]
    assert {(each.state.value, each.attempt) for each in jobs} == {("succeeded", 1)}


async def test_a_message_that_is_settled_twice_in_one_call_is_repeated(store):
    await store.push(messages(2, kind="a"))
    first, second = await claim(store, kinds=frozenset({"a"}))
    said = await settle(store, done(first), done(second), done(first))
    assert [each.answer.value for each in said] == ["settled", "settled", "repeated"]


async def test_claiming_on_takes_the_kinds_that_it_names(store):
    """Though a lane of another kind is the only one that has something, or becomes ready beside it."""
    await store.push(messages(3, kind="a"))
    [first] = await claim(store, messages=1, kinds=frozenset({"a"}))
    await store.push([message(kind="b"), message(kind="b", key="k")])
    _, [answer] = await store.settle([done(first)], [want(messages=9, kinds=frozenset({"a"}))])
    assert [each.kind for each in answer.deliveries] == ["a", "a"]
    _, [answer] = await store.settle(list(map(done, answer.deliveries)), [want(messages=9, kinds=frozenset({"a"}))])
    assert isinstance(answer, Nothing)
    assert {each.kind for each in await claim(store, kinds=frozenset({"b", 'a "quoted" \\ one'}))} == {"b"}


@pytest.mark.parametrize("result", [None, b"1"])
async def test_claiming_on_ranks_a_lane_by_a_head_that_still_lives(store, clock, result):
    """Behind the one that is settled comes one whose time is over; behind that, one younger than another lane's."""
    await store.push([message(key="k"), message(key="k", ttl=timedelta(seconds=20))])
    clock.move(seconds=1)
    await store.push([message(kind="report", payload=b"report")])
    clock.move(seconds=1)
    await store.push([message(key="k", payload=b"last")])
    clock.move(seconds=31)
    [first] = await claim(store, messages=1)
    _, [answer] = await store.settle([say(first, Complete(result))], [want(messages=1)])
    assert payloads(list(answer.deliveries)) == [b"report"]
    assert payloads(await claim(store)) == [b"last"]


@pytest.mark.parametrize("key", [None, "k"])
async def test_the_limit_of_a_report_weighs_more_than_the_queue_s(store, clock, key):
    """More attempts than the queue gives; and then the end is that of a failure, not of a burial."""
    await store.configure(ORDERS, {"retry": RetryPolicy(attempts=2, delay=timedelta(0), jitter=0)})
    await store.push([message(key=key)])
    for attempt in range(1, 4):
        [delivered] = await claim(store)
        assert delivered.attempt == attempt
        [answer] = await settle(store, say(delivered, Fail("no", limit=3)))
        assert answer.verdict is (Verdict.BURIED if attempt == 3 else Verdict.RETRYING)
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert (letter.reason, letter.attempts) == ("failed", 3)


@pytest.mark.parametrize("key", [None, "k"])
async def test_a_limit_below_the_queue_s_ends_it_sooner(store, key):
    await store.push([message(key=key)])
    [delivered] = await claim(store)
    [answer] = await settle(store, say(delivered, Fail("no", limit=1)))
    assert answer.verdict is Verdict.BURIED
    [letter] = await store.dead(ORDERS, "default", None, 10)
    assert letter.reason == "failed"


async def test_a_unit_needs_the_leases_that_it_names(store, clock):
    await store.push(messages(2, key="k"))
    await store.push(messages(1, key="other"))
    [held] = await claim(store, key="k", messages=1)
    [lost] = await claim(store, key="other", lease=timedelta(seconds=1))
    clock.move(seconds=2)
    pushed = message("else")
    unit = Unit(settlements=(done(held),), pushes=(pushed,), leases=(held.token, lost.token))
    [answer] = await store.transact([unit])
    assert isinstance(answer, Undone)
    assert answer.item == 1
    assert await claim(store, "else") == []
    [answer] = await store.transact([Unit(settlements=(done(held),), pushes=(pushed,), leases=(held.token,))])
    assert isinstance(answer, Done)
    assert len(await claim(store, "else")) == 1
    [answer] = await store.transact([Unit(pushes=(message("else"),), leases=(LeaseToken("never"),))])
    assert isinstance(answer, Undone)


async def test_giving_back_may_say_that_what_is_before_it_is_done(store):
    await store.push(messages(4, key="k"))
    held = await claim(store)
    [answer] = await settle(store, say(held[2], Release(after_done=True)))
    assert answer.verdict is Verdict.RELEASED
    assert answer.lease_ended
    assert [(each.payload, each.attempt) for each in await claim(store)] == [(b"2", 1), (b"3", 1)]


async def test_a_unit_may_settle_by_name(store):
    named = [message(key="k", dedupe=Dedupe(f"t{number}", scope=DedupeScope.LANE)) for number in range(2)]
    await store.push(named)
    held = await claim(store)
    first = AckByName(queue=ORDERS, key="k", name="t0", report=Complete(), token=held[0].token)
    [answer] = await store.transact([Unit(acks=(first,), pushes=(message("next"),))])
    assert isinstance(answer, Done)
    assert [each.answer for each in answer.acked] == [AckAnswer.SETTLED]
    assert len(await claim(store, "next")) == 1
    [answer] = await settle(store, done(held[1]))
    assert answer.answer is Answer.SETTLED


@pytest.mark.parametrize("obstacle", [each for each in Obstacle if each is not Obstacle.RECORD])
async def test_what_was_in_the_way_of_a_unit_is_told(store, obstacle):
    await store.configure("full", {"max_size": 1})
    await store.push([message("full"), message("once", dedupe=Dedupe("d"))])
    unit = {
        Obstacle.SETTLEMENT: Unit(
            settlements=(Settlement(token=LeaseToken("no"), lane=LaneId(1), offset=0, report=Complete()),)
        ),
        Obstacle.ACK: Unit(acks=(AckByName(queue=ORDERS, key="k", name="no", report=Complete()),)),
        Obstacle.LEASE: Unit(leases=(LeaseToken("no"),), pushes=(message("next"),)),
        Obstacle.PUSH: Unit(pushes=(message(payload=b"0" * (1 << 20) + b"0"),)),
        Obstacle.DUPLICATE: Unit(pushes=(message("once", dedupe=Dedupe("d")),), refuse_duplicates=True),
        Obstacle.FULL: Unit(pushes=(message("full"),)),
    }[obstacle]
    [answer] = await store.transact([unit])
    assert isinstance(answer, Undone)
    assert answer.obstacle is obstacle
    assert answer.reason
