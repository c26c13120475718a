"""The verbs that arrange things and take more than one statement."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar

import asyncpg

from qo.core.errors import Invalid, NotFound
from qo.core.lane import Filter, Start
from qo.core.message import MessageId, message_ids
from qo.core.names import DEFAULT_GROUP
from qo.core.outcome import CancelAnswer
from qo.core.queue import QueueSettings
from qo.stores.idempotency import again, kept
from qo.stores.postgres import inspect, schema
from qo.stores.postgres.call import ADVANCE_LIMIT, ADVANCE_ROUNDS, Call
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.push import lapsing

T = TypeVar("T")

UNSEALED_GRACE = timedelta(minutes=10)
"""How long unsealed messages are delivered after `encrypt` was switched on, because pushes under way do not see it."""


async def once(
    call: Call,
    of: str,
    nonce: str | None,
    kind: type[T],
    do: Callable[[Call], Awaitable[T]],
) -> T:
    """Do it, unless it was done under this nonce before; then give its answer again. Both in one transaction."""
    if nonce is None:
        return await do(call)

    async def work(connection: Connection, _: bool) -> T:
        try:
            async with connection.transaction():
                known = await connection.fetchval(call.sql.nonce, nonce)
                if known is not None:
                    return again(known, of, kind)
                answer = await do(call.on(connection))
                await connection.execute(call.sql.keep_nonce, nonce, call.now, kept(of, answer))
                return answer
        except asyncpg.UniqueViolationError:
            known = await connection.fetchval(call.sql.nonce, nonce)
            if known is None:
                raise
            return again(known, of, kind)  # the same call was being made elsewhere, and was first

    answer: T = await call.run("arrange", work)
    return answer


async def delete_queue(call: Call, queue: str) -> bool:
    return bool(await call.value("delete_queue", call.sql.delete_queue, queue, call.now))


async def pause(call: Call, queue: str, paused: bool) -> bool:
    await call.value("pause", call.sql.create_queue, queue, call.store_now())
    await call.value("pause", call.sql.pause, queue, paused)
    return paused


async def cancel(call: Call, ids: Sequence[MessageId], group: str) -> list[CancelAnswer]:
    """By id, so that two calls that share a transaction with their nonces do not wait for each other in turns."""
    answers = {
        id: CancelAnswer(await call.value("cancel", call.sql.cancel, id, group, call.draw, call.now))
        for id in sorted(set(ids))
    }
    return [answers[id] for id in ids]


async def purge_dead(call: Call, queue: str, group: str, ids: Sequence[MessageId] | None) -> int:
    _, group_id = await inspect.group_of(call, queue, group)
    return int(await call.value("purge_dead", call.sql.purge_dead, group_id, None if ids is None else list(ids)))


async def configure(call: Call, queue: str, changes: Mapping[str, Any]) -> QueueSettings:
    return await reconfigure(call, queue, lambda _: changes)


async def reconfigure(
    call: Call, queue: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]
) -> QueueSettings:
    """Change settings by what they are; None: the queue is new."""

    async def work(connection: Connection, _: bool) -> QueueSettings:
        async with connection.transaction():
            now = call.now or await connection.fetchval("SELECT clock_timestamp()")
            known = await connection.fetchval(call.sql.lock_settings, queue) is not None
            if not known:
                await connection.execute(call.sql.create_queue, queue, now)
            before = QueueSettings().changed(json.loads(await connection.fetchval(call.sql.lock_settings, queue)))
            settings = before.configured(change(before if known else None), now + UNSEALED_GRACE)
            rules = schema.rules_text(settings)
            overrides = json.dumps(settings.overrides())
            await connection.execute(call.sql.configure, queue, overrides, rules, now, *settings.names(queue))
            if settings.window != before.window:
                await connection.execute(call.sql.set_hold, queue, settings.window.total_seconds())
        return settings

    settings: QueueSettings = await call.run("configure", work)
    return settings


async def purge(call: Call, queue: str) -> int:
    await inspect.queue(call, queue)
    return int(await call.value("purge", call.sql.purge, queue, call.now))


async def lapse_queue(call: Call, queue: str) -> None:
    """What died before a purge is a dead letter, though nobody has looked since.

    In transactions of its own: it takes cursors, and what comes next takes lanes first.
    """
    await _lapse_lost(call, await call.value("purge", call.sql.group_ids, queue))


async def lapse_group(call: Call, queue: str, group: str) -> None:
    """The same, before a seek. That there is no such group is for the seek to say, unless its nonce has an answer."""
    try:
        _, group_id = await inspect.group_of(call, queue, group)
    except NotFound:
        return
    await _lapse_lost(call, [group_id])


async def _lapse_lost(call: Call, groups: Sequence[int]) -> None:
    """Give back all that lost leases held, however much it is."""
    for _ in range(ADVANCE_ROUNDS):
        if not await call.value("advance", call.sql.lapse, groups, ADVANCE_LIMIT, call.draw, call.now):
            return


async def create_group(call: Call, queues: Sequence[str] | Filter, group: str, start: Start) -> bool:
    if group == DEFAULT_GROUP:
        return False
    if start.time is not None and start.time > call.store_now():
        raise Invalid("start", "must not be in the future; 'new' starts at now")
    names: Sequence[str] = await _note_filter(call, queues, group, start) if isinstance(queues, Filter) else queues
    made = [
        await call.value("create_group", call.sql.join, name, group, start.at, start.time, call.now)
        for name in sorted(set(names))
    ]
    return any(made)


async def _note_filter(call: Call, where: Filter, group: str, start: Start) -> list[str]:
    await call.value(
        "create_group", call.sql.note_filter, group, where.namespace, where.task, start.at.value, start.time
    )
    names: list[str] = await call.value("create_group", call.sql.matching, where.namespace, where.task)
    return names


async def delete_group(call: Call, queue: str, group: str) -> bool:
    if group == DEFAULT_GROUP:
        raise Invalid("group", "the default group cannot be deleted")
    await inspect.queue(call, queue)

    async def work(connection: Connection, _: bool) -> bool:
        async with connection.transaction():
            found = await connection.fetchval(call.sql.lock_group, queue, group)
            if found is None:
                return False
            now = call.now or await connection.fetchval("SELECT clock_timestamp()")
            await connection.execute(call.sql.drop_group, found)
            await connection.execute(call.sql.tidy_queue, queue, now)
        return True

    return bool(await call.run("delete_group", work))


async def seek(call: Call, queue: str, group: str, to: Start | int, key: str | None) -> int:
    queue_id, group_id = await inspect.group_of(call, queue, group)
    at, time = (to.at.value, to.time) if isinstance(to, Start) else (None, None)
    offset = to if isinstance(to, int) else None
    moved = int(await call.value("seek", call.sql.seek, queue_id, group_id, at, time, offset, key, call.now))
    if not moved and key is not None:
        raise NotFound(f"queue '{queue}' has no lane of key '{key}'")
    return moved


async def retry_dead(call: Call, queue: str, group: str, ids: Sequence[MessageId] | None) -> list[MessageId]:
    _, group_id = await inspect.group_of(call, queue, group)

    async def work(connection: Connection, _: bool) -> list[MessageId]:
        async with connection.transaction():
            wanted = None if ids is None else list(dict.fromkeys(ids))
            olds = [row[0] for row in await connection.fetch(call.sql.letters, group_id, wanted)]
            if wanted is not None:
                olds = [id for id in wanted if id in set(olds)]
            news = message_ids(int(call.store_now().timestamp() * 1000), secrets.randbits(80), len(olds))
            if olds:
                retrying = partial(connection.execute, call.sql.retry_dead, queue, group_id, olds, news, call.now)
                await lapsing(call, connection, retrying)
        return news

    found: list[MessageId] = await call.run("retry_dead", work)
    return found
