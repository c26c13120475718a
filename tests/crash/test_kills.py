"""Processes are killed under load, at named points and at random; the checker finds no broken promise."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import qo
from tests.crash.child import QUEUE, SETTINGS, drain
from tests.crash.history import problems, read
from tests.postgres import Server, new_schema

KILLS = int(os.environ.get("QO_KILLS", "20"))
ROUND = 10
"""Kills on one store; then its history is judged."""
RESTART_AFTER = 4
ENGINES = os.environ.get("QO_CRASH_ENGINES", "sqlite,postgres").split(",")

POINTS = list(
    itertools.product(["before commit", "after commit"], ["push", "claim", "settle", "extend", "transact", "tidy"])
)
REPOSITORY = Path(__file__).parents[2]


def start(url: str, history: Path, seed: int, crash: tuple[str, str, int] | None) -> subprocess.Popen[bytes]:
    words = [] if crash is None else [str(word) for word in crash]
    command = [sys.executable, "-m", "tests.crash.child", url, str(history), str(seed), *words]
    return subprocess.Popen(command, cwd=REPOSITORY, stderr=subprocess.PIPE)


def wait_for_kill(child: subprocess.Popen[bytes], rng: random.Random, *, named: bool) -> None:
    """Wait for it to kill itself; at a random time, or if it has not come to its point, kill it."""
    try:
        child.wait(timeout=8 if named else 0.4 + rng.random() * 0.5)
    except subprocess.TimeoutExpired:
        child.send_signal(signal.SIGKILL)
        child.wait()
    assert child.stderr is not None
    with child.stderr:
        said = child.stderr.read().decode()
    assert child.returncode == -signal.SIGKILL, said


def crash_round(url: str, folder: Path, rng: random.Random, kills: int, between: Callable[[int], None]) -> int:
    """Kill so many processes on one store, two of which run at a time; judge; answer how many messages there were."""
    with qo.connect(url) as client:
        client.queue(QUEUE).configure(**SETTINGS)
    numbers = itertools.count()
    children: list[tuple[subprocess.Popen[bytes], bool]] = []
    for number in range(kills):
        while len(children) < 2:
            named = rng.random() < 0.6
            crash = (*rng.choice(POINTS), rng.randint(1, 25)) if named else None
            history = folder / f"history-{next(numbers)}"
            history.touch()
            children.append((start(url, history, rng.randrange(10**9), crash), named))
        child, named = children.pop(0)
        wait_for_kill(child, rng, named=named)
        between(number)
    for child, _ in children:
        wait_for_kill(child, rng, named=False)
    time.sleep(0.5)  # real processes, real leases: let the last ones run out
    final = asyncio.run(drain(url, folder / "history-drain"))
    events = read(folder.glob("history-*"))
    assert problems(events, final) == []
    return len(final)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server(settings={"wal_level": "minimal", "max_wal_senders": "0"}).start()
    yield server
    server.remove()


@pytest.fixture(params=[engine for engine in ("sqlite", "postgres") if engine in ENGINES])
def store(request) -> tuple[Callable[[Path], str], Callable[[int], None]]:
    """How a round's store is named, and what happens to it between kills: a database is restarted, as a crash would."""
    if request.param == "sqlite":
        return lambda folder: f"sqlite:///{folder / 'qo.db'}", lambda _: None
    server: Server = request.getfixturevalue("server")

    def restart(number: int) -> None:
        if number == RESTART_AFTER:
            server.stop("immediate")
            server.start()

    return lambda _: f"{server.url}&schema={new_schema()}&pool=4", restart


def test_nothing_is_lost_whenever_processes_are_killed(store, tmp_path):
    name, between = store
    seed = int(os.environ.get("QO_SEED", str(random.randrange(10**9))))
    print(f"QO_SEED={seed}")
    rng = random.Random(seed)
    done = messages = 0
    while done < KILLS:
        folder = tmp_path / str(done)
        folder.mkdir()
        messages += crash_round(name(folder), folder, rng, min(ROUND, KILLS - done), between)
        done += ROUND
    print(f"{KILLS} kills or more, {messages} messages, no promise broken")
    assert messages > KILLS


def test_a_stopped_process_settles_nothing_that_is_no_longer_its_own(store, tmp_path):
    """SIGSTOP past its leases, SIGCONT, and on it goes: what it held was given to others."""
    url = store[0](tmp_path)
    with qo.connect(url) as client:
        client.queue(QUEUE).configure(**SETTINGS)
    rng = random.Random(1)
    histories = [tmp_path / f"history-{number}" for number in range(2)]
    for history in histories:
        history.touch()
    children = [start(url, history, number, None) for number, history in enumerate(histories)]
    time.sleep(1)
    for _ in range(3):
        children[0].send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        children[0].send_signal(signal.SIGCONT)
        time.sleep(0.2)
    for child in children:
        wait_for_kill(child, rng, named=False)
    time.sleep(0.5)
    final = asyncio.run(drain(url, tmp_path / "history-drain"))
    assert problems(read(tmp_path.glob("history-*")), final) == []
