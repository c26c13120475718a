"""Written by `make generated` from the async client. Do not edit it: change that, and write it anew."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec import UNSET

from qo.client.dead import DeadLetters
from qo.client.delivery import Delivery
from qo.client.job import JobHandle
from qo.client.job_info import JobInfo
from qo.client.outgoing import Message
from qo.client.schedules import ScheduleOptions, Schedules
from qo.client.shell import Shell
from qo.client.tokens import Tokens
from qo.client.typed import PushOptions, SettingsChanges
from qo.core.access import Token
from qo.core.durations import Length
from qo.core.lane import Start
from qo.core.lease import Report, Settlement, Verdict
from qo.core.message import Dedupe, NewMessage
from qo.core.names import DEFAULT_KIND
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
    QueueOverview,
)
from qo.core.queue import DEFAULT_LEASE, QueueSettings
from qo.core.schedule import Coming, Run, ScheduleInfo
from qo.core.worker import WaitingKind, WorkerInfo

if TYPE_CHECKING:
    from qo.client.sync import SyncQueue


class SyncJobHandle(Shell, over=JobHandle):
    """Ask about a job, await its result, or cancel it.

    See `JobHandle`.
    """

    @property
    def duplicate(self) -> bool:
        """See `JobHandle`."""
        answer: bool = self._inner.duplicate
        return answer

    @property
    def id(self) -> str:
        """The message's id, as text."""
        answer: str = self._inner.id
        return answer

    def info(self) -> JobInfo:
        """Everything that is known of it, as plain data that JSON can say. `NotFound` once it was removed."""
        answer: JobInfo = self._portal.call(self._inner.info())
        return answer

    def job(self) -> Job:
        """The same as a value: payload and result as bytes, times as datetimes."""
        answer: Job = self._portal.call(self._inner.job())
        return answer

    def status(self) -> JobState | None:
        """queued, assigned, running, succeeded, failed or canceled; None if its queue keeps no history of it."""
        answer: JobState | None = self._portal.call(self._inner.status())
        return answer

    def result(self, timeout: Length | None = None) -> Any:
        """Wait for the job to finish and return what it was completed with.

        Raises `JobFailed` or `JobCanceled` if it ended so, and `TimedOut` if it
        has not ended in time; then it goes on.
        """
        answer: Any = self._portal.call(self._inner.result(timeout))
        return answer

    def cancel(self) -> CancelAnswer:
        """Cancel it. `requested` means that it is running: its holder is told at the next extend."""
        answer: CancelAnswer = self._portal.call(self._inner.cancel())
        return answer

    def events(self) -> list[Event]:
        """Its changes of state, where the queue's history is `full`."""
        answer: list[Event] = self._portal.call(self._inner.events())
        return answer


class SyncDelivery(Shell, over=Delivery):
    """One message under a lease. Settle it once: complete, fail, release or bury.

    See `Delivery`.
    """

    @property
    def id(self) -> str:
        """The message's id, as text."""
        answer: str = self._inner.id
        return answer

    @property
    def queue(self) -> str:
        """The queue that it was taken from."""
        answer: str = self._inner.queue
        return answer

    @property
    def kind(self) -> str:
        """The name of the task that handles it."""
        answer: str = self._inner.kind
        return answer

    @property
    def key(self) -> str | None:
        """The key whose messages run in order; None: it has none."""
        answer: str | None = self._inner.key
        return answer

    @property
    def priority(self) -> int:
        """From -100 to 100, higher first."""
        answer: int = self._inner.priority
        return answer

    @property
    def headers(self) -> Mapping[str, str]:
        """What was pushed with it, text by name."""
        answer: Mapping[str, str] = self._inner.headers
        return answer

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        answer: int = self._inner.attempt
        return answer

    @property
    def created_at(self) -> datetime:
        """When it was pushed."""
        answer: datetime = self._inner.created_at
        return answer

    @property
    def expires_at(self) -> datetime:
        """When the lease runs out, as of the claim; `extend` moves it."""
        answer: datetime = self._inner.expires_at
        return answer

    @property
    def body(self) -> bytes:
        """The payload's bytes, as they came."""
        answer: bytes = self._inner.body
        return answer

    @property
    def payload(self) -> Any:
        """The value that was pushed: decoded JSON, or bytes if it was pushed as bytes."""
        answer: Any = self._inner.payload
        return answer

    @property
    def settled(self) -> bool:
        """Whether something was said about it through this object."""
        answer: bool = self._inner.settled
        return answer

    def complete(self, result: Any = None) -> Verdict:
        """It is done. The result is kept with the outcome. On a keyed lane, completes what came before it too."""
        answer: Verdict = self._portal.call(self._inner.complete(result))
        return answer

    def fail(self, error: str = "", *, after: Length | None = None) -> Verdict:
        """It failed: try again after the queue's backoff, or `after` that. Out of attempts, it is buried."""
        answer: Verdict = self._portal.call(self._inner.fail(error, after=after))
        return answer

    def release(self) -> Verdict:
        """Give it back. No attempt is used."""
        answer: Verdict = self._portal.call(self._inner.release())
        return answer

    def bury(self, error: str = "") -> Verdict:
        """It must not be tried again: make it a dead letter now."""
        answer: Verdict = self._portal.call(self._inner.bury(error))
        return answer

    def settle(self, report: Report) -> Verdict:
        """Say what became of it. Raises `LeaseLost` if that is no longer this holder's to say."""
        answer: Verdict = self._portal.call(self._inner.settle(report))
        return answer

    def settlement(self, report: Report) -> Settlement:
        """This delivery's part in a unit; see `Client.transact`."""
        answer: Settlement = self._inner.settlement(report)
        return answer

    def extend(self, lease: Length = DEFAULT_LEASE, *, started: bool = True) -> bool:
        """Hold the lease for so long from now. Whether the message was canceled meanwhile.

        Extends everything that was claimed together with it. Never shortens.
        """
        answer: bool = self._portal.call(self._inner.extend(lease, started=started))
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._inner.__aexit__(kind, error, trace))


class SyncDeadLetters(Shell, over=DeadLetters):
    """Messages that used up their attempts: look at them, push them again, remove them.

    See `DeadLetters`.
    """

    def list(self, *, after: str | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        """Oldest first."""
        answer: Sequence[DeadLetter] = self._portal.call(self._inner.list(after=after, limit=limit))
        return answer

    def get(self, id: str) -> DeadLetter | None:
        """One of them by its id; None if there is none."""
        answer: DeadLetter | None = self._portal.call(self._inner.get(id))
        return answer

    def retry(self, *ids: str) -> Sequence[str]:
        """Push these again (none named: up to a thousand of them), addressed to this group alone. Their new ids."""
        answer: Sequence[str] = self._portal.call(self._inner.retry(*ids))
        return answer

    def purge(self, *ids: str) -> int:
        """Remove these (none named: all). How many there were."""
        answer: int = self._portal.call(self._inner.purge(*ids))
        return answer


class SyncTokens(Shell, over=Tokens):
    """Who may come in: making tokens, listing them, revoking them.

    See `Tokens`.
    """

    def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        prefixes: Collection[str] = (),
        expires_at: datetime | None = None,
        lasts: Length | None = None,
    ) -> tuple[Token, str]:
        """Make a token with scopes of produce, consume and admin, for all queues or those with a prefix.

        It is good until `expires_at`, or for as long as `lasts` says (a timedelta or seconds), or until it is revoked.

        Answers it and its text, which is shown only now: what is stored is a digest of its secret.
        """
        answer: tuple[Token, str] = self._portal.call(
            self._inner.create(name, scopes, prefixes=prefixes, expires_at=expires_at, lasts=lasts)
        )
        return answer

    def list(self) -> Sequence[Token]:
        """Oldest first."""
        answer: Sequence[Token] = self._portal.call(self._inner.list())
        return answer

    def revoke(self, id: str) -> bool:
        """It opens nothing any more; servers notice within ten seconds. Whether there was one."""
        answer: bool = self._portal.call(self._inner.revoke(id))
        return answer


class SyncSchedules(Shell, over=Schedules):
    """Rules that push a message when they are due, whichever process of qo is there.

    See `Schedules`.
    """

    def create(
        self,
        name: str,
        queue: str,
        payload: Any = None,
        *,
        kind: str = DEFAULT_KIND,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Make a schedule that pushes this payload to a queue. Raises `AlreadyExists` if there is one of that name.

        When: a cron rule (`"0 9 * * mon-fri"`, `"@hourly"`, `"H H * * *"`, or six fields with seconds first), every
        so long (counted from `anchor`), or once, at a time; or several such `specs`.

        exclude            specs whose slots do not fire
        timezone           the zone whose wall clock cron rules speak of; UTC unless it is named
        dst_gap, dst_fold  `shift` or `skip` times that the clock leaves out; `first`, `last` or `both` of those that it
                           shows twice
        jitter             each slot fires up to so much later
        catch_up           of slots that were missed, fire the `last`, `all` or none (`skip`); of all, the oldest
                           `catch_up_limit`, and none that is older than `catch_up_window`
        overlap            while an earlier job is not finished: `allow`, `skip`, `buffer_one`, `buffer_all` or
                           `cancel_other`
        starts_at, ends_at, runs_limit   when it begins and ends
        failure_threshold  so many failed jobs in a row pause it
        tags               to list and to pause schedules by
        """
        answer: ScheduleInfo = self._portal.call(
            self._inner.create(name, queue, payload, kind=kind, cron=cron, every=every, anchor=anchor, at=at, **options)
        )
        return answer

    def put(
        self,
        name: str,
        queue: str,
        payload: Any = None,
        *,
        kind: str = DEFAULT_KIND,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Make a schedule, or change one to what is said here: safe to repeat. Whether it is paused stays."""
        answer: ScheduleInfo = self._portal.call(
            self._inner.put(name, queue, payload, kind=kind, cron=cron, every=every, anchor=anchor, at=at, **options)
        )
        return answer

    def change(
        self,
        name: str,
        *,
        queue: str | None = None,
        kind: str | None = None,
        payload: Any = UNSET,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        expected_version: int | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> ScheduleInfo:
        """Change some of what was said of a schedule. A rule takes the place of all that it had.

        Raises `Conflict` if it does not have the expected version.
        """
        answer: ScheduleInfo = self._portal.call(
            self._inner.change(
                name,
                queue=queue,
                kind=kind,
                payload=payload,
                cron=cron,
                every=every,
                anchor=anchor,
                at=at,
                expected_version=expected_version,
                **options,
            )
        )
        return answer

    def get(self, name: str) -> ScheduleInfo:
        """One schedule, its next slots and its newest runs."""
        answer: ScheduleInfo = self._portal.call(self._inner.get(name))
        return answer

    def list(self, *, tag: str | None = None, after: str = "", limit: int = 100) -> Sequence[ScheduleInfo]:
        """By name, each with its newest run."""
        answer: Sequence[ScheduleInfo] = self._portal.call(self._inner.list(tag=tag, after=after, limit=limit))
        return answer

    def delete(self, name: str) -> bool:
        """Remove a schedule; jobs that it pushed stay. Whether there was one."""
        answer: bool = self._portal.call(self._inner.delete(name))
        return answer

    def run(self, name: str, *, label: str | None = None) -> Run:
        """Push its message now, also if it is paused."""
        answer: Run = self._portal.call(self._inner.run(name, label=label))
        return answer

    def backfill(self, name: str, begin: datetime, end: datetime, *, label: str | None = None) -> Sequence[Run]:
        """Push for all slots from `begin` to before `end`; at most a thousand."""
        answer: Sequence[Run] = self._portal.call(self._inner.backfill(name, begin, end, label=label))
        return answer

    def pause(self, *names: str, tag: str | None = None, note: str | None = None) -> int:
        """Pause schedules, by name or by tag. How many changed."""
        answer: int = self._portal.call(self._inner.pause(*names, tag=tag, note=note))
        return answer

    def resume(self, *names: str, tag: str | None = None, note: str | None = None) -> int:
        """Let schedules go on, with slots from now on. How many changed."""
        answer: int = self._portal.call(self._inner.resume(*names, tag=tag, note=note))
        return answer

    def preview(
        self,
        name: str | None = None,
        *,
        count: int = 5,
        after: datetime | None = None,
        cron: str | None = None,
        every: Length | None = None,
        anchor: datetime | None = None,
        at: datetime | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Sequence[Coming]:
        """The next slots of a schedule that is stored; or, if a rule is given, of that rule. Nothing is stored."""
        answer: Sequence[Coming] = self._portal.call(
            self._inner.preview(name, count=count, after=after, cron=cron, every=every, anchor=anchor, at=at, **options)
        )
        return answer


class BufferShell(Shell):
    """Use it as a context manager; leaving it stores what it holds, or raises::

    See `Buffer`.
    """

    def push(
        self,
        payload: Any,
        *,
        kind: str = DEFAULT_KIND,
        key: str | None = None,
        priority: int = 0,
        delay: Length | None = None,
        due_at: datetime | None = None,
        dedupe: str | Dedupe | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: Length | None = None,
    ) -> SyncJobHandle:
        """Accept a message. It is stored with its batch; `flush` says when. Waits if the buffer is full."""
        answer: SyncJobHandle = self._wrapped(
            self._portal.call(
                self._inner.push(
                    payload,
                    kind=kind,
                    key=key,
                    priority=priority,
                    delay=delay,
                    due_at=due_at,
                    dedupe=dedupe,
                    headers=headers,
                    ttl=ttl,
                )
            )
        )
        return answer

    def flush(self) -> None:
        """Store what the buffer holds now. Raises if it cannot be stored, and then still holds it.

        A message that the store refuses for good (its queue takes no such payload)
        is dropped, and the refusal raised, after the others were stored.
        """
        self._portal.call(self._inner.flush())

    def close(self) -> None:
        """Store what is left and take no more."""
        self._portal.call(self._inner.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._inner.__aexit__(kind, error, trace))


class QueueShell(Shell):
    """One queue, seen by one group. `group()` gives the same queue seen by another; other steps say how to take.

    See `Queue`.
    """

    @property
    def name(self) -> str:
        """See `Queue`."""
        answer: str = self._inner.name
        return answer

    @property
    def group_name(self) -> str:
        """See `Queue`."""
        answer: str = self._inner.group_name
        return answer

    def group(self, name: str, *, start: str | datetime | Start = "all") -> SyncQueue:
        """The same queue for another group, which sees every message too.

        The group is registered by its first claim, or by `register`; where it
        starts is decided then and kept: `"all"`, `"new"`, or a time.
        """
        answer: SyncQueue = self._wrapped(self._inner.group(name, start=start))
        return answer

    def push(
        self,
        payload: Any,
        *,
        kind: str = DEFAULT_KIND,
        key: str | None = None,
        priority: int = 0,
        delay: Length | None = None,
        due_at: datetime | None = None,
        dedupe: str | Dedupe | None = None,
        headers: Mapping[str, str] | None = None,
        ttl: Length | None = None,
    ) -> SyncJobHandle:
        """Store one message; answered after the commit. See `Message` for what can be said."""
        answer: SyncJobHandle = self._wrapped(
            self._portal.call(
                self._inner.push(
                    payload,
                    kind=kind,
                    key=key,
                    priority=priority,
                    delay=delay,
                    due_at=due_at,
                    dedupe=dedupe,
                    headers=headers,
                    ttl=ttl,
                )
            )
        )
        return answer

    def push_many(self, messages: Iterable[Message], *, nonce: str | None = None) -> list[SyncJobHandle]:
        """Store many messages in one commit. The first that is refused raises, after the others were stored.

        A nonce makes the call safe to repeat within an hour: the second time
        nothing is stored and the first answer is given.
        """
        answer: list[SyncJobHandle] = self._wrapped(self._portal.call(self._inner.push_many(messages, nonce=nonce)))
        return answer

    def prepare(self, messages: Iterable[Message]) -> list[NewMessage]:
        """Check messages and give them their ids, without pushing them; `Client.transact` takes the answer."""
        answer: list[NewMessage] = self._inner.prepare(messages)
        return answer

    def submit(self, kind: str, payload: Any = None, **options: Unpack[PushOptions]) -> SyncJobHandle:
        """Push a job of a kind: `push` with the kind first."""
        answer: SyncJobHandle = self._wrapped(self._portal.call(self._inner.submit(kind, payload, **options)))
        return answer

    def claim(
        self,
        messages: int | None = None,
        *,
        wait: Length | None = None,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        key: str | None = None,
        lanes: int | None = None,
        lane_messages: int | None = None,
        owner: str | None = None,
        auto_settle: bool = False,
    ) -> list[SyncDelivery]:
        """Take up to so many messages under one lease; an empty list if there are none, after waiting up to `wait`.

        What is not given is what the steps said: `batch` (or one message), `timeout`
        (or no waiting), `lease` (or the queue's), `kinds`, `key`. `auto_settle`
        completes at delivery: at most once, by your wish.
        """
        answer: list[SyncDelivery] = self._wrapped(
            self._portal.call(
                self._inner.claim(
                    messages,
                    wait=wait,
                    lease=lease,
                    kinds=kinds,
                    key=key,
                    lanes=lanes,
                    lane_messages=lane_messages,
                    owner=owner,
                    auto_settle=auto_settle,
                )
            )
        )
        return answer

    def complete_many(self, deliveries: Iterable[SyncDelivery]) -> list[Verdict | None]:
        """Complete many deliveries in one call. None stands for one whose lease was lost; it is delivered again."""
        answer: list[Verdict | None] = self._portal.call(self._inner.complete_many(self._inner_of(deliveries)))
        return answer

    def complete_and_claim(
        self,
        deliveries: Iterable[SyncDelivery],
        messages: int = 1,
        *,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        lanes: int | None = None,
        lane_messages: int | None = None,
        owner: str | None = None,
    ) -> tuple[list[Verdict | None], list[SyncDelivery]]:
        """Complete many deliveries and take up to so many more messages, in one call and one commit.

        Answers as `complete_many` and `claim` do. For whoever has its next work to fetch anyway, it is half the
        round trips; it does not wait, so when it brings nothing go back to `claim(…, wait=…)`.
        """
        answer: tuple[list[Verdict | None], list[SyncDelivery]] = self._wrapped(
            self._portal.call(
                self._inner.complete_and_claim(
                    self._inner_of(deliveries),
                    messages,
                    lease=lease,
                    kinds=kinds,
                    lanes=lanes,
                    lane_messages=lane_messages,
                    owner=owner,
                )
            )
        )
        return answer

    def configure(self, **settings: Unpack[SettingsChanges]) -> QueueSettings:
        """Create the queue if need be and change some of its settings; see `QueueSettings`."""
        answer: QueueSettings = self._portal.call(self._inner.configure(**settings))
        return answer

    def pause(self) -> None:
        """Stop claims. Pushes and settles go on."""
        self._portal.call(self._inner.pause())

    def resume(self) -> None:
        """Let claims go on."""
        self._portal.call(self._inner.resume())

    def purge(self) -> int:
        """Remove every message, for every group; answers how many there were. Dead letters stay."""
        answer: int = self._portal.call(self._inner.purge())
        return answer

    def delete(self) -> bool:
        """Remove the queue and all that is in it. Whether there was one."""
        answer: bool = self._portal.call(self._inner.delete())
        return answer

    def register(self) -> bool:
        """Register this group now rather than at its first claim. Whether it is new."""
        answer: bool = self._portal.call(self._inner.register())
        return answer

    def delete_group(self) -> bool:
        """Remove this group with its progress. Whether there was one. The default group cannot be deleted."""
        answer: bool = self._portal.call(self._inner.delete_group())
        return answer

    def seek(self, to: str | datetime | int, *, key: str | None = None) -> int:
        """Move this group to `"all"` (the start), `"new"` (the end), a time or an offset; in one key's lane, or in all.

        Ends its leases and drops its retries. Answers how many lanes were moved.
        """
        answer: int = self._portal.call(self._inner.seek(to, key=key))
        return answer

    @property
    def dead(self) -> SyncDeadLetters:
        """This group's dead letters."""
        answer: SyncDeadLetters = self._wrapped(self._inner.dead)
        return answer

    def info(self) -> QueueInfo:
        """Its settings, its namespace and task, and whether it is paused. `NotFound` if it does not exist."""
        answer: QueueInfo = self._portal.call(self._inner.info())
        return answer

    def exists(self) -> bool:
        """Whether something was pushed to it, claimed from it or configured on it before."""
        answer: bool = self._portal.call(self._inner.exists())
        return answer

    def settings(self) -> QueueSettings:
        """Its settings, the defaults included."""
        answer: QueueSettings = self._portal.call(self._inner.settings())
        return answer

    def depth(self) -> Depth:
        """How much is still ahead of this group."""
        answer: Depth = self._portal.call(self._inner.depth())
        return answer

    def groups(self) -> Sequence[GroupInfo]:
        """The groups that are registered on it, and how far behind each is."""
        answer: Sequence[GroupInfo] = self._portal.call(self._inner.groups())
        return answer

    def lanes(self, *, after: int = 0, limit: int = 100) -> Sequence[LaneInfo]:
        """Its lanes, in the order in which they were made, and where this group stands in each."""
        answer: Sequence[LaneInfo] = self._portal.call(self._inner.lanes(after=after, limit=limit))
        return answer

    def job(self, id: str) -> SyncJobHandle:
        """A handle on a message by its id."""
        answer: SyncJobHandle = self._wrapped(self._inner.job(id))
        return answer

    def jobs(
        self, *, state: JobState | str | None = None, before: str | None = None, limit: int = 100
    ) -> Sequence[Job]:
        """Its jobs, newest first; of one state, or of all."""
        answer: Sequence[Job] = self._portal.call(self._inner.jobs(state=state, before=before, limit=limit))
        return answer


class ClientShell(Shell):
    """A connection to a store. Close it, or use it as a context manager.

    See `Client`.
    """

    def queue(self, name: str) -> SyncQueue:
        """A queue by name. It need not exist; the first push creates it."""
        answer: SyncQueue = self._wrapped(self._inner.queue(name))
        return answer

    def job(self, id: str) -> SyncJobHandle:
        """A handle on a message by its id, whichever queue it is in."""
        answer: SyncJobHandle = self._wrapped(self._inner.job(id))
        return answer

    def queues(self, *, after: str = "", limit: int = 100) -> Sequence[QueueInfo]:
        """The queues there are, by name."""
        answer: Sequence[QueueInfo] = self._portal.call(self._inner.queues(after=after, limit=limit))
        return answer

    def overview(self, *, after: str = "", limit: int = 100) -> Sequence[QueueOverview]:
        """How queues stand, by name: what waits, runs and failed, the oldest, and what the last minute brought."""
        answer: Sequence[QueueOverview] = self._portal.call(self._inner.overview(after=after, limit=limit))
        return answer

    def create_group(
        self, group: str, *, namespace: str | None = None, task: str | None = None, start: str | Start = "all"
    ) -> bool:
        """Register a group in all queues of a namespace or task, those that appear later too."""
        answer: bool = self._portal.call(self._inner.create_group(group, namespace=namespace, task=task, start=start))
        return answer

    def transact(
        self,
        settlements: Sequence[Settlement] = (),
        pushes: Sequence[NewMessage] = (),
        *,
        refuse_duplicates: bool = False,
        nonce: str | None = None,
    ) -> list[SyncJobHandle]:
        """Do all of it or nothing: settle deliveries and push messages in one commit. Raises `RolledBack`.

        `Delivery.settlement` and `Queue.prepare` make what it takes; it answers
        a handle on each message pushed.
        """
        answer: list[SyncJobHandle] = self._wrapped(
            self._portal.call(
                self._inner.transact(settlements, pushes, refuse_duplicates=refuse_duplicates, nonce=nonce)
            )
        )
        return answer

    @property
    def tokens(self) -> SyncTokens:
        """Who may come in, where a server asks for tokens."""
        answer: SyncTokens = self._wrapped(self._inner.tokens)
        return answer

    @property
    def schedules(self) -> SyncSchedules:
        """Rules that push a message when they are due."""
        answer: SyncSchedules = self._wrapped(self._inner.schedules)
        return answer

    def workers(self) -> Sequence[WorkerInfo]:
        """The workers that are registered; those that are gone for a day."""
        answer: Sequence[WorkerInfo] = self._portal.call(self._inner.workers())
        return answer

    def unserved(self) -> Sequence[WaitingKind]:
        """Kinds of messages that wait and that no worker takes."""
        answer: Sequence[WaitingKind] = self._portal.call(self._inner.unserved())
        return answer

    def health(self) -> Health:
        """What the store says about itself."""
        answer: Health = self._portal.call(self._inner.health())
        return answer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self._inner.__aexit__(kind, error, trace))
