"""Deliveries, jobs and dead letters for programs without an event loop."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from types import TracebackType
from typing import Any, Self, Unpack

from qo.client.buffer import Buffer
from qo.client.dead import DeadLetters
from qo.client.delivery import Delivery
from qo.client.job import JobHandle
from qo.client.job_info import JobInfo
from qo.client.portal import Portal
from qo.client.queue import Queue
from qo.client.tokens import Tokens
from qo.client.typed import PushOptions, documented_by
from qo.core.access import Token
from qo.core.durations import Length
from qo.core.lease import Report, Settlement, Verdict
from qo.core.names import DEFAULT_KIND
from qo.core.outcome import CancelAnswer, DeadLetter, Event, Job, JobState
from qo.core.queue import DEFAULT_LEASE


@documented_by(Delivery)
class SyncDelivery:
    """One message under a lease; see `Delivery`. As a context manager it completes, or fails if the block raises."""

    def __init__(self, portal: Portal, delivery: Delivery) -> None:
        self._portal = portal
        self.delivery = delivery
        self.id = delivery.id
        self.queue = delivery.queue
        self.kind = delivery.kind
        self.key = delivery.key
        self.priority = delivery.priority
        self.headers: Mapping[str, str] = delivery.headers
        self.attempt = delivery.attempt
        self.created_at: datetime = delivery.created_at
        self.expires_at: datetime = delivery.expires_at
        self.body = delivery.body

    @property
    def payload(self) -> Any:
        return self.delivery.payload

    @property
    def settled(self) -> bool:
        return self.delivery.settled

    def complete(self, result: Any = None) -> Verdict:
        return self._portal.call(self.delivery.complete(result))

    def fail(self, error: str = "", *, after: Length | None = None) -> Verdict:
        return self._portal.call(self.delivery.fail(error, after=after))

    def release(self) -> Verdict:
        return self._portal.call(self.delivery.release())

    def bury(self, error: str = "") -> Verdict:
        return self._portal.call(self.delivery.bury(error))

    def settlement(self, report: Report) -> Settlement:
        return self.delivery.settlement(report)

    def extend(self, lease: Length = DEFAULT_LEASE, *, started: bool = True) -> bool:
        return self._portal.call(self.delivery.extend(lease, started=started))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal.call(self.delivery.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<Sync{repr(self.delivery)[1:]}"


@documented_by(JobHandle)
class SyncJobHandle:
    """Ask about a job, await its result, or cancel it; see `JobHandle`."""

    def __init__(self, portal: Portal, handle: JobHandle) -> None:
        self._portal = portal
        self._handle = handle
        self.id = handle.id
        self.duplicate = handle.duplicate

    def info(self) -> JobInfo:
        return self._portal.call(self._handle.info())

    def job(self) -> Job:
        return self._portal.call(self._handle.job())

    def status(self) -> JobState | None:
        return self._portal.call(self._handle.status())

    def result(self, timeout: Length | None = None) -> Any:
        return self._portal.call(self._handle.result(timeout))

    def cancel(self) -> CancelAnswer:
        return self._portal.call(self._handle.cancel())

    def events(self) -> list[Event]:
        return self._portal.call(self._handle.events())

    def __repr__(self) -> str:
        return f"<SyncJobHandle {self.id}>"


@documented_by(DeadLetters)
class SyncDeadLetters:
    """Dead letters of one group of a queue; see `DeadLetters`."""

    def __init__(self, portal: Portal, dead: DeadLetters) -> None:
        self._portal = portal
        self._dead = dead

    def list(self, *, after: str | None = None, limit: int = 100) -> Sequence[DeadLetter]:
        return self._portal.call(self._dead.list(after=after, limit=limit))

    def get(self, id: str) -> DeadLetter | None:
        return self._portal.call(self._dead.get(id))

    def retry(self, *ids: str) -> Sequence[str]:
        return self._portal.call(self._dead.retry(*ids))

    def purge(self, *ids: str) -> int:
        return self._portal.call(self._dead.purge(*ids))


@documented_by(Tokens)
class SyncTokens:
    """Who may come in; see `Tokens`."""

    def __init__(self, portal: Portal, tokens: Tokens) -> None:
        self._portal = portal
        self._tokens = tokens

    def create(
        self,
        name: str,
        scopes: Collection[str],
        *,
        prefixes: Collection[str] = (),
        expires_at: datetime | None = None,
        lasts: Length | None = None,
    ) -> tuple[Token, str]:
        return self._portal.call(
            self._tokens.create(name, scopes, prefixes=prefixes, expires_at=expires_at, lasts=lasts)
        )

    def list(self) -> Sequence[Token]:
        return self._portal.call(self._tokens.list())

    def revoke(self, id: str) -> bool:
        return self._portal.call(self._tokens.revoke(id))


@documented_by(Buffer)
class SyncBuffer:
    """Many small pushes become few large ones; see `Buffer`."""

    def __init__(self, portal: Portal, queue: Queue, messages: int, milliseconds: float) -> None:
        self._portal = portal

        async def made() -> Buffer:
            return Buffer(queue, messages, milliseconds)

        self._buffer = portal.call(made())

    def __len__(self) -> int:
        return len(self._buffer)

    def push(self, payload: Any, *, kind: str = DEFAULT_KIND, **options: Unpack[PushOptions]) -> SyncJobHandle:
        return SyncJobHandle(self._portal, self._portal.call(self._buffer.push(payload, kind=kind, **options)))

    def flush(self) -> None:
        self._portal.call(self._buffer.flush())

    def close(self) -> None:
        self._portal.call(self._buffer.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
