"""The fluent form: steps that each give a new reference, and never change the one before.

client.queue("events").group("processors").batch(10).concurrency(5).timeout(30_000).consume(handler)
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Self

from qo.client.arguments import at_least_one, checked_kinds, positive
from qo.core.durations import Length, duration
from qo.core.errors import Invalid
from qo.core.names import checked_key

BATCH = 10
CONCURRENCY = 10

OnError = Callable[[Any, Exception], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options that steps set; the defaults are those of a reference without steps.

    batch        messages taken by one claim; None: ten for a consumer, one for a claim
    concurrency  handlers at once
    key          the one lane that is pushed to and taken from
    kinds        the kinds that are taken; None: all
    lease        how long a claim holds what it took; None: the queue's setting
    idle         end after so long without a message; None: never
    timeout      how long one claim waits before it is made again; None: as long as the server lets it
    each         hand over one message at a time; False: all that one claim took, as a list
    auto_ack     complete what a handler returns from and fail what it raises from; False: the handler settles
    renew        keep leases while handlers run, every so often; None: every third of the lease; zero: not at all
    limit        end after so many messages; None: never
    polling      ask every so often instead of waiting; None: wait
    on_error     told of a delivery and the error that its handler raised
    """

    batch: int | None = None
    concurrency: int = CONCURRENCY
    key: str | None = None
    kinds: frozenset[str] | None = None
    lease: timedelta | None = None
    idle: timedelta | None = None
    timeout: timedelta | None = None
    each: bool = True
    auto_ack: bool = True
    renew: timedelta | None = None
    limit: int | None = None
    polling: timedelta | None = None
    on_error: OnError | None = None


NO_OPTIONS = Options()


class Steps:
    """The steps that queues share, async and sync."""

    __slots__ = ()

    options: Options

    def _with(self, options: Options) -> Self:
        raise NotImplementedError

    def _but(self, **changes: Any) -> Self:
        return self._with(replace(self.options, **changes))

    def with_options(
        self,
        *,
        batch: int | None = None,
        concurrency: int | None = None,
        lease: Length | None = None,
        kinds: Collection[str] | None = None,
        idle: Length | None = None,
    ) -> Self:
        """Several steps at once; what is None was not said."""
        chosen = self if batch is None else self.batch(batch)
        chosen = chosen if concurrency is None else chosen.concurrency(concurrency)
        chosen = chosen if lease is None else chosen.lease(lease)
        chosen = chosen if kinds is None else chosen.kinds(*(checked_kinds(kinds) or ()))
        return chosen if idle is None else chosen.idle(idle)

    def batch(self, messages: int) -> Self:
        """Take so many messages with one claim."""
        return self._but(batch=at_least_one("batch", messages))

    def concurrency(self, handlers: int) -> Self:
        """Run so many handlers at once."""
        return self._but(concurrency=at_least_one("concurrency", handlers))

    def timeout(self, milliseconds: float) -> Self:
        """Let one claim wait so long before it is made again."""
        return self._but(timeout=positive("timeout", _milliseconds("timeout", milliseconds)))

    def key(self, key: str) -> Self:
        """Only this key's lane: pushes go to it, claims take from it."""
        return self._but(key=checked_key("key", key))

    def partition(self, name: str) -> Self:
        """What Queen calls a partition is a key's lane; see `key`."""
        return self.key(name)

    def kinds(self, *kinds: str) -> Self:
        """Take only these kinds."""
        return self._but(kinds=checked_kinds(kinds) or None)

    def lease(self, length: Length) -> Self:
        """Hold what is taken for so long."""
        held = duration("lease", length)
        if held <= timedelta(0):
            raise Invalid("lease", "must be greater than 0")
        return self._but(lease=held)

    def idle(self, length: Length) -> Self:
        """End after so long without a message."""
        return self._but(idle=positive("idle", length))

    def each(self, on: bool = True) -> Self:
        """Hand over one message at a time: the default. `each(False)` hands over what a claim took, as a list."""
        return self._but(each=on)

    def auto_ack(self, on: bool = True) -> Self:
        """Complete what a handler returns from, fail what it raises from: the default. Else the handler settles."""
        return self._but(auto_ack=on)

    def renew_lease(self, on: bool = True, interval_ms: float | None = None) -> Self:
        """Keep leases while handlers run, every so often (every third of the lease); `renew_lease(False)` does not."""
        if not on:
            return self._but(renew=timedelta(0))
        return self._but(renew=None if interval_ms is None else _milliseconds("interval_ms", interval_ms))

    def limit(self, messages: int) -> Self:
        """End after so many messages."""
        return self._but(limit=at_least_one("limit", messages))

    def polling(self, interval_ms: float) -> Self:
        """Ask every so often, instead of waiting to be woken."""
        return self._but(polling=_milliseconds("interval_ms", interval_ms))

    def on_error(self, handler: OnError) -> Self:
        """Be told of a delivery and the error that its handler raised; then it is tried again, as ever."""
        if not callable(handler):
            raise Invalid("on_error", f"must be a function of a delivery and an error, not {type(handler).__name__}")
        return self._but(on_error=handler)


def _milliseconds(field: str, value: Any) -> timedelta:
    if type(value) not in (int, float) or not value > 0:
        raise Invalid(field, f"must be milliseconds above 0, not {value!r}")
    return duration(field, value / 1000)
