"""The PostgreSQL engine: the verbs, each a call of one function."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Self

from qo.core.capabilities import Capabilities
from qo.core.errors import Incompatible
from qo.core.lane import Filter, Start
from qo.core.lease import (
    AckByName,
    Acked,
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
from qo.core.message import MessageId, NewMessage, Pushed
from qo.core.outcome import (
    CancelAnswer,
    DeadLetter,
    Depth,
    Event,
    GroupInfo,
    GroupPlace,
    Health,
    Job,
    JobState,
    LaneInfo,
    NamedMessage,
    QueueInfo,
    Trace,
)
from qo.core.queue import QueueSettings
from qo.core.record import ABSENT, Delete, Due, Put, Record, RecordChange, checked_limit
from qo.core.scaling import Demand
from qo.core.verbs import DeadLettersWanted, Hint
from qo.core.worker import Heartbeat, WaitingKind, WorkerInfo
from qo.stores.idempotency import arrangement_of, change_alone, delete_alone
from qo.stores.postgres import admin, inspect, records, schema, traces, workers
from qo.stores.postgres.ack import ack_by_name, named_message
from qo.stores.postgres.address import Address
from qo.stores.postgres.admin import once
from qo.stores.postgres.claim import claim
from qo.stores.postgres.extend import extend
from qo.stores.postgres.keys import Keys
from qo.stores.postgres.late_hints import LateHints
from qo.stores.postgres.listener import Listener
from qo.stores.postgres.migrating import MIGRATING_SECONDS
from qo.stores.postgres.pool import Connection, Pool
from qo.stores.postgres.push import push, push_once
from qo.stores.postgres.settle import settle
from qo.stores.postgres.statements import Statements
from qo.stores.postgres.transact import transact
from qo.stores.sealing import SealingKey

TIDY_LANES = 100
TIDY_ROWS = 1000
WATCH_LENGTH = timedelta(days=1)
ITEMS_PER_DEADLINE = 1000
"""A call of more items than this may take as much longer: a deadline for each so many."""
ARRANGING_SECONDS = 270.0
"""How much longer a call may take that arranges things or tidies: it may concern a whole queue."""
ARRANGING = frozenset({
    "arrange", "advance", "cancel", "configure", "create_group", "delete_group", "delete_queue", "purge", "purge_dead",
    "retry_dead", "seek", "tidy",
})  # fmt: skip


class PostgresEngine:
    """Everything that `Engine` promises, in one schema. Open it with `await PostgresEngine.open(address)`."""

    capabilities = Capabilities(
        names=True,
        seeks_by_offset=True,
        lists_lanes=True,
        enqueues_in_sql=True,
        wakes_others=True,
        serves_many_processes=True,
        migrates=True,
    )

    def __init__(
        self,
        address: Address,
        *,
        clock: Callable[[], datetime] | None = None,
        draw: Callable[[], float] | None = None,
        probe: Callable[[str, list[str]], None] | None = None,
        key: SealingKey | None = None,
    ) -> None:
        self.address = address
        self.keys = Keys(key)
        self.sql = Statements(address.schema)
        self.pool = Pool(address)
        self._clock = clock
        self._draw = draw
        self._probe = probe
        self.bound: Connection | None = None
        self._heard: Callable[[Hint], None] = lambda _: None
        self._watched: set[MessageId] = set()
        self._registered: set[MessageId] = set()
        self._newest: str | None = None
        self.asked: dict[tuple[tuple[str, ...], str], float] = {}
        """When what time has changed was last looked for, by queues and group."""
        self.listener = Listener(self.pool, self._on_hint)
        self.late_hints = LateHints(
            self._on_hint,
            lambda names: self.value("tell", self.sql.tell, names),
            lambda lanes: self.value("tell", self.sql.queues_of_keyed, lanes),
        )

    @classmethod
    async def open(cls, address: Address, **options: Any) -> Self:
        engine = cls(address, **options)
        try:
            await engine.pool.call(engine._bring_forward, extra_seconds=MIGRATING_SECONDS)
            await engine.keys.load(engine)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def close(self) -> None:
        await self.late_hints.close()
        await self.listener.close()
        await self.pool.close()

    @property
    def now(self) -> datetime | None:
        """The time that functions are given; None: the server's own."""
        return None if self._clock is None else self._clock()

    def store_now(self) -> datetime:
        """The server's time, as far as this process knows it."""
        return self.pool.clock.now() if self._clock is None else self._clock()

    @property
    def draw(self) -> float | None:
        return None if self._draw is None else self._draw()

    def on(self, connection: Connection) -> Self:
        """This engine with all that it says on one connection: inside a transaction that is under way."""
        bound = copy.copy(self)
        bound.bound = connection
        return bound

    async def call(self, name: str, work: Callable[[Connection, bool], Any], *, items: int = 1) -> Any:
        """Run a verb, telling the probe, if there is one, of its commit."""
        if self.bound is not None:
            return await work(self.bound, False)
        extra = ARRANGING_SECONDS if name in ARRANGING else self.pool.deadline_seconds * (items // ITEMS_PER_DEADLINE)
        if self._probe is None:
            return await self.pool.call(work, extra_seconds=extra)
        self._probe("before commit", [name])
        answer = await self.pool.call(work, extra_seconds=extra)
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
        return await claim(self, wants)

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        answers, claims = await settle(self, settlements, then)
        claimed = await self.claim(then) if claims is None else claims
        self.late_hints.ended(
            each.lane for each, answer in zip(settlements, answers, strict=True) if answer.lease_ended
        )
        return answers, claimed

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await extend(self, extensions)

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        answers = [await transact(self, unit) for unit in units]
        for unit, answer in zip(units, answers, strict=True):
            if isinstance(answer, Done):
                self.late_hints.ended(each.lane for each in unit.settlements)
                self._acked(unit.acks, answer.acked)
                self._changed(unit.records, answer.versions)
        return answers

    async def ack_by_name(self, acks: Sequence[AckByName]) -> Sequence[Acked]:
        answers = await ack_by_name(self, acks)
        self._acked(acks, answers)
        return answers

    def _acked(self, acks: Sequence[AckByName], answers: Sequence[Acked]) -> None:
        ended = {each.queue for each, answer in zip(acks, answers, strict=True) if answer.lease_ended}
        if ended:
            self.late_hints.may_have_work(ended)

    def _changed(self, changes: Sequence[RecordChange], versions: Sequence[int]) -> None:
        kinds = {each.kind for each, version in zip(changes, versions, strict=True) if version != ABSENT}
        if kinds:
            self._heard(Hint(records=frozenset(kinds)))

    async def tidy(self) -> datetime | None:
        more_lanes = await self.value("tidy", self.sql.tidy_lanes, TIDY_LANES, TIDY_ROWS, self.now)
        more = await self.value("tidy", self.sql.tidy_rest, TIDY_ROWS, self.now)
        if more_lanes or more:
            return self.store_now()
        rest: timedelta | None = await self.value("tidy", self.sql.next_tidy, self.now)
        return None if rest is None else self.store_now() + rest

    async def others_wrote(self) -> bool:
        """Whether any transaction wrote since the last look; the server counts those of other databases, too."""
        newest = await self.value("others_wrote", self.sql.newest_transaction)
        before, self._newest = self._newest, newest
        return before is not None and before != newest

    async def start_listening(self) -> None:
        if not self.listener.is_open:
            await self.listener.open()

    async def verify(self) -> None:
        await self.listener.verify()

    @property
    def check_seconds(self) -> float:
        return self.address.check

    @property
    def unreadable(self) -> int:
        return self.keys.unreadable

    @property
    def must_poll(self) -> bool:
        return self.listener.must_poll

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self._heard = heard

    def watch(self, ids: Sequence[MessageId]) -> None:
        self._watched.update(ids)

    def unwatch(self, ids: Sequence[MessageId]) -> None:
        self._watched.difference_update(ids)
        self._registered.difference_update(ids)

    # The verbs that arrange things

    async def configure(self, queue: str, changes: Mapping[str, Any], *, nonce: str | None = None) -> QueueSettings:
        of = arrangement_of("configure", queue, dict(changes))
        return await once(self, of, nonce, QueueSettings, lambda on: admin.configure(on, queue, changes))

    async def delete_queue(self, queue: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_queue", queue)
        return await once(self, of, nonce, bool, lambda on: admin.delete_queue(on, queue))

    async def purge(self, queue: str, *, nonce: str | None = None) -> int:
        await admin.lapse_queue(self, queue)
        return await once(self, arrangement_of("purge", queue), nonce, int, lambda on: admin.purge(on, queue))

    async def pause(self, queue: str, paused: bool, *, nonce: str | None = None) -> None:
        of = arrangement_of("pause", queue, paused)
        await once(self, of, nonce, bool, lambda on: admin.pause(on, queue, paused))

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        of = arrangement_of("create_group", queues, group, start)
        return await once(self, of, nonce, bool, lambda on: admin.create_group(on, queues, group, start))

    async def delete_group(self, queue: str, group: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_group", queue, group)
        return await once(self, of, nonce, bool, lambda on: admin.delete_group(on, queue, group))

    async def seek(
        self, queue: str, group: str, to: Start | int, key: str | None = None, *, nonce: str | None = None
    ) -> int:
        await admin.lapse_group(self, queue, group)
        of = arrangement_of("seek", queue, group, to, key)
        return await once(self, of, nonce, int, lambda on: admin.seek(on, queue, group, to, key))

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        of = arrangement_of("cancel", list(ids), group)
        return await once(self, of, nonce, list[CancelAnswer], lambda on: admin.cancel(on, ids, group))

    async def retry_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> Sequence[MessageId]:
        of = arrangement_of("retry_dead", queue, group, ids)
        return await once(self, of, nonce, list[MessageId], lambda on: admin.retry_dead(on, queue, group, ids))

    async def purge_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> int:
        of = arrangement_of("purge_dead", queue, group, ids)
        return await once(self, of, nonce, int, lambda on: admin.purge_dead(on, queue, group, ids))

    # What other systems' wires need

    async def reconfigure(self, queue: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]) -> QueueInfo:
        await admin.reconfigure(self, queue, change)
        return await inspect.queue(self, queue)

    async def named_message(self, queue: str, key: str, name: str) -> NamedMessage | None:
        return await named_message(self, queue, key, name)

    async def dead_letters(self, wanted: DeadLettersWanted) -> tuple[Sequence[DeadLetter], int]:
        return await inspect.dead_letters(self, wanted)

    async def group_places(self, group: str | None, limit: int) -> Sequence[GroupPlace]:
        return await inspect.group_places(self, group, limit)

    async def drop_filters(self, group: str) -> int:
        return int(await self.value("drop_filters", self.sql.drop_filters, group))

    async def add_trace(self, trace: Trace) -> None:
        await traces.add(self, trace)

    async def traces(self, queue: str, key: str, name: str) -> Sequence[Trace]:
        return await traces.of_message(self, queue, key, name)

    async def traces_by_name(self, name: str, limit: int, offset: int) -> tuple[Sequence[Trace], int]:
        return await traces.by_name(self, name, limit, offset)

    async def trace_names(self, limit: int, offset: int) -> tuple[Sequence[tuple[str, int]], int]:
        return await traces.names(self, limit, offset)

    # Records

    async def record(self, kind: str, name: str) -> Record | None:
        return await records.find(self, kind, name)

    async def records(self, kind: str, after: str, limit: int) -> Sequence[Record]:
        return await records.list_all(self, kind, after, checked_limit(limit))

    async def put_record(self, put: Put, *, nonce: str | None = None) -> int:
        return await change_alone(self, put, nonce)

    async def delete_record(
        self, kind: str, name: str, expected: int | None = None, *, nonce: str | None = None
    ) -> bool:
        return await delete_alone(self, Delete(kind=kind, name=name, expected=expected), nonce)

    async def due_records(self, kind: str, limit: int) -> Due:
        return await records.due(self, kind, checked_limit(limit))

    # Who works

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> bool:
        await self.start_listening()
        return await workers.heartbeat(self, heartbeats)

    async def adopt(self, id: str) -> bool:
        await self.start_listening()
        return await workers.adopt(self, id)

    async def disown(self, ids: Sequence[str]) -> None:
        await self.listener.disown(ids)

    async def deregister(self, ids: Sequence[str]) -> None:
        await workers.deregister(self, ids)

    async def workers(self) -> Sequence[WorkerInfo]:
        return await workers.every(self)

    async def unserved(self) -> Sequence[WaitingKind]:
        return await workers.nobody_takes(self)

    # Reads

    async def queue(self, queue: str) -> QueueInfo:
        return await inspect.queue(self, queue)

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]:
        return await inspect.queues(self, after, limit)

    async def groups(self, queue: str) -> Sequence[GroupInfo]:
        return await inspect.groups(self, queue)

    async def depth(self, queue: str, group: str) -> Depth:
        return await inspect.depth(self, queue, group)

    async def queues_of(self, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
        return await inspect.queues_of(self, lanes, tokens)

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        return await inspect.demand(self, queues, group, kinds)

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]:
        return await inspect.lanes(self, queue, group, after, limit)

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]:
        unregistered = [id for id in ids if id in self._watched and id not in self._registered]
        if unregistered:
            until = self.store_now() + WATCH_LENGTH
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

    async def ready(self) -> None:
        found = await self.call("ready", lambda connection, _: schema.version(connection, self.address.schema))
        newest = schema.migrations()[-1].number
        schema.check(found, newest, self.address.schema)
        if found < newest:
            raise Incompatible(f"schema '{self.address.schema}' is at version {found}, and {newest} is needed")

    # Inside

    def _on_hint(self, hint: Hint) -> None:
        """Whoever listens by then: that is said after the listener was made."""
        self._heard(hint)

    async def _bring_forward(self, connection: Connection, _: bool) -> None:
        known = schema.migrations()
        found = await schema.version(connection, self.address.schema)
        schema.check(found, known[-1].number, self.address.schema)
        if found < known[-1].number:
            await schema.bring_forward(connection, self.address.schema, known)
