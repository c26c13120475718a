"""Kinds of work that do what they say and nothing else: for demos, load tests, and our own tests.

Deterministic: what becomes of a message depends on its kind and its attempt alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qo.core.errors import Invalid, not_one_of
from qo.core.names import suggestion
from qo.core.retry import RetryPolicy
from qo.worker.errors import PermanentError
from qo.worker.tasks import Context
from qo.worker.worker import Worker

OUTCOMES = ("success", "failure", "failure_until", "timeout", "large_output")
LARGE_BYTES = 256 * 1024
TIMEOUT_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkKind:
    """One kind of work.

    duration_ms    how long it takes
    outcome        success, failure, failure_until (`attempt` succeeds), timeout (longer than it may), large_output
    retryable      whether a failure is tried again
    attempt        of failure_until: the first attempt that succeeds
    """

    duration_ms: float = 0
    outcome: str = "success"
    retryable: bool = True
    attempt: int = 3

    def __post_init__(self) -> None:
        for name, wanted in (("duration_ms", int | float), ("outcome", str), ("retryable", bool), ("attempt", int)):
            value = getattr(self, name)
            if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
                raise Invalid(name, f"must not be of type {type(value).__name__}")
        if not self.duration_ms >= 0:
            raise Invalid("duration_ms", f"must not be negative, not {self.duration_ms}")
        if self.outcome not in OUTCOMES:
            raise not_one_of("outcome", self.outcome, OUTCOMES)
        if self.attempt < 1:
            raise Invalid("attempt", f"must be at least 1, not {self.attempt}")

    async def do(self, payload: Any, context: Context) -> Any:
        await asyncio.sleep(self.duration_ms / 1000 if self.outcome != "timeout" else 60 * TIMEOUT_SECONDS)
        match self.outcome:
            case "failure":
                raise (RuntimeError if self.retryable else PermanentError)("it always fails")
            case "failure_until" if context.attempt < self.attempt:
                raise RuntimeError(f"it fails until attempt {self.attempt}")
            case "large_output":
                return "x" * LARGE_BYTES
        return {"did": payload}


CATALOG: Mapping[str, WorkKind] = {
    "fast": WorkKind(),
    "slow": WorkKind(duration_ms=1000),
    "fail": WorkKind(outcome="failure", retryable=False),
    "fail_and_retry": WorkKind(outcome="failure"),
    "fail_twice": WorkKind(outcome="failure_until", attempt=3),
    "too_long": WorkKind(outcome="timeout", retryable=False),
    "cancel_me": WorkKind(duration_ms=60_000),
    "large": WorkKind(outcome="large_output"),
}
"""Those that need not be said. `cancel_me` runs for a minute: cancel it before it begins, or while it runs."""


def read_kinds(given: Mapping[str, Any]) -> dict[str, WorkKind]:
    """The built-in kinds, and those of `[work_kinds.NAME]`, which weigh more."""
    kinds = dict(CATALOG)
    known = WorkKind.__dataclass_fields__
    for name, fields in given.items():
        if not isinstance(fields, Mapping):
            raise Invalid(f"work_kinds.{name}", "must be a table")
        for field in fields:
            if field not in known:
                raise Invalid(f"work_kinds.{name}.{field}", "is not known" + suggestion(field, known))
        try:
            kinds[name] = WorkKind(**fields)
        except Invalid as error:
            raise Invalid(f"work_kinds.{name}.{error.field}", error.problem) from None
        except TypeError as error:
            raise Invalid(f"work_kinds.{name}", str(error)) from None
    return kinds


def catalog_worker(where: str | None, queues: str | tuple[str, ...], kinds: Mapping[str, WorkKind] = CATALOG) -> Worker:
    """A worker that does these kinds of work."""
    worker = Worker(where, queues=queues)
    for name, kind in kinds.items():
        timeout = TIMEOUT_SECONDS if kind.outcome == "timeout" else None
        retry = None if kind.retryable else RetryPolicy(attempts=1)
        worker.task(name, timeout=timeout, retry=retry)(kind.do)
    return worker
