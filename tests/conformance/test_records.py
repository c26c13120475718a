"""records: what is arranged rather than moved, alone and inside units."""

from __future__ import annotations

from datetime import timedelta

import pytest

from qo.core.errors import AlreadyExists, Conflict, Invalid
from qo.core.lease import Done, GroupName, Obstacle, Undone, Unit
from qo.core.record import ABSENT, Delete, Put
from qo.core.verbs import Hint
from tests.conformance.remote import OverHttp
from tests.conformance.saying import ORDERS, claim, done, message, messages, payloads


@pytest.fixture
def here(store):
    """A store in this process: what records keep has operations of its own on the wire."""
    if isinstance(store, OverHttp):
        pytest.skip("not on the wire")
    return store


def put(name: str = "a", body: bytes = b"1", kind: str = "rule", **options) -> Put:
    return Put(kind=kind, name=name, body=body, **options)


async def test_a_record_is_kept_as_it_was_put(here, clock):
    due = clock.now() + timedelta(seconds=5)
    version = await here.put_record(put(body=b"\x00\xff", due_at=due))
    found = await here.record("rule", "a")
    assert (found.kind, found.name, found.version, found.due_at, found.body) == ("rule", "a", version, due, b"\x00\xff")
    assert await here.record("rule", "b") is None
    assert await here.record("other", "a") is None


async def test_a_put_names_the_version_that_it_is_about(here):
    first = await here.put_record(put(expected=ABSENT))
    with pytest.raises(AlreadyExists, match="rule 'a' exists already"):
        await here.put_record(put(expected=ABSENT))
    second = await here.put_record(put(body=b"2", expected=first))
    assert second == first + 1
    with pytest.raises(Conflict, match="rule 'a' has changed meanwhile"):
        await here.put_record(put(body=b"3", expected=first))
    assert (await here.record("rule", "a")).body == b"2"
    assert await here.put_record(put(body=b"4")) == second + 1, "whatever it is"
    with pytest.raises(Conflict, match="rule 'b' does not exist"):
        await here.put_record(put("b", expected=first))


async def test_a_record_is_deleted_by_its_version_or_whatever_it_is(here):
    assert not await here.delete_record("rule", "a")
    version = await here.put_record(put())
    with pytest.raises(Conflict):
        await here.delete_record("rule", "a", version + 1)
    assert await here.delete_record("rule", "a", version)
    assert await here.record("rule", "a") is None
    with pytest.raises(Conflict):
        await here.delete_record("rule", "a", version)


async def test_a_record_that_is_made_anew_has_no_version_of_an_earlier_one(here, clock):
    first = await here.put_record(put())
    newest = await here.put_record(put())
    await here.delete_record("rule", "a")
    clock.move(seconds=1)
    assert await here.put_record(put()) not in (first, newest)


async def test_records_are_listed_by_name(here):
    for name in ("c", "a", "b", "Z", "é"):
        await here.put_record(put(name))
    await here.put_record(put("x", kind="other"))
    assert [each.name for each in await here.records("rule", "", 100)] == ["Z", "a", "b", "c", "é"]
    assert [each.name for each in await here.records("rule", "a", 2)] == ["b", "c"]


async def test_what_is_due_comes_longest_first_with_the_time_of_the_next(here, clock):
    now = clock.now()
    for name, seconds in (("a", 3), ("b", 1), ("c", 9), ("d", 2)):
        await here.put_record(put(name, due_at=now + timedelta(seconds=seconds)))
    await here.put_record(put("never"))
    await here.put_record(put("x", kind="other", due_at=now))
    due = await here.due_records("rule", 10)
    assert due.records == ()
    assert due.next_at == now + timedelta(seconds=1)
    clock.move(seconds=3)
    due = await here.due_records("rule", 10)
    assert [each.name for each in due.records] == ["b", "d", "a"]
    assert due.next_at == now + timedelta(seconds=9)
    assert [each.name for each in (await here.due_records("rule", 2)).records] == ["b", "d"]
    clock.move(seconds=6)
    assert (await here.due_records("rule", 10)).next_at is None


async def test_a_put_with_a_nonce_may_be_repeated(here):
    first = await here.put_record(put(expected=ABSENT), nonce="n")
    assert await here.put_record(put(expected=ABSENT), nonce="n") == first
    with pytest.raises(Conflict, match="nonce"):
        await here.put_record(put(body=b"2", expected=ABSENT), nonce="n")


async def test_a_unit_pushes_and_moves_a_record_on(here, clock):
    """What a schedule does when it fires: of two that fire at once one is first, and the other does nothing."""
    version = await here.put_record(put(due_at=clock.now()))
    later = clock.now() + timedelta(hours=1)
    fire = [
        Unit(pushes=(message(payload=payload),), records=(put(expected=version, due_at=later),))
        for payload in (b"one", b"two")
    ]
    first, second = await here.transact(fire)
    assert isinstance(first, Done)
    assert first.versions == (version + 1,)
    assert second == Undone("rule 'a' has changed meanwhile", 0, Obstacle.RECORD)
    assert payloads(await claim(here)) == [b"one"]
    assert (await here.due_records("rule", 10)).next_at == later


async def test_a_unit_that_is_undone_changes_no_record(here):
    await here.push(messages(1))
    [held] = await claim(here)
    version = await here.put_record(put())
    await here.put_record(put("b"))
    changes = (put(body=b"2", expected=version), Delete(kind="rule", name="b"), put("c"))
    [answer] = await here.transact([Unit(settlements=(done(held),), records=(*changes, put("d", expected=7)))])
    assert isinstance(answer, Undone)
    assert (answer.obstacle, answer.item) == (Obstacle.RECORD, 3)
    assert [(each.name, each.body) for each in await here.records("rule", "", 9)] == [("a", b"1"), ("b", b"1")]
    [answer] = await here.transact([Unit(settlements=(done(held),), records=changes)])
    assert isinstance(answer, Done)
    assert [(each.name, each.body) for each in await here.records("rule", "", 9)] == [("a", b"2"), ("c", b"1")]


async def test_a_record_and_a_group_go_together(here):
    await here.push(messages(2))
    held = await claim(here, group="g", messages=1)
    version = await here.put_record(put())
    gone = GroupName(ORDERS, "g")
    [answer] = await here.transact(
        [Unit(records=(Delete(kind="rule", name="a", expected=version + 1),), removed_groups=(gone,))]
    )
    assert isinstance(answer, Undone)
    assert "g" in [each.name for each in await here.groups(ORDERS)]
    unit = Unit(records=(Delete(kind="rule", name="a", expected=version),), removed_groups=(gone,), nonce="n")
    [answer] = await here.transact([unit])
    assert isinstance(answer, Done)
    assert answer.versions == (version,)
    assert [each.name for each in await here.groups(ORDERS)] == ["default"]
    [settled] = (await here.settle([done(held[0])]))[0]
    assert settled.answer.value in ("lost", "unknown")
    [again] = await here.transact([unit])
    assert again == answer, "the first answer is given again"
    [answer] = await here.transact([Unit(removed_groups=(GroupName("nowhere", "g"), gone))])
    assert isinstance(answer, Done), "what is not there needs no removal"


async def test_a_changed_record_sends_a_hint(here):
    heard: list[Hint] = []
    here.listen(heard.append)
    await here.start_listening()
    await here.put_record(put())
    await here.delete_record("nothing", "there")
    await here.transact([Unit(records=(put(kind="schedule", expected=5),))])
    await here.put_record(put("b", kind="token"))
    kinds = {kind for hint in heard for kind in hint.records or ()}
    assert kinds == {"rule", "token"}


@pytest.mark.parametrize("wrong", [{"kind": ""}, {"name": ""}, {"body": b"0" * (256 * 1024 + 1)}])
async def test_a_record_has_bounds(wrong):
    with pytest.raises(Invalid):
        put(**wrong)


async def test_a_read_has_bounds(here):
    for limit in (0, 1001):
        with pytest.raises(Invalid):
            await here.records("rule", "", limit)
        with pytest.raises(Invalid):
            await here.due_records("rule", limit)
    with pytest.raises(Invalid, match="default group"):
        GroupName(ORDERS, "default")
