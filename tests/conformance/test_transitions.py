"""Every engine makes of a run, and of an open lane's messages, what the pure transitions of `core` make of them."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta

import pytest

from qo.core.fate import Again, Back, Completed, Dead, Fate
from qo.core.keyed_lanes import Run, RunChange, lapse_run, settle_run
from qo.core.lane import CursorState
from qo.core.lease import Answer, Bury, Complete, Delivered, Fail, Release, Report, Settled, Verdict
from qo.core.open_lanes import settle_open
from qo.core.queue import QueueSettings
from tests.conformance.saying import ORDERS, claim, message, nothing, say, settle

DRAW = 0.5
"""What the engines under test draw."""
LENGTH = 3
REPORTS: tuple[Report | None, ...] = (
    None, Complete(b"1"), Fail("no"), Fail("later", timedelta(seconds=9), free=True), Release(),
    Release(after_done=True), Bury("bad"),
)  # fmt: skip
CASES = [case for case in itertools.product(REPORTS, repeat=LENGTH) if any(case)]
SETTINGS = QueueSettings()


def verdict(fate: Fate) -> Verdict:
    match fate:
        case Completed():
            return Verdict.COMPLETED
        case Again():
            return Verdict.RETRYING
        case Back():
            return Verdict.RELEASED
        case Dead(kept=kept):
            return Verdict.BURIED if kept else Verdict.DROPPED
        case _:
            return Verdict.CANCELED


def standing(run: Run, change: RunChange, now: datetime) -> tuple[CursorState, int]:
    """Where a cursor stands after a change."""
    if change.lease is not None:
        return CursorState.LEASED, change.lease[1]
    position = change.rest_at
    while position in run.skips or position in (*change.skips, *change.canceled):
        position += 1
    if position >= LENGTH:
        return CursorState.IDLE, LENGTH
    blocked = position == change.rest_at and change.blocked_until is not None and change.blocked_until > now
    return CursorState.BLOCKED if blocked else CursorState.READY, position


async def lanes(store) -> dict[str, tuple[CursorState, int]]:
    return {each.key: (each.state, each.position) for each in await store.lanes(ORDERS, "default", 0, 1000)}


def keyed() -> list:
    return [message(key=f"k{number}") for number in range(len(CASES)) for _ in range(LENGTH)]


@pytest.mark.parametrize("canceled", [(), (0,), (2,), (0, 2)], ids=str)
async def test_a_settled_run_is_what_the_transitions_make_of_it(store, clock, canceled):
    pushed = keyed()
    await store.push(pushed)
    held: dict[tuple[str | None, int], Delivered] = {}
    while taken := await claim(store, messages=len(pushed)):  # a server lets one claim take so many lanes
        held |= {(each.key, each.offset): each for each in taken}
    asked = [pushed[number * LENGTH + offset].id for number in range(len(CASES)) for offset in canceled]
    if asked:
        await store.cancel(asked, "default")
    said = {
        (f"k{number}", offset): report
        for number, case in enumerate(CASES)
        for offset, report in enumerate(case)
        if report is not None
    }
    answers = dict(zip(said, await settle(store, *(say(held[at], report) for at, report in said.items())), strict=True))
    found = await lanes(store)
    run = Run(start=0, end=LENGTH, canceled=frozenset(canceled))
    for number, case in enumerate(CASES):
        key = f"k{number}"
        reports = {offset: report for offset, report in enumerate(case) if report is not None}
        change = settle_run(run, reports, SETTINGS, clock.now(), DRAW, lambda _: False)
        verdicts = {each.offset: verdict(each.fate) for each in change.decided}
        for offset in reports:
            settled = verdicts.get(offset)
            answer = Answer.GIVEN_BACK if settled is None else Answer.SETTLED
            assert answers[key, offset] == Settled(answer, settled, change.lease is None), (case, offset)
        assert found[key] == standing(run, change, clock.now()), case


@pytest.mark.parametrize("canceled", [(), (0,), (2,)], ids=str)
async def test_a_lost_run_is_what_the_transitions_make_of_it(store, clock, canceled):
    """Three times in a row: the second loss leaves the head alone in its run, the third buries it."""
    settings = {"max_lost": 3}
    await store.configure(ORDERS, settings)
    pushed = [message(key="k") for _ in range(LENGTH)]
    await store.push(pushed)
    expected = SETTINGS.changed(settings)
    attempts = losses = 0
    for _ in range(3):
        held = await claim(store, lease=timedelta(seconds=10))
        run = Run(
            start=held[0].offset,
            end=held[-1].offset + 1,
            attempts=attempts,
            losses=losses,
            canceled=frozenset(canceled) if len(held) == LENGTH else frozenset(),
        )
        if run.canceled:
            await store.cancel([pushed[offset].id for offset in canceled], "default")
        deadline = clock.now() + timedelta(seconds=10)
        clock.move_to(deadline)
        await nothing(store, kinds=frozenset(["no such kind"]))
        change = lapse_run(run, expected, deadline, DRAW, expired=False)
        assert (await lanes(store))["k"] == standing(run, change, clock.now())
        attempts, losses = change.attempts, change.losses
        if change.rest_at > run.start:
            return
        if change.blocked_until is not None:
            clock.move_to(max(change.blocked_until, clock.now()))
    assert (await store.depth(ORDERS, "default")).dead == 1


@pytest.mark.parametrize("canceled", [False, True])
async def test_messages_of_an_open_lane_are_what_the_transitions_make_of_them(store, clock, canceled):
    reports = [report for report in REPORTS if report is not None] * 20
    pushed = [message() for _ in reports]
    await store.push(pushed)
    held = await claim(store, messages=len(pushed))
    if canceled:
        await store.cancel([each.id for each in pushed], "default")
    items = [(each.offset, report) for each, report in zip(held, reports, strict=True)]
    flags = {each.offset for each in held} if canceled else set()
    decided = settle_open(
        items, lambda _: True, {}, flags, SETTINGS, clock.now(), lambda: DRAW, expired=lambda _: False
    )
    answers = await settle(store, *(say(each, report) for each, report in zip(held, reports, strict=True)))
    assert [each.verdict for each in answers] == [verdict(each.fate) for each in decided]
    again = [each.fate.at for each in decided if isinstance(each.fate, Again)]
    if again:
        back = [each for each in decided if isinstance(each.fate, Back)]
        assert len(await claim(store, messages=len(pushed))) == len(back)
        for time in sorted(set(again)):
            clock.move_to(time)
            assert len(await claim(store, messages=len(pushed))) == again.count(time)
