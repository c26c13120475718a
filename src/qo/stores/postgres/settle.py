"""settle: reports as arrays, and claims on in the same call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

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
from qo.stores.postgres.claim import claim_again, claimed_from, wants_text
from qo.stores.postgres.pool import Connection

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine

WORDS: dict[type[Any], str] = {Complete: "complete", Fail: "fail", Release: "release", Bury: "bury"}
ANSWERS = {answer.value: answer for answer in Answer}
VERDICTS = {verdict.value: verdict for verdict in Verdict}


async def settle(
    engine: PostgresEngine, settlements: Sequence[Settlement], then: Sequence[Want]
) -> tuple[list[Settled], list[Claimed | Nothing] | None]:
    """The answers; and the claims, or None if something must be done before one can claim."""
    columns = columns_of(settlements)
    text = wants_text(then) if then else None
    unsure = False

    async def work(connection: Connection, again: bool) -> Any:
        nonlocal unsure
        unsure = again
        held = await claim_again(engine, connection, then) if again and then else []
        rows = await connection.fetch(engine.sql.settle, *columns, None if held else text, engine.draw, engine.now)
        return rows, held

    rows, held = await engine.call("settle", work)
    answers = answers_from(rows[0], len(settlements), unsure=unsure)
    if held:
        return answers, claimed_from(engine, held, then)
    if rows[0]["signal"] is not None:
        return answers, None
    return answers, claimed_from(engine, rows[1:], then)


def columns_of(settlements: Sequence[Settlement]) -> tuple[list[Any], ...]:
    reports = [each.report for each in settlements]
    return (
        [each.token for each in settlements],
        [each.lane for each in settlements],
        [each.offset for each in settlements],
        [WORDS[type(report)] for report in reports],
        [_error(report) for report in reports],
        [r.after.total_seconds() if isinstance(r, Fail) and r.after is not None else None for r in reports],
        [report.result if isinstance(report, Complete) else None for report in reports],
        [each.started_at for each in settlements],
    )


def _error(report: Report) -> str | None:
    """PostgreSQL's text cannot hold a NUL."""
    return report.error.replace("\0", "\\0") if isinstance(report, Fail | Bury) else None


def answers_from(row: Any, count: int, *, unsure: bool) -> list[Settled]:
    """In the order of the items. What is repeated after a lost answer was settled by this very call."""
    answers = [Settled(Answer.UNKNOWN, None, True)] * count
    columns = [row[name] or () for name in ("numbers", "answers", "verdicts", "ended")]
    for number, answer, verdict, ended in zip(*columns, strict=True):
        said = Answer.SETTLED if unsure and answer == Answer.REPEATED else ANSWERS[answer]
        answers[number - 1] = Settled(said, None if verdict is None else VERDICTS[verdict], ended)
    return answers
