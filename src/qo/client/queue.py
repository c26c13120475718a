"""A queue, as users hold it: push, claim, consume, arrange, look."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Self, Unpack, overload

from qo.client import consume
from qo.client.arguments import at_least_one, check_handler, checked_kinds, is_async, positive, read_state
from qo.client.buffer import BUFFER_MESSAGES, BUFFER_MS, Buffer
from qo.client.dead import DeadLetters
from qo.client.delivery import Delivery
from qo.client.job import JobHandle
from qo.client.middleware import AroundPushes
from qo.client.outgoing import Message, addressed
from qo.client.paging import paged
from qo.client.steps import NO_OPTIONS, Options, Steps
from qo.client.typed import PushOptions, SettingsChanges
from qo.core.durations import Length, duration
from qo.core.errors import Invalid, NotFound
from qo.core.lane import Start, read_start
from qo.core.lease import Claimed, Complete, LeaseToken, Nothing, Verdict, Want
from qo.core.message import Dedupe, Duplicate, NewMessage, Stored, checked_id
from qo.core.names import DEFAULT_GROUP, DEFAULT_KIND, checked_key, checked_name
from qo.core.outcome import Depth, GroupInfo, Job, JobState, LaneInfo, QueueInfo
from qo.core.queue import QueueSettings
from qo.core.verbs import Broker

FROM_THE_START = Start()
Handler = consume.Handler


@dataclass(frozen=True, slots=True)
class Queue(Steps):
    """One queue, seen by one group. `group()` gives the same queue seen by another; other steps say how to take."""

    broker: Broker
    name: str
    group_name: str = DEFAULT_GROUP
    start: Start = FROM_THE_START
    options: Options = NO_OPTIONS
    around_pushes: AroundPushes = field(default_factory=AroundPushes, compare=False)

    def __post_init__(self) -> None:
        checked_name("queue", self.name)
        checked_name("group", self.group_name)

    def group(self, name: str, *, start: str | datetime | Start = "all") -> Queue:
        """The same queue for another group, which sees every message too.

        The group is registered by its first claim, or by `register`; where it
        starts is decided then and kept: `"all"`, `"new"`, or a time.
        """
        return replace(self, group_name=name, start=read_start(start))

    def _with(self, options: Options) -> Self:
        return replace(self, options=options)

    # Pushing

    async def push(
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
    ) -> JobHandle:
        """Store one message; answered after the commit. See `Message` for what can be said."""
        [handle] = await self.push_many(
            [
                Message(
                    payload,
                    kind,
                    self.options.key if key is None else key,
                    priority,
                    delay,
                    due_at,
                    dedupe,
                    headers,
                    ttl,
                )
            ]
        )
        return handle

    async def push_many(self, messages: Iterable[Message], *, nonce: str | None = None) -> list[JobHandle]:
        """Store many messages in one commit. The first that is refused raises, after the others were stored.

        A nonce makes the call safe to repeat within an hour: the second time
        nothing is stored and the first answer is given.
        """
        new = self.prepare(messages)
        if nonce is not None:
            checked_key("nonce", nonce)
        broker = self.broker
        handles = []
        for answer in await self.around_pushes(new, partial(broker.push, nonce=nonce)) if new else ():
            if isinstance(answer, Stored):
                handles.append(JobHandle(broker, answer.id))
            elif isinstance(answer, Duplicate):
                handles.append(JobHandle(broker, answer.id, duplicate=True))
            else:
                raise answer.error
        return handles

    def prepare(self, messages: Iterable[Message]) -> list[NewMessage]:
        """Check messages and give them their ids, without pushing them; `Client.transact` takes the answer."""
        batch = list(messages)
        if not all(issubclass(kind, Message) for kind in set(map(type, batch))):
            raise Invalid("messages", "must be qo.Message objects; wrap each payload in one")
        return addressed(batch, self.name, self.broker.new_ids(len(batch)))

    def buffered(self, *, messages: int = BUFFER_MESSAGES, milliseconds: float = BUFFER_MS) -> Buffer:
        """A buffer that pushes what it is given in batches, so full or so old at most; see `Buffer`."""
        return Buffer(self, messages, milliseconds)

    async def submit(self, kind: str, payload: Any = None, **options: Unpack[PushOptions]) -> JobHandle:
        """Push a job of a kind: `push` with the kind first."""
        return await self.push(payload, kind=kind, **options)

    # Taking

    async def claim(
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
    ) -> list[Delivery]:
        """Take up to so many messages under one lease; an empty list if there are none, after waiting up to `wait`.

        What is not given is what the steps said: `batch` (or one message), `timeout`
        (or no waiting), `lease` (or the queue's), `kinds`, `key`. `auto_settle`
        completes at delivery: at most once, by your wish.
        """
        want = self.want(
            messages=at_least_one("messages", self.options.batch or 1 if messages is None else messages),
            lease=lease,
            kinds=kinds,
            key=key,
            lanes=lanes,
            lane_messages=lane_messages,
            owner=owner,
            auto_settle=auto_settle,
        )
        length = self.options.timeout if wait is None else positive("wait", wait)
        if length is None:
            answer = await self.broker.claim(want)
        else:
            answer = await self.broker.claim_or_wait(want, self.broker.now() + length)
        return self._deliveries(answer)

    async def complete_many(self, deliveries: Iterable[Delivery]) -> list[Verdict | None]:
        """Complete many deliveries in one call. None stands for one whose lease was lost; it is delivered again."""
        batch = list(deliveries)
        answers, _ = await self.broker.settle([delivery.settlement(Complete()) for delivery in batch])
        for delivery in batch:
            delivery.note_settled()
        return [answer.verdict for answer in answers]

    async def complete_and_claim(
        self,
        deliveries: Iterable[Delivery],
        messages: int = 1,
        *,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        lanes: int | None = None,
        lane_messages: int | None = None,
        owner: str | None = None,
    ) -> tuple[list[Verdict | None], list[Delivery]]:
        """Complete many deliveries and take up to so many more messages, in one call and one commit.

        Answers as `complete_many` and `claim` do. For whoever has its next work to fetch anyway, it is half the
        round trips; it does not wait, so when it brings nothing go back to `claim(…, wait=…)`.
        """
        batch = list(deliveries)
        want = self.want(
            messages=at_least_one("messages", messages),
            lease=lease,
            kinds=kinds,
            lanes=lanes,
            lane_messages=lane_messages,
            owner=owner,
        )
        answers, [claimed] = await self.broker.settle([each.settlement(Complete()) for each in batch], [want])
        for delivery in batch:
            delivery.note_settled()
        return [answer.verdict for answer in answers], self._deliveries(claimed)

    def _deliveries(self, answer: Claimed | Nothing) -> list[Delivery]:
        return [Delivery(self.broker, each) for each in answer.deliveries] if isinstance(answer, Claimed) else []

    def want(
        self,
        *,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        key: str | None = None,
        **terms: Any,
    ) -> Want:
        """A want of this queue and group under a token that nobody else has; what is not given, the steps said."""
        return Want(
            token=LeaseToken(secrets.token_hex(16)),
            queues=(self.name,),
            group=self.group_name,
            start=self.start,
            lease=self.options.lease if lease is None else duration("lease", lease),
            kinds=self.options.kinds if kinds is None else checked_kinds(kinds),
            key=self.options.key if key is None else key,
            **terms,
        )

    @overload
    def consume(
        self,
        *,
        batch: int | None = ...,
        lease: Length | None = ...,
        kinds: Collection[str] | None = ...,
        idle: Length | None = ...,
    ) -> AsyncIterator[Delivery]: ...

    @overload
    def consume(
        self,
        handler: Handler,
        *,
        batch: int | None = ...,
        concurrency: int | None = ...,
        lease: Length | None = ...,
        kinds: Collection[str] | None = ...,
        idle: Length | None = ...,
    ) -> Coroutine[Any, Any, int]: ...

    def consume(
        self,
        handler: Handler | None = None,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        idle: Length | None = None,
    ) -> AsyncIterator[Delivery] | Coroutine[Any, Any, int]:
        """Take messages as they come, for as long as the caller goes on.

        Without a handler, iterate: `async for delivery in queue.consume(): …` and
        settle each. Leases are not kept, so take a `batch` that you get through
        within one; what was not yielded when the loop is left is released.

        With a handler, await: up to `concurrency` messages run at once, leases are
        kept while they run, a return value completes and an exception fails the
        message; messages of one key run in order. Either form ends after `idle`
        without a message, or never if that is None; the handler form answers how
        many messages it handled. What is not given here, the steps said.
        """
        check_handler(handler)
        if handler is not None and not is_async(handler):
            raise Invalid("handler", "must be an async function; the sync client takes plain ones")
        told = self.with_options(batch=batch, concurrency=concurrency, lease=lease, kinds=kinds, idle=idle)
        if handler is None:
            return consume.iterate(told, told.options)
        return consume.run(told, handler, told.options)

    # Arranging

    async def configure(self, **settings: Unpack[SettingsChanges]) -> QueueSettings:
        """Create the queue if need be and change some of its settings; see `QueueSettings`."""
        return await self.broker.admin.configure(self.name, settings)

    async def pause(self) -> None:
        """Stop claims. Pushes and settles go on."""
        await self.broker.admin.pause(self.name, True)

    async def resume(self) -> None:
        """Let claims go on."""
        await self.broker.admin.pause(self.name, False)

    async def purge(self) -> int:
        """Remove every message, for every group; answers how many there were. Dead letters stay."""
        return await self.broker.admin.purge(self.name)

    async def delete(self) -> bool:
        """Remove the queue and all that is in it. Whether there was one."""
        return await self.broker.admin.delete_queue(self.name)

    async def register(self) -> bool:
        """Register this group now rather than at its first claim. Whether it is new."""
        return await self.broker.admin.create_group([self.name], self.group_name, self.start)

    async def delete_group(self) -> bool:
        """Remove this group with its progress. Whether there was one. The default group cannot be deleted."""
        return await self.broker.admin.delete_group(self.name, self.group_name)

    async def seek(self, to: str | datetime | int, *, key: str | None = None) -> int:
        """Move this group to `"all"` (the start), `"new"` (the end), a time or an offset; in one key's lane, or in all.

        Ends its leases and drops its retries. Answers how many lanes were moved.
        """
        target = to if isinstance(to, int) else read_start(to)
        return await self.broker.admin.seek(self.name, self.group_name, target, key)

    @property
    def dead(self) -> DeadLetters:
        """This group's dead letters."""
        return DeadLetters(self.broker, self.name, self.group_name)

    # Looking

    async def info(self) -> QueueInfo:
        """Its settings, its namespace and task, and whether it is paused. `NotFound` if it does not exist."""
        return await self.broker.inspect.queue(self.name)

    async def exists(self) -> bool:
        """Whether something was pushed to it, claimed from it or configured on it before."""
        try:
            await self.info()
        except NotFound:
            return False
        return True

    async def settings(self) -> QueueSettings:
        """Its settings, the defaults included."""
        return (await self.info()).settings

    async def depth(self) -> Depth:
        """How much is still ahead of this group."""
        return await self.broker.inspect.depth(self.name, self.group_name)

    async def groups(self) -> Sequence[GroupInfo]:
        """The groups that are registered on it, and how far behind each is."""
        return await self.broker.inspect.groups(self.name)

    async def lanes(self, *, after: int = 0, limit: int = 100) -> Sequence[LaneInfo]:
        """Its lanes, in the order in which they were made, and where this group stands in each."""
        return await self.broker.inspect.lanes(self.name, self.group_name, after, limit)

    def job(self, id: str) -> JobHandle:
        """A handle on a message by its id."""
        return JobHandle(self.broker, checked_id("id", id))

    async def jobs(
        self, *, state: JobState | str | None = None, before: str | None = None, limit: int = 100
    ) -> Sequence[Job]:
        """Its jobs, newest first; of one state, or of all."""
        only = None if state is None else read_state(state)
        return await paged(partial(self.broker.inspect.list_jobs, self.name, only), before, limit)
