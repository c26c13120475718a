"""measured: the verbs of a store, counted and timed."""

from __future__ import annotations

import inspect
import time
from collections import Counter as Tallied
from collections.abc import Callable, Sequence
from typing import Any, cast

from qo.core.lease import (
    AckByName,
    Acked,
    Answer,
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
from qo.core.message import Duplicate, NewMessage, Pushed, Refused, Stored
from qo.core.verbs import Admin, Engine, Inspect, Records, Store, Wires, Workers
from qo.metrics.registry import SIZES, Registry

ANSWERS: dict[type, str] = {Stored: "stored", Duplicate: "duplicate", Refused: "refused"}


MEASURED = frozenset(
    name
    for protocol in (Store, Admin, Records, Workers, Inspect, Wires)
    for name, verb in vars(protocol).items()
    if inspect.iscoroutinefunction(verb)
)
"""The verbs of an engine."""


class _Timed:
    """An engine whose every verb is timed; what is not a verb is the engine's own."""

    def __init__(self, engine: Engine, note: Callable[[str, float, int], None]) -> None:
        self._engine = engine
        self._note = note

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._engine, name)
        if name not in MEASURED:
            return found

        async def timed(*arguments: Any, **options: Any) -> Any:
            began = time.perf_counter()
            try:
                return await found(*arguments, **options)
            finally:
                self._note(name, began, 1)

        setattr(self, name, timed)
        return timed


class Measured:
    """Does what the store does, and writes down how much and how long.

    The verbs that move messages are told apart by their answers; `engine` is the same store with all its verbs timed.
    """

    def __init__(self, store: Engine, registry: Registry) -> None:
        self._store = store
        self.engine = cast("Engine", _Timed(store, self._note))
        self._pushed = registry.counter("qo_pushed_messages_total", "Messages pushed, by answer.", ["answer"])
        self._claims = registry.counter("qo_claims_total", "Claims that the store was asked for.")
        self._empty = registry.counter("qo_claims_empty_total", "Claims that found nothing.")
        self._claimed = registry.counter("qo_claimed_messages_total", "Messages delivered under a lease.")
        self._settled = registry.counter("qo_settled_messages_total", "Settlements, by outcome.", ["outcome"])
        self._extended = registry.counter("qo_extended_leases_total", "Leases held for longer, by answer.", ["answer"])
        self._units = registry.counter("qo_units_total", "Units of settles and pushes, by answer.", ["answer"])
        self._seconds = registry.histogram("qo_store_call_seconds", "How long a call to the store took.", ["verb"])
        self._sizes = registry.histogram(
            "qo_store_batch_size", "Items that one call to the store carried.", ["verb"], SIZES
        )

    async def push(self, messages: Sequence[NewMessage], *, nonce: str | None = None) -> Sequence[Pushed]:
        began = time.perf_counter()
        answers = await self._store.push(messages, nonce=nonce)
        self._note("push", began, len(messages))
        for kind, count in Tallied(map(type, answers)).items():
            self._pushed.add(count, ANSWERS[kind])
        return answers

    async def claim(self, wants: Sequence[Want]) -> Sequence[Claimed | Nothing]:
        began = time.perf_counter()
        answers = await self._store.claim(wants)
        self._note("claim", began, len(wants))
        self._note_claims(answers)
        return answers

    async def settle(
        self, settlements: Sequence[Settlement], then: Sequence[Want] = ()
    ) -> tuple[Sequence[Settled], Sequence[Claimed | Nothing]]:
        began = time.perf_counter()
        answers, claims = await self._store.settle(settlements, then)
        self._note("settle", began, len(settlements))
        self._note_settled(answers)
        self._note_claims(claims)
        return answers, claims

    async def extend(self, extensions: Sequence[Extension]) -> Sequence[Extended | Lost]:
        began = time.perf_counter()
        answers = await self._store.extend(extensions)
        self._note("extend", began, len(extensions))
        for each in answers:
            self._extended.add(1, "lost" if isinstance(each, Lost) else "extended")
        return answers

    async def transact(self, units: Sequence[Unit]) -> Sequence[Done | Undone]:
        began = time.perf_counter()
        answers = await self._store.transact(units)
        self._note("transact", began, len(units))
        for each in answers:
            self._units.add(1, "undone" if isinstance(each, Undone) else "done")
            if isinstance(each, Done):
                self._note_settled(each.settled)
        return answers

    async def ack_by_name(self, wires: Wires, acks: Sequence[AckByName]) -> Sequence[Acked]:
        began = time.perf_counter()
        answers = await wires.ack_by_name(acks)
        self._note("ack_by_name", began, len(acks))
        for each in answers:
            self._settled.add(1, (each.verdict or each.answer).value)
        return answers

    def _note(self, verb: str, began: float, size: int) -> None:
        self._seconds.observe(time.perf_counter() - began, verb)
        self._sizes.observe(size, verb)

    def _note_claims(self, answers: Sequence[Claimed | Nothing]) -> None:
        taken = [len(each.deliveries) for each in answers if isinstance(each, Claimed)]
        self._claims.add(len(answers))
        self._empty.add(len(answers) - len(taken))
        self._claimed.add(sum(taken))

    def _note_settled(self, answers: Sequence[Settled]) -> None:
        for outcome, count in Tallied(map(_outcome, answers)).items():
            self._settled.add(count, outcome)


def _outcome(settled: Settled) -> str:
    """The verdict of a settlement; if this call did not settle the message, the answer."""
    if settled.answer is Answer.SETTLED and settled.verdict is not None:
        return settled.verdict.value
    return settled.answer.value
