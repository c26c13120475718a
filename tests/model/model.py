"""A small model of the queue, in memory: section 3 of the design, said again as plainly as possible.

It keeps one record per message and group and looks at all of them whenever it is
asked. Leases run out the moment the clock passes their deadline. It knows nothing
of cursors, heads, indexes or transactions, and imports nothing of qo but the
types of its messages.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from qo.core.lease import Answer, Bury, Complete, Fail, Release, Report, Settlement, Unit, Verdict, Want
from qo.core.message import DedupeScope, NewMessage
from qo.core.record import Put, RecordChange

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
SETTLEMENTS_KEPT = timedelta(minutes=10)
NONCES_KEPT = timedelta(hours=1)


@dataclass
class Stored:
    """A message in a lane."""

    id: bytes
    lane: Lane
    offset: int
    kind: str
    priority: int
    entered_at: datetime
    expires_at: datetime | None
    only_for: str | None = None

    def expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


@dataclass
class Lane:
    number: int
    queue: str
    key: str | None
    kind: str | None
    priority: int | None
    messages: list[Stored] = field(default_factory=list)
    first: int = 0
    tail: int = 0
    entered_at: datetime | None = None


@dataclass
class Record:
    """How one message stands with one group: fresh, leased, waiting, done."""

    state: str = "fresh"
    attempts: int = 0
    losses: int = 0
    due: datetime | None = None
    token: str | None = None
    cancel: bool = False
    outcome: str | None = None  # succeeded, failed, canceled


@dataclass
class Lease:
    """What a token has of one lane."""

    token: str
    group: str
    lane: Lane
    offsets: list[int]
    expires_at: datetime
    owner: str | None
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    ended_at: datetime | None = None


@dataclass
class Queue:
    name: str
    groups: list[str] = field(default_factory=lambda: ["default"])
    paused: bool = False


@dataclass
class Waiting:
    """A message in intake."""

    message: NewMessage
    due: datetime
    expires_at: datetime | None


class Model:
    def __init__(self, now: datetime, *, attempts: int, delay: timedelta, max_lost: int, lease: timedelta) -> None:
        self.now = now
        self.attempts, self.delay, self.max_lost, self.lease = attempts, delay, max_lost, lease
        self.queues: dict[str, Queue] = {}
        self.lanes: list[Lane] = []
        self.lane_count = 0
        self.records: dict[tuple[bytes, str], Record] = {}
        self.leases: list[Lease] = []
        self.intake: list[Waiting] = []
        self.canceled_intake: dict[bytes, str] = {}
        self.dedupe: dict[tuple[str, str, str], tuple[bytes, datetime | None]] = {}
        self.dead: dict[tuple[str, str], list[tuple[bytes, Stored, str | None]]] = {}
        self.nonces: dict[str, tuple[datetime, list[tuple[str, bytes]]]] = {}
        self.kept: dict[tuple[str, str], tuple[int, datetime | None, bytes]] = {}

    # Time

    def move(self, to: datetime) -> None:
        """Leases run out as the clock passes their deadlines, in order."""
        while True:
            out = [lease for lease in self.leases if lease.ended_at is None and lease.expires_at <= to]
            if not out:
                break
            lease = min(out, key=lambda each: (each.expires_at, each.lane.number))
            self._lapse(lease)
        self.now = to

    def _rest(self, failures: int) -> timedelta:
        return self.delay * 2 ** (failures - 1)

    def _lapse(self, lease: Lease) -> None:
        lease.ended_at = lease.expires_at
        unsettled = self._unsettled(lease)
        if lease.lane.key is not None:
            for message in unsettled[1:]:
                self._back(lease, message)
            unsettled = unsettled[:1]
        for message in unsettled:
            record = self._record(message, lease.group)
            record.losses += 1
            if record.cancel:
                self._end(record, "canceled")
            elif self.max_lost and record.losses >= self.max_lost:
                self._die(lease.group, message, record, lease.lane.key)
            elif message.expired(lease.expires_at):
                self._end(record, "canceled")
            else:
                rest = self._rest(record.losses - 1) if record.losses >= 2 else timedelta(0)
                self._wait(record, lease.expires_at + rest)

    def _unsettled(self, lease: Lease) -> list[Stored]:
        found = [self._at(lease.lane, offset) for offset in lease.offsets if offset not in lease.verdicts]
        return [message for message in found if self._record(message, lease.group).token == lease.token]

    def _back(self, lease: Lease, message: Stored) -> None:
        """Given back with nothing counted; with the cancel flag on, it is canceled."""
        record = self._record(message, lease.group)
        if record.cancel:
            self._end(record, "canceled")
        else:
            record.state, record.token = "fresh", None

    def _wait(self, record: Record, due: datetime) -> None:
        record.state, record.due, record.token = "waiting", due, None

    def _end(self, record: Record, outcome: str) -> None:
        record.state, record.outcome, record.token, record.due = "done", outcome, None, None

    def _die(self, group: str, message: Stored, record: Record, key: str | None) -> None:
        self._end(record, "failed")
        letters = self.dead.setdefault((message.lane.queue, group), [])
        letters[:] = [letter for letter in letters if letter[0] != message.id]
        letters.append((message.id, message, key))

    def _record(self, message: Stored, group: str) -> Record:
        return self.records.setdefault((message.id, f"{message.lane.queue}/{group}"), Record())

    def _at(self, lane: Lane, offset: int) -> Stored:
        return lane.messages[offset - lane.first]

    # Pushing

    def push(self, messages: tuple[NewMessage, ...], nonce: str | None = None) -> list[tuple[str, bytes]]:
        if nonce in self.nonces:
            return self.nonces[nonce][1]
        answers: list[tuple[str, bytes]] = []
        arrivals: dict[tuple[str, str | None, str, int], list[NewMessage]] = {}
        for message in messages:
            self.queues.setdefault(message.queue, Queue(message.queue))
            holder = self._holder(message, {each.id for group in arrivals.values() for each in group})
            if holder is not None:
                answers.append(("duplicate", holder))
                continue
            answers.append(("stored", message.id))
            if message.due_at is not None and message.due_at > self.now:
                self.intake.append(Waiting(message, message.due_at, self._life(message)))
            else:
                lane = (message.queue, message.key, *(("", 0) if message.key else (message.kind, message.priority)))
                arrivals.setdefault(lane, []).append(message)
        for (queue, key, kind, priority), group in arrivals.items():
            lane_here = self._lane(queue, key, kind, priority)
            if key is not None:
                self._enter(
                    [waiting for waiting in self.intake if (waiting.message.queue, waiting.message.key) == (queue, key)]
                )
            for message in group:
                self._append(lane_here, message.id, message.kind, message.priority, self._life(message))
        if nonce is not None:
            self.nonces[nonce] = (self.now, answers)
        return answers

    def _life(self, message: NewMessage) -> datetime | None:
        return None if message.ttl is None else max(self.now, message.due_at or self.now) + message.ttl

    def _holder(self, message: NewMessage, arriving: set[bytes]) -> bytes | None:
        if message.dedupe is None:
            return None
        lane = message.key if message.key is not None else f"{message.kind}/{message.priority}"
        scope = f"{message.key is not None}:{lane}" if message.dedupe.scope is DedupeScope.LANE else ""
        held = self.dedupe.get((message.queue, scope, message.dedupe.key))
        if held is not None:
            first, until = held
            if (until is not None and self.now < until) or (
                until is None and (first in arriving or not self._finished(message.queue, first))
            ):
                return first
        until = None if message.dedupe.window is None else self.now + message.dedupe.window
        self.dedupe[message.queue, scope, message.dedupe.key] = (message.id, until)
        return None

    def _finished(self, queue: str, id: bytes) -> bool:
        if any(waiting.message.id == id for waiting in self.intake):
            return False
        message = self._find(id)
        if message is None or message.only_for not in (None, "default"):
            return True
        return self._record(message, "default").state == "done"

    def _find(self, id: bytes) -> Stored | None:
        return next((message for lane in self.lanes for message in lane.messages if message.id == id), None)

    def _lane(self, queue: str, key: str | None, kind: str | None, priority: int | None) -> Lane:
        if key is not None:
            kind = priority = None
        for lane in self.lanes:
            if (lane.queue, lane.key, lane.kind, lane.priority) == (queue, key, kind, priority):
                return lane
        self.lane_count += 1
        lane = Lane(self.lane_count, queue, key, kind, priority)
        self.lanes.append(lane)
        return lane

    def _append(
        self, lane: Lane, id: bytes, kind: str, priority: int, expires: datetime | None, only_for: str | None = None
    ) -> None:
        lane.entered_at = max(self.now, lane.entered_at or self.now)
        lane.messages.append(Stored(id, lane, lane.tail, kind, priority, lane.entered_at, expires, only_for))
        lane.tail += 1

    def _enter(self, candidates: list[Waiting]) -> None:
        due = [waiting for waiting in candidates if waiting.due <= self.now]
        for waiting in sorted(due, key=lambda each: (each.due, each.message.id)):
            self.intake.remove(waiting)
            message = waiting.message
            lane = self._lane(message.queue, message.key, message.kind, message.priority)
            self._append(lane, message.id, message.kind, message.priority, waiting.expires_at)

    # Claiming

    def claim(self, want: Want) -> list[tuple[bytes, int, int, int]]:
        """Deliveries as (id, lane number, offset, attempt)."""
        fronts = self._fronts(want)
        for queue in fronts:
            self._enter([waiting for waiting in self.intake if waiting.message.queue == queue])
            for lane in self._lanes_of(queue):
                self._expire_heads(lane, want.group)
        taken: list[tuple[bytes, int, int, int]] = []
        lanes_taken: set[int] = set()
        used: set[int] = set()
        fragile_allowed = want.owner is None or not any(
            self._record(message, lease.group).losses >= 2
            for lease in self.leases
            if lease.ended_at is None and lease.owner == want.owner
            for message in self._unsettled(lease)
        )
        while len(taken) < want.messages and (want.lanes is None or len(lanes_taken) < want.lanes):
            offers = []
            for queue in fronts:
                for lane in self._lanes_of(queue):
                    if lane.number in used or (want.key is not None and lane.key != want.key):
                        continue
                    head = self._head(lane, want, fragile_allowed)
                    if head is not None:
                        offers.append((-head.priority, head.entered_at, lane.number, lane))
            if not offers:
                break
            lane = min(offers)[3]
            used.add(lane.number)
            room = want.messages - len(taken)
            got = (
                self._take_run(lane, want, room)
                if lane.key is not None
                else self._take_open(lane, want, room, fragile_allowed)
            )
            if got:
                lanes_taken.add(lane.number)
                if any(self._record(message, want.group).losses >= 2 for message in got):
                    fragile_allowed = False
                taken += self._deliver(lane, want, got)
        return taken

    def _fronts(self, want: Want) -> list[str]:
        for name in want.queues:
            if want.group != "default":
                queue = self.queues.setdefault(name, Queue(name))
                if want.group not in queue.groups:
                    self.create_group(name, want.group, "all", None)
        found = [self.queues[name] for name in want.queues if name in self.queues]
        return [queue.name for queue in found if not queue.paused]

    def _lanes_of(self, queue: str) -> list[Lane]:
        return [lane for lane in self.lanes if lane.queue == queue]

    def _live(self, lane: Lane, group: str) -> list[Lease]:
        return [each for each in self.leases if each.lane is lane and each.group == group and each.ended_at is None]

    def _pending(self, lane: Lane, group: str) -> list[Stored]:
        """What the group has not been through with, in order."""
        return [
            message
            for message in lane.messages
            if message.only_for in (None, group) and self._record(message, group).state in ("fresh", "waiting")
        ]

    def _expire_heads(self, lane: Lane, group: str) -> None:
        """The head of a keyed lane is judged by time, whatever its kind."""
        if lane.key is None or self._live(lane, group):
            return
        for message in self._pending(lane, group):
            record = self._record(message, group)
            if (record.due is not None and record.due > self.now) or not message.expired(self.now):
                break
            self._end(record, "canceled")

    def _head(self, lane: Lane, want: Want, fragile_allowed: bool) -> Stored | None:
        pending = self._pending(lane, want.group)
        if lane.key is not None:
            if self._live(lane, want.group) or not pending:
                return None
            record = self._record(pending[0], want.group)
            blocked = record.due is not None and record.due > self.now
            limited = record.losses >= 2 and not fragile_allowed
            return None if blocked or limited or not _accepts(want, pending[0].kind) else pending[0]
        if not _accepts(want, lane.kind or "") or want.key is not None:
            return None
        retries = self._due_retries(lane, want.group, fragile_allowed)
        fresh = [message for message in pending if self._record(message, want.group).state == "fresh"]
        return next(iter(retries or fresh), None)

    def _due_retries(self, lane: Lane, group: str, fragile_allowed: bool) -> list[Stored]:
        found = []
        for message in self._pending(lane, group):
            record = self._record(message, group)
            due = record.state == "waiting" and record.due is not None and record.due <= self.now
            if due and (record.losses < 2 or fragile_allowed):
                found.append((record.due, message.offset, message))
        return [message for _, _, message in sorted(found, key=lambda each: each[:2])]

    def _take_run(self, lane: Lane, want: Want, room: int) -> list[Stored]:
        run: list[Stored] = []
        for message in self._pending(lane, want.group):
            record = self._record(message, want.group)
            limit = 1 if not run and record.losses else min(room, want.lane_messages or room)
            if run and self._record(run[0], want.group).losses:
                break
            if len(run) == limit:
                break
            if message.expired(self.now):
                self._end(record, "canceled")
                continue
            if not _accepts(want, message.kind):
                break
            run.append(message)
        return run

    def _take_open(self, lane: Lane, want: Want, room: int, fragile_allowed: bool) -> list[Stored]:
        taken: list[Stored] = []
        for message in self._due_retries(lane, want.group, fragile_allowed):
            record = self._record(message, want.group)
            if len(taken) == room:
                break
            if message.expired(self.now):
                self._end(record, "canceled")
            elif record.losses < 2 or fragile_allowed:
                fragile_allowed &= record.losses < 2
                taken.append(message)
        for message in self._pending(lane, want.group):
            record = self._record(message, want.group)
            if len(taken) == room:
                break
            if record.state != "fresh":
                continue
            if message.expired(self.now):
                self._end(record, "canceled")
            else:
                taken.append(message)
        return taken

    def _deliver(self, lane: Lane, want: Want, got: list[Stored]) -> list[tuple[bytes, int, int, int]]:
        given = []
        for message in got:
            record = self._record(message, want.group)
            given.append((message.id, lane.number, message.offset, record.attempts + 1))
            record.due = None
            if want.auto_settle:
                self._end(record, "succeeded")
            else:
                record.state, record.token = "leased", want.token
        if not want.auto_settle:
            expires = self.now + (want.lease or self.lease)
            offsets = [message.offset for message in got]
            self.leases.append(Lease(want.token, want.group, lane, offsets, expires, want.owner))
        return given

    def next_change(self, want: Want) -> datetime | None:
        """The earliest time at which time alone may give this want something."""
        times = []
        for queue in self._fronts(want):
            here = [each for each in self.intake if each.message.queue == queue]
            times += [
                each.due for each in here if _accepts(want, each.message.kind) and want.key in (None, each.message.key)
            ]
            for lane in self._lanes_of(queue):
                if lane.key is None and not _accepts(want, lane.kind or ""):
                    continue
                if want.key not in (None, lane.key):
                    continue
                times += [lease.expires_at for lease in self._live(lane, want.group) if self._unsettled(lease)]
                pending = self._pending(lane, want.group)
                if lane.key is not None and pending and not self._live(lane, want.group):
                    backoff_ends = self._record(pending[0], want.group).due or self.now
                    times.append(max(pending[0].expires_at or self.now, backoff_ends))
                for message in pending:
                    due = self._record(message, want.group).due
                    if due is not None and due > self.now:
                        times.append(due)
        return min((time for time in times if time > self.now), default=None)

    # Settling

    def settle(self, items: tuple[Settlement, ...], lanes: dict[int, int]) -> list[tuple[Answer, Verdict | None]]:
        """`lanes` maps the store's lane ids to the model's numbers."""
        answers: dict[int, tuple[Answer, Verdict | None]] = {}
        by_lease: dict[tuple[str, int], list[int]] = {}
        for number, item in enumerate(items):
            by_lease.setdefault((item.token, lanes.get(item.lane, -1)), []).append(number)
        for (token, lane_number), numbers in by_lease.items():
            found = [each for each in self.leases if each.token == token and each.lane.number == lane_number]
            if not found:
                answers.update(dict.fromkeys(numbers, (Answer.UNKNOWN, None)))
                continue
            lease = found[0]
            live = lease.ended_at is None
            if live and lease.lane.key is not None:
                given_back = self._settle_run(lease, [items[number] for number in numbers])
            elif live:
                given_back = self._settle_open(lease, [items[number] for number in numbers])
            else:
                given_back = {}
            for number in numbers:
                answers[number] = self._answer(lease, items[number], given_back)
        return [answers[number] for number in range(len(items))]

    def _answer(self, lease: Lease, item: Settlement, now_settled: dict[int, str]) -> tuple[Answer, Verdict | None]:
        verdict = lease.verdicts.get(item.offset)
        fresh = now_settled.pop(item.offset, None)
        if fresh == "given back":
            now_settled[item.offset] = fresh
            return Answer.GIVEN_BACK, None
        if fresh is not None:
            return Answer.SETTLED, verdict
        if verdict is not None:
            return Answer.REPEATED, verdict
        if item.offset not in lease.offsets:
            return Answer.UNKNOWN, None
        return Answer.LOST, None

    def _settle_run(self, lease: Lease, items: list[Settlement]) -> dict[int, str]:
        unsettled = self._unsettled(lease)
        reports: dict[int, Report] = {}
        for item in items:
            if any(message.offset == item.offset for message in unsettled):
                reports.setdefault(item.offset, item.report)
        stops = sorted(offset for offset, report in reports.items() if not isinstance(report, Complete))
        stop = stops[0] if stops else None
        said: dict[int, str] = {offset: "settled" for offset in reports if stop is None or offset <= stop}
        if stop is None or isinstance(reports[stop], Release):
            completed = [offset for offset in reports if stop is None or offset < stop]
            completed_to = max(completed, default=-1)
        else:
            completed_to = stop - 1
        for message in unsettled:
            if message.offset <= completed_to:
                self._complete(lease, message)
        if stop is not None:
            self._report(lease, self._at(lease.lane, stop), reports[stop])
            for message in unsettled:
                if message.offset > stop:
                    self._back(lease, message)
                    if message.offset in reports:
                        said[message.offset] = "given back"
        self._end_if_over(lease, stop is not None and not isinstance(reports[stop], Release))
        return said

    def _settle_open(self, lease: Lease, items: list[Settlement]) -> dict[int, str]:
        said: dict[int, str] = {}
        for item in items:
            for message in self._unsettled(lease):
                if message.offset == item.offset:
                    said[item.offset] = "settled"
                    if isinstance(item.report, Complete):
                        self._complete(lease, message)
                    else:
                        self._report(lease, message, item.report)
        self._end_if_over(lease, False)
        return said

    def _end_if_over(self, lease: Lease, over: bool) -> None:
        if over or not self._unsettled(lease):
            lease.ended_at = self.now

    def _complete(self, lease: Lease, message: Stored) -> None:
        self._end(self._record(message, lease.group), "succeeded")
        lease.verdicts[message.offset] = Verdict.COMPLETED

    def _report(self, lease: Lease, message: Stored, report: Report) -> None:
        record = self._record(message, lease.group)
        verdict = Verdict.CANCELED
        match report:
            case _ if record.cancel:
                self._end(record, "canceled")
            case Bury():
                verdict = Verdict.BURIED
                self._die(lease.group, message, record, lease.lane.key)
            case Fail(_, after):
                record.attempts += 1
                if record.attempts >= self.attempts:
                    verdict = Verdict.BURIED
                    self._die(lease.group, message, record, lease.lane.key)
                elif message.expired(self.now):
                    self._end(record, "canceled")
                else:
                    verdict = Verdict.RETRYING
                    record.losses = 0
                    self._wait(record, self.now + (self._rest(record.attempts) if after is None else after))
            case Release():
                if message.expired(self.now):
                    self._end(record, "canceled")
                else:
                    verdict = Verdict.RELEASED
                    self._wait(record, self.now)
            case _:
                raise AssertionError(report)
        lease.verdicts[message.offset] = verdict

    def extend(self, token: str, length: timedelta) -> tuple[datetime, set[tuple[int, int]]] | None:
        live = [lease for lease in self.leases if lease.token == token and lease.ended_at is None]
        if not live:
            return None
        deadline = max(self.now + length, *(lease.expires_at for lease in live))
        canceled = set()
        for lease in live:
            lease.expires_at = deadline
            for message in self._unsettled(lease):
                if self._record(message, lease.group).cancel:
                    canceled.add((lease.lane.number, message.offset))
        return deadline, canceled

    def transact(self, unit: Unit, lanes: dict[int, int], copy: Model) -> bool:
        """Whether the unit can be done; `copy` is tried first, so that nothing happens here if it cannot."""
        for target in (copy, self):
            if target.change_kept(unit.records) is None:
                return False
            for gone in unit.removed_groups:
                target.delete_group(gone.queue, gone.group)
            answers = target.settle(unit.settlements, lanes)
            if any(answer not in (Answer.SETTLED, Answer.GIVEN_BACK) for answer, _ in answers):
                return False
            pushed = target.push(unit.pushes)
            if unit.refuse_duplicates and any(answer == "duplicate" for answer, _ in pushed):
                return False
        return True

    # Records, which the model calls kept: its own records are another thing

    def change_kept(self, changes: tuple[RecordChange, ...]) -> list[int] | None:
        """The versions that were written or removed; None: one was not as expected."""
        versions = []
        for change in changes:
            place = change.kind, change.name
            version = self.kept[place][0] if place in self.kept else 0
            if change.expected not in (None, version):
                return None
            if isinstance(change, Put):
                version = version + 1 if version else int((self.now - EPOCH) / timedelta(microseconds=1))
                self.kept[place] = version, change.due_at, change.body
            else:
                self.kept.pop(place, None)
            versions.append(version)
        return versions

    def kept_of(self, kind: str) -> list[tuple[str, int, datetime | None, bytes]]:
        """By name."""
        return sorted((name, *self.kept[which, name]) for which, name in self.kept if which == kind)

    def due_kept(self, kind: str) -> tuple[list[str], datetime | None]:
        """The names of those that are due, and when the next one will be."""
        dues = sorted((due, name) for name, _, due, _ in self.kept_of(kind) if due is not None)
        later = [due for due, _ in dues if due > self.now]
        return [name for due, name in dues if due <= self.now], min(later, default=None)

    # Arranging

    def cancel(self, id: bytes, group: str) -> str:
        for waiting in self.intake:
            if waiting.message.id == id:
                if group != "default":
                    return "not_found"
                self.intake.remove(waiting)
                self.canceled_intake[id] = waiting.message.queue
                return "canceled"
        message = self._find(id)
        if message is None or message.only_for not in (None, group):
            return "not_found"
        if group not in self.queues[message.lane.queue].groups:
            return "not_found"
        record = self._record(message, group)
        if record.state == "leased":
            record.cancel = True
            return "requested"
        if record.state == "done":
            return "finished"
        self._end(record, "canceled")
        return "canceled"

    def create_group(self, queue: str, group: str, start: str, time: datetime | None) -> bool:
        here = self.queues.setdefault(queue, Queue(queue))
        if group in here.groups:
            return False
        here.groups.append(group)
        for lane in self._lanes_of(queue):
            self._start_at(lane, group, start, time)
        return True

    def _start_at(self, lane: Lane, group: str, to: str | int, time: datetime | None) -> None:
        for message in lane.messages:
            before = (
                to == "new"
                or (to == "time" and time is not None and message.entered_at < time)
                or (isinstance(to, int) and message.offset < to)
            )
            old = self._record(message, group).outcome
            record = Record(outcome=old) if not before else Record(state="done", outcome=old)
            self.records[message.id, f"{lane.queue}/{group}"] = record

    def delete_group(self, queue: str, group: str) -> bool:
        here = self.queues[queue]
        if group not in here.groups:
            return False
        here.groups.remove(group)
        self.leases = [each for each in self.leases if (each.lane.queue, each.group) != (queue, group)]
        self.records = {key: record for key, record in self.records.items() if key[1] != f"{queue}/{group}"}
        self.dead.pop((queue, group), None)
        for lane in self._lanes_of(queue):
            for message in lane.messages:
                if message.only_for == group:
                    message.only_for = "nobody any more"
        return True

    def seek(self, queue: str, group: str, to: str | int, time: datetime | None, key: str | None) -> int:
        lanes = [lane for lane in self._lanes_of(queue) if key is None or lane.key == key]
        for lane in lanes:
            for lease in self._live(lane, group):
                lease.ended_at = self.now
            self._start_at(lane, group, to, time)
        return len(lanes)

    def retry_dead(self, queue: str, group: str) -> list[tuple[bytes, Stored, str | None]]:
        return sorted(self.dead.pop((queue, group), []), key=lambda letter: letter[0])

    def revive(self, letter: tuple[bytes, Stored, str | None], new_id: bytes, group: str) -> None:
        _, old, key = letter
        lane = self._lane(old.lane.queue, key, old.kind, old.priority)
        if key is not None:
            here = [each for each in self.intake if (each.message.queue, each.message.key) == (old.lane.queue, key)]
            self._enter(here)
        self._append(lane, new_id, old.kind, old.priority, None, group)

    def purge(self, queue: str) -> int:
        count = sum(len(lane.messages) for lane in self._lanes_of(queue))
        count += sum(1 for waiting in self.intake if waiting.message.queue == queue)
        for lane in self._lanes_of(queue):
            for lease in self.leases:
                if lease.lane is lane and lease.ended_at is None:
                    lease.ended_at = self.now
            lane.messages, lane.first = [], lane.tail
        self.intake = [waiting for waiting in self.intake if waiting.message.queue != queue]
        self.canceled_intake = {id: where for id, where in self.canceled_intake.items() if where != queue}
        return count

    def tidy(self) -> None:
        """Forget what tokens settled some time after their last lease ended, old nonces, and empty lanes."""
        ended: dict[str, list[datetime | None]] = {}
        for lease in self.leases:
            ended.setdefault(lease.token, []).append(lease.ended_at)
        gone = {
            token
            for token, times in ended.items()
            if all(time is not None and time + SETTLEMENTS_KEPT <= self.now for time in times)
        }
        self.leases = [lease for lease in self.leases if lease.token not in gone]
        self.nonces = {nonce: kept for nonce, kept in self.nonces.items() if kept[0] + NONCES_KEPT > self.now}
        held = {lease.lane.number for lease in self.leases if lease.ended_at is None}
        self.lanes = [lane for lane in self.lanes if lane.messages or lane.number in held]

    # Looking

    def depth(self, queue: str, group: str) -> dict[str, int]:
        ready = retrying = leased = 0
        for lane in self._lanes_of(queue):
            for message in lane.messages:
                if message.only_for not in (None, group):
                    continue
                record = self._record(message, group)
                waits = record.state == "waiting"
                ready += record.state == "fresh" or (waits and lane.key is not None)
                retrying += waits and lane.key is None
                leased += record.state == "leased"
        return {
            "ready": ready,
            "retrying": retrying,
            "leased": leased,
            "delayed": sum(1 for waiting in self.intake if waiting.message.queue == queue),
            "dead": len(self.dead.get((queue, group), [])),
        }

    def job(self, id: bytes) -> str | None:
        """The state of a job for the default group; None: not known."""
        if id in self.canceled_intake:
            return "canceled"
        if any(waiting.message.id == id for waiting in self.intake):
            return "queued"
        message = self._find(id)
        if message is None or message.only_for not in (None, "default"):
            return None
        record = self._record(message, "default")
        return {"fresh": "queued", "waiting": "queued", "leased": "assigned"}.get(record.state, record.outcome)


def _accepts(want: Want, kind: str) -> bool:
    return want.kinds is None or kind in want.kinds
