"""transact: settles and pushes that happen together or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from qo.core.errors import QueueFull
from qo.core.lease import Done, Obstacle, Undone, Unit
from qo.stores.idempotency import (
    InTheWay,
    again,
    check_acked,
    check_leases,
    check_pushed,
    check_settled,
    kept,
    kept_unit,
    unit_again,
)
from qo.stores.sqlite import groups
from qo.stores.sqlite.ack import ack_by_name
from qo.stores.sqlite.push import push
from qo.stores.sqlite.records import change
from qo.stores.sqlite.settle import settle
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

T = TypeVar("T")

SQL = statements("push")
LEASES = statements("settle")


def transact(tx: Transaction, units: tuple[Unit, ...]) -> list[Done | Undone]:
    return [_once(tx, unit) for unit in units]


def _once(tx: Transaction, unit: Unit) -> Done | Undone:
    known = None if unit.nonce is None else tx.value(SQL.nonce, unit.nonce)
    if known is not None:
        return unit_again(unit, known)
    try:
        with tx.savepoint():
            done = _do(tx, unit)
    except InTheWay as stop:
        tx.forget()
        return stop.undone
    except QueueFull as full:
        tx.forget()
        return Undone(str(full), 0, Obstacle.FULL)
    return done


def _do(tx: Transaction, unit: Unit) -> Done:
    versions = change(tx, unit.records)
    for each in unit.removed_groups:
        if tx.queue(each.queue) is not None:
            groups.delete(tx, each.queue, each.group)
    check_leases(unit, {token for token in unit.leases if tx.row(LEASES.live, token, tx.now) is not None})
    settled = settle(tx, unit.settlements)
    check_settled(settled)
    acked = ack_by_name(tx, unit.acks)
    check_acked(unit, acked)
    pushed = push(tx, unit.pushes)
    check_pushed(unit, pushed)
    done = Done(tuple(settled), tuple(pushed), tuple(acked), tuple(versions))
    if unit.nonce is not None:
        tx.run(SQL.keep_nonce, unit.nonce, tx.now, kept_unit(unit, done))
    return done


def arranged_once(tx: Transaction, nonce: str, of: str, kind: type[T], do: Callable[[Transaction], T]) -> T:
    """Do it, unless it was done under this nonce before; then give its answer again."""
    known = tx.value(SQL.nonce, nonce)
    if known is not None:
        return again(known, of, kind)
    answer = do(tx)
    tx.run(SQL.keep_nonce, nonce, tx.now, kept(of, answer))
    return answer
