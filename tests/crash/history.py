"""What producers and consumers saw, written down as it happens, and judged afterwards.

Each process appends lines to a file of its own with single writes, so that a kill
loses at most what had not happened yet. Times are the machine's monotonic clock.
An intent is written before a call, an answer after it; a call without an answer
may or may not have taken effect, and the checker allows for both.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def now() -> float:
    return time.clock_gettime(time.CLOCK_MONOTONIC)


class Recorder:
    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, event: str, **facts: Any) -> None:
        os.write(self._file, (json.dumps({"event": event, "at": now(), **facts}) + "\n").encode())


def read(paths: Iterable[Path]) -> list[dict[str, Any]]:
    lines = [line for path in paths for line in path.read_text().splitlines(keepends=True)]
    return sorted((json.loads(line) for line in lines if line.endswith("\n")), key=lambda event: event["at"])


@dataclass
class Delivery:
    """One delivery of one message, and what was said about it."""

    asked_at: float
    got_at: float
    expires_at: float
    said_at: float | None = None
    let_go_at: float | None = None
    answered_at: float | None = None
    verdict: str | None = None


@dataclass
class Life:
    """One message, as all processes together saw it."""

    key: str | None = None
    offset: int | None = None
    pushed: bool = False
    deliveries: dict[str, Delivery] = field(default_factory=dict)

    @property
    def ended_at(self) -> float | None:
        """When it was certainly over."""
        times = [each.answered_at for each in self.deliveries.values() if each.verdict in ENDS]
        return min((time for time in times if time is not None), default=None)

    @property
    def may_have_ended_at(self) -> float | None:
        """When it may have been over at the earliest: somebody began to say so."""
        times = [each.said_at for each in self.deliveries.values() if each.said_at is not None]
        return min(times, default=None)


ENDS = ("completed", "buried")


def lives(events: Iterable[dict[str, Any]]) -> dict[str, Life]:
    found: defaultdict[str, Life] = defaultdict(Life)
    for event in events:
        match event["event"]:
            case "pushing":
                for id, key in event["messages"]:
                    found[id].key = key
            case "pushed":
                for id in event["ids"]:
                    found[id].pushed = True
            case "claimed":
                life = found[event["id"]]
                life.offset = event["offset"]
                life.deliveries[event["token"]] = Delivery(event["asked_at"], event["at"], event["expires_at"])
            case "extended":
                for life in found.values():
                    if event["token"] in life.deliveries:
                        life.deliveries[event["token"]].expires_at = event["expires_at"]
            case "settling":
                found[event["id"]].deliveries[event["token"]].said_at = event["at"]
            case "letting go":
                for id in event["ids"]:
                    found[id].deliveries[event["token"]].let_go_at = event["at"]
            case "settled":
                delivery = found[event["id"]].deliveries[event["token"]]
                delivery.answered_at, delivery.verdict = event["at"], event["verdict"]
    return dict(found)


def problems(events: list[dict[str, Any]], final: dict[str, str]) -> list[str]:
    """Every promise that the history breaks. `final` is each message's state in the store at the end."""
    known = lives(events)
    found: list[str] = []
    announced = {id for event in events if event["event"] == "pushing" for id, _ in event["messages"]}
    for id, life in known.items():
        found += _of_one(id, life, final)
        if life.deliveries and id not in announced:
            found.append(f"{id}: delivered, but nobody pushed it")
    found += [f"{id}: in the store, but nobody pushed it" for id in final if id not in announced]
    by_key: defaultdict[str, list[tuple[int, str, Life]]] = defaultdict(list)
    for id, life in known.items():
        if life.key is not None and life.offset is not None:
            by_key[life.key].append((life.offset, id, life))
    for key, line in by_key.items():
        found += _of_a_key(key, sorted(line, key=lambda each: each[0]))
    return found


def _of_one(id: str, life: Life, final: dict[str, str]) -> list[str]:
    found = []
    state = final.get(id)
    if life.pushed and state is None:
        found.append(f"{id}: acknowledged, and lost")
    if state is not None and state not in ("succeeded", "failed"):
        found.append(f"{id}: never ended, it is {state}")
    ends = [each for each in life.deliveries.values() if each.verdict in ENDS]
    if len(ends) > 1:
        found.append(f"{id}: settled {len(ends)} times")
    if ends and state is not None and (state == "succeeded") != (ends[0].verdict == "completed"):
        found.append(f"{id}: settled as {ends[0].verdict}, but kept as {state}")
    over = life.ended_at
    deliveries = sorted(life.deliveries.values(), key=lambda each: each.got_at)
    if over is not None and any(each.asked_at > over for each in deliveries):
        found.append(f"{id}: delivered again after it was over")
    if any(_overlap(one, other) for one, other in itertools.combinations(deliveries, 2)):
        found.append(f"{id}: held by two at once")
    return found


def _overlap(one: Delivery, other: Delivery) -> bool:
    """Whether both certainly held it at some time: each from its answer until it spoke, or its lease ran out."""
    ends = [
        time for each in (one, other) for time in (each.expires_at, each.said_at, each.let_go_at) if time is not None
    ]
    return max(one.got_at, other.got_at) < min(ends)


def _of_a_key(key: str, line: list[tuple[int, str, Life]]) -> list[str]:
    """Nothing is delivered before all that is ahead of it is over."""
    found = []
    offsets = [offset for offset, _, _ in line]
    if len(offsets) != len(set(offsets)):
        found.append(f"{key}: an offset was given out twice")
    for (_, ahead_id, ahead), (_, id, life) in itertools.pairwise(line):
        first = min((each.got_at for each in life.deliveries.values()), default=None)
        over = ahead.may_have_ended_at
        together = set(ahead.deliveries) & set(life.deliveries)
        if first is not None and not together and (over is None or over > first):
            found.append(f"{key}: {id} was delivered before {ahead_id} was over")
    return found
