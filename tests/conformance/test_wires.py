"""What other systems' wires rely on: settings that queues can have, and commits by name."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import QueueFull
from qo.core.lane import Filter, Start, StartAt
from qo.core.lease import (
    AckAnswer,
    AckByName,
    Bury,
    Complete,
    Done,
    Fail,
    LeaseToken,
    Release,
    Undone,
    Unit,
    Verdict,
)
from qo.core.message import TRANSACTION, Dedupe, DedupeScope, Duplicate, NewMessage, Stored, id_text
from qo.core.outcome import Trace
from qo.core.queue import QueueSettings
from qo.core.verbs import DeadLettersWanted
from tests.conformance.remote import OverHttp
from tests.conformance.saying import (
    ORDERS,
    claim,
    done,
    failed,
    message,
    messages,
    nothing,
    payloads,
    say,
    settle,
    want,
)

NEW, ALL = Start(StartAt.NEW), Start()


@pytest.fixture
def here(store):
    """A store in this process: what is said here is on other systems' wires, not on our own."""
    if isinstance(store, OverHttp):
        pytest.skip("not on our own wire")
    return store


def named(name: str, key: str = "k", payload: bytes = b"1", **options: object) -> NewMessage:
    """A message with a name in its lane, as other systems push them."""
    dedupe = Dedupe(name, scope=DedupeScope.LANE, as_queue=True)
    return message(payload=payload, key=key, dedupe=dedupe, headers={TRANSACTION: name}, **options)


def said(name: str, report=None, *, key: str = "k", token=None, group: str = "default") -> AckByName:
    return AckByName(queue=ORDERS, key=key, name=name, group=group, report=report or Complete(), token=token)


async def committed(store, *commits: AckByName) -> list[str]:
    return [each.answer.value for each in await store.ack_by_name(commits)]


async def push_named(store, count: int, key: str = "k") -> None:
    await store.push([named(f"t{number}", key, str(number).encode()) for number in range(count)])


# Settings of a queue


async def test_a_push_says_how_a_queue_that_it_creates_is_set_up(here):
    first = QueueSettings(lease=timedelta(seconds=60))
    second = QueueSettings(lease=timedelta(seconds=90))
    await here.push([message(new_queue=first)])
    await here.push([message(new_queue=second)])
    assert (await here.queue(ORDERS)).settings.lease == timedelta(seconds=60)


async def test_a_claim_that_creates_its_queue_says_how_it_is_set_up(here):
    settings = QueueSettings(lease=timedelta(seconds=60), default_group=False)
    await nothing(here, group="g", new_queue=settings)
    assert (await here.queue(ORDERS)).settings.lease == timedelta(seconds=60)
    assert not (await here.queue(ORDERS)).settings.default_group


async def test_the_default_group_is_switched_on_when_it_claims(store):
    await store.configure(ORDERS, {"default_group": False})
    await claim(store)
    assert (await store.queue(ORDERS)).settings.default_group


async def test_a_delay_of_the_queue_holds_for_messages_that_say_no_time(store, clock):
    await store.configure(ORDERS, {"delay": 10})
    await store.push([message(payload=b"later", key="k")])
    await store.push([message(payload=b"at once", key="k", due_at=clock.now())])
    assert payloads(await claim(store, auto_settle=True)) == [b"at once"]
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=10)
    clock.move(seconds=10)
    assert payloads(await claim(store)) == [b"later"]


async def test_a_window_holds_a_lane_back_and_delivers_together(store, clock):
    await store.configure(ORDERS, {"window": 5})
    await store.push([message(payload=b"a", key="k")])
    clock.move(seconds=3)
    await store.push([message(payload=b"b", key="k"), message(payload=b"other", key="o")])
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=2)
    clock.move(seconds=2)
    assert payloads(await claim(store)) == [b"a", b"b"]
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=3)


async def test_a_window_ends_when_a_hundred_wait(store, clock):
    await store.configure(ORDERS, {"window": 60})
    await store.push(messages(99, key="k"))
    await nothing(store)
    await store.push(messages(1, key="k"))
    assert len(await claim(store, messages=1000)) == 100


async def test_what_comes_back_is_not_held_by_the_window_again(store, clock):
    await store.configure(ORDERS, {"window": 5, "retry": {"delay": 1, "jitter": 0}})
    await store.push([message(key="k")])
    clock.move(seconds=5)
    [first] = await claim(store)
    await settle(store, failed(first))
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=1)
    clock.move(seconds=1)
    [again] = await claim(store)
    await settle(store, done(again))
    await store.push([message(key="k")])
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=5)


async def test_after_a_run_the_next_head_has_a_window_of_its_own(store, clock):
    await store.configure(ORDERS, {"window": 5})
    await store.push([message(payload=b"a", key="k")])
    clock.move(seconds=5)
    [first] = await claim(store)
    await store.push([message(payload=b"b", key="k")])
    clock.move(seconds=1)
    await settle(store, done(first))
    assert (await nothing(store)).ask_again == clock.now() + timedelta(seconds=4)


async def test_a_window_that_is_taken_away_holds_nothing_back(store, clock):
    await store.configure(ORDERS, {"window": 60})
    await store.push([message(key="k")])
    await nothing(store)
    await store.configure(ORDERS, {"window": 0})
    assert len(await claim(store)) == 1


async def test_a_group_that_joins_is_held_by_the_window_too(store, clock):
    await store.configure(ORDERS, {"window": 5})
    await store.push([message(key="k")])
    await nothing(store, group="g")
    clock.move(seconds=5)
    assert len(await claim(store, group="g")) == 1


async def test_a_full_queue_refuses_the_whole_push(store):
    await store.configure(ORDERS, {"max_size": 3})
    await store.push(messages(2))
    with pytest.raises(QueueFull, match="max capacity"):
        await store.push([*messages(2), message("elsewhere")])
    assert len(await claim(store, "elsewhere")) == 0
    await store.push(messages(1))
    held = await claim(store, messages=2)
    with pytest.raises(QueueFull):
        await store.push(messages(1))
    await settle(store, *map(done, held))
    await store.push(messages(2))


async def test_a_duplicate_is_no_burden_for_a_full_queue(store):
    await store.configure(ORDERS, {"max_size": 1})
    first = message(dedupe=Dedupe("d"))
    await store.push([first])
    assert await store.push([message(dedupe=Dedupe("d"))]) == [Duplicate(first.id)]


async def test_delayed_messages_and_every_group_count_for_a_full_queue(store, clock):
    await store.configure(ORDERS, {"max_size": 2})
    await store.create_group([ORDERS], "slow", ALL)
    await store.push([message(due_at=clock.now() + timedelta(seconds=5)), message()])
    await claim(store, auto_settle=True)
    with pytest.raises(QueueFull):
        await store.push([message()])


async def test_a_unit_that_meets_a_full_queue_is_undone(store):
    await store.configure(ORDERS, {"max_size": 1})
    [answer] = await store.transact([Unit(pushes=(message("other"), message(), message()))])
    assert isinstance(answer, Undone)
    assert "max capacity" in answer.reason


@pytest.mark.parametrize("key", [None, "k"])
async def test_without_dead_letters_what_failed_too_often_is_dropped(store, key):
    await store.configure(ORDERS, {"dead_letters": False, "retry": {"attempts": 1}})
    await store.push([message(key=key), message(key=key, payload=b"2")])
    first, *_ = await claim(store)
    [answer] = await settle(store, failed(first))
    assert answer.verdict is Verdict.DROPPED
    assert await store.dead(ORDERS, None, None, 10) == []
    if key is not None:
        assert payloads(await claim(store)) == [b"2"], "what comes next is not held up"


async def test_without_dead_letters_what_is_buried_is_kept_all_the_same(store):
    await store.configure(ORDERS, {"dead_letters": False})
    await store.push([message(key="k")])
    [first] = await claim(store)
    [answer] = await settle(store, say(first, Bury("no")))
    assert answer.verdict is Verdict.BURIED
    assert len(await store.dead(ORDERS, None, None, 10)) == 1


async def test_without_dead_letters_what_was_lost_too_often_is_dropped(store, clock):
    await store.configure(ORDERS, {"dead_letters": False, "max_lost": 3, "retry": {"delay": 0}})
    await store.push([message(key="k")])
    for _ in range(3):
        assert len(await claim(store)) == 1
        clock.move(seconds=31)
    await nothing(store)
    assert await store.dead(ORDERS, None, None, 10) == []


@pytest.mark.parametrize("key", [None, "k"])
async def test_queues_of_a_higher_priority_come_first(store, clock, key):
    for name, priority in (("n.low", -5), ("n.high", 1000), ("n.middle", 0)):
        await store.configure(name, {"priority": priority})
        await store.push([message(name, payload=name.encode(), key=key, priority=100 if "low" in name else 0)])
        clock.move(seconds=1)
    taken = await claim(store, filter=Filter("n"))
    assert payloads(taken) == [b"n.high", b"n.middle", b"n.low"]


async def test_a_queue_is_found_by_the_namespace_it_was_given(store):
    await store.configure("plain", {"namespace": "billing", "task": "send"})
    await store.push([message("plain")])
    info = await store.queue("plain")
    assert (info.namespace, info.task) == ("billing", "send")
    assert len(await claim(store, filter=Filter("billing", "send"))) == 1
    await store.configure("plain", {"namespace": None, "task": None})
    assert (await store.queue("plain")).namespace == ""


async def test_settings_are_changed_by_what_they_are(store):
    seen = []

    def change(settings):
        seen.append(settings)
        return {"max_lost": 7 if settings is None else settings.max_lost + 1, "notes": {"a": [1]}}

    await store.reconfigure(ORDERS, change)
    info = await store.reconfigure(ORDERS, change)
    assert seen[0] is None
    assert info.settings.max_lost == 8
    assert (await store.queue(ORDERS)).settings.notes == {"a": [1]}


@pytest.mark.parametrize("key", [None, "k"])
async def test_payloads_are_sealed_and_opened(store, clock, key):
    await store.configure(ORDERS, {"encrypt": True, "retry": {"attempts": 1}})
    secret = b'{"card": "4111 1111"}'
    one = message(payload=secret, key=key, headers={"a": "b"})
    two = message(payload=secret, key=key, due_at=clock.now() + timedelta(seconds=1))
    assert await store.push([one, two]) == [Stored(one.id), Stored(two.id)]
    assert await store.push([one]) == [Stored(one.id)], "the same push again meets itself"
    [job] = await store.jobs([one.id])
    assert job.payload == secret
    assert job.headers == {"a": "b"}
    clock.move(seconds=1)
    taken = await claim(store)
    assert payloads(taken) == [secret, secret]
    assert taken[0].headers == {"a": "b"}
    await settle(store, failed(taken[0]))
    [letter] = await store.dead(ORDERS, None, None, 10)
    assert letter.payload == secret
    await store.retry_dead(ORDERS, "default", None)
    assert secret in payloads(await claim(store))


async def test_a_queue_may_be_sealed_later_and_opened_again(store):
    await store.push([message(payload=b"1", key="k")])
    await store.configure(ORDERS, {"encrypt": True})
    await store.push([message(payload=b"2", key="k")], nonce="n")
    assert await store.push([message(payload=b"2", key="k")], nonce="n")
    await store.configure(ORDERS, {"encrypt": False})
    await store.push([message(payload=b"3", key="k")])
    assert payloads(await claim(store)) == [b"1", b"2", b"3"]


# Names


async def test_a_name_holds_for_the_window_of_its_queue_in_its_lane(here, clock):
    await here.configure(ORDERS, {"dedupe_window": 10})
    first = named("a")
    assert await here.push([first]) == [Stored(first.id)]
    assert await here.push([named("a")]) == [Duplicate(first.id)]
    elsewhere = named("a", key="other")
    assert await here.push([elsewhere]) == [Stored(elsewhere.id)]
    clock.move(seconds=10)
    again = named("a")
    assert await here.push([again]) == [Stored(again.id)]


async def test_without_a_window_names_are_not_held_but_found(here):
    await here.configure(ORDERS, {"dedupe_window": 0})
    one, two = named("a"), named("a")
    assert await here.push([one, two]) == [Stored(one.id), Stored(two.id)]
    assert await committed(here, said("a")) == ["settled"]


async def test_of_the_same_name_twice_in_one_push_the_first_is_stored(here):
    one, two = named("a"), named("a")
    assert await here.push([one, two]) == [Stored(one.id), Duplicate(one.id)]


async def test_a_name_is_found_as_long_as_its_message_exists(here, clock):
    await here.configure(ORDERS, {"dedupe_window": 1})
    await push_named(here, 1)
    clock.move(hours=3)
    await here.tidy()
    assert (await here.named_message(ORDERS, "k", "t0")) is not None
    assert await committed(here, said("t0")) == ["settled"]


async def test_a_message_is_read_by_its_name(here, clock):
    await push_named(here, 2)
    await here.create_group([ORDERS], "g", ALL)
    [held, _] = await claim(here, group="g")
    await settle(here, done(held))
    found = await here.named_message(ORDERS, "k", "t0")
    assert (found.payload, found.offset, found.queue, found.key) == (b"0", 0, ORDERS, "k")
    by_group = {each.group: each for each in found.standings}
    assert by_group["g"].passed
    assert by_group["g"].known
    assert not by_group["default"].passed
    assert not by_group["default"].known
    later = {each.group: each for each in (await here.named_message(ORDERS, "k", "t1")).standings}
    assert later["g"].lease_expires_at == held.expires_at
    assert await here.named_message(ORDERS, "k", "nobody") is None
    assert await here.named_message(ORDERS, "nobody", "t0") is None
    assert await here.named_message("nobody", "k", "t0") is None


# Commits


async def test_a_commit_completes_what_is_before_it(here):
    await push_named(here, 3)
    taken = await claim(here)
    token = taken[0].token
    [answer] = await here.ack_by_name([said("t1", token=token)])
    assert answer.answer is AckAnswer.SETTLED
    assert answer.verdict is Verdict.COMPLETED
    assert not answer.lease_ended
    [last] = await here.ack_by_name([said("t2", token=token)])
    assert last.lease_ended
    await nothing(here)


async def test_a_commit_is_repeated_without_harm(here):
    await push_named(here, 2)
    [held, _] = await claim(here)
    assert await committed(here, said("t0", token=held.token)) == ["settled"]
    assert await committed(here, said("t0", token=held.token)) == ["before"]
    assert await committed(here, said("t0", Fail("late"), token=held.token)) == ["before"]
    assert await committed(here, said("t1", token=held.token)) == ["settled"]
    [answer] = await here.ack_by_name([said("t1", token=held.token)])
    assert (answer.answer, answer.stale) == (AckAnswer.BEFORE, True)


async def test_a_commit_under_a_lease_that_is_over_is_lost(here, clock):
    await push_named(here, 1)
    [held] = await claim(here)
    clock.move(seconds=31)
    assert await committed(here, said("t0", token=held.token)) == ["lost"]
    [again] = await claim(here)
    assert await committed(here, said("t0", token=held.token)) == ["lost"]
    assert await committed(here, said("t0", token=LeaseToken("never was"))) == ["lost"]
    assert await committed(here, said("t0", token=again.token)) == ["settled"]


async def test_a_commit_of_what_is_not_there_is_unknown(here):
    await push_named(here, 3)
    [held] = await claim(here, messages=1)
    assert await committed(here, said("nobody", token=held.token)) == ["unknown"]
    assert await committed(here, said("t2", token=held.token)) == ["unknown"], "it is not of this lease"
    assert await committed(here, said("nobody"), said("t0", key="other"), said("t0", group="other")) == ["unknown"] * 3
    assert await committed(here, said("t0", token=held.token)) == ["settled"]


async def test_the_items_of_one_call_are_judged_together(here):
    await here.configure(ORDERS, {"retry": {"delay": 0}})
    await push_named(here, 5)
    held = await claim(here)
    token = held[0].token
    answers = await here.ack_by_name(
        [said("t4", token=token), said("t2", Fail("no"), token=token), said("t1", token=token), said("t3", token=token)]
    )
    assert [each.answer.value for each in answers] == ["given_back", "settled", "settled", "given_back"]
    assert answers[1].verdict is Verdict.RETRYING
    again = await claim(here)
    assert [(each.payload, each.attempt) for each in again] == [(b"2", 2), (b"3", 1), (b"4", 1)]


async def test_of_all_that_is_said_about_one_message_the_worst_counts(here):
    await push_named(here, 2)
    held = await claim(here)
    token = held[0].token
    answers = await here.ack_by_name(
        [
            said("t0", token=token),
            said("t0", Release(after_done=True), token=token),
            said("t0", Bury("bad"), token=token),
            said("t0", Fail("meh"), token=token),
        ]
    )
    assert {each.verdict for each in answers} == {Verdict.BURIED}
    [letter] = await here.dead(ORDERS, None, None, 10)
    assert letter.error == "bad"


async def test_giving_back_after_what_is_done_completes_it(here):
    await push_named(here, 4)
    held = await claim(here)
    [answer] = await here.ack_by_name([said("t2", Release(after_done=True), token=held[0].token)])
    assert answer.verdict is Verdict.RELEASED
    assert answer.lease_ended
    again = await claim(here)
    assert [(each.payload, each.attempt) for each in again] == [(b"2", 1), (b"3", 1)]


async def test_without_a_token_a_commit_is_taken_from_anyone(here):
    await push_named(here, 5)
    assert await committed(here, said("t1")) == ["settled"], "nobody had claimed it"
    held = await claim(here, messages=2)
    assert payloads(held) == [b"2", b"3"]
    assert await committed(here, said("t2")) == ["settled"], "another holds it"
    assert await committed(here, said("t4")) == ["settled"], "beyond what another holds"
    assert await committed(here, said("t4"), said("t0", Fail("late"))) == ["before", "before"]
    assert (await settle(here, done(held[1])))[0].answer.value in ("lost", "repeated")
    await nothing(here)


async def test_without_a_token_a_failure_uses_an_attempt(here, clock):
    await here.configure(ORDERS, {"retry": {"attempts": 2, "delay": 5, "jitter": 0}})
    await push_named(here, 2)
    [answer] = await here.ack_by_name([said("t0", Fail("one"))])
    assert answer.verdict is Verdict.RETRYING
    assert (await nothing(here)).ask_again == clock.now() + timedelta(seconds=5)
    [answer] = await here.ack_by_name([said("t0", Fail("two"))])
    assert answer.verdict is Verdict.BURIED
    assert payloads(await claim(here)) == [b"1"]


async def test_without_a_token_a_lease_that_ran_out_is_given_back_first(here, clock):
    await push_named(here, 2)
    await claim(here)
    clock.move(seconds=31)
    assert await committed(here, said("t0")) == ["settled"]
    assert payloads(await claim(here)) == [b"1"]


async def test_lanes_under_one_token_end_one_by_one(here):
    await push_named(here, 1, "a")
    await push_named(here, 1, "b")
    held = await claim(here)
    token = held[0].token
    [answer] = await here.ack_by_name([said("t0", key="a", token=token)])
    assert answer.lease_ended
    assert await committed(here, said("t0", key="b", token=token)) == ["settled"]


async def test_groups_commit_for_themselves(here):
    await push_named(here, 1)
    [held] = await claim(here, group="g")
    assert await committed(here, said("t0", token=held.token)) == ["lost"], "the lease is another group's"
    assert await committed(here, said("t0", group="g", token=held.token)) == ["settled"]
    assert payloads(await claim(here)) == [b"0"]


async def test_a_unit_commits_and_pushes_together(here):
    await push_named(here, 2)
    held = await claim(here)
    token = held[0].token
    [answer] = await here.transact([Unit(acks=(said("t0", token=token),), pushes=(message("next"),))])
    assert isinstance(answer, Done)
    assert answer.acked[0].answer is AckAnswer.SETTLED
    assert len(await claim(here, "next")) == 1
    stale = Unit(acks=(said("t1", token=LeaseToken("old")),), pushes=(message("next"),))
    [answer] = await here.transact([stale])
    assert isinstance(answer, Undone)
    assert await claim(here, "next") == []
    [answer] = await here.transact([Unit(acks=(said("t1"),), pushes=(message("next"),))])
    assert isinstance(answer, Done), "without a token it is taken from anyone"


async def test_a_unit_is_undone_by_a_lease_that_is_over_even_if_all_is_done(here):
    await push_named(here, 1)
    [held] = await claim(here)
    await here.ack_by_name([said("t0", token=held.token)])
    [answer] = await here.transact([Unit(acks=(said("t0", token=held.token),), pushes=(message("next"),))])
    assert isinstance(answer, Undone)
    [answer] = await here.transact([Unit(acks=(said("t0"),), pushes=(message("next"),))])
    assert isinstance(answer, Done)


async def test_a_retried_dead_letter_is_known_by_its_name(here):
    await here.configure(ORDERS, {"retry": {"attempts": 1}})
    await push_named(here, 1)
    [held] = await claim(here)
    await settle(here, failed(held))
    await here.retry_dead(ORDERS, "default", None)
    [again] = await claim(here)
    assert await committed(here, said("t0", token=again.token)) == ["settled"]


# Reads


async def test_dead_letters_are_chosen_and_counted(here, clock):
    await here.configure(ORDERS, {"retry": {"attempts": 1}})
    for key in ("a", "b"):
        await push_named(here, 2, key)
        for _ in range(2):
            [held] = await claim(here, key=key, messages=1)
            await settle(here, failed(held, f"{key} failed"))
            clock.move(seconds=10)
    every, count = await here.dead_letters(DeadLettersWanted(queue=ORDERS))
    assert count == len(every) == 4
    assert [each.key for each in every] == ["b", "b", "a", "a"], "newest first"
    some, count = await here.dead_letters(DeadLettersWanted(queue=ORDERS, key="a", limit=1, offset=1))
    assert (len(some), count) == (1, 2)
    _, count = await here.dead_letters(DeadLettersWanted(since=clock.now() - timedelta(seconds=15)))
    assert count == 1
    assert (await here.dead_letters(DeadLettersWanted(queue="nobody"))) == ([], 0)
    assert (await here.dead_letters(DeadLettersWanted(group="nobody"))) == ([], 0)


async def test_groups_are_found_with_their_queues(store, clock):
    await store.push([message(key="k"), message("other")])
    await claim(store, group="g")
    await nothing(store, "other", group="g", start=NEW)
    await nothing(store, "other", group="h", start=NEW)
    places = await store.group_places("g", 10)
    assert [(each.queue, each.info.name) for each in places] == [(ORDERS, "g"), ("other", "g")]
    every = await store.group_places(None, 10)
    assert [(each.info.name, each.queue) for each in every] == [("g", ORDERS), ("g", "other"), ("h", "other")]


async def test_a_group_whose_filters_are_dropped_joins_no_more_queues(store):
    await nothing(store, filter=Filter("n"), group="g")
    await store.push([message("n.a")])
    assert await store.drop_filters("g") == 1
    await store.push([message("n.b")])
    assert [each.queue for each in await store.group_places("g", 10)] == ["n.a"]


async def test_traces_are_kept_by_message_and_by_name_for_a_week(store, clock):
    def trace(number: int, *names: str) -> Trace:
        return Trace(
            id=f"id-{number}",
            queue=ORDERS,
            key="k",
            name="t0",
            group="default",
            names=names,
            event="info",
            data=b'{"n": %d}' % number,
            created_at=clock.now(),
        )

    await store.add_trace(trace(1, "import", "nightly"))
    await store.add_trace(trace(2, "import"))
    assert [each.id for each in await store.traces(ORDERS, "k", "t0")] == ["id-1", "id-2"]
    found, count = await store.traces_by_name("import", 1, 0)
    assert ([each.id for each in found], count) == (["id-2"], 2)
    assert found[0] == trace(2, "import")
    assert await store.trace_names(10, 0) == ([("import", 2), ("nightly", 1)], 2)
    clock.move(days=8)
    await store.tidy()
    assert await store.trace_names(10, 0) == ([], 0)
    assert await store.traces(ORDERS, "k", "t0") == []


async def test_a_queue_goes_with_its_traces_and_names(here, clock):
    await push_named(here, 1)
    await here.delete_queue(ORDERS)
    assert await here.named_message(ORDERS, "k", "t0") is None
    again = named("t0")
    assert await here.push([again]) == [Stored(again.id)]


async def test_wants_of_queues_that_wait_are_claimed_at_their_time(store, clock):
    """A claim over several queues knows of the windows of all of them."""
    await store.configure("n.a", {"window": 5})
    await store.push([message("n.a", key="k")])
    [answer] = await store.claim([want(filter=Filter("n"))])
    assert answer.ask_again == clock.now() + timedelta(seconds=5)


async def test_of_two_messages_of_one_name_in_a_lease_the_first_is_meant(here):
    await here.configure(ORDERS, {"dedupe_window": 0})
    await here.push([named("t", payload=b"1"), named("t", payload=b"2"), named("u", payload=b"3")])
    held = await claim(here)
    token = held[0].token
    [answer] = await here.ack_by_name([said("t", token=token)])
    assert not answer.lease_ended
    assert (await here.depth(ORDERS, "default")).leased == 2
    await here.ack_by_name([said("t", token=token)])
    assert (await here.depth(ORDERS, "default")).leased == 1
    [answer] = await here.ack_by_name([said("t", token=token)])
    assert answer.answer is AckAnswer.BEFORE


@pytest.mark.parametrize("key", [None, "k"])
async def test_what_has_no_name_goes_by_its_id(here, key):
    one, two = message(key=key), message(key=key)
    await here.push([one, two])
    held = await claim(here)
    token = held[0].token
    name = id_text(one.id)
    assert await committed(here, said(name, token=token)) == ["settled"]
    assert await committed(here, said(name, token=token)) == ["before"]
    [answer] = await here.ack_by_name([said(id_text(two.id), Bury("no"), token=token)])
    assert answer.verdict is Verdict.BURIED
    assert await committed(here, said(id_text(message().id), token=token)) == ["unknown"]


async def test_the_default_group_does_not_fill_a_queue_that_others_empty(store):
    await store.configure(ORDERS, {"max_size": 2})
    await claim(store, group="g")
    for number in range(5):
        await store.push([message(payload=str(number).encode())])
        assert len(await claim(store, group="g", auto_settle=True)) == 1


async def test_a_message_whose_lease_ran_out_is_not_passed(here, clock):
    await push_named(here, 1)
    await claim(here)
    clock.move(seconds=31)
    [standing] = (await here.named_message(ORDERS, "k", "t0")).standings
    assert not standing.passed
    assert standing.lease_expires_at is None
