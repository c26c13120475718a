"""push: plain messages in wide statements, anything else one by one on the server."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

import asyncpg
import msgspec

from qo.core.errors import QueueFull, TooLarge
from qo.core.message import (
    Duplicate,
    MessageId,
    NewMessage,
    Pushed,
    Refused,
    Stored,
    repeats_in,
    runs_of_ids,
)
from qo.core.queue import QueueSettings
from qo.stores.idempotency import batch_again, kept_batch, others_id, with_repeats, without
from qo.stores.postgres.call import Call
from qo.stores.postgres.failures import Signal, signal_of
from qo.stores.postgres.pool import Connection, undone_on_error
from qo.stores.postgres.schema import rules_text
from qo.stores.sealing import sealed

T = TypeVar("T")

Lane = tuple[str, str | None, str | None, int | None]
"""A lane's name: its queue, and its key or its kind and priority."""

Answers = tuple[list[Pushed], bool]
"""An answer for each message, and whether something may be claimable."""


async def push(call: Call, messages: Sequence[NewMessage]) -> Answers:
    if not messages:
        return [], False
    answers: Answers = await call.run(
        "push", lambda connection, again: push_on(call, connection, messages, again), items=len(messages)
    )
    return answers


async def push_on(call: Call, connection: Connection, messages: Sequence[NewMessage], again: bool) -> Answers:
    """Push on a connection, which may be inside a transaction."""
    repeats = repeats_in(messages)
    if repeats:
        answers, woke = await push_on(call, connection, without(messages, repeats), again)
        return with_repeats(messages, repeats, answers), woke
    if (
        call.short_paths
        and not again
        and all(map(_is_plain, messages))
        and await _push_plain(call, connection, messages)
    ):
        return [Stored(message.id) for message in messages], True
    return await _push_any(call, connection, messages, again), True


def _is_plain(message: NewMessage) -> bool:
    if message.new_queue is not None:
        return False
    return (
        message.headers is None
        and message.due_at is None
        and message.delay is None
        and message.ttl is None
        and message.dedupe is None
    )


async def _push_plain(call: Call, connection: Connection, messages: Sequence[NewMessage]) -> bool:
    """Whether that was possible: else nothing was done."""
    [first, *others] = messages
    try:
        async with undone_on_error(connection):
            if not others and first.key is None and await _push_one(call, connection, first):
                return True
            refusal = await connection.fetchval(call.sql.push_plain, *_columns(messages), call.now)
    except asyncpg.UniqueViolationError:
        return False  # an id is known: this push was made before, or is being made
    return refusal is None


async def _push_one(call: Call, connection: Connection, one: NewMessage) -> bool:
    """Push one plain message. Answers whether that was possible; if not, nothing was done."""
    done: bool = await connection.fetchval(
        call.sql.push_one, one.queue, one.kind, one.priority, one.id, one.payload, call.now
    )
    return done


def _columns(messages: Sequence[NewMessage]) -> tuple[Any, ...]:
    """Messages as arrays: their lanes, in the order of first arrivals; themselves; and where their ids count up."""
    by_lane: dict[Lane, list[NewMessage]] = {}
    for message in messages:
        lane = lane_of(message)
        by_lane.setdefault(lane, []).append(message)
    numbers, ids, payloads, kinds, priorities, alone = [], [], [], [], [], []
    run_lanes, run_firsts, run_lasts, run_starts = [], [], [], []
    for number, own in enumerate(by_lane.values(), 1):
        numbers += [number] * len(own)
        lane_ids = [message.id for message in own]
        ids += lane_ids
        payloads += [message.payload for message in own]
        keyed = own[0].key is not None
        kinds += [message.kind if keyed else None for message in own]
        priorities += [message.priority if keyed else None for message in own]
        start = 0
        for first, last, count in _runs(lane_ids):
            alone += [count == 1] * count
            if count > 1:
                run_lanes.append(number)
                run_firsts.append(first)
                run_lasts.append(last)
                run_starts.append(start)
            start += count
    spans = runs_of_ids(sorted(ids) if len(by_lane) > 1 else ids)
    names: list[list[Any]] = [[lane[0] for lane in by_lane], [lane[1] for lane in by_lane],
             [own[0].kind for own in by_lane.values()], [own[0].priority for own in by_lane.values()]]  # fmt: skip
    return (
        as_one(names[0]),
        names[1],
        as_one(names[2]),
        as_one(names[3]),
        as_text(numbers if 1 < len(by_lane) < len(ids) else []),
        as_text(id.hex() for id in ids),
        payloads,
        as_one(kinds),
        as_one(priorities),
        as_one(alone),
        *(run_lanes, run_firsts, run_lasts, run_starts),
        *([span[0] for span in spans], [span[1] for span in spans]),
    )


def as_one(column: list[Any]) -> list[Any]:
    """A column, of which one value will do if all are the same: each that is sent costs time."""
    return column[:1] if column and column.count(column[0]) == len(column) else column


def as_text(column: Iterable[Any]) -> str:
    """A column of numbers or ids as PostgreSQL writes arrays, which is sent quicker than a list; `None` is NULL."""
    return "{" + ",".join(["NULL" if value is None else str(value) for value in column]) + "}"


def lane_of(message: NewMessage) -> Lane:
    if message.key is not None:
        return message.queue, message.key, None, None
    return message.queue, None, message.kind, message.priority


def _runs(ids: list[MessageId]) -> list[tuple[bytes, bytes, int]]:
    """Runs within which ids differ in their last six bytes only, because that is how the server counts."""
    if len(ids) == 1:
        return [(ids[0], ids[0], 1)]
    found = []
    for first, last, count in runs_of_ids(ids):
        if first[:10] == last[:10]:
            found.append((first, last, count))
        else:
            start = int.from_bytes(first)
            found += [((start + n).to_bytes(16), (start + n).to_bytes(16), 1) for n in range(count)]
    return found


async def _push_any(call: Call, connection: Connection, messages: Sequence[NewMessage], look: bool) -> list[Pushed]:
    """Push, doing first what the server says must come first. `look`: some of them may have been pushed before."""
    tried_again = False
    said: Sequence[NewMessage] = messages
    while True:
        own = list({message.queue for message in said if message.new_queue is not None})
        pushing = partial(connection.fetch, call.sql.push_any, *_any_columns(said), own, look, call.now)
        try:
            rows = await lapsing(call, connection, pushing)
        except asyncpg.UniqueViolationError:  # a first try was under way still, and was made after all
            if tried_again:
                raise
            tried_again, look = look, True
        except asyncpg.PostgresError as error:
            said = await _made_ready(call, connection, said, error)
        else:
            return [_answer(message, row) for message, row in zip(messages, rows, strict=True)]


async def _made_ready(
    call: Call, connection: Connection, messages: Sequence[NewMessage], error: asyncpg.PostgresError
) -> Sequence[NewMessage]:
    """What to push instead: into a queue that is created as its messages say, or sealed."""
    match signal_of(error):
        case Signal.NEW_QUEUE, _:
            await create_queues(call, connection, messages)
            return messages
        case Signal.SEAL, queue:
            key = await call.keys.to_seal(connection)
            return [sealed(each, key) if each.queue == queue else each for each in messages]
        case Signal.FULL, queue:
            raise QueueFull(f"queue '{queue}' is at its max capacity (setting max_size)") from None
        case _:
            raise error


async def create_queues(call: Call, connection: Connection, messages: Sequence[NewMessage]) -> None:
    """The queues of messages that say how these are to be set up, where there are none."""
    wanted = {message.queue: message.new_queue for message in messages if message.new_queue is not None}
    for name, settings in sorted(wanted.items()):
        await connection.execute(call.sql.create_queue_as, *new_queue(call, name, settings), call.now)


def new_queue(call: Call, name: str, given: QueueSettings) -> tuple[str, ...]:
    settings = given.sealed_from(call.store_now())
    return name, *settings.names(name), json.dumps(settings.overrides()), rules_text(settings)


def _any_columns(messages: Sequence[NewMessage]) -> list[list[Any]]:
    return [
        as_one([m.queue for m in messages]),
        as_one([m.key for m in messages]),
        as_one([m.kind for m in messages]),
        as_one([m.priority for m in messages]),
        [m.id for m in messages],
        [m.payload for m in messages],
        as_one([json.dumps(dict(m.headers)) if m.headers else None for m in messages]),
        as_one([m.due_at for m in messages]),
        as_one([None if m.delay is None else m.delay.total_seconds() for m in messages]),
        as_one([None if m.ttl is None else m.ttl.total_seconds() for m in messages]),
        as_one([dedupe_text(m) for m in messages]),
    ]


async def lapsing(call: Call, connection: Connection, work: Callable[[], Awaitable[T]]) -> T:
    """Make a call; where it must know how a message stands whose lease has run out, give that back and call again."""
    while True:
        try:
            async with undone_on_error(connection):
                return await work()
        except asyncpg.PostgresError as error:
            found = signal_of(error)
            if found is None or found[0] is not Signal.LAPSE:
                raise
            await connection.fetchval(call.sql.lapse_over, UUID(found[1]).bytes, call.draw, call.now)


def dedupe_text(message: NewMessage) -> str | None:
    dedupe = message.dedupe
    if dedupe is None:
        return None
    window = None if dedupe.window is None else dedupe.window.total_seconds()
    said: dict[str, object] = {"key": dedupe.key, "window": window, "scope": dedupe.scope.value}
    if dedupe.as_queue:
        said["as_queue"] = True
    return msgspec.json.encode(said).decode()


def _answer(message: NewMessage, row: Any) -> Pushed:
    match row["answer"]:
        case "stored":
            return Stored(message.id)
        case "duplicate" if row["other"].replace("-", "") == message.id.hex():
            return Stored(message.id)  # its own first try, whose answer was lost
        case "duplicate":
            return Duplicate(MessageId(bytes.fromhex(row["other"].replace("-", ""))))
        case "known":
            return Refused(others_id())
        case _:
            problem = (
                f"has {len(message.payload)} bytes; queue '{message.queue}' allows {row['other']} (setting max_payload)"
            )
            return Refused(TooLarge("payload", problem))


async def push_once(call: Call, messages: Sequence[NewMessage], nonce: str) -> Answers:
    """Push, unless a batch with this nonce was pushed before; then give its answer again."""
    answers: Answers = await call.run(
        "push", lambda connection, _: _push_once(call, connection, messages, nonce), items=len(messages)
    )
    return answers


async def _push_once(call: Call, connection: Connection, messages: Sequence[NewMessage], nonce: str) -> Answers:
    try:
        async with connection.transaction():
            kept = await connection.fetchval(call.sql.nonce, nonce)
            if kept is not None:
                return batch_again(messages, kept), False
            answers, woke = await push_on(call, connection, messages, again=False)
            await connection.execute(call.sql.keep_nonce, nonce, call.now, kept_batch(messages, answers))
            return answers, woke
    except asyncpg.UniqueViolationError:  # the same call is being made elsewhere, and was first
        kept = await connection.fetchval(call.sql.nonce, nonce)
        if kept is None:
            raise
        return batch_again(messages, kept), False
