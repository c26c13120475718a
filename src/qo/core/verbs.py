"""The seam between qo and its engines: domain verbs, in batches.

Each verb takes a batch and does it in one commit. Items are judged one by one
(those of one lease together) and a bad one fails alone. No SQL, no rows, no
sessions leak through. Errors are those of `qo.core.errors`, translated once, in
the engine; an error that a verb raises means that nothing of the batch was done.

Stores never wait for work. An empty claim says when to ask again; waiting
belongs to the broker, which is told by hints that asking may be worth it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from qo.core.access import Token
from qo.core.capabilities import Capabilities
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
from qo.core.polling import Polled
from qo.core.queue import QueueSettings
from qo.core.record import Due, Put, Record
from qo.core.scaling import Demand
from qo.core.schedule import Coming, Plan, Run, ScheduleInfo
from qo.core.worker import Heartbeat, WaitingKind, WorkerInfo


class Hint(msgspec.Struct, frozen=True):
    """Asking may be worth it now. Carries no truth: losing one costs time, never a message.

    `queues` None means any queue. `finished` names watched messages that ended.
    `records` are the kinds of records of which some changed; None: any.
    """

    queues: frozenset[str] | None = frozenset()
    finished: frozenset[MessageId] = frozenset()
    records: frozenset[str] | None = frozenset()


EVERYTHING = Hint(None, records=None)

TRACES_LIMIT = 1000
"""How many traces of one message are listed."""


class DeadLettersWanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters to list; None: any."""

    queue: str | None = None
    group: str | None = None
    key: str | None = None
    name: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    limit: int = 100
    offset: int = 0


class Store(Protocol):
    """The verbs that move messages."""

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        """Store messages; creates queues and lanes on the way. Answered after the commit.

        A nonce makes the batch safe to repeat within an hour: the second time
        nothing is stored and the first answer is given.
        """
        ...

    async def claim(self, wants: Sequence[Want]) -> Sequence[Claimed | Nothing]:
        """Lease ready messages, higher priority first, then oldest head.

        Never waits and never raises for emptiness: an empty answer carries the
        time to ask again.
        """
        ...

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        """Say what became of claimed messages, then claim on, in the same commit."""
        ...

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        """Hold leases for longer; learn which of their messages were canceled."""
        ...

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        """Do each unit wholly or not at all."""
        ...

    async def queues_of(self, lanes: Sequence[int], tokens: Sequence[str]) -> Collection[str]:
        """The queues of these lanes, and of those that these tokens have leases on; what is not known has none."""
        ...

    async def tidy(self) -> datetime | None:
        """Remove a bounded amount of data that need not be kept. Answers when to call again; None: no need."""
        ...

    async def others_wrote(self) -> bool:
        """Whether another process has written since the last call. Only asked where `must_poll`."""
        ...

    async def close(self) -> None:
        """Finish what is under way and let go of the store."""
        ...

    async def start_listening(self) -> None:
        """Listen for other processes' commits, because a call is going to wait. Afterwards `must_poll` is known."""
        ...

    async def verify(self) -> None:
        """Make sure that hints still come; if they do not, listen anew and wake every waiter."""
        ...

    def store_now(self) -> datetime:
        """The store's time, as far as this process knows it; asks nobody."""
        ...

    @property
    def check_seconds(self) -> float:
        """How often hints are to be verified while someone waits; 0: never."""
        ...

    @property
    def unreadable(self) -> int:
        """Messages that this process buried because their payloads could not be opened."""
        ...

    @property
    def must_poll(self) -> bool:
        """Whether other processes' commits can only be noticed by asking `others_wrote`."""
        ...

    def listen(self, heard: Callable[[Hint], None]) -> None:
        """Have `heard` called on the caller's event loop after each commit that may make something claimable."""
        ...

    def watch(self, ids: Sequence[MessageId]) -> None:
        """Name these in a hint once they are finished for the default group."""
        ...

    def unwatch(self, ids: Sequence[MessageId]) -> None: ...


class Admin(Protocol):
    """The verbs that administer queues, groups and dead letters. A nonce makes each safe to repeat within an hour."""

    async def configure(self, queue: str, changes: Mapping[str, Any], *, nonce: str | None = None) -> QueueSettings:
        """Create the queue if need be and change some of its settings; answers all of them."""
        ...

    async def delete_queue(self, queue: str, *, nonce: str | None = None) -> bool:
        """Remove a queue and all that is in it. Whether there was one."""
        ...

    async def purge(self, queue: str, *, nonce: str | None = None) -> int:
        """Remove every message of a queue, settled or not, for every group; ends its leases. How many there were."""
        ...

    async def pause(self, queue: str, paused: bool, *, nonce: str | None = None) -> None:
        """Stop or resume claims. Pushes and settles go on."""
        ...

    async def create_group(
        self, queues: Sequence[str] | Filter, group: str, start: Start, *, nonce: str | None = None
    ) -> bool:
        """Register a group; the first registration wins. Answers whether this call registered it in any queue."""
        ...

    async def delete_group(self, queue: str, group: str, *, nonce: str | None = None) -> bool:
        """Remove a group's cursors, leases, retries and skips. Whether there was one."""
        ...

    async def seek(
        self, queue: str, group: str, to: Start | int, key: str | None = None, *, nonce: str | None = None
    ) -> int:
        """Move a group to the start, the end, a time or an offset, in all lanes or one keyed lane.

        Ends leases and drops retries, skips and attempts; stays within what is
        retained. How many lanes were moved.
        """
        ...

    async def cancel(self, ids: Sequence[MessageId], group: str, *, nonce: str | None = None) -> Sequence[CancelAnswer]:
        """Cancel messages for one group."""
        ...

    async def retry_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> Sequence[MessageId]:
        """Push dead letters again, addressed to that group. The new ids, in the order of the old."""
        ...

    async def purge_dead(
        self, queue: str, group: str, ids: Sequence[MessageId] | None, *, nonce: str | None = None
    ) -> int:
        """Remove dead letters. How many there were."""
        ...


class Wires(Protocol):
    """What the wires of other systems need beyond the verbs; in the process of a store only.

    Optional: an engine has it if its capabilities have `names`.
    """

    async def ack_by_name(self, acks: Sequence[AckByName]) -> Sequence[Acked]:
        """Move groups on in keyed lanes, by the names of messages. Those of one lane and lease are judged together."""
        ...

    async def reconfigure(self, queue: str, change: Callable[[QueueSettings | None], Mapping[str, Any]]) -> QueueInfo:
        """Change settings with a function of the present ones (None: the queue is new), in one commit."""
        ...

    async def named_message(self, queue: str, key: str, name: str) -> NamedMessage | None:
        """A message by its name in a keyed lane."""
        ...

    async def dead_letters(self, wanted: DeadLettersWanted) -> tuple[Sequence[DeadLetter], int]:
        """Dead letters, newest first, and how many there are in all."""
        ...

    async def group_places(self, group: str | None, limit: int) -> Sequence[GroupPlace]:
        """The groups that are not the default one, or one of them by name, with the queues that they are in."""
        ...

    async def drop_filters(self, group: str) -> int:
        """Remove the filters through which a group joins queues. Answers how many there were."""
        ...

    async def add_trace(self, trace: Trace) -> None: ...

    async def traces(self, queue: str, key: str, name: str) -> Sequence[Trace]:
        """Of one message, oldest first."""
        ...

    async def traces_by_name(self, name: str, limit: int, offset: int) -> tuple[Sequence[Trace], int]:
        """Newest first, and how many there are in all."""
        ...

    async def trace_names(self, limit: int, offset: int) -> tuple[Sequence[tuple[str, int]], int]:
        """Names, with how many traces each has; and how many names there are in all."""
        ...


class Records(Protocol):
    """Small values that are not messages, by kind and name. Units change them, too."""

    async def record(self, kind: str, name: str) -> Record | None: ...

    async def records(self, kind: str, after: str, limit: int) -> Sequence[Record]:
        """By name."""
        ...

    async def put_record(self, put: Put, *, nonce: str | None = None) -> int:
        """Write one; its new version. Raises `AlreadyExists` or `Conflict` if it is not as expected."""
        ...

    async def delete_record(
        self, kind: str, name: str, expected: int | None = None, *, nonce: str | None = None
    ) -> bool:
        """Remove one. Whether there was one."""
        ...

    async def due_records(self, kind: str, limit: int) -> Due:
        """Those that are due by the store's clock, and when the next one will be."""
        ...


class Access(Protocol):
    """Who may come in."""

    async def add_token(self, token: Token, lasts: timedelta | None = None) -> None:
        """Keep a token; `lasts`: for so long from now, by the store's clock."""
        ...

    async def token(self, id: str) -> Token | None: ...

    async def tokens(self) -> Sequence[Token]:
        """Oldest first."""
        ...

    async def remove_token(self, id: str) -> bool:
        """Revoke a token. Answers whether it existed."""
        ...


class Schedules(Protocol):
    """Rules that push when they are due. A name is unique; what fires is what the plan says when it is due."""

    async def create_schedule(self, name: str, plan: Plan, *, nonce: str | None = None) -> ScheduleInfo:
        """Raises `AlreadyExists` if there is one of that name."""
        ...

    async def put_schedule(self, name: str, plan: Plan) -> tuple[bool, ScheduleInfo]:
        """Create it, or give it this plan: safe to repeat. Whether it is new."""
        ...

    async def change_schedule(self, name: str, changes: Mapping[str, Any], expected: int | None = None) -> ScheduleInfo:
        """Change some fields of its plan, if it has the expected version; None: whichever it has."""
        ...

    async def schedule(self, name: str) -> ScheduleInfo:
        """Raises `NotFound` if there is none."""
        ...

    async def schedules(self, after: str, limit: int, tag: str | None) -> Sequence[ScheduleInfo]:
        """By name, each with its newest run; with a tag, those that have it."""
        ...

    async def delete_schedule(self, name: str) -> bool:
        """Whether there was one. Jobs that it pushed stay."""
        ...

    async def run_schedule(self, name: str, label: str | None = None, *, nonce: str | None = None) -> Run:
        """Push its message now, also if it is paused or another run is under way."""
        ...

    async def backfill_schedule(
        self, name: str, begin: datetime, end: datetime, label: str | None = None, *, nonce: str | None = None
    ) -> Sequence[Run]:
        """Push for all slots from one time to before another."""
        ...

    async def pause_schedules(
        self, names: Sequence[str] | None, tag: str | None, paused: bool, note: str | None = None
    ) -> int:
        """Pause schedules by name or by tag, or let them go on with slots from now on. How many changed."""
        ...

    async def preview_schedule(
        self, name: str, plan: Plan | None, count: int, after: datetime | None = None
    ) -> Sequence[Coming]:
        """The next slots of a schedule, or of a plan that is not stored; nothing is stored."""
        ...


class Workers(Protocol):
    """The registry of workers. An idle worker sends no heartbeat: the process it registered through vouches for it."""

    async def heartbeat(self, heartbeats: Sequence[Heartbeat]) -> bool:
        """Register workers, or note heartbeats. Answers whether this process vouches for them while they are idle."""
        ...

    async def adopt(self, id: str) -> bool:
        """Vouch for a worker that registered through another process. Whether it is known."""
        ...

    async def disown(self, ids: Sequence[str]) -> None:
        """Stop vouching for these workers."""
        ...

    async def deregister(self, ids: Sequence[str]) -> None:
        """Remove workers that have stopped from the registry."""
        ...

    async def workers(self) -> Sequence[WorkerInfo]:
        """By their ids; those that are gone for a day."""
        ...

    async def unserved(self) -> Sequence[WaitingKind]:
        """Kinds that have waited for a while and that no living worker takes."""
        ...


class Inspect(Protocol):
    """Bounded reads, for people and dashboards. What they list shows ids as text, and takes that text to page on."""

    async def queue(self, queue: str) -> QueueInfo: ...

    async def queues(self, after: str, limit: int) -> Sequence[QueueInfo]: ...

    async def overview(self, after: str, limit: int) -> Sequence[QueueOverview]:
        """How queues stand, by name."""
        ...

    async def groups(self, queue: str) -> Sequence[GroupInfo]: ...

    async def depth(self, queue: str, group: str) -> Depth: ...

    async def demand(self, queues: Sequence[str], group: str, kinds: Collection[str] | None) -> Demand:
        """What there is to do in these queues, for who takes these kinds; those that do not exist have nothing."""
        ...

    async def lanes(self, queue: str, group: str, after: int, limit: int) -> Sequence[LaneInfo]: ...

    async def jobs(self, ids: Sequence[MessageId]) -> Sequence[Job | None]: ...

    async def list_jobs(self, queue: str, state: JobState | None, before: str | None, limit: int) -> Sequence[Job]:
        """Newest first."""
        ...

    async def events(self, id: MessageId) -> Sequence[Event]: ...

    async def dead(self, queue: str, group: str | None, after: str | None, limit: int) -> Sequence[DeadLetter]: ...

    async def health(self) -> Health: ...

    async def ready(self) -> None:
        """Cheaply: raises unless the store can be reached and its schema is one that this qo knows."""
        ...


class Engine(Store, Admin, Records, Workers, Inspect, Protocol):
    """Everything that every place to keep messages can do; `capabilities` say what one can do beyond that."""

    @property
    def capabilities(self) -> Capabilities: ...


class Broker(Protocol):
    """What clients and workers call: a broker in this process, or one behind a server."""

    @property
    def admin(self) -> Admin: ...

    @property
    def access(self) -> Access: ...

    @property
    def schedules(self) -> Schedules: ...

    @property
    def workers(self) -> Workers: ...

    @property
    def inspect(self) -> Inspect: ...

    def now(self) -> datetime: ...

    def polled(self) -> Polled:
        """How often the store was asked whether others wrote, where it cannot wake us."""
        ...

    def new_ids(self, count: int) -> list[MessageId]: ...

    async def push(self, messages: Sequence[NewMessage], nonce: str | None = None) -> Sequence[Pushed]: ...

    async def claim(self, want: Want) -> Claimed | Nothing: ...

    async def claim_or_wait(self, want: Want, until: datetime | None, priority: int = 0) -> Claimed | Nothing: ...

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]: ...

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]: ...

    async def transact(self, unit: Unit) -> Done | Undone: ...

    async def finished(self, id: MessageId, until: datetime | None) -> Job | None: ...

    async def demand_or_wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand: ...

    async def close(self) -> None: ...
