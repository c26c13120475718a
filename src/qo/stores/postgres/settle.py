"""settle: reports as arrays, and claims on in the same call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, cast

import asyncpg

from qo.core.lease import (
    Answer,
    Bury,
    Claimed,
    Complete,
    Fail,
    Nothing,
    Release,
    Report,
    Settled,
    Settlement,
    Verdict,
    Want,
)
from qo.stores.idempotency import used_token
from qo.stores.postgres.call import Call
from qo.stores.postgres.claim import NOT_PLAIN, claim_again, dealt_out, delivered, plain_wants, wants_text
from qo.stores.postgres.pool import Connection, undone_on_error
from qo.stores.postgres.push import as_one, as_text

WORDS: dict[type[Any], str] = {Complete: "complete", Fail: "fail", Release: "release", Bury: "bury"}
ITEM_BY_ITEM = "items"
CLAIM_APART = {"signal": "apart"}
MICROSECOND = timedelta(microseconds=1)
ANSWERS = {answer.value: answer for answer in Answer}
VERDICTS = {verdict.value: verdict for verdict in Verdict}


async def settle(
    call: Call, settlements: Sequence[Settlement], then: Sequence[Want]
) -> tuple[list[Settled], list[Claimed | Nothing] | None]:
    """The answers; and the claims, or None if something must be done before one can claim."""
    text = wants_text(then) if then else None

    async def work(connection: Connection, again: bool) -> tuple[list[Settled], list[Any], list[Any]]:
        held = await claim_again(call, connection, then) if again and then else []
        wants = None if held else text
        try:
            async with undone_on_error(connection):
                answers, rows = await _settle(call, connection, settlements, then, wants, again)
        except asyncpg.ProgramLimitExceededError:  # it would claim more than an answer can hold
            if wants is None:
                raise
            answers, _ = await _settle(call, connection, settlements, (), None, again)
            rows = [CLAIM_APART]
        except asyncpg.UniqueViolationError:  # the first try was under way still when we looked, and was made after all
            if not again:
                raise used_token() from None
            held = await claim_again(call, connection, then)
            answers, rows = await _settle(call, connection, settlements, (), None, again)
        return answers, rows, held

    answers, rows, held = await call.run("settle", work, items=len(settlements))
    if held:
        return answers, await delivered(call, held, then)
    if rows[0]["signal"] is not None:
        return answers, None
    return answers, await delivered(call, rows[1:], then)


async def _settle(
    call: Call,
    connection: Connection,
    settlements: Sequence[Settlement],
    then: Sequence[Want],
    wants: str | None,
    again: bool,
) -> tuple[list[Settled], list[Any]]:
    leases = _only_done(settlements) if call.short_paths and not again else None
    if leases is not None:
        plain = plain_wants(call, then) if wants else NOT_PLAIN
        rows = await connection.fetch(call.sql.settle_done, *_ranges(leases), wants, *plain, call.now)
        if rows[0]["signal"] != ITEM_BY_ITEM:
            return _all_done(settlements, leases, rows[0]["ended"] or ()), [rows[0], *dealt_out(rows[1:], then)]
    rows = await connection.fetch(call.sql.settle, *columns_of(settlements), wants, call.draw, call.now)
    return answers_from(rows[0], len(settlements)), [rows[0], *dealt_out(rows[1:], then)]


Leases = dict[tuple[str, int], dict[int, Settlement]]
"""What is said of each offset, by token and lane."""


def _only_done(settlements: Sequence[Settlement]) -> Leases | None:
    """What was completed, by lease, if nothing else is said, and of each message once."""
    leases: Leases = {}
    for each in settlements:
        if each.report.__class__ is not Complete:
            return None
        leases.setdefault((each.token, each.lane), {})[each.offset] = each
    return leases if sum(map(len, leases.values())) == len(settlements) else None


def _ranges(leases: Leases) -> tuple[Any, ...]:
    """Leases and the ranges of their offsets. Messages, by the number of their lease if there are several: when they
    were started, in microseconds from the first, and their results.
    """
    offsets = [sorted(lease) for lease in leases.values()]
    items = [lease[offset] for lease, own in zip(leases.values(), offsets, strict=True) for offset in own]
    started = [item.started_at for item in items]
    base = min((time for time in started if time is not None), default=None)
    results = [cast("Complete", item.report).result for item in items]
    return (
        as_one([token for token, _ in leases]),
        [lane for _, lane in leases],
        ["{" + ",".join(f"[{first},{last})" for first, last in _parts(own)) + "}" for own in offsets],
        as_text(number for number, own in enumerate(offsets, 1) for _ in own) if len(leases) > 1 else "{}",
        as_text(item.offset for item in items),
        as_text([] if base is None else [None if time is None else (time - base) // MICROSECOND for time in started]),
        [] if all(result is None for result in results) else results,
        base,
    )


def _parts(offsets: list[int]) -> Iterator[tuple[int, int]]:
    first = last = offsets[0]
    for offset in offsets:
        if offset > last + 1:
            yield first, last + 1
            first = offset
        last = offset
    yield first, last + 1


def _all_done(settlements: Sequence[Settlement], leases: Leases, ended: Sequence[bool]) -> list[Settled]:
    by_lease = {
        lease: Settled(Answer.SETTLED, Verdict.COMPLETED, over) for lease, over in zip(leases, ended, strict=True)
    }
    return [by_lease[each.token, each.lane] for each in settlements]


def columns_of(settlements: Sequence[Settlement]) -> tuple[list[Any], ...]:
    reports = [each.report for each in settlements]
    return (
        [each.token for each in settlements],
        [each.lane for each in settlements],
        [each.offset for each in settlements],
        [report_text(report) for report in reports],
        [_error(report) for report in reports],
        [r.after.total_seconds() if isinstance(r, Fail) and r.after is not None else None for r in reports],
        [report.result if isinstance(report, Complete) else None for report in reports],
        [each.started_at for each in settlements],
    )


def report_text(report: Report) -> str:
    if isinstance(report, Fail) and report.free:
        return "snooze"
    if isinstance(report, Fail) and report.limit is not None:
        return f"{WORDS[Fail]} {report.limit}"
    return "retry" if isinstance(report, Release) and report.after_done else WORDS[type(report)]


def _error(report: Report) -> str | None:
    """PostgreSQL's text cannot hold a NUL."""
    return report.error.replace("\0", "\\0") if isinstance(report, Fail | Bury) else None


def answers_from(row: Any, count: int) -> list[Settled]:
    """In the order of the items."""
    answers = [Settled(Answer.UNKNOWN, None, True)] * count
    columns = [row[name] or () for name in ("numbers", "answers", "verdicts", "ended")]
    for number, answer, verdict, ended in zip(*columns, strict=True):
        answers[number - 1] = Settled(ANSWERS[answer], None if verdict is None else VERDICTS[verdict], ended)
    return answers
