"""The SQLite engine: each verb of the seam, handed to the session that owns the connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import secrets
import time
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import apsw

from qo.core.capabilities import Capabilities
from qo.core.errors import Forbidden, Incompatible, Unavailable
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
from qo.core.message import MessageId, NewMessage, Pushed, message_ids
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
from qo.core.record import Delete, Due, Put, Record, checked_limit
from qo.core.scaling import Demand
from qo.core.verbs import DeadLettersWanted, Hint
from qo.core.worker import Heartbeat, WaitingKind, WorkerInfo
from qo.stores.idempotency import arrangement_of, change_alone, delete_alone
from qo.stores.sealing import SealingKey
from qo.stores.sqlite import cancel, dead, groups, inspect, queues, records, schema, traces, workers
from qo.stores.sqlite.ack import ack_by_name, named_message
from qo.stores.sqlite.claim import claim, claim_on
from qo.stores.sqlite.demand import demand
from qo.stores.sqlite.ears import MEMORY, Ear, ears_of
from qo.stores.sqlite.extend import extend
from qo.stores.sqlite.failures import translated
from qo.stores.sqlite.keys import Keys
from qo.stores.sqlite.moments import micros
from qo.stores.sqlite.push import push_once
from qo.stores.sqlite.session import News, Probe, Session
from qo.stores.sqlite.settle import settle
from qo.stores.sqlite.tidy import tidy
from qo.stores.sqlite.transact import arranged_once, transact
from qo.stores.sqlite.transaction import QueueRow, Transaction

T = TypeVar("T")

BUSY_TIMEOUT_MS = 30_000
BUSY_REST_SECONDS = 0.001
STATEMENT_CACHE = 256
PAGE_CACHE_KIB = 16 * 1024
OWNER_ONLY = 0o600
CANCEL_STEP = 250
"""Messages that one transaction cancels, unless a nonce stands for all of them: others want to write, too."""
SYNCHRONOUS = ("full", "normal", "extra", "off")


def utc_now() -> datetime:
    return datetime.now(UTC)


class Patience:
    """SQLite's busy handler: while another process writes, try again about every millisecond, up to a limit.

    SQLite's own handler waits longer each time, up to 100 ms: a writer that waited long then hardly ever meets the gap
    between two commits of others, and gets next to nothing of the work.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._began = 0.0

    def __call__(self, tries: int) -> bool:
        now = time.monotonic()
        if tries == 0:
            self._began = now
        if now - self._began >= self._seconds:
            return False
        time.sleep(BUSY_REST_SECONDS * (0.5 + random.random()))  # noqa: S311 - it need not be a secret
        return True


class SqliteEngine:
    """Everything that `Engine` promises, in one file. Open it with `await SqliteEngine.open(path)`."""

    capabilities = Capabilities(
        names=True,
        seeks_by_offset=True,
        lists_lanes=True,
        enqueues_in_sql=False,
        wakes_others=False,
        serves_many_processes=False,
        migrates=False,
    )

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        clock: Callable[[], datetime] = utc_now,
        draw: Callable[[], float] = random.random,
        migrations: list[schema.Migration] | None = None,
        probe: Probe | None = None,
        key: SealingKey | None = None,
    ) -> None:
        self._path = path
        self._synchronous = synchronous
        self._clock = clock
        self._draw = draw
        self._migrations = migrations or schema.migrations()
        self._keys = Keys(key)
        self._watched: set[MessageId] = set()
        self._ears = ears_of(path)
        self._ear: Ear | None = None
        self._data_version: int | None = None
        self._writer = Session(self._connect, self._begin, writes=True, news=self._news, probe=probe)
        self._reader = (
            self._writer
            if path == MEMORY
            else Session(self._connect_to_read, self._begin, writes=False, news=lambda _: [], probe=None)
        )

    @classmethod
    async def open(cls, path: str, **options: Any) -> Self:
        engine = cls(path, **options)
        await engine._writer.open()
        if engine._reader is not engine._writer:
            await engine._reader.open()
        try:
            await engine._reader.do("keys", engine._keys.check)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def close(self) -> None:
        if self._ear is not None:
            self._ears.discard(self._ear)
        if self._reader is not self._writer:
            await self._reader.close()
        await self._writer.close()

    # The verbs that move messages

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        return await self._writer.do("push", lambda tx: push_once(tx, tuple(messages), nonce))

    async def claim(self, wants: Sequence[Want]) -> Sequence[Claimed | Nothing]:
        return await self._writer.do("claim", lambda tx: claim(tx, tuple(wants)))

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        return await self._writer.do("settle", lambda tx: (settle(tx, tuple(settlements)), claim_on(tx, tuple(then))))

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        return await self._writer.do("extend", lambda tx: extend(tx, tuple(extensions)))

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        return await self._writer.do("transact", lambda tx: transact(tx, tuple(units)))

    async def ack_by_name(self, acks: Sequence[AckByName]) -> Sequence[Acked]:
        return await self._writer.do("ack_by_name", lambda tx: ack_by_name(tx, acks))

    async def tidy(self) -> datetime | None:
        return await self._writer.do("tidy", tidy)

    async def others_wrote(self) -> bool:
        version = await self._writer.do("others_wrote", lambda tx: tx.value("PRAGMA data_version"))
        before, self._data_version = self._data_version, version
        return before is not None and before != version

    async def start_listening(self) -> None:
        """Nothing to open: who else writes is found out by asking."""

    async def verify(self) -> None:
        """Nothing to verify: hints come from this process alone, or by asking."""

    def store_now(self) -> datetime:
        return self._clock()

    @property
    def check_seconds(self) -> float:
        return 0.0

    @property
    def unreadable(self) -> int:
        return self._keys.unreadable

    @property
    def must_poll(self) -> bool:
        return self._path != MEMORY

    def listen(self, heard: Callable[[Hint], None]) -> None:
        self._ear = Ear(asyncio.get_running_loop(), heard, self._watched)
        self._ears.add(self._ear)

    def watch(self, ids: Sequence[MessageId]) -> None:
        self._watched.update(ids)

    def unwatch(self, ids: Sequence[MessageId]) -> None:
        self._watched.difference_update(ids)

    # The verbs that arrange things

    async def configure(self, queue: str, changes: Mapping[str, Any], *, nonce: str | None = None) -> QueueSettings:
        of = arrangement_of("configure", queue, dict(changes))
        return await self._once(of, nonce, QueueSettings, lambda tx: queues.configure(tx, queue, changes))

    async def delete_queue(self, queue: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_queue", queue)
        return await self._once(of, nonce, bool, lambda tx: queues.delete(tx, queue))

    async def purge(self, queue: str, *, nonce: str | None = None) -> int:
        return await self._once(arrangement_of("purge", queue), nonce, int, lambda tx: queues.purge(tx, queue))

    async def pause(self, queue: str, paused: bool, *, nonce: str | None = None) -> None:
        of = arrangement_of("pause", queue, paused)
        await self._once(of, nonce, bool, lambda tx: queues.pause(tx, queue, paused))

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        of = arrangement_of("create_group", queues, group, start)
        return await self._once(of, nonce, bool, lambda tx: groups.create(tx, queues, group, start))

    async def delete_group(self, queue: str, group: str, *, nonce: str | None = None) -> bool:
        of = arrangement_of("delete_group", queue, group)
        return await self._once(of, nonce, bool, lambda tx: groups.delete(tx, queue, group))

    async def seek(
        self, queue: str, group: str, to: Start | int, key: str | None = None, *, nonce: str | None = None
    ) -> int:
        of = arrangement_of("seek", queue, group, to, key)
        return await self._once(of, nonce, int, lambda tx: groups.seek(tx, queue, group, to, key))

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        if nonce is None:
            steps = [ids[start : start + CANCEL_STEP] for start in range(0, len(ids), CANCEL_STEP)]
            parts = [await self._writer.do("arrange", partial(cancel.cancel, ids=step, group=group)) for step in steps]
            return [answer for part in parts for answer in part]
        of = arrangement_of("cancel", list(ids), group)
        return await self._once(of, nonce, list[CancelAnswer], lambda tx: cancel.cancel(tx, ids, group))

    async def retry_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> Sequence[MessageId]:
        of = arrangement_of("retry_dead", queue, group, ids)
        return await self._once(
            of, nonce, list[MessageId], lambda tx: dead.retry(tx, queue, group, ids, partial(_new_ids, tx))
        )

    async def purge_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> int:
        of = arrangement_of("purge_dead", queue, group, ids)
        return await self._once(of, nonce, int, lambda tx: dead.purge(tx, queue, group, ids))

    async def _once(self, of: str, nonce: str | None, kind: type[T], do: Callable[[Transaction], T]) -> T:
        """Do it, unless it was done under this nonce before; then give its answer again."""
        if nonce is None:
            return await self._writer.do("arrange", do)
        return await self._writer.do("arrange", lambda tx: arranged_once(tx, nonce, of, kind, do))

    # What other systems' wires need

    async def reconfigure(self, queue: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]) -> QueueInfo:
        def do(tx: Transaction) -> QueueInfo:
            queues.reconfigure(tx, queue, change)
            return inspect.queue(tx, queue)

        return await self._writer.do("arrange", do)

    async def named_message(self, queue: str, key: str, name: str) -> NamedMessage | None:
        return await self._reader.do("named_message", lambda tx: named_message(tx, queue, key, name))

    async def dead_letters(self, wanted: DeadLettersWanted) -> tuple[Sequence[DeadLetter], int]:
        return await self._reader.do("dead_letters", lambda tx: inspect.dead_letters(tx, wanted))

    async def group_places(self, group: str | None, limit: int) -> Sequence[GroupPlace]:
        return await self._reader.do("group_places", lambda tx: inspect.group_places(tx, group, limit))

    async def drop_filters(self, group: str) -> int:
        return await self._writer.do("drop_filters", lambda tx: groups.drop_filters(tx, group))

    async def add_trace(self, trace: Trace) -> None:
        await self._writer.do("add_trace", lambda tx: traces.add(tx, trace))

    async def traces(self, queue: str, key: str, name: str) -> Sequence[Trace]:
        return await self._reader.do("traces", lambda tx: traces.of_message(tx, queue, key, name))

    async def traces_by_name(self, name: str, limit: int, offset: int) -> tuple[Sequence[Trace], int]:
        return await self._reader.do("traces_by_name", lambda tx: traces.by_name(tx, name, limit, offset))

    async def trace_names(self, limit: int, offset: int) -> tuple[Sequence[tuple[str, int]], int]:
        return await self._reader.do("trace_names", lambda tx: traces.names(tx, limit, offset))

    # Records

    async def record(self, kind: str, name: str) -> Record | None:
        return await self._reader.do("record", lambda tx: records.find(tx, kind, name))

    async def records(self, kind: str, after: str, limit: int) -> Sequence[Record]:
        checked_limit(limit)
        return await self._reader.do("records", lambda tx: records.list_all(tx, kind, after, limit))

    async def put_record(self, put: Put, *, nonce: str | None = None) -> int:
        return await change_alone(self, put, nonce)

    async def delete_record(
        self, kind: str, name: str, expected: int | None = None, *, nonce: str | None = None
    ) -> bool:
        return await delete_alone(self, Delete(kind=kind, name=name, expected=expected), nonce)

    async def due_records(self, kind: str, limit: int) -> Due:
        checked_limit(limit)
        return await self._reader.do("due_records", lambda tx: records.due(tx, kind, limit))

    # Who works

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> bool:
        return await self._writer.do("heartbeat", lambda tx: workers.heartbeat(tx, heartbeats))

    async def adopt(self, id: str) -> bool:
        return await self._writer.do("adopt", lambda tx: workers.adopt(tx, id))

    async def disown(self, ids: Sequence[str]) -> None:
        await self._writer.do("disown", lambda tx: workers.disown(tx, ids))

    async def deregister(self, ids: Sequence[str]) -> None:
        await self._writer.do("deregister", lambda tx: workers.deregister(tx, ids))

    async def workers(self) -> Sequence[WorkerInfo]:
        return await self._reader.do("workers", workers.every)

    async def unserved(self) -> Sequence[WaitingKind]:
        return await self._reader.do("unserved", workers.nobody_takes)

    # Reads

    async def queue(self, queue: str) -> QueueInfo:
        return await self._reader.do("queue", lambda tx: inspect.queue(tx, queue))

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]:
        return await self._reader.do("queues", lambda tx: inspect.queues(tx, after, limit))

    async def overview(self, after: str, limit: int) -> Sequence[QueueOverview]:
        return await self._reader.do("overview", lambda tx: inspect.overview(tx, after, limit))

    async def groups(self, queue: str) -> Sequence[GroupInfo]:
        return await self._reader.do("groups", lambda tx: inspect.groups(tx, queue))

    async def depth(self, queue: str, group: str) -> Depth:
        return await self._reader.do("depth", lambda tx: inspect.depth(tx, queue, group))

    async def queues_of(self, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
        return await self._writer.do("queues_of", lambda tx: inspect.queues_of(tx, lanes, tokens))

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        return await self._reader.do("demand", lambda tx: demand(tx, queues, group, kinds))

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]:
        return await self._reader.do("lanes", lambda tx: inspect.lanes(tx, queue, group, after, limit))

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]:
        # By the writer: whoever watches a job and then looks must not miss a commit that is under way.
        session = self._writer if not self._watched.isdisjoint(ids) else self._reader
        return await session.do("jobs", lambda tx: inspect.jobs(tx, ids))

    async def list_jobs(self, queue: str, state: JobState | None, before: str | None, limit: int) -> Sequence[Job]:
        return await self._reader.do("list_jobs", lambda tx: inspect.list_jobs(tx, queue, state, before, limit))

    async def events(self, id: MessageId) -> Sequence[Event]:
        return await self._reader.do("events", lambda tx: inspect.events(tx, id))

    async def dead(self, queue: str, group: str | None, after: str | None, limit: int) -> Sequence[DeadLetter]:
        return await self._reader.do("dead", lambda tx: inspect.dead(tx, queue, group, after, limit))

    async def health(self) -> Health:
        return await self._reader.do("health", lambda tx: inspect.health(tx, self._path))

    async def ready(self) -> None:
        await self._reader.do("ready", lambda tx: schema.check_version(tx.value("PRAGMA user_version"), self._path))

    # On the session's thread

    def _connect(self) -> apsw.Connection:
        """Open the file to write, make sure that it is ours, and bring its schema forward."""
        try:
            self._create_for_owner()
            connection = self._open()
        except apsw.Error as error:
            raise _about_file(error, self._path) from error
        try:
            self._set_up(connection)
        except BaseException as error:
            connection.close()
            raise _about_file(error, self._path) from error
        return connection

    def _open(self) -> apsw.Connection:
        """A statement is planned once: without this, SQLite plans many of them again for each value that is bound."""
        connection = apsw.Connection(self._path, statementcachesize=STATEMENT_CACHE)
        connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        return connection

    def _create_for_owner(self) -> None:
        """Messages are nobody else's to read. The log and the index beside the file are made as the file is."""
        if self._path != MEMORY and not Path(self._path).exists():
            with contextlib.suppress(OSError):  # what is wrong with the path is for SQLite to say
                os.close(os.open(self._path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, OWNER_ONLY))

    def _set_up(self, connection: apsw.Connection) -> None:
        connection.set_busy_handler(Patience(BUSY_TIMEOUT_MS / 1000))
        connection.pragma("auto_vacuum", "incremental")  # has an effect on a new file alone
        if self._path != MEMORY and connection.readonly("main"):
            raise Forbidden("the file is read-only; qo must be able to write to it and to its folder")
        schema.bring_forward(connection, self._path, self._migrations)
        connection.pragma("journal_mode", "wal")
        connection.pragma("synchronous", self._synchronous)
        connection.pragma("cache_size", -PAGE_CACHE_KIB)

    def _connect_to_read(self) -> apsw.Connection:
        connection = self._open()
        connection.set_busy_timeout(BUSY_TIMEOUT_MS)
        connection.pragma("query_only", True)
        return connection

    def _begin(self, connection: apsw.Connection, careful: bool, queues: dict[str, QueueRow]) -> Transaction:
        now = micros(self._clock())
        return Transaction(connection, now, self._draw, self._ears.watched(), careful, queues, self._keys)

    def _news(self, tx: Transaction) -> list[News]:
        """The hints that a commit sends: to those who listen here, and to the other engines of this process."""
        if not (tx.hints or tx.finished or tx.hint_everyone or tx.changed_records):
            return []
        queues = None if tx.hint_everyone else frozenset(tx.hints)
        ended, changed = frozenset(tx.finished), frozenset(tx.changed_records)
        return [
            News(ear.loop, partial(ear.heard, Hint(queues, ended & ear.watched, changed))) for ear in self._ears.all()
        ]


def _new_ids(tx: Transaction, count: int) -> list[MessageId]:
    return message_ids(tx.now // 1000, secrets.randbits(80), count)


def _about_file(error: BaseException, path: str) -> BaseException:
    told = translated(error)
    if isinstance(told, Incompatible | Forbidden | Unavailable) and path not in str(told):
        return type(told)(f"{path}: {told}")
    return told


def options_of(url: str) -> tuple[str, dict[str, str]]:
    """Read `sqlite:///path?synchronous=normal`: the path, and the options.

    Three slashes make a relative path, four an absolute one, as in SQLAlchemy.
    """
    parts = urllib.parse.urlsplit(url)
    options = dict(urllib.parse.parse_qsl(parts.query, keep_blank_values=True))
    if parts.netloc == MEMORY or parts.path == f"/{MEMORY}":
        return MEMORY, options
    return str(Path(urllib.parse.unquote(parts.path[1:])).expanduser()), options
