"""transact: settles and pushes together or not at all."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import asyncpg
import msgspec

from qo.core.lease import Answer, Done, Settled, Undone, Unit, Verdict
from qo.core.message import Duplicate, MessageId, Pushed, Refused, Stored, id_text
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.push import Lane, lane_of, push_on
from qo.stores.postgres.settle import answers_from, columns_of

if TYPE_CHECKING:
    from qo.stores.postgres.engine import PostgresEngine


class Remembered(msgspec.Struct):
    """A unit's answer as its nonce keeps it."""

    settled: list[tuple[Answer, Verdict | None, bool]]
    pushed: list[tuple[str, bool]]


class _InTheWay(Exception):
    """Leaves the transaction, which undoes the unit."""

    def __init__(self, reason: str, item: int) -> None:
        self.undone = Undone(reason, item)


async def transact(engine: PostgresEngine, unit: Unit) -> Done | Undone:
    """A unit that was given no nonce gets one here, so that it can be looked up if its answer is lost."""
    named = unit if unit.nonce is not None else msgspec.structs.replace(unit, nonce=secrets.token_hex(16))
    answer: Done | Undone = await engine.call("transact", lambda connection, _: _once(engine, connection, named))
    return answer


async def _once(engine: PostgresEngine, connection: Connection, unit: Unit) -> Done | Undone:
    try:
        async with connection.transaction():
            if unit.nonce is not None:
                kept = await connection.fetchval(engine.sql.nonce, unit.nonce)
                if kept is not None:
                    return _recalled(kept)
            return await _do(engine, connection, unit)
    except _InTheWay as stop:
        # If this very unit was still being done when we looked, what is in the way is itself.
        kept = await connection.fetchval(engine.sql.nonce, unit.nonce)
        return stop.undone if kept is None else _recalled(kept)
    except asyncpg.UniqueViolationError:
        kept = None if unit.nonce is None else await connection.fetchval(engine.sql.nonce, unit.nonce)
        if kept is None:
            raise
        return _recalled(kept)  # the same unit was being done elsewhere, and was first


async def _do(engine: PostgresEngine, connection: Connection, unit: Unit) -> Done:
    if unit.pushes:
        await connection.fetchval(engine.sql.lock_lanes, *_lanes(unit), engine.now)
    settled: list[Settled] = []
    if unit.settlements:
        row = await connection.fetchrow(engine.sql.settle, *columns_of(unit.settlements), None, engine.draw, engine.now)
        settled = answers_from(row, len(unit.settlements), unsure=False)
    for number, answer in enumerate(settled):
        if answer.answer not in (Answer.SETTLED, Answer.GIVEN_BACK):
            raise _InTheWay(f"settlement answered '{answer.answer}'", number)
    pushed: list[Pushed] = []
    if unit.pushes:
        pushed, _ = await push_on(engine, connection, unit.pushes, again=False)
    for number, each in enumerate(pushed):
        if isinstance(each, Refused):
            raise _InTheWay(str(each.error), number)
        if isinstance(each, Duplicate) and unit.refuse_duplicates:
            raise _InTheWay(f"push is a duplicate of {id_text(each.id)}", number)
    if unit.nonce is not None:
        remembered = Remembered(
            [(each.answer, each.verdict, each.lease_ended) for each in settled],
            [(each.id.hex(), isinstance(each, Duplicate)) for each in pushed if not isinstance(each, Refused)],
        )
        await connection.execute(
            engine.sql.keep_nonce, unit.nonce, engine.now, msgspec.json.encode(remembered).decode()
        )
    return Done(tuple(settled), tuple(pushed))


def _lanes(unit: Unit) -> list[list[Any]]:
    """The lanes that the unit may push to, and whether it is sure to: not delayed, and no duplicate.

    Behind one that it is not sure of none is, so that lanes come into being in the order of their first arrivals.
    """
    sure: dict[Lane, bool] = {}
    certain = True
    for message in unit.pushes:
        certain &= message.due_at is None and message.dedupe is None
        sure.setdefault(lane_of(message), certain)
    return [*(list(column) for column in zip(*sure, strict=True)), list(sure.values())]


def _recalled(kept: str) -> Done:
    remembered = msgspec.json.decode(kept, type=Remembered)
    return Done(
        tuple(Settled(*each) for each in remembered.settled),
        tuple((Duplicate if again else Stored)(MessageId(bytes.fromhex(id))) for id, again in remembered.pushed),
    )
