"""A claimed message and the things that can be said about it."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from qo.client.payload import result_bytes, unpacked
from qo.client.traces import describe
from qo.core.durations import Length, duration
from qo.core.errors import LeaseLost
from qo.core.lease import (
    Answer,
    Bury,
    Complete,
    Delivered,
    Extension,
    Fail,
    Lost,
    Place,
    Release,
    Report,
    Settlement,
    Verdict,
)
from qo.core.message import id_text
from qo.core.queue import DEFAULT_LEASE
from qo.core.verbs import Broker


class Delivery:
    """One message under a lease. Settle it once: complete, fail, release or bury.

    As a context manager it completes when the block ends and fails when it raises::

        async with delivery:
            await work(delivery.payload)
    """

    __slots__ = ("_broker", "_settled", "delivered")

    def __init__(self, broker: Broker, delivered: Delivered) -> None:
        self._broker = broker
        self._settled = False
        self.delivered = delivered

    @property
    def id(self) -> str:
        """The message's id, as text."""
        return id_text(self.delivered.id)

    @property
    def queue(self) -> str:
        """The queue that it was taken from."""
        return self.delivered.queue

    @property
    def kind(self) -> str:
        """The name of the task that handles it."""
        return self.delivered.kind

    @property
    def key(self) -> str | None:
        """The key whose messages run in order; None: it has none."""
        return self.delivered.key

    @property
    def priority(self) -> int:
        """From -100 to 100, higher first."""
        return self.delivered.priority

    @property
    def headers(self) -> Mapping[str, str]:
        """What was pushed with it, text by name."""
        return self.delivered.headers

    @property
    def attempt(self) -> int:
        """Which attempt this is, from 1."""
        return self.delivered.attempt

    @property
    def created_at(self) -> datetime:
        """When it was pushed."""
        return self.delivered.created_at

    @property
    def expires_at(self) -> datetime:
        """When the lease runs out, as of the claim; `extend` moves it."""
        return self.delivered.expires_at

    @property
    def body(self) -> bytes:
        """The payload's bytes, as they came."""
        return self.delivered.payload

    @property
    def payload(self) -> Any:
        """The value that was pushed: decoded JSON, or bytes if it was pushed as bytes."""
        return unpacked(self.delivered.payload, self.delivered.headers)

    @property
    def settled(self) -> bool:
        """Whether something was said about it through this object."""
        return self._settled

    async def complete(self, result: Any = None) -> Verdict:
        """It is done. The result is kept with the outcome. On a keyed lane, completes what came before it too."""
        return await self.settle(Complete(result_bytes(result)))

    async def fail(self, error: str = "", *, after: Length | None = None) -> Verdict:
        """It failed: try again after the queue's backoff, or `after` that. Out of attempts, it is buried."""
        rest = None if after is None else duration("after", after)
        return await self.settle(Fail(error, rest))

    async def release(self) -> Verdict:
        """Give it back. No attempt is used."""
        return await self.settle(Release())

    async def bury(self, error: str = "") -> Verdict:
        """It must not be tried again: make it a dead letter now."""
        return await self.settle(Bury(error))

    async def settle(self, report: Report) -> Verdict:
        """Say what became of it. Raises `LeaseLost` if that is no longer this holder's to say."""
        [answer], _ = await self._broker.settle([self.settlement(report)])
        self._settled = True
        if answer.verdict is None:
            raise LeaseLost(_explain(answer.answer, self.delivered))
        return answer.verdict

    def note_settled(self) -> None:
        """Something was said about it in a call for many."""
        self._settled = True

    def settlement(self, report: Report) -> Settlement:
        """This delivery's part in a unit; see `Client.transact`."""
        each = self.delivered
        return Settlement(token=each.token, lane=each.lane, offset=each.offset, report=report)

    async def extend(self, lease: Length = DEFAULT_LEASE, *, started: bool = True) -> bool:
        """Hold the lease for so long from now. Whether the message was canceled meanwhile.

        Extends everything that was claimed together with it. Never shortens.
        """
        here = Place(self.delivered.lane, self.delivered.offset)
        extension = Extension(
            token=self.delivered.token, lease=duration("lease", lease), started=(here,) if started else ()
        )
        [answer] = await self._broker.extend([extension])
        if isinstance(answer, Lost):
            raise LeaseLost(_explain(Answer.LOST, self.delivered))
        return here in answer.canceled

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._settled:
            return
        if error is None:
            await self.complete()
        elif isinstance(error, Exception):
            await self.fail(describe(error))
        else:
            await self.release()

    def __repr__(self) -> str:
        return f"<Delivery {self.id} of {self.queue!r} kind={self.kind!r} key={self.key!r} attempt={self.attempt}>"


def _explain(answer: Answer, delivered: Delivered) -> str:
    what = f"message {id_text(delivered.id)}"
    match answer:
        case Answer.GIVEN_BACK:
            return f"{what} was given back, because an earlier one of its run was not completed"
        case Answer.UNKNOWN:
            return f"nothing is known of the lease of {what}; it ended more than ten minutes ago, or never was"
        case _:
            return f"the lease of {what} has ended; it will be, or was, delivered again"
