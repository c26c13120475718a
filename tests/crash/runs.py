"""What tasks saw, judged: each run says when it begins and ends, and whoever kills a worker says so, all in one file.

A line is `begin PID KEY NUMBER`, `end PID KEY NUMBER` or `killed PID`, appended with a single write.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping


class Judge:
    """Reads the lines in their order, and remembers every promise that they break."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.killed: set[str] = set()
        self.running: dict[str, tuple[str, int]] = {}
        self.ended: defaultdict[str, dict[int, str]] = defaultdict(dict)

    def begin(self, pid: str, key: str, number: int) -> None:
        if key in self.running and (other := self.running[key][0]) not in self.killed:
            self.problems.append(f"{key}: {number} began while {other} ran {self.running[key][1]}")
        if number > 0 and number - 1 not in self.ended[key]:
            self.problems.append(f"{key}: {number} began before {number - 1} had ended")
        if number in self.ended[key] and self.ended[key][number] not in self.killed:
            self.problems.append(f"{key}: {number} ran again, though the worker that ended it lived on")
        self.running[key] = pid, number

    def end(self, pid: str, key: str, number: int) -> None:
        if self.running.get(key) == (pid, number):
            del self.running[key]
        self.ended[key][number] = pid


def problems(lines: Iterable[str], pushed: Mapping[str, int]) -> list[str]:
    """Every promise that these runs break; `pushed` says how many messages each key had, numbered from 0."""
    judge = Judge()
    for line in lines:
        match line.split():
            case ["begin", pid, key, number]:
                judge.begin(pid, key, int(number))
            case ["end", pid, key, number]:
                judge.end(pid, key, int(number))
            case ["killed", pid]:
                judge.killed.add(pid)
    for key, count in pushed.items():
        lost = sorted(set(range(count)) - set(judge.ended[key]))
        judge.problems += [f"{key}: {number} was pushed, and never ended" for number in lost]
    return judge.problems
