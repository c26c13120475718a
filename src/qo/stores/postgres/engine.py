"""The PostgreSQL engine: the verbs, each a call of one function."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Self

import asyncpg

from qo.core.errors import Invalid, NotFound, Unavailable
from qo.core.lane import Filter, Start
from qo.core.lease import (
    Claimed,
    Done,
    Extended,
    Extension,
    Lost,
    Nothing,
    Settled,
    Settlement,
    Undone,
    Unit,
    Want,
)
from qo.core.message import MessageId, NewMessage, Pushed, message_ids
from qo.core.outcome import (
    CancelAnswer,
    DeadLetter,
    Depth,
    Event,
    GroupInfo,
    Health,
    Job,
    JobState,
    LaneInfo,
    QueueInfo,
)
from qo.core.queue import QueueSettings
from qo.stores.postgres import inspect, schema
from qo.stores.postgres.address import Address
from qo.stores.postgres.claim import claim_again, claimed_from, is_plain, plain_want, plain_wants, wants_text
from qo.stores.postgres.extend import extend
from qo.stores.postgres.listener import Listener
from qo.stores.postgres.pool import Connection, Pool
from qo.stores.postgres.push import lapsing, push, push_once
from qo.stores.postgres.settle import settle
from qo.stores.postgres.statements import Statements
from qo.stores.postgres.transact import transact
from qo.stores.store import Hint

ADVANCE_LIMIT = 1000
"""Rows that one transaction brings in or gives back at most."""
ADVANCE_ROUNDS = 50
"""Times that a claim makes way for what must come before it."""
PATIENT_ROUNDS = 2
"""After so many it takes what is there, though more keeps arriving, and is asked again at once if that is nothing."""
TIDY_LANES = 100
TIDY_ROWS = 1000
WATCH_LENGTH = timedelta(days=1)


class PostgresEngine:
    """Everything that `Engine` promises, in one schema. Open it with `await PostgresEngine.open(address)`."""

    def __init__(
        self,
        address: Address,
        *,
        clock: Callable[[], datetime] | None = None,
        draw: Callable[[], float] | None = None,
        probe: Callable[[str, list[str]], None] | None = None,
    ) -> None:
        self.address = address
        self.sql = Statements(address.schema)
        self.pool = Pool(address)
        self._clock = clock
        self._draw = draw
        self._probe = probe
        self._heard: Callable[[Hint], None] = lambda _: None
        self._watched: set[MessageId] = set()
        self._registered: set[MessageId] = set()
        self._newest: str | None = None
        self._listener = Listener(self.pool, self._told)

    @classmethod
    async def open(cls, address: Address, **options: Any) -> Self:
        engine = cls(address, **options)
        try:
            await engine.pool.call(engine._bring_forward)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def close(self) -> None:
        await self._listener.close()
        await self.pool.close()

    @property
    def now(self) -> datetime | None:
        """The time that functions are given; None: the server's own."""
        return None if self._clock is None else self._clock()

    @property
    def local_now(self) -> datetime:
        """The time by which this process sets its timers."""
        return datetime.now(UTC) if self._clock is None else self._clock()

    @property
    def draw(self) -> float | None:
        return None if self._draw is None else self._draw()

    async def call(self, name: str, work: Callable[[Connection, bool], Any]) -> Any:
        """Run a verb, telling the probe, if there is one, of its commit."""
        if self._probe is None:
            return await self.pool.call(work)
        self._probe("before commit", [name])
        answer = await self.pool.call(work)
        self._probe("after commit", [name])
        return answer

    async def value(self, name: str, sql: str, *values: Any) -> Any:
        """One value from one statement."""
        return await self.call(name, lambda connection, _: connection.fetchval(sql, *values))

    # The verbs that move messages

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        if nonce is None:
            answers, woke = await push(self, messages)
        else:
            answers, woke = await push_once(self, messages, nonce)
        if woke:
            self._heard(Hint(frozenset(message.queue for message in messages)))
        return answers

    async def claim(self, wants: Sequence[Want]) -> Sequence[Claimed | Nothing]:
        await self._listen()
        text = wants_text(wants)
        moved = False
        for number in range(ADVANCE_ROUNDS):
            rows = await self.call("claim", partial(self._claim, text, wants, moved))
            signal = rows[0]["signal"] if rows else None
            if signal is None:
                return claimed_from(self, rows, wants)
            moved = await self._make_way(signal, wants) or number >= PATIENT_ROUNDS
        raise Unavailable("others kept this claim from being made; try again")

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        if then:
            await self._listen()
        answers, claims = await settle(self, settlements, then)
        return answers, await self.claim(then) if claims is None else claims

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await extend(self, extensions)

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        return [await transact(self, unit) for unit in units]

    async def tidy(self) -> datetime | None:
        more_lanes = await self.value("tidy", self.sql.tidy_lanes, TIDY_LANES, TIDY_ROWS, self.now)
        more = await self.value("tidy", self.sql.tidy_rest, TIDY_ROWS, self.now)
        if more_lanes or more:
            return self.local_now
        rest: timedelta | None = await self.value("tidy", self.sql.next_tidy, self.now)
        return None if rest is None else self.local_now + rest

    async def changed(self) -> bool:
        """Whether any transaction wrote since the last look; the server counts those of other databases, too."""
        newest = await self.value("changed", self.sql.newest_transaction)
        before, self._newest = self._newest, newest
        return before is not None and before != newest

    @property
    def must_poll(self) -> bool:
        return self._listener.must_poll

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self._heard = heard

    def watch(self, ids: Sequence[MessageId]) -> None:
        self._watched.update(ids)

    def unwatch(self, ids: Sequence[MessageId]) -> None:
        self._watched.difference_update(ids)
        self._registered.difference_update(ids)

    # The verbs that arrange things

    async def configure(self, queue: str, changes: Mapping[str, Any]) -> QueueSettings:
        settings: QueueSettings = await self.call("configure", lambda c, _: self._configure(c, queue, changes))
        return settings

    async def delete_queue(self, queue: str) -> bool:
        return bool(await self.value("delete_queue", self.sql.delete_queue, queue, self.now))

    async def purge(self, queue: str) -> int:
        await self.queue(queue)
        return int(await self.value("purge", self.sql.purge, queue, self.now))

    async def pause(self, queue: str, paused: bool) -> None:
        await self.value("pause", self.sql.create_queue, queue, self.local_now)
        await self.value("pause", self.sql.pause, queue, paused)

    async def create_group(self, queues: Sequence[str] | Filter, group: str, start: Start) -> bool:
        if group == "default":
            return False
        if start.time is not None and start.time > (self.local_now):
            raise Invalid("start", "must not be in the future; 'new' starts at now")
        names: Sequence[str]
        if isinstance(queues, Filter):
            names = await self._note_filter(queues, group, start)
        else:
            names = queues
        made = [
            await self.value("create_group", self.sql.join, name, group, start.at, start.time, self.now)
            for name in names
        ]
        return any(made)

    async def delete_group(self, queue: str, group: str) -> bool:
        if group == "default":
            raise Invalid("group", "the default group cannot be deleted")
        info = await self.queue(queue)
        return bool(await self.call("delete_group", lambda c, _: self._delete_group(c, info.name, group)))

    async def seek(self, queue: str, group: str, to: Start | int, key: str | None = None) -> int:
        queue_id, group_id = await self._front(queue, group)
        at, time = (to.at.value, to.time) if isinstance(to, Start) else (None, None)
        offset = to if isinstance(to, int) else None
        moved = int(await self.value("seek", self.sql.seek, queue_id, group_id, at, time, offset, key, self.now))
        if not moved and key is not None:
            raise NotFound(f"queue '{queue}' has no lane of key '{key}'")
        return moved

    async def cancel(self, ids: Sequence[MessageId], group: str) -> Sequence[CancelAnswer]:
        return [CancelAnswer(await self.value("cancel", self.sql.cancel, id, group, self.draw, self.now)) for id in ids]

    async def retry_dead(self, queue: str, group: str, ids: Sequence[MessageId] | None) -> Sequence[MessageId]:
        _, group_id = await self._front(queue, group)
        found: list[MessageId] = await self.call("retry_dead", lambda c, _: self._retry_dead(c, queue, group_id, ids))
        return found

    async def purge_dead(self, queue: str, group: str, ids: Sequence[MessageId] | None) -> int:
        _, group_id = await self._front(queue, group)
        return int(await self.value("purge_dead", self.sql.purge_dead, group_id, None if ids is None else list(ids)))

    # Reads

    async def queue(self, queue: str) -> QueueInfo:
        return await inspect.queue(self, queue)

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]:
        return await inspect.queues(self, after, limit)

    async def groups(self, queue: str) -> Sequence[GroupInfo]:
        return await inspect.groups(self, queue)

    async def depth(self, queue: str, group: str) -> Depth:
        return await inspect.depth(self, queue, group)

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]:
        return await inspect.lanes(self, queue, group, after, limit)

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]:
        unregistered = [id for id in ids if id in self._watched and id not in self._registered]
        if unregistered:
            await self._listen()
            until = self.local_now + WATCH_LENGTH
            await self.value("watch", self.sql.watch, unregistered, until)
            self._registered.update(id for id in unregistered if id in self._watched)
        return await inspect.jobs(self, ids)

    async def list_jobs(self, queue: str, state: JobState | None, before: str | None, limit: int) -> Sequence[Job]:
        return await inspect.list_jobs(self, queue, state, before, limit)

    async def events(self, id: MessageId) -> Sequence[Event]:
        return await inspect.events(self, id)

    async def dead(self, queue: str, group: str | None, after: str | None, limit: int) -> Sequence[DeadLetter]:
        return await inspect.dead(self, queue, group, after, limit)

    async def health(self) -> Health:
        return await inspect.health(self)

    # Inside

    async def _listen(self) -> None:
        """Whoever asks may have to wait, and must then not miss a hint."""
        if not self._listener.is_open:
            await self._listener.open()

    def _told(self, hint: Hint) -> None:
        """Whoever listens by then: that is said after the listener was made."""
        self._heard(hint)

    async def _bring_forward(self, connection: Connection, _: bool) -> None:
        known = schema.migrations()
        found = await schema.version(connection, self.address.schema)
        schema.check(found, known[-1].number, self.address.schema)
        if found < known[-1].number:
            await schema.bring_forward(connection, self.address.schema, known)

    async def _claim(
        self, text: str, wants: Sequence[Want], moved: bool, connection: Connection, again: bool
    ) -> list[Any]:
        if again:
            found = await claim_again(self, connection, wants)
            if found:
                return found
        try:
            if len(wants) == 1 and is_plain(wants[0]):
                plain = plain_want(wants[0])
                rows: list[Any] = await connection.fetch(self.sql.claim_one, text, *plain, moved, self.now)
            else:
                rows = await connection.fetch(self.sql.claim, text, *plain_wants(wants), moved, self.now)
        except asyncpg.UniqueViolationError:  # the first try was under way still when we looked, and was made after all
            rows = await claim_again(self, connection, wants)
        return rows

    async def _make_way(self, signal: str, wants: Sequence[Want]) -> bool:
        """Do what must come before a claim, in a transaction of its own. Whether there is more of it than that."""
        if signal == "join":
            await self._join(wants)
            return False
        more: bool = await self.call("advance", lambda connection, _: self._advance(connection, signal, wants))
        return more

    async def _advance(self, connection: Connection, signal: str, wants: Sequence[Want]) -> bool:
        text = wants_text(wants)
        if signal == "intake":
            names: list[str] = await connection.fetchval(self.sql.names_of_wants, text)
            entering = partial(connection.fetchval, self.sql.enter_due, names, ADVANCE_LIMIT, self.now)
            return bool(await lapsing(self, connection, entering))
        groups = await connection.fetchval(self.sql.groups_of_wants, text)
        return bool(await connection.fetchval(self.sql.lapse, groups, ADVANCE_LIMIT, self.draw, self.now))

    async def _join(self, wants: Sequence[Want]) -> None:
        for want in wants:
            if want.group != "default":
                await self.create_group(want.filter if want.filter is not None else want.queues, want.group, want.start)

    async def _note_filter(self, where: Filter, group: str, start: Start) -> list[str]:
        await self.value(
            "create_group", self.sql.note_filter, group, where.namespace, where.task, start.at.value, start.time
        )
        names: list[str] = await self.value("create_group", self.sql.matching, where.namespace, where.task)
        return names

    async def _front(self, queue: str, group: str) -> tuple[int, int]:
        row = await self.call("front", lambda c, _: c.fetchrow(self.sql.front, queue, group))
        if row is None:
            raise NotFound(f"there is no queue '{queue}'")
        if row[1] is None:
            raise NotFound(f"queue '{queue}' has no group '{group}'")
        return row[0], row[1]

    async def _configure(self, connection: Connection, queue: str, changes: Mapping[str, Any]) -> QueueSettings:
        async with connection.transaction():
            now = self.now or await connection.fetchval("SELECT clock_timestamp()")
            await connection.execute(self.sql.create_queue, queue, now)
            settings = QueueSettings().changed(json.loads(await connection.fetchval(self.sql.lock_settings, queue)))
            settings = settings.changed(changes)
            await connection.execute(
                self.sql.configure, queue, json.dumps(settings.overrides()), schema.rules_text(settings), now
            )
        return settings

    async def _delete_group(self, connection: Connection, queue: str, group: str) -> bool:
        async with connection.transaction():
            found = await connection.fetchval(self.sql.lock_group, queue, group)
            if found is None:
                return False
            now = self.now or await connection.fetchval("SELECT clock_timestamp()")
            await connection.execute(self.sql.drop_group, found)
            await connection.execute(self.sql.tidy_queue, queue, now)
        return True

    async def _retry_dead(
        self, connection: Connection, queue: str, group_id: int, ids: Sequence[MessageId] | None
    ) -> list[MessageId]:
        async with connection.transaction():
            wanted = None if ids is None else list(dict.fromkeys(ids))
            olds = [row[0] for row in await connection.fetch(self.sql.letters, group_id, wanted)]
            if wanted is not None:
                olds = [id for id in wanted if id in set(olds)]
            now = self.local_now
            news = message_ids(int(now.timestamp() * 1000), secrets.randbits(80), len(olds))
            if olds:
                retrying = partial(connection.execute, self.sql.retry_dead, queue, group_id, olds, news, self.now)
                await lapsing(self, connection, retrying)
        return news
