"""claim: wants as JSON and as columns, deliveries from batches; and what must come first."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import partial
from itertools import accumulate, chain, repeat
from operator import add
from typing import Any, NamedTuple

import asyncpg
import msgspec

from qo.core.errors import Unavailable
from qo.core.lease import BUDGETS_AT_ONCE, Claimed, Delivered, LeaseToken, Nothing, Want
from qo.core.message import id_text
from qo.core.names import DEFAULT_GROUP
from qo.stores.idempotency import used_token
from qo.stores.postgres.admin import create_group
from qo.stores.postgres.call import ADVANCE_LIMIT, ADVANCE_ROUNDS, Call
from qo.stores.postgres.pool import Connection, undone_on_error
from qo.stores.postgres.push import lapsing, new_queue
from qo.stores.sealing import WITHOUT_KEY, Stored, UnknownKey, Unreadable, check_sealed, opened

ASK_AT_ONCE = {"ids": None, "wait": timedelta(0), "owner_limited": False, "contended": True, "signal": None}
"""The row of a want that holds nothing, after a lost answer: nobody knows any more when it was to ask again."""
log = logging.getLogger("qo.postgres")

NO_HEADERS: dict[str, str] = {}
NOT_PLAIN = (None,) * 9
RUN_COLUMNS = "lanes", "firsts", "counts", "queues", "keys", "tried", "expiries"


TIME_CHECK_SECONDS = 0.25
"""A busy consumer looks for what time has changed (lost leases, due retries, delayed messages) this often."""
ASKED_LIMIT = 10_000
PATIENT_ROUNDS = 2
"""After so many it takes what is there, though more keeps arriving, and is asked again at once if that is nothing."""


async def claim(call: Call, wants: Sequence[Want]) -> list[Claimed | Nothing]:
    moved, rounds = False, 0
    for _ in range(ADVANCE_ROUNDS):
        rows = await call.run("claim", partial(_claim, call, wants, moved))
        signal = rows[0]["signal"] if rows else None
        if signal is None:
            return await delivered(call, rows, wants, alone=len(wants) == 1)
        more = await _make_way(call, signal, wants)
        rounds += signal != "join"
        moved = more or rounds > PATIENT_ROUNDS
    raise Unavailable("others kept this claim from being made; try again")


async def _claim(call: Call, wants: Sequence[Want], moved: bool, connection: Connection, again: bool) -> list[Any]:
    if again:
        found = await claim_again(call, connection, wants)
        if found:
            return found
    sql, text = call.sql, wants_text(wants)
    try:
        async with undone_on_error(connection):
            if call.short_paths and len(wants) == 1 and is_plain(wants[0]):
                plain = plain_want(call, wants[0])
                return list(await connection.fetch(sql.claim_one, text, *plain, moved, call.now))
            rows = await connection.fetch(sql.claim, text, *plain_wants(call, wants), moved, call.now)
            return dealt_out(rows, wants)
    except asyncpg.ProgramLimitExceededError:  # more than an answer can hold
        smaller = [msgspec.structs.replace(want, messages=max(want.messages // 2, 1)) for want in wants]
        if smaller == list(wants):
            raise
        return await _claim(call, smaller, moved, connection, again=False)
    except asyncpg.UniqueViolationError:
        if again:  # the first try was under way still when we looked, and was made after all
            return await claim_again(call, connection, wants)
        raise used_token() from None


async def _make_way(call: Call, signal: str, wants: Sequence[Want]) -> bool:
    """Do what must come before a claim, in a transaction of its own. Whether there is more of it than that."""
    if signal == "join":
        for want in wants:
            if want.new_queue is not None and want.group != DEFAULT_GROUP:
                for name in want.queues:
                    await call.value(
                        "create_queue", call.sql.create_queue_as, *new_queue(call, name, want.new_queue), call.now
                    )
            await create_group(call, want.queues if want.filter is None else want.filter, want.group, want.start)
        return False
    more: bool = await call.run("advance", lambda connection, _: _advance(call, connection, signal, wants))
    return more


async def _advance(call: Call, connection: Connection, signal: str, wants: Sequence[Want]) -> bool:
    sql, text = call.sql, wants_text(wants)
    if signal == "intake":
        more = False
        for name in await connection.fetchval(sql.names_of_wants, text, call.now) or ():
            entering = partial(connection.fetchval, sql.enter_due, name, ADVANCE_LIMIT, call.now)
            more |= bool(await lapsing(call, connection, entering))
        return more
    groups = await connection.fetchval(sql.groups_of_wants, text)
    return bool(await connection.fetchval(sql.lapse, groups, ADVANCE_LIMIT, call.draw, call.now))


def alike(wants: Sequence[Want]) -> Sequence[Sequence[Want]]:
    """Wants in their order: those in a row that ask for a message each and differ in their tokens alone, together."""
    found: list[list[Want]] = []
    for want in wants:
        if found and want.messages == 1 and want.key is None and _terms(want) == _terms(found[-1][0]):
            found[-1].append(want)
        else:
            found.append([want])
    return found


def _terms(want: Want) -> tuple[Any, ...]:
    """All that a want says but its token."""
    return tuple(getattr(want, name) for name in Want.__struct_fields__ if name != "token")


def dealt_out(rows: Sequence[Any], wants: Sequence[Want]) -> list[Any]:
    """Rows by want, from rows by what was asked together: one message for each token, in order, as far as they go."""
    asked = alike(wants)
    if len(asked) == len(wants):
        return list(rows)
    found: list[Any] = []
    firsts = [0, *accumulate(map(len, asked))]
    served = dict.fromkeys(range(len(asked)), 0)
    for row in rows:
        group = row["want"]
        if group is None or len(asked[group]) == 1:
            found.append(row if group is None else {**row, "want": firsts[group]})
        elif row["ids"] is not None:
            found.append({**row, "want": firsts[group] + served[group], "tokens": True})
            served[group] += len(row["ids"])
        else:
            found += [{**row, "want": number} for number in range(firsts[group] + served[group], firsts[group + 1])]
    return found


def wants_text(wants: Sequence[Want]) -> str:
    return msgspec.json.encode([_want_fields(each) for each in alike(wants)]).decode()


def is_fresh(call: Call, wants: Sequence[Want]) -> bool:
    """Whether this process asked the same a moment ago, so that what time has changed need not be looked for again.

    Where nothing else is ready it is looked for all the same. With a clock of its own, time is always looked at.
    """
    if call.now is not None:
        return False
    asked, now = call.asked, asyncio.get_running_loop().time()
    sources = [(want.queues, want.group) for want in wants]
    if all(now - asked.get(source, -TIME_CHECK_SECONDS) < TIME_CHECK_SECONDS for source in sources):
        return True
    if len(asked) > ASKED_LIMIT:
        asked.clear()
    asked.update(dict.fromkeys(sources, now))
    return False


def plain_wants(call: Call, wants: Sequence[Want]) -> Sequence[list[Any] | bool | None]:
    """Wants that say no more than their queue, group, size and kinds, as columns; none, if one of them says more."""
    if not call.short_paths or not all(map(is_plain, wants)):
        return NOT_PLAIN
    asked = alike(wants)
    firsts = [each[0] for each in asked]
    return (
        [json.dumps([want.token for want in each]) for each in asked],
        [want.queues[0] for want in firsts],
        [want.group for want in firsts],
        [len(each) if len(each) > 1 else each[0].messages for each in asked],
        [None if want.lease is None else want.lease.total_seconds() for want in firsts],
        [want.owner for want in firsts],
        is_fresh(call, wants),
        [kinds_text(want) for want in firsts],
        [each[0].max_bytes * min(len(each), BUDGETS_AT_ONCE) for each in asked],
    )


def kinds_text(want: Want) -> str | None:
    return None if want.kinds is None else json.dumps(sorted(want.kinds))


def plain_want(call: Call, want: Want) -> tuple[Any, ...]:
    """The one plain want, as values."""
    lease = None if want.lease is None else want.lease.total_seconds()
    fresh = is_fresh(call, [want])
    said = want.token, want.queues[0], want.group, want.messages, lease, want.owner, fresh
    return *said, kinds_text(want), want.max_bytes


def is_plain(want: Want) -> bool:
    return len(want.queues) == 1 and want.key is None and not want.auto_settle


def _want_fields(wants: Sequence[Want]) -> dict[str, Any]:
    """Only what is said: most of it mostly is not."""
    want = wants[0]
    said: dict[str, Any] = {
        "tokens": [each.token for each in wants],
        "queues": list(dict.fromkeys(want.queues)),
        "group": want.group,
        "messages": want.messages,
        "max_bytes": want.max_bytes,
    }
    if want.named:
        said["named"] = True
    if want.filter is not None:
        said["filter"] = {"namespace": want.filter.namespace, "task": want.filter.task}
    if want.kinds is not None:
        said["kinds"] = sorted(want.kinds)
    if want.lease is not None:
        said["lease"] = want.lease.total_seconds()
    if want.auto_settle:
        said["auto_settle"] = True
    for name in ("key", "lanes", "lane_messages", "owner"):
        if (value := getattr(want, name)) is not None:
            said[name] = value
    return said


async def delivered(
    call: Call, rows: Sequence[Any], wants: Sequence[Want], *, alone: bool = False
) -> list[Claimed | Nothing]:
    """Each want's deliveries. Messages that cannot be opened are buried; a want that got nothing else claims again.

    What this process has not got the key for goes back. `alone`: one claim and nothing beside it, which is then told so
    with an error; others are told that there is nothing for a while, and the log says why.
    """
    await call.keys.learn(text for row in rows for text in (row["ids"] and row["headers"]) or ())
    found: list[list[Delivered]] = [[] for _ in wants]
    nothing: list[Nothing] = [Nothing(None)] * len(wants)
    aside: list[Aside] = []
    missing: dict[int, UnknownKey] = {}
    for row in rows:
        number = row["want"]
        if row["ids"] is None:
            nothing[number] = _nothing(call, row)
            continue
        together = range(number, number + (len(row["ids"]) if "tokens" in row else 1))
        taken = _delivered(row, [wants[each].token for each in together])
        if row["sealed_since"] is not None or row["headers"] is not None:
            try:
                taken, unread = opened_of(call, taken, row["sealed_since"])
                aside += unread
            except UnknownKey as error:
                missing.update(dict.fromkeys(together, error))
        for lane, key, queue in {(each.lane, each.key, each.queue) for each in taken}:
            call.late_hints.claimed(lane, None if key is None else queue)
        _add(found, wants, together, taken)
    for number, lacking in missing.items():  # another process may have that key
        aside += [Aside(each, str(lacking), bury=False) for each in found[number]]
        found[number], nothing[number] = [], Nothing(call.store_now() + WITHOUT_KEY)
    answers: list[Claimed | Nothing] = [
        Claimed(tuple(each)) if each else empty for each, empty in zip(found, nothing, strict=True)
    ]
    if not aside:
        return answers
    await _set_aside(call, aside, wants)
    if alone and missing:
        raise missing[0]
    return [
        await _claimed_instead(call, want) if isinstance(answer, Nothing) and number not in missing else answer
        for number, (want, answer) in enumerate(zip(wants, answers, strict=True))
    ]


def _nothing(call: Call, row: Any) -> Nothing:
    again = None if row["wait"] is None else call.store_now() + row["wait"]
    return Nothing(again, row["owner_limited"], bool(row["contended"]))


def _add(found: list[list[Delivered]], wants: Sequence[Want], together: range, taken: Sequence[Delivered]) -> None:
    """To what each want found, what was taken for those that were asked together: by their tokens."""
    if len(together) == 1:
        found[together[0]] += taken
        return
    numbers = {wants[number].token: number for number in together}
    for each in taken:
        found[numbers[each.token]].append(each)


class Aside(NamedTuple):
    """A message that was claimed and is not delivered: one that cannot be read, or that comes after one in its run."""

    delivered: Delivered
    error: str
    bury: bool


def opened_of(call: Call, taken: Sequence[Delivered], since: datetime | None) -> tuple[list[Delivered], list[Aside]]:
    """The messages with their payloads opened, and what is set aside.

    A keyed lane's run ends before one that cannot be opened. Only at the head of the run is that one buried: what is
    before it in the run was not handled yet.
    """
    found: list[Delivered] = []
    aside: list[Aside] = []
    ended: set[int] = set()
    for each in taken:
        if each.lane in ended:
            continue
        try:
            check_sealed(each.headers, each.created_at, since)
            stored = Stored(each.queue, each.key, each.id, each.payload, each.headers)
            payload, headers = opened(call.keys.to_open, stored, retried=each.retry_of is not None)
        except Unreadable as error:
            is_head = each.key is None or all(other.lane != each.lane for other in found)
            aside.append(Aside(each, str(error), is_head))
            if each.key is not None:
                ended.add(each.lane)
        else:
            same = headers is each.headers
            found.append(each if same else msgspec.structs.replace(each, payload=payload, headers=headers))
    return found, aside


async def _set_aside(call: Call, aside: Sequence[Aside], wants: Sequence[Want]) -> None:
    """Bury what cannot be read, and give back what comes after it in its run."""
    at_delivery = {want.token for want in wants if want.auto_settle}
    items = [each for each in aside if each.delivered.token not in at_delivery]
    for said in {each.error for each in aside if not each.bury and each.delivered.token in at_delivery}:
        log.error("messages that were settled at delivery cannot be delivered: %s", said)
    for each in aside:
        if not each.bury:
            continue
        log.error(
            "message %s of queue '%s' cannot be read: %s", id_text(each.delivered.id), each.delivered.queue, each.error
        )
    call.keys.unreadable += sum(each.bury for each in aside)
    columns = [
        [each.delivered.token for each in items],
        [each.delivered.lane for each in items],
        [each.delivered.offset for each in items],
        ["unreadable" if each.bury else "release" for each in items],
        [each.error for each in items],
        *([None] * len(items) for _ in range(3)),
    ]
    if items:
        await call.run("settle", lambda c, _: c.fetch(call.sql.settle, *columns, None, call.draw, call.now))


async def _claimed_instead(call: Call, want: Want) -> Claimed | Nothing:
    """Claim again for a want, under a new token: the old one has been used for a lease."""
    other = msgspec.structs.replace(want, token=LeaseToken(f"{want.token}-{secrets.token_hex(4)}"))
    [answer] = await claim(call, [other])
    return answer


def _delivered(batch: Any, tokens: Sequence[LeaseToken]) -> list[Delivered]:
    """The messages of a batch, each under its token, or all under one. A list that is left out says that all are alike,
    or have none.
    """
    created = batch["created"]
    payloads, headers = batch["payloads"], batch["headers"]
    said = repeat(NO_HEADERS) if headers is None else [json.loads(each) if each else NO_HEADERS for each in headers]
    columns = zip(
        tokens if len(tokens) > 1 else repeat(tokens[0]),
        *_places(batch, len(created)),
        batch["ids"],
        batch["kinds"] or repeat(batch["kind"]),
        payloads,
        said,
        batch["priorities"] or repeat(batch["priority"]),
        created,
        batch["dues"] or created,
        batch["entered"] or created,
        batch["retries_of"] or repeat(None),
        strict=False,  # what all have in common goes on for ever
    )
    return [
        Delivered(
            token=token,
            lane=lane,
            offset=offset,
            id=id,
            queue=queue,
            key=key,
            kind=kind,
            payload=payload,
            headers=header,
            priority=priority,
            attempt=attempts + 1,
            created_at=made,
            due_at=due or made,
            entered_at=entered,
            expires_at=expires,
            retry_of=retry_of,
        )
        for token, lane, offset, queue, key, attempts, expires, id, kind, payload, header, priority, made, due, entered,
            retry_of in columns
    ]  # fmt: skip


def _places(batch: Any, count: int) -> Iterable[Iterable[Any]]:
    """By message: lane, offset, queue, key, attempts before, and when the lease ends."""
    if batch["lanes"] is None:
        return (
            repeat(batch["lane_id"]),
            batch["offsets"] or range(batch["first"], batch["first"] + count),
            repeat(batch["queue"]),
            repeat(batch["key"]),
            batch["attempts"] or repeat(0),
            repeat(batch["expires_at"]),
        )
    lanes, firsts, counts, queues, keys, tried, expiries = (batch[name] for name in RUN_COLUMNS)
    return (
        _spread(lanes, counts),
        chain.from_iterable(map(range, firsts, map(add, firsts, counts))),
        _spread(queues, counts),
        _spread(keys, counts),
        chain.from_iterable((before, *repeat(0, count - 1)) for before, count in zip(tried, counts, strict=True))
        if any(tried)
        else repeat(0),
        _spread(expiries, counts),
    )


def _spread(values: Sequence[Any], counts: Sequence[int]) -> Iterable[Any]:
    """Each value as often as it counts; endlessly, if all are the same."""
    if values.count(values[0]) == len(values):
        return repeat(values[0])
    return chain.from_iterable(map(repeat, values, counts))


async def claim_again(call: Call, connection: Connection, wants: Sequence[Want]) -> list[Any]:
    """After a lost answer: what the tokens hold. Nothing, if that claim took nothing or was never made."""
    rows: list[Any] = []
    for number, want in enumerate(wants):
        held = await connection.fetch(call.sql.claimed, want.token, number)
        rows += held or [{**ASK_AT_ONCE, "want": number}]
    return rows if any(row["ids"] is not None for row in rows) else []
