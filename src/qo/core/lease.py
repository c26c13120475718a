"""Claims, leases, and what is said about claimed messages.

The lease's token is the proof, not the worker's name: a worker that loses a
lease and wins it back holds a different token. Tokens come from the caller, so
that after a lost answer the truth can be looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NewType

import msgspec

from qo.core.durations import duration
from qo.core.errors import Invalid, TooLarge
from qo.core.lane import Filter, LaneId, Start
from qo.core.message import MessageId, NewMessage, Pushed
from qo.core.names import DEFAULT_GROUP, checked_key, checked_name
from qo.core.queue import QueueSettings
from qo.core.record import CHANGES_LIMIT, RecordChange
from qo.core.retry import MOST_ATTEMPTS

LeaseToken = NewType("LeaseToken", str)

CLAIM_LIMIT = 10_000
QUEUES_LIMIT = 1000
KINDS_LIMIT = 1000
THEN_LIMIT = 16
"""Claims that one settle makes in its commit."""
CLAIM_BYTES = 8 * 1024 * 1024
"""Payloads and headers that one claim takes at most, unless it says otherwise; at least one message."""
CLAIM_BYTES_LIMIT = 1024 * 1024 * 1024
BUDGETS_AT_ONCE = 8
"""Claims of one message each that are made in one step take at most the bytes of so many; the others ask again."""


class Want(msgspec.Struct, frozen=True, kw_only=True):
    """What a claim asks for.

    Names queues, or a filter over them. `kinds` None means all. `messages` caps
    the whole claim, `lanes` how many lanes it may take from, `lane_messages`
    the run of one keyed lane. `key` narrows it to that one keyed lane.
    `lease` None means each queue's own setting. `auto_settle` completes at
    delivery, in the same commit: at most once, by the caller's wish.
    `new_queue` is how a queue is set up that this claim creates, by naming a group in it.
    `max_bytes` caps the payloads and headers of the whole claim; a single message may be larger.
    `named`: the caller chose the token, and may come again with it.
    """

    token: LeaseToken
    queues: tuple[str, ...] = ()
    filter: Filter | None = None
    group: str = DEFAULT_GROUP
    start: Start = Start()
    kinds: frozenset[str] | None = None
    key: str | None = None
    messages: int = 1
    lanes: int | None = None
    lane_messages: int | None = None
    lease: timedelta | None = None
    owner: str | None = None
    auto_settle: bool = False
    new_queue: QueueSettings | None = None
    max_bytes: int = CLAIM_BYTES
    named: bool = False

    def __post_init__(self) -> None:
        if bool(self.queues) == (self.filter is not None):
            raise Invalid("queues", "a claim names queues or a filter, and not both")
        if len(self.queues) > QUEUES_LIMIT:
            raise Invalid("queues", f"a claim names at most {QUEUES_LIMIT} queues, not {len(self.queues)}")
        if self.kinds is not None and len(self.kinds) > KINDS_LIMIT:
            raise Invalid("kinds", f"a claim names at most {KINDS_LIMIT} kinds, not {len(self.kinds)}")
        for queue in self.queues:
            checked_name("queue", queue)
        for kind in self.kinds or ():
            checked_name("kinds", kind)
        checked_name("group", self.group)
        if self.key is not None:
            checked_key("key", self.key)
        self._check_amounts()

    def _check_amounts(self) -> None:
        _check_count("messages", self.messages)
        if self.lanes is not None:
            _check_count("lanes", self.lanes)
        if self.lane_messages is not None:
            _check_count("lane_messages", self.lane_messages)
        if self.lease is not None and self.lease <= timedelta(0):
            raise Invalid("lease", "must be greater than 0")
        if type(self.max_bytes) is not int or not 1 <= self.max_bytes <= CLAIM_BYTES_LIMIT:
            raise Invalid("max_bytes", f"must be a whole number from 1 to {CLAIM_BYTES_LIMIT}, not {self.max_bytes!r}")


def _check_count(field: str, value: int) -> None:
    if type(value) is not int or not 1 <= value <= CLAIM_LIMIT:
        raise Invalid(field, f"must be a whole number from 1 to {CLAIM_LIMIT}, not {value!r}")


class Delivered(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """One message under a lease. `attempt` counts from 1."""

    token: LeaseToken
    lane: LaneId
    offset: int
    id: MessageId
    queue: str
    key: str | None
    kind: str
    payload: bytes
    headers: Mapping[str, str]
    priority: int
    attempt: int
    created_at: datetime
    due_at: datetime
    entered_at: datetime
    expires_at: datetime
    retry_of: MessageId | None


class Claimed(msgspec.Struct, frozen=True):
    """What a claim took. A run of one keyed lane stands together, in order."""

    deliveries: tuple[Delivered, ...]


class Nothing(msgspec.Struct, frozen=True):
    """Nothing was claimable. `ask_again` is the earliest time at which something may be; None: never.

    `owner_limited`: something is there, but this owner holds a message that was lost
    before and may not have a second one yet. Another owner may have it now.

    `contended`: something may be there, but others were at it, or there is more to be
    brought up to date first. Ask again within milliseconds.
    """

    ask_again: datetime | None
    owner_limited: bool = False
    contended: bool = False


class Complete(msgspec.Struct, frozen=True, gc=False):
    """It was done. The result is kept with the outcome."""

    result: bytes | None = None


class Fail(msgspec.Struct, frozen=True):
    """It failed. Try again after the policy's rest, or after `after` if that is given.

    `free` uses no attempt: the message did not fail, it is only to be tried later.
    `limit` replaces the number of attempts that the queue's policy allows.
    """

    error: str = ""
    after: timedelta | None = None
    free: bool = False
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.limit is not None and not 1 <= self.limit <= MOST_ATTEMPTS:
            raise Invalid("limit", f"must be from 1 to {MOST_ATTEMPTS}, not {self.limit}")
        if self.after is not None:
            msgspec.structs.force_setattr(self, "after", duration("after", self.after))
        if self.after is not None and self.after < timedelta(0):
            raise Invalid("after", "must not be negative")
        if self.free and self.after is None:
            raise Invalid("after", "must say how much later, where no attempt is used")


class Release(msgspec.Struct, frozen=True):
    """Give the message back; no attempt is used. `after_done`: the messages before it in a keyed lane are done."""

    after_done: bool = False


class Bury(msgspec.Struct, frozen=True):
    """It must not be tried again: make it a dead letter."""

    error: str = ""


Report = Complete | Fail | Release | Bury


class Settlement(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A report about one claimed message, and the token that proves the right to settle it."""

    token: LeaseToken
    lane: LaneId
    offset: int
    report: Report
    started_at: datetime | None = None


class Verdict(StrEnum):
    """What became of a settled message, under one token."""

    COMPLETED = "completed"
    RETRYING = "retrying"
    RELEASED = "released"
    BURIED = "buried"
    DROPPED = "dropped"
    CANCELED = "canceled"


class Answer(StrEnum):
    """How the store took a settlement."""

    SETTLED = "settled"
    REPEATED = "repeated"
    GIVEN_BACK = "given_back"
    LOST = "lost"
    UNKNOWN = "unknown"


class Settled(msgspec.Struct, frozen=True, gc=False):
    """The answer to one settlement; the verdict where there is one; whether its lane's lease is over."""

    answer: Answer
    verdict: Verdict | None
    lease_ended: bool


class Place(msgspec.Struct, frozen=True, gc=False, order=True):
    """Where a message is."""

    lane: LaneId
    offset: int


class Extension(msgspec.Struct, frozen=True, kw_only=True):
    """Hold everything under this token for `lease` from now; never shortens. Tells which messages have started."""

    token: LeaseToken
    lease: timedelta
    started: tuple[Place, ...] = ()

    def __post_init__(self) -> None:
        if self.lease <= timedelta(0):
            raise Invalid("lease", "must be greater than 0")


class Extended(msgspec.Struct, frozen=True):
    """The new deadline, which of the token's messages were canceled, and how many lanes it still holds."""

    expires_at: datetime
    canceled: tuple[Place, ...]
    lanes: int


class Lost(msgspec.Struct, frozen=True):
    """Nothing is held under that token any more."""


class AckByName(msgspec.Struct, frozen=True, kw_only=True):
    """What is said about a message of a keyed lane by its name there, as other systems acknowledge.

    It moves the group's progress: completing a message completes what is before it.
    With a token the ack is fenced, as a settlement is; without one, it is accepted from any caller.
    """

    queue: str
    key: str
    name: str
    group: str = DEFAULT_GROUP
    report: Report
    token: LeaseToken | None = None


class AckAnswer(StrEnum):
    """How the store took an ack by name."""

    SETTLED = "settled"
    GIVEN_BACK = "given_back"
    BEFORE = "before"  # the group has passed this message already
    LOST = "lost"
    UNKNOWN = "unknown"  # no such message in that lane, or not in that lease


class Acked(msgspec.Struct, frozen=True, gc=False):
    """The answer to one ack by name; the verdict where there is one; whether its lane's lease is over.

    `stale`: the ack's token belongs to a lease that has ended, or to none.
    """

    answer: AckAnswer
    verdict: Verdict | None = None
    lease_ended: bool = False
    stale: bool = False


class GroupName(msgspec.Struct, frozen=True):
    """A group of a queue; not the default one."""

    queue: str
    group: str

    def __post_init__(self) -> None:
        checked_name("queue", self.queue)
        checked_name("group", self.group)
        if self.group == DEFAULT_GROUP:
            raise Invalid("group", "the default group cannot be deleted")


class Unit(msgspec.Struct, frozen=True, kw_only=True):
    """Settles, commits, pushes, changes of records and removals of groups that happen together or not at all.

    Any settlement or commit that is not taken rolls the unit back; so does a refused push, and a duplicate one if
    `refuse_duplicates`, one of `leases` that is over, and a record that is not as expected. Records are changed first,
    then groups are removed. A nonce makes the unit safe to repeat: the second time the first answer is given.
    """

    settlements: tuple[Settlement, ...] = ()
    acks: tuple[AckByName, ...] = ()
    pushes: tuple[NewMessage, ...] = ()
    refuse_duplicates: bool = False
    leases: tuple[LeaseToken, ...] = ()
    records: tuple[RecordChange, ...] = ()
    removed_groups: tuple[GroupName, ...] = ()
    nonce: str | None = None

    def __post_init__(self) -> None:
        if len(self.records) > CHANGES_LIMIT:
            raise TooLarge("records", f"a unit changes at most {CHANGES_LIMIT}, not {len(self.records)}")


class Done(msgspec.Struct, frozen=True):
    """The whole unit was done."""

    settled: tuple[Settled, ...]
    pushed: tuple[Pushed, ...]
    acked: tuple[Acked, ...] = ()
    versions: tuple[int, ...] = ()
    """Of each record, the version that was written, or the one that was removed; 0: there was none."""


class Obstacle(StrEnum):
    """What stood in the way of a unit."""

    SETTLEMENT = "settlement"
    ACK = "ack"
    LEASE = "lease"
    PUSH = "push"
    DUPLICATE = "duplicate"
    FULL = "full"
    RECORD = "record"


class Undone(msgspec.Struct, frozen=True):
    """Nothing of the unit was done: which item stood in the way, and why."""

    reason: str
    item: int
    obstacle: Obstacle = Obstacle.SETTLEMENT
