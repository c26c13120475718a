"""transact: settles and pushes that happen together or not at all."""

from __future__ import annotations

import msgspec

from qo.core.lease import Answer, Done, Settled, Undone, Unit, Verdict
from qo.core.message import Duplicate, MessageId, Refused, Stored, id_text
from qo.stores.sqlite.push import push
from qo.stores.sqlite.settle import settle
from qo.stores.sqlite.statements import statements
from qo.stores.sqlite.transaction import Transaction

SQL = statements("push")


class Remembered(msgspec.Struct):
    """A unit's answer as its nonce keeps it."""

    settled: list[tuple[Answer, Verdict | None, bool]]
    pushed: list[tuple[str, bool]]


class _InTheWay(Exception):
    """Leaves the savepoint, which undoes the unit."""

    def __init__(self, reason: str, item: int) -> None:
        self.undone = Undone(reason, item)


def transact(tx: Transaction, units: tuple[Unit, ...]) -> list[Done | Undone]:
    return [_once(tx, unit) for unit in units]


def _once(tx: Transaction, unit: Unit) -> Done | Undone:
    kept = None if unit.nonce is None else tx.value(SQL.nonce, unit.nonce)
    if kept is not None:
        return _recalled(msgspec.json.decode(kept, type=Remembered))
    try:
        with tx.savepoint():
            done = _do(tx, unit)
    except _InTheWay as stop:
        tx.forget()
        return stop.undone
    return done


def _do(tx: Transaction, unit: Unit) -> Done:
    settled = settle(tx, unit.settlements)
    for number, answer in enumerate(settled):
        if answer.answer not in (Answer.SETTLED, Answer.GIVEN_BACK):
            raise _InTheWay(f"settlement answered '{answer.answer}'", number)
    pushed = push(tx, unit.pushes)
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
        tx.run(SQL.keep_nonce, unit.nonce, tx.now, msgspec.json.encode(remembered).decode())
    return Done(tuple(settled), tuple(pushed))


def _recalled(remembered: Remembered) -> Done:
    return Done(
        tuple(Settled(*each) for each in remembered.settled),
        tuple((Duplicate if again else Stored)(MessageId(bytes.fromhex(id))) for id, again in remembered.pushed),
    )
