"""The PostgreSQL engine: the verbs, each a call of one function."""

from __future__ import annotations

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
    QueueOverview,
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
from qo.stores.postgres.call import Call
from qo.stores.postgres.claim import claim
from qo.stores.postgres.extend import extend
from qo.stores.postgres.migrating import MIGRATING_SECONDS
from qo.stores.postgres.pool import Connection
from qo.stores.postgres.push import push, push_once
from qo.stores.postgres.settle import settle
from qo.stores.postgres.transact import transact

TIDY_LANES = 100
TIDY_ROWS = 1000
WATCH_LENGTH = timedelta(days=1)


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

    def __init__(self, address: Address, **options: Any) -> None:
        """The options are those of `Call`."""
        self.call = Call(address, **options)
        self._watched: set[MessageId] = set()
        self._registered: set[MessageId] = set()
        self._newest: str | None = None

    @classmethod
    async def open(cls, address: Address, **options: Any) -> Self:
        engine = cls(address, **options)
        try:
            await engine.call.pool.call(engine._bring_forward, extra_seconds=MIGRATING_SECONDS)
            await engine.call.keys.load()
        except BaseException:
            await engine.close()
            raise
        return engine

    async def close(self) -> None:
        await self.call.close()

    def store_now(self) -> datetime:
        """The server's time, as far as this process knows it."""
        return self.call.store_now()

    # The verbs that move messages

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        if nonce is None:
            answers, woke = await push(self.call, messages)
        else:
            answers, woke = await push_once(self.call, messages, nonce)
        if woke:
            self.call.hint(Hint(frozenset(message.queue for message in messages)))
        return answers

    async def claim(self, wants: Sequence[Want]) -> Sequence[Claimed | Nothing]:
        return await claim(self.call, wants)

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        answers, claims = await settle(self.call, settlements, then)
        claimed = await self.claim(then) if claims is None else claims
        self.call.late_hints.ended(
            each.lane for each, answer in zip(settlements, answers, strict=True) if answer.lease_ended
        )
        return answers, claimed

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await extend(self.call, extensions)

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        answers = [await transact(self.call, unit) for unit in units]
        for unit, answer in zip(units, answers, strict=True):
            if isinstance(answer, Done):
                self.call.late_hints.ended(each.lane for each in unit.settlements)
                self._acked(unit.acks, answer.acked)
                self._changed(unit.records, answer.versions)
        return answers

    async def ack_by_name(self, acks: Sequence[AckByName]) -> Sequence[Acked]:
        answers = await ack_by_name(self.call, acks)
        self._acked(acks, answers)
        return answers

    def _acked(self, acks: Sequence[AckByName], answers: Sequence[Acked]) -> None:
        ended = {each.queue for each, answer in zip(acks, answers, strict=True) if answer.lease_ended}
        if ended:
            self.call.late_hints.may_have_work(ended)

    def _changed(self, changes: Sequence[RecordChange], versions: Sequence[int]) -> None:
        kinds = {each.kind for each, version in zip(changes, versions, strict=True) if version != ABSENT}
        if kinds:
            self.call.hint(Hint(records=frozenset(kinds)))

    async def tidy(self) -> datetime | None:
        more_lanes = await self.call.value("tidy", self.call.sql.tidy_lanes, TIDY_LANES, TIDY_ROWS, self.call.now)
        more = await self.call.value("tidy", self.call.sql.tidy_rest, TIDY_ROWS, self.call.now)
        if more_lanes or more:
            return self.call.store_now()
        rest: timedelta | None = await self.call.value("tidy", self.call.sql.next_tidy, self.call.now)
        return None if rest is None else self.call.store_now() + rest

    async def others_wrote(self) -> bool:
        """Whether any transaction wrote since the last look; the server counts those of other databases, too."""
        newest = await self.call.value("others_wrote", self.call.sql.newest_transaction)
        before, self._newest = self._newest, newest
        return before is not None and before != newest

    async def start_listening(self) -> None:
        if not self.call.listener.is_open:
            await self.call.listener.open()

    async def verify(self) -> None:
        await self.call.listener.verify()

    @property
    def check_seconds(self) -> float:
        return self.call.address.check

    @property
    def unreadable(self) -> int:
        return self.call.keys.unreadable

    @property
    def must_poll(self) -> bool:
        return self.call.listener.must_poll

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self.call.heard = heard

    def watch(self, ids: Sequence[MessageId]) -> None:
        self._watched.update(ids)

    def unwatch(self, ids: Sequence[MessageId]) -> None:
        self._watched.difference_update(ids)
        self._registered.difference_update(ids)

    # The verbs that arrange things

    async def configure(self, queue: str, changes: Mapping[str, Any], *, nonce: str | None = None) -> QueueSettings:
        of = arrangement_of("configure", queue, dict(changes))
        return await once(self.call, of, nonce, QueueSettings, lambda on: admin.configure(on, queue, changes))

    async def delete_queue(self, queue: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_queue", queue)
        return await once(self.call, of, nonce, bool, lambda on: admin.delete_queue(on, queue))

    async def purge(self, queue: str, *, nonce: str | None = None) -> int:
        await admin.lapse_queue(self.call, queue)
        return await once(self.call, arrangement_of("purge", queue), nonce, int, lambda on: admin.purge(on, queue))

    async def pause(self, queue: str, paused: bool, *, nonce: str | None = None) -> None:
        of = arrangement_of("pause", queue, paused)
        await once(self.call, of, nonce, bool, lambda on: admin.pause(on, queue, paused))

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        of = arrangement_of("create_group", queues, group, start)
        return await once(self.call, of, nonce, bool, lambda on: admin.create_group(on, queues, group, start))

    async def delete_group(self, queue: str, group: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_group", queue, group)
        return await once(self.call, of, nonce, bool, lambda on: admin.delete_group(on, queue, group))

    async def seek(
        self, queue: str, group: str, to: Start | int, key: str | None = None, *, nonce: str | None = None
    ) -> int:
        await admin.lapse_group(self.call, queue, group)
        of = arrangement_of("seek", queue, group, to, key)
        return await once(self.call, of, nonce, int, lambda on: admin.seek(on, queue, group, to, key))

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        of = arrangement_of("cancel", list(ids), group)
        return await once(self.call, of, nonce, list[CancelAnswer], lambda on: admin.cancel(on, ids, group))

    async def retry_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> Sequence[MessageId]:
        of = arrangement_of("retry_dead", queue, group, ids)
        return await once(self.call, of, nonce, list[MessageId], lambda on: admin.retry_dead(on, queue, group, ids))

    async def purge_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> int:
        of = arrangement_of("purge_dead", queue, group, ids)
        return await once(self.call, of, nonce, int, lambda on: admin.purge_dead(on, queue, group, ids))

    # What other systems' wires need

    async def reconfigure(self, queue: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]) -> QueueInfo:
        await admin.reconfigure(self.call, queue, change)
        return await inspect.queue(self.call, queue)

    async def named_message(self, queue: str, key: str, name: str) -> NamedMessage | None:
        return await named_message(self.call, queue, key, name)

    async def dead_letters(self, wanted: DeadLettersWanted) -> tuple[Sequence[DeadLetter], int]:
        return await inspect.dead_letters(self.call, wanted)

    async def group_places(self, group: str | None, limit: int) -> Sequence[GroupPlace]:
        return await inspect.group_places(self.call, group, limit)

    async def drop_filters(self, group: str) -> int:
        return int(await self.call.value("drop_filters", self.call.sql.drop_filters, group))

    async def add_trace(self, trace: Trace) -> None:
        await traces.add(self.call, trace)

    async def traces(self, queue: str, key: str, name: str) -> Sequence[Trace]:
        return await traces.of_message(self.call, queue, key, name)

    async def traces_by_name(self, name: str, limit: int, offset: int) -> tuple[Sequence[Trace], int]:
        return await traces.by_name(self.call, name, limit, offset)

    async def trace_names(self, limit: int, offset: int) -> tuple[Sequence[tuple[str, int]], int]:
        return await traces.names(self.call, limit, offset)

    # Records

    async def record(self, kind: str, name: str) -> Record | None:
        return await records.find(self.call, kind, name)

    async def records(self, kind: str, after: str, limit: int) -> Sequence[Record]:
        return await records.list_all(self.call, kind, after, checked_limit(limit))

    async def put_record(self, put: Put, *, nonce: str | None = None) -> int:
        return await change_alone(self, put, nonce)

    async def delete_record(
        self, kind: str, name: str, expected: int | None = None, *, nonce: str | None = None
    ) -> bool:
        return await delete_alone(self, Delete(kind=kind, name=name, expected=expected), nonce)

    async def due_records(self, kind: str, limit: int) -> Due:
        return await records.due(self.call, kind, checked_limit(limit))

    # Who works

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> bool:
        await self.start_listening()
        return await workers.heartbeat(self.call, heartbeats)

    async def adopt(self, id: str) -> bool:
        await self.start_listening()
        return await workers.adopt(self.call, id)

    async def disown(self, ids: Sequence[str]) -> None:
        await self.call.listener.disown(ids)

    async def deregister(self, ids: Sequence[str]) -> None:
        await workers.deregister(self.call, ids)

    async def workers(self) -> Sequence[WorkerInfo]:
        return await workers.every(self.call)

    async def unserved(self) -> Sequence[WaitingKind]:
        return await workers.nobody_takes(self.call)

    # Reads

    async def queue(self, queue: str) -> QueueInfo:
        return await inspect.queue(self.call, queue)

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]:
        return await inspect.queues(self.call, after, limit)

    async def overview(self, after: str, limit: int) -> Sequence[QueueOverview]:
        return await inspect.overview(self.call, after, limit)

    async def groups(self, queue: str) -> Sequence[GroupInfo]:
        return await inspect.groups(self.call, queue)

    async def depth(self, queue: str, group: str) -> Depth:
        return await inspect.depth(self.call, queue, group)

    async def queues_of(self, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
        return await inspect.queues_of(self.call, lanes, tokens)

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        return await inspect.demand(self.call, queues, group, kinds)

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]:
        return await inspect.lanes(self.call, queue, group, after, limit)

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]:
        unregistered = [id for id in ids if id in self._watched and id not in self._registered]
        if unregistered:
            until = self.call.store_now() + WATCH_LENGTH
            await self.call.value("watch", self.call.sql.watch, unregistered, until)
            self._registered.update(id for id in unregistered if id in self._watched)
        return await inspect.jobs(self.call, ids)

    async def list_jobs(self, queue: str, state: JobState | None, before: str | None, limit: int) -> Sequence[Job]:
        return await inspect.list_jobs(self.call, queue, state, before, limit)

    async def events(self, id: MessageId) -> Sequence[Event]:
        return await inspect.events(self.call, id)

    async def dead(self, queue: str, group: str | None, after: str | None, limit: int) -> Sequence[DeadLetter]:
        return await inspect.dead(self.call, queue, group, after, limit)

    async def health(self) -> Health:
        return await inspect.health(self.call)

    async def ready(self) -> None:
        found = await self.call.run("ready", lambda connection, _: schema.version(connection, self.call.address.schema))
        newest = schema.migrations()[-1].number
        schema.check(found, newest, self.call.address.schema)
        if found < newest:
            raise Incompatible(f"schema '{self.call.address.schema}' is at version {found}, and {newest} is needed")

    # Inside

    async def _bring_forward(self, connection: Connection, _: bool) -> None:
        known = schema.migrations()
        found = await schema.version(connection, self.call.address.schema)
        schema.check(found, known[-1].number, self.call.address.schema)
        if found < known[-1].number:
            await schema.bring_forward(connection, self.call.address.schema, known)
