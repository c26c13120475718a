"""What engines decide alike about answers: how a nonce keeps one, and what undoes a unit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec

from qo.core.errors import Conflict, TooLarge
from qo.core.lease import Answer, Done, Settled, Undone, Unit, Verdict
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Refused, Stored, id_text

T = TypeVar("T")


class Remembered(msgspec.Struct):
    """An answer as a nonce keeps it: of each push its id, none if it was refused, and whether it was a duplicate."""

    pushed: list[tuple[str, bool]]
    settled: list[tuple[Answer, Verdict | None, bool]] = []


def kept_batch(answers: Sequence[Pushed]) -> str:
    return msgspec.json.encode(Remembered(_pushed(answers))).decode()


def batch_again(messages: Sequence[NewMessage], kept: str) -> list[Pushed]:
    """The answers of the first time."""
    remembered = _read(kept)
    if len(remembered.pushed) != len(messages) or remembered.settled:
        raise Conflict("this nonce was used before, for something else")
    return [_answer(each, message.id) for message, each in zip(messages, remembered.pushed, strict=True)]


def kept_unit(done: Done) -> str:
    settled = [(each.answer, each.verdict, each.lease_ended) for each in done.settled]
    return msgspec.json.encode(Remembered(_pushed(done.pushed), settled)).decode()


def unit_again(kept: str) -> Done:
    remembered = _read(kept)
    return Done(
        tuple(Settled(*each) for each in remembered.settled),
        tuple(_answer(each, None) for each in remembered.pushed),
    )


def _read(kept: str) -> Remembered:
    return msgspec.json.decode(kept, type=Remembered)


def arranging(verb: str, nonce: str) -> str:
    """The nonce of a verb that arranges things, apart from those of pushes and units."""
    return f"{verb} {nonce}"


def kept_value(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def value_again(kept: str, kind: type[T]) -> T:
    return msgspec.json.decode(kept, type=kind)


def _pushed(answers: Sequence[Pushed]) -> list[tuple[str, bool]]:
    return [("" if isinstance(each, Refused) else each.id.hex(), isinstance(each, Duplicate)) for each in answers]


def _answer(kept: tuple[str, bool], id: MessageId | None) -> Pushed:
    """A message that was stored has the id that it is pushed with now, if that is given."""
    text, duplicate = kept
    if not text:
        return Refused(TooLarge("payload", "was refused the first time"))
    first = MessageId(bytes.fromhex(text))
    return Duplicate(first) if duplicate else Stored(first if id is None else id)


class InTheWay(Exception):
    """Leaves a unit's transaction, which undoes it."""

    def __init__(self, reason: str, item: int) -> None:
        self.undone = Undone(reason, item)


def check_settled(settled: Sequence[Settled]) -> None:
    for number, answer in enumerate(settled):
        if answer.answer not in (Answer.SETTLED, Answer.GIVEN_BACK):
            raise InTheWay(f"settlement answered '{answer.answer}'", number)


def check_pushed(unit: Unit, pushed: Sequence[Pushed]) -> None:
    for number, each in enumerate(pushed):
        if isinstance(each, Refused):
            raise InTheWay(str(each.error), number)
        if isinstance(each, Duplicate) and unit.refuse_duplicates:
            raise InTheWay(f"push is a duplicate of {id_text(each.id)}", number)
