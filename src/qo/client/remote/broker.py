"""broker: the broker's calls, made to a server."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from qo.client.remote.access import RemoteAccess
from qo.client.remote.admin import RemoteAdmin
from qo.client.remote.calls import path_of
from qo.client.remote.inspect import RemoteInspect
from qo.client.remote.schedules import RemoteSchedules
from qo.client.remote.transport import Answer, Transport
from qo.client.remote.workers import RemoteWorkers, demand_here, left_ms, remote_scaling
from qo.core.errors import Closed, NotFound, RolledBack, TimedOut
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
from qo.core.message import Duplicate, MessageId, NewMessage, Pushed, Stored, id_text, message_ids
from qo.core.outcome import Job
from qo.core.polling import Polled
from qo.core.scaling import Demand
from qo.wire.claims import ClaimBody, ClaimReply, read_deliveries, want_fields, write_want
from qo.wire.jobs import JobBody, read_job
from qo.wire.messages import BatchBody, PushReply, read_pushed, write_message
from qo.wire.operations.claims import CLAIM_ANYWHERE, EXTEND, SETTLE, TRANSACT
from qo.wire.operations.jobs import RESULT
from qo.wire.operations.messages import PUSH_ANYWHERE
from qo.wire.settling import (
    ExtendBody,
    ExtendReply,
    SettleBody,
    SettleReply,
    UnitReply,
    read_claimed,
    read_done,
    read_held,
    read_settled,
    read_undone,
    write_extension,
    write_settlement,
    write_unit,
)

LONGEST_WAIT_MS = 30_000
"""One request waits so long at most; a longer wait is several."""

_pushed = msgspec.json.Decoder(PushReply).decode
_claimed = msgspec.json.Decoder(ClaimReply).decode
_settled = msgspec.json.Decoder(SettleReply).decode
_extended = msgspec.json.Decoder(ExtendReply).decode
_unit = msgspec.json.Decoder(UnitReply).decode
_job = msgspec.json.Decoder(JobBody).decode


class RemoteBroker:
    """What `Broker` is in the same process, on the other side of HTTP."""

    def __init__(self, transport: Transport, now: Callable[[], datetime]) -> None:
        """`now` is the clock by which it waits, and goes on steadily."""
        self._transport = transport
        self._now = now
        self.admin = RemoteAdmin(transport)
        self.inspect = RemoteInspect(transport)
        self.access = RemoteAccess(transport)
        self.schedules = RemoteSchedules(transport)
        self.workers = RemoteWorkers(transport)

    def now(self) -> datetime:
        return self._now()

    def polled(self) -> Polled:
        return Polled(0, 0, 0, timedelta(0))

    def new_ids(self, count: int) -> list[MessageId]:
        return message_ids(int(self.now().timestamp() * 1000), secrets.randbits(80), count)

    async def push(self, messages: Sequence[NewMessage], nonce: str | None = None) -> Sequence[Pushed]:
        """Safe to send again without a nonce: the messages bring their ids, and the store knows those that it has."""
        body = BatchBody([write_message(each) for each in messages])
        answer = await self._transport.call(PUSH_ANYWHERE.method, PUSH_ANYWHERE.path, body, key=nonce)
        pushed = read_pushed(_pushed(answer.body).messages)
        return [_own(message, each) for message, each in zip(messages, pushed, strict=True)]

    async def claim(self, want: Want) -> Claimed | Nothing:
        return await self._claim(want, 0, 0)

    async def claim_or_wait(self, want: Want, until: datetime | None, priority: int = 0) -> Claimed | Nothing:
        """Closing the client answers nothing, as it does in the same process."""
        if self._transport.is_closed():
            raise Closed("this client was closed")
        try:
            while True:
                left = LONGEST_WAIT_MS if until is None else int((until - self.now()).total_seconds() * 1000)
                answer = await self._claim(want, min(left, LONGEST_WAIT_MS), priority)
                if isinstance(answer, Claimed) or (until is not None and self.now() >= until):
                    return answer
        except Closed:
            if not self._transport.is_closed():
                raise
            return Nothing(None)

    async def _claim(self, want: Want, wait_ms: int, priority: int) -> Claimed | Nothing:
        """Each try has a token of its own: what a lost answer took is not mixed with what the next one takes."""
        waits = max(wait_ms, 0) / 1000
        body = ClaimBody(**want_fields(want), wait=wait_ms > 0, timeout_ms=max(wait_ms, 0), priority=priority)
        answer = await self._transport.call(
            CLAIM_ANYWHERE.method, CLAIM_ANYWHERE.path, body, waits=waits, fresh=_another_token
        )
        if answer.status == 204:
            return _nothing(answer)
        return Claimed(read_deliveries(_claimed(answer.body).messages))

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        body = SettleBody([write_settlement(each) for each in settlements], [write_want(each) for each in then])
        answer = await self._transport.call(SETTLE.method, SETTLE.path, body, fresh=_other_tokens)
        reply = _settled(answer.body)
        return read_settled(reply.items), [read_claimed(each) for each in reply.claimed]

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        body = ExtendBody([write_extension(each) for each in extensions])
        answer = await self._transport.call(EXTEND.method, EXTEND.path, body)
        return [read_held(each) for each in _extended(answer.body).leases]

    async def transact(self, unit: Unit) -> Done | Undone:
        body = write_unit(unit)
        key = unit.nonce or secrets.token_hex(16)
        try:
            answer = await self._transport.call(TRANSACT.method, TRANSACT.path, body, key=key)
        except RolledBack as error:
            return read_undone(error)
        return read_done(_unit(answer.body))

    async def finished(self, id: MessageId, until: datetime | None) -> Job | None:
        while True:
            left = LONGEST_WAIT_MS if until is None else int((until - self.now()).total_seconds() * 1000)
            wait_ms = max(0, min(left, LONGEST_WAIT_MS))
            path = path_of(RESULT, {"id": id_text(id)}, {"wait": "true", "timeout_ms": wait_ms})
            try:
                answer = await self._transport.call(RESULT.method, path, waits=wait_ms / 1000)
            except NotFound:
                return None
            job = read_job(_job(answer.body))
            if answer.status != 202:
                return job
            if until is not None and self.now() >= until:
                raise TimedOut(f"job {job.id} is {job.state}; it goes on")

    async def demand_or_wait(
        self, queues: Sequence[str], group: str, kinds: Collection[str] | None, until: datetime | None
    ) -> Demand:
        while True:
            wait_ms = left_ms(until, self.now(), LONGEST_WAIT_MS)
            said = await remote_scaling(self._transport, queues, group, kinds, wait_ms)
            demand = Demand() if said is None else demand_here(said, self.now())
            if demand.depth or (until is not None and self.now() >= until):
                return demand

    async def close(self) -> None:
        await self._transport.close()


def _own(message: NewMessage, answer: Pushed) -> Pushed:
    """A message that is a duplicate of itself was stored by a try whose answer was lost."""
    return Stored(message.id) if isinstance(answer, Duplicate) and answer.id == message.id else answer


def _another_token(body: ClaimBody) -> None:
    body.token = secrets.token_hex(16)


def _other_tokens(body: SettleBody) -> None:
    for want in body.then:
        want.token = secrets.token_hex(16)


def _nothing(answer: Answer) -> Nothing:
    again = answer.headers.get("qo-ask-again")
    return Nothing(None if again is None else datetime.fromisoformat(again), "qo-owner-limited" in answer.headers)
