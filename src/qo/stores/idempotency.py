"""What engines decide alike about answers: how a nonce keeps one, who shares one, and what undoes a unit."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from qo.core.errors import AlreadyExists, Conflict, Invalid, TooLarge
from qo.core.lease import AckAnswer, Acked, Answer, Complete, Done, Obstacle, Settled, Undone, Unit, Verdict
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Refused, Stored, id_text, is_same_message
from qo.core.record import ABSENT, Delete, Put, RecordChange, why_not

T = TypeVar("T")


def used_token() -> Conflict:
    """Why a claim is refused that brings the token of another one."""
    return Conflict("this token was used before; each claim needs one of its own")


class Kept(msgspec.Struct):
    """What a nonce keeps: what it was used for, and the answer."""

    of: str
    answer: msgspec.Raw


class Remembered(msgspec.Struct):
    """An answer: of each push its id, none if it was refused, and whether it was a duplicate."""

    pushed: list[tuple[str, bool]]
    settled: list[tuple[Answer, Verdict | None, bool]] = []
    acked: list[tuple[AckAnswer, Verdict | None, bool, bool]] = []
    versions: tuple[int, ...] = ()


def batch_of(messages: Sequence[NewMessage]) -> str:
    """A digest that is the same each time a push is made: without ids and due times, which differ each time."""
    return _digest("push", *_contents(messages))


def unit_of(unit: Unit) -> str:
    settled = [(each.token, each.lane, each.offset, type(each.report).__name__) for each in unit.settlements]
    acked = [(each.queue, each.key, each.group, each.name, each.token, each.report) for each in unit.acks]
    said = repr((settled, acked, unit.records, unit.removed_groups))
    return _digest("unit", said.encode(), *_contents(unit.pushes))


def arrangement_of(verb: str, *given: Any) -> str:
    return _digest(verb, repr(given).encode())


def _contents(messages: Sequence[NewMessage]) -> Iterator[bytes]:
    for each in messages:
        yield repr((each.queue, each.key, each.kind, each.priority)).encode()
        yield each.payload


def _digest(verb: str, *parts: bytes) -> str:
    digest = hashlib.blake2b(verb.encode(), digest_size=16)
    for part in parts:
        digest.update(len(part).to_bytes(8))
        digest.update(part)
    return digest.hexdigest()


def kept(of: str, answer: Any) -> str:
    return msgspec.json.encode(Kept(of, msgspec.Raw(msgspec.json.encode(answer)))).decode()


def again(text: str, of: str, kind: type[T]) -> T:
    """The answer of the first time, if the nonce was used for the same."""
    found = msgspec.json.decode(text, type=Kept)
    if found.of != of:
        raise Conflict("this nonce (Idempotency-Key) was used before, for something else")
    return msgspec.json.decode(found.answer, type=kind)


def kept_batch(messages: Sequence[NewMessage], answers: Sequence[Pushed]) -> str:
    return kept(batch_of(messages), Remembered(_pushed(answers)))


def batch_again(messages: Sequence[NewMessage], text: str) -> list[Pushed]:
    return [_answer(each) for each in again(text, batch_of(messages), Remembered).pushed]


def kept_unit(unit: Unit, done: Done) -> str:
    settled = [(each.answer, each.verdict, each.lease_ended) for each in done.settled]
    acked = [(each.answer, each.verdict, each.lease_ended, each.stale) for each in done.acked]
    return kept(unit_of(unit), Remembered(_pushed(done.pushed), settled, acked, done.versions))


def unit_again(unit: Unit, text: str) -> Done:
    remembered = again(text, unit_of(unit), Remembered)
    settled = tuple(Settled(*each) for each in remembered.settled)
    acked = tuple(Acked(*each) for each in remembered.acked)
    return Done(settled, tuple(_answer(each) for each in remembered.pushed), acked, remembered.versions)


def _pushed(answers: Sequence[Pushed]) -> list[tuple[str, bool]]:
    return [("" if isinstance(each, Refused) else each.id.hex(), isinstance(each, Duplicate)) for each in answers]


def _answer(kept: tuple[str, bool]) -> Pushed:
    text, duplicate = kept
    if not text:
        return Refused(TooLarge("payload", "was refused the first time"))
    first = MessageId(bytes.fromhex(text))
    return Duplicate(first) if duplicate else Stored(first)


def others_id() -> Invalid:
    """The error of a message that has the id of another message, and is not a repeat of it."""
    return Invalid("id", "is that of another message; each needs its own")


def without(messages: Sequence[NewMessage], repeats: Mapping[int, int]) -> tuple[NewMessage, ...]:
    """A batch without the messages whose ids came before in it."""
    return tuple(message for number, message in enumerate(messages) if number not in repeats)


def with_repeats(messages: Sequence[NewMessage], repeats: Mapping[int, int], answers: Sequence[Pushed]) -> list[Pushed]:
    """The answers of a whole batch, from those of the messages whose ids came first."""
    coming = iter(answers)
    found: list[Pushed] = []
    for number, message in enumerate(messages):
        first = repeats.get(number)
        if first is None:
            found.append(next(coming))
        else:
            found.append(found[first] if is_same_message(message, messages[first]) else Refused(others_id()))
    return found


class InTheWay(Exception):
    """Leaves a unit's transaction, which undoes it."""

    def __init__(self, reason: str, item: int, obstacle: Obstacle) -> None:
        self.undone = Undone(reason, item, obstacle)


def check_settled(settled: Sequence[Settled]) -> None:
    for number, answer in enumerate(settled):
        if answer.answer not in (Answer.SETTLED, Answer.GIVEN_BACK):
            raise InTheWay(f"settlement answered '{answer.answer}'", number, Obstacle.SETTLEMENT)


def check_record(change: RecordChange, number: int, found: int, version: int | None) -> int:
    if version is None:
        raise InTheWay(why_not(change, found), number, Obstacle.RECORD)
    return version


def check_leases(unit: Unit, live: Collection[str]) -> None:
    for number, token in enumerate(unit.leases):
        if token not in live:
            raise InTheWay("a lease that it needs is over, or never was", number, Obstacle.LEASE)


def check_acked(unit: Unit, acked: Sequence[Acked]) -> None:
    """Completing what is completed already is no obstacle; but a lease that is over is, even then."""
    for number, (said, answer) in enumerate(zip(unit.acks, acked, strict=True)):
        done_before = answer.answer is AckAnswer.BEFORE and isinstance(said.report, Complete) and not answer.stale
        if not done_before and answer.answer not in (AckAnswer.SETTLED, AckAnswer.GIVEN_BACK):
            raise InTheWay(f"ack answered '{answer.answer}'", number, Obstacle.ACK)


def check_pushed(unit: Unit, pushed: Sequence[Pushed]) -> None:
    for number, each in enumerate(pushed):
        if isinstance(each, Refused):
            raise InTheWay(str(each.error), number, Obstacle.PUSH)
        if isinstance(each, Duplicate) and unit.refuse_duplicates:
            raise InTheWay(f"push is a duplicate of {id_text(each.id)}", number, Obstacle.DUPLICATE)


class Transacts(Protocol):
    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]: ...


async def change_alone(store: Transacts, change: RecordChange, nonce: str | None) -> int:
    """A unit of one record; its new version. If it is not as expected: `Conflict`, or `AlreadyExists`."""
    [answer] = await store.transact([Unit(records=(change,), nonce=nonce)])
    if isinstance(answer, Done):
        return answer.versions[0]
    raise (AlreadyExists if isinstance(change, Put) and change.expected == ABSENT else Conflict)(answer.reason)


async def delete_alone(store: Transacts, delete: Delete, nonce: str | None) -> bool:
    """Whether there was one."""
    [answer] = await store.transact([Unit(records=(delete,), nonce=nonce)])
    if isinstance(answer, Done):
        return answer.versions[0] != ABSENT
    raise Conflict(answer.reason)
