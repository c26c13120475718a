"""Short ways to say things to a store."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

from qo.core.lease import (
    Bury,
    Claimed,
    Complete,
    Delivered,
    Extension,
    Fail,
    LeaseToken,
    Nothing,
    Place,
    Release,
    Report,
    Settled,
    Settlement,
    Want,
)
from qo.core.message import MessageId, NewMessage, message_ids
from qo.core.verbs import Engine

ORDERS = "orders"

_numbers = itertools.count(1)


def new_id() -> MessageId:
    return message_ids(1_700_000_000_000, next(_numbers) << 8, 1)[0]


def message(queue: str = ORDERS, payload: bytes = b"1", **options: Any) -> NewMessage:
    return NewMessage(id=new_id(), queue=queue, payload=payload, **options)


def messages(count: int, **options: Any) -> list[NewMessage]:
    return [message(payload=str(number).encode(), **options) for number in range(count)]


def want(*queues: str, **options: Any) -> Want:
    token = LeaseToken(f"token-{next(_numbers)}")
    if "filter" in options:
        return Want(token=token, **options)
    return Want(token=token, queues=queues or (ORDERS,), **options)


async def claim(store: Engine, *queues: str, **options: Any) -> list[Delivered]:
    """What one claim got."""
    options.setdefault("messages", 100)
    [answer] = await store.claim([want(*queues, **options)])
    return list(answer.deliveries) if isinstance(answer, Claimed) else []


async def nothing(store: Engine, *queues: str, **options: Any) -> Nothing:
    """The answer of a claim that must be empty."""
    [answer] = await store.claim([want(*queues, **options)])
    assert isinstance(answer, Nothing), answer
    return answer


def say(delivered: Delivered, report: Report, **options: Any) -> Settlement:
    return Settlement(token=delivered.token, lane=delivered.lane, offset=delivered.offset, report=report, **options)


def done(delivered: Delivered, result: bytes | None = None) -> Settlement:
    return say(delivered, Complete(result))


def failed(delivered: Delivered, error: str = "no", after: float | None = None) -> Settlement:
    return say(delivered, Fail(error, None if after is None else timedelta(seconds=after)))


def released(delivered: Delivered) -> Settlement:
    return say(delivered, Release())


def buried(delivered: Delivered, error: str = "never") -> Settlement:
    return say(delivered, Bury(error))


async def settle(store: Engine, *items: Settlement) -> list[Settled]:
    answers, _ = await store.settle(items)
    return list(answers)


async def answers(store: Engine, *items: Settlement) -> list[str]:
    return [each.answer.value for each in await settle(store, *items)]


def extension(delivered: Delivered, seconds: float = 30, *, started: bool = False) -> Extension:
    places = (Place(delivered.lane, delivered.offset),) if started else ()
    return Extension(token=delivered.token, lease=timedelta(seconds=seconds), started=places)


def payloads(deliveries: list[Delivered]) -> list[bytes]:
    return [each.payload for each in deliveries]
