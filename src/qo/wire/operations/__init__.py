"""Every operation of our own API, in the order in which the reference lists them."""

from __future__ import annotations

from qo.wire.operation import Operation
from qo.wire.operations import claims, dead, groups, jobs, messages, queues, schedules, tokens, workers

OPERATIONS: list[Operation] = [
    value
    for module in (messages, claims, queues, groups, jobs, dead, schedules, tokens, workers)
    for value in vars(module).values()
    if isinstance(value, Operation)
]


def of_verb(part: str, name: str) -> list[Operation]:
    """The operations that make a verb; several, if they fix different arguments."""
    return [each for each in OPERATIONS if each.verb is not None and (each.verb.part, each.verb.name) == (part, name)]
