"""Every error qo raises on purpose.

QoError
├── Invalid            the caller's mistake; never retried
│   └── TooLarge       more bytes or items than the setting allows
├── Conflict           true a moment ago, no longer
│   ├── LeaseLost      the lease has ended; what it did is not counted
│   ├── RolledBack     a unit could not be done as a whole; nothing of it was
│   └── AlreadyExists
├── NotFound           no such queue, group, message or dead letter
├── Forbidden          the store may not be written, or not by this caller
│   ├── QueueFull      the queue has as many messages as its max_size allows
│   └── Unauthenticated  the server does not know who is calling
├── Incompatible       the store is not ours, or was made by a newer qo
├── JobFailed          the awaited job ended as a dead letter
├── JobCanceled        the awaited job was canceled
├── TimedOut           the wait is over; the thing waited for goes on
└── Unavailable        the store cannot answer; safe to retry
    ├── StoreFull      no room left; retry when there is
    ├── Throttled      too much at once; retry after a while
    └── Closed         this client was closed

Leaves say who must act: the caller (Invalid, Conflict, NotFound), the operator
(Forbidden, Incompatible, StoreFull), or nobody but time (Throttled, Unavailable).
"""

from __future__ import annotations

from collections.abc import Iterable

FIELD_LIMIT, PROBLEM_LIMIT = 100, 1000
"""Characters of an error that may come from its caller: a request's size must not become the answer's."""


def shortened(text: str, limit: int) -> str:
    """Text as it may be told: its beginning, if it is long, and how long it was."""
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"


class QoError(Exception):
    """The root of everything that qo raises on purpose."""


class Invalid(QoError):
    """The caller's mistake. Names the field and says what is allowed; `allowed` lists what a choice offers."""

    def __init__(self, field: str, problem: str, allowed: Iterable[str] = ()) -> None:
        self.field = shortened(field, FIELD_LIMIT)
        self.problem = shortened(problem, PROBLEM_LIMIT)
        self.allowed = [str(each) for each in allowed]
        super().__init__(f"{self.field}: {self.problem}")


def not_one_of(field: str, value: object, allowed: Iterable[str], prefix: str = "") -> Invalid:
    """The mistake of a value that is none of those that can be chosen."""
    choices = [str(each) for each in allowed]
    told = f"'{value}'" if isinstance(value, str) else repr(value)
    return Invalid(field, f"{prefix}must be one of {', '.join(choices)}, not {told}", choices)


class TooLarge(Invalid):
    """More bytes or items than the named setting allows."""


class Conflict(QoError):
    """What the call relied on is no longer so."""


class LeaseLost(Conflict):
    """The lease has ended or was never there; the settle or extend changed nothing."""


class RolledBack(Conflict):
    """A unit could not be done as a whole, so nothing of it was. `item` says which part was in the way."""

    def __init__(self, reason: str, *, item: int | None = None, obstacle: str | None = None) -> None:
        super().__init__(reason)
        self.item = item
        self.obstacle = obstacle


class AlreadyExists(Conflict):
    """Something of that name is there already."""


class NotFound(QoError):
    """No such queue, group, message or dead letter."""


class Forbidden(QoError):
    """The store, or the caller's rights, do not permit this."""


class QueueFull(Forbidden):
    """The queue's `max_size` is reached. Nothing of the push was stored; push again when consumers have caught up."""


class Unauthenticated(Forbidden):
    """The server wants to know who is calling: there is no token, or it is not known or over."""


class Incompatible(QoError):
    """The store is not qo's, or was made by a newer qo."""


class JobFailed(QoError):
    """The job that was awaited used up its attempts, or was buried."""


class JobCanceled(QoError):
    """The job that was awaited was canceled, or its time to live ran out."""


class TimedOut(QoError, TimeoutError):
    """The wait is over. What was waited for goes on."""


class Unavailable(QoError):
    """The store cannot answer now. Nothing was half done; trying again is safe."""


class StoreFull(Unavailable):
    """The store has no room. Nothing was half written; it goes on when there is room."""


class Throttled(Unavailable):
    """Too much at once: the server refused this call to protect itself. Try again after a while."""

    def __init__(self, reason: str, *, retry_after_seconds: float = 1) -> None:
        super().__init__(reason)
        self.retry_after_seconds = retry_after_seconds


class Closed(Unavailable):
    """This client was closed."""
