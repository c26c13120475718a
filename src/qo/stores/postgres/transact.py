"""transact: settles and pushes together or not at all."""

from __future__ import annotations

import contextlib
import secrets
from operator import attrgetter
from typing import Any

import asyncpg
import msgspec

from qo.core.errors import NotFound, QueueFull
from qo.core.lease import Done, Obstacle, Settled, Undone, Unit
from qo.core.message import Pushed
from qo.stores.idempotency import (
    InTheWay,
    check_acked,
    check_leases,
    check_pushed,
    check_settled,
    kept_unit,
    unit_again,
)
from qo.stores.postgres.ack import ack_on, resolved
from qo.stores.postgres.admin import delete_group
from qo.stores.postgres.call import Call
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.push import Lane, create_queues, dedupe_text, lane_of, push_on
from qo.stores.postgres.records import change_on
from qo.stores.postgres.settle import answers_from, columns_of


async def transact(call: Call, unit: Unit) -> Done | Undone:
    """A unit that was given no nonce gets one here, so that it can be looked up if its answer is lost."""
    named = unit if unit.nonce is not None else msgspec.structs.replace(unit, nonce=secrets.token_hex(16))
    answer: Done | Undone = await call.run(
        "transact",
        lambda connection, _: _once(call, connection, named),
        items=len(unit.pushes) + len(unit.settlements),
    )
    return answer


async def _once(call: Call, connection: Connection, unit: Unit) -> Done | Undone:
    try:
        async with connection.transaction():
            if unit.nonce is not None:
                kept = await connection.fetchval(call.sql.nonce, unit.nonce)
                if kept is not None:
                    return unit_again(unit, kept)
            return await _do(call, connection, unit)
    except QueueFull as full:
        return Undone(str(full), 0, Obstacle.FULL)
    except InTheWay as stop:
        # If this very unit was still being done when we looked, what is in the way is itself.
        kept = await connection.fetchval(call.sql.nonce, unit.nonce)
        return stop.undone if kept is None else unit_again(unit, kept)
    except asyncpg.UniqueViolationError:
        kept = None if unit.nonce is None else await connection.fetchval(call.sql.nonce, unit.nonce)
        if kept is None:
            raise
        return unit_again(unit, kept)  # the same unit was being done elsewhere, and was first


async def _do(call: Call, connection: Connection, unit: Unit) -> Done:
    versions = await change_on(call, connection, unit.records) if unit.records else []
    for each in sorted(
        set(unit.removed_groups), key=attrgetter("queue", "group")
    ):  # so that no two wait for each other
        with contextlib.suppress(NotFound):
            await delete_group(call.on(connection), each.queue, each.group)
    await _lock(call, connection, unit)
    if unit.leases:
        live = await connection.fetch(call.sql.live_leases, list(unit.leases), call.now)
        check_leases(unit, {row[0] for row in live})
    settled: list[Settled] = []
    if unit.settlements:
        row = await connection.fetchrow(call.sql.settle, *columns_of(unit.settlements), None, call.draw, call.now)
        settled = answers_from(row, len(unit.settlements))
    check_settled(settled)
    acked = await ack_on(call, connection, unit.acks, secrets.token_hex(16)) if unit.acks else []
    check_acked(unit, acked)
    pushed: list[Pushed] = []
    if unit.pushes:
        pushed, _ = await push_on(call, connection, unit.pushes, again=False)
    check_pushed(unit, pushed)
    done = Done(tuple(settled), tuple(pushed), tuple(acked), tuple(versions))
    if unit.nonce is not None:
        await connection.execute(call.sql.keep_nonce, unit.nonce, call.now, kept_unit(unit, done))
    return done


async def _lock(call: Call, connection: Connection, unit: Unit) -> None:
    """What the pushes will need, and the cursors of both, before anything is done."""
    if unit.pushes:
        await create_queues(call, connection, unit.pushes)
        leases = [(each.token, each.lane) for each in unit.settlements]
        if unit.acks:
            rows = await resolved(call, connection, unit.acks)
            leases += [(said.token, row["lane"]) for said, row in zip(unit.acks, rows, strict=True) if said.token]
        held = [list(column) for column in zip(*leases, strict=True)] or [[], []]
        await connection.fetchval(call.sql.lock_unit, *_lanes(unit), *_keys(unit), *held, call.now)


def _keys(unit: Unit) -> list[list[Any]]:
    return [
        [each.queue for each in unit.pushes],
        [each.key for each in unit.pushes],
        [each.kind for each in unit.pushes],
        [each.priority for each in unit.pushes],
        [dedupe_text(each) for each in unit.pushes],
    ]


def _lanes(unit: Unit) -> list[list[Any]]:
    """The lanes that the unit may push to, and whether it is sure to: not delayed, and no duplicate.

    Behind one that it is not sure of none is, so that lanes come into being in the order of their first arrivals.
    """
    sure: dict[Lane, bool] = {}
    certain = True
    for message in unit.pushes:
        certain &= message.due_at is None and message.delay is None and message.dedupe is None
        sure.setdefault(lane_of(message), certain)
    return [*(list(column) for column in zip(*sure, strict=True)), list(sure.values())]
