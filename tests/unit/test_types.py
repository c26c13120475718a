"""What a type checker says of calls that are wrong, and what a person finds in `help()`."""

from __future__ import annotations

import dataclasses
import inspect
import subprocess
import sys

import pytest

import qo
from qo.client.buffer import Buffer
from qo.client.dead import DeadLetters
from qo.client.sync import SyncBuffer
from qo.client.sync_shells import SyncDeadLetters, SyncTokens
from qo.client.tokens import Tokens
from qo.client.typed import PushOptions, SettingsChanges

CALLS = """
from datetime import timedelta
import qo


async def wrong(queue: qo.Queue, sync: qo.SyncQueue, worker: qo.Worker) -> None:
    await queue.submit("kind", 1, prioritee=1)
    await queue.configure(lese=30)
    sync.submit("kind", 1, prioritee=1)
    sync.configure(lese=30)
    await queue.submit("kind", 1, priority="high")
    worker.task(retry=3)


async def right(queue: qo.Queue, worker: qo.Worker) -> None:
    await queue.submit("kind", 1, priority=1, delay="1m", key="k")
    await queue.configure(lease="1m30s", retry={"attempts": 2}, ttl=None)
    qo.RetryPolicy(delay=1, max_delay="1h")
    qo.WorkerRunOptions(lease=3, grace_seconds=timedelta(seconds=1))
    qo.Dedupe("k", window="5m")

    @worker.task
    async def bare(number: int) -> int:
        return number

    reveal_type(bare)
    reveal_type(await (await queue.push(1)).info())
"""


def test_wrong_calls_are_errors_and_right_ones_are_not(tmp_path):
    (tmp_path / "calls.py").write_text(CALLS)
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "calls.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    errors = [line for line in checked.stdout.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(CALLS.splitlines(), 1) if "prioritee" in line or "lese" in line]
    wrong += [number for number, line in enumerate(CALLS.splitlines(), 1) if '"high"' in line or "retry=3" in line]
    assert sorted({int(line.split(":")[1]) for line in errors}) == sorted(wrong), checked.stdout
    assert "def (number: int) -> typing.Coroutine[Any, Any, int]" in checked.stdout.replace("builtins.", "")
    assert "JobInfo" in checked.stdout


def test_the_names_for_type_checkers_are_those_there_are():
    settings = {each.name for each in dataclasses.fields(qo.QueueSettings)} - {"sealed_since"}
    assert set(SettingsChanges.__annotations__) == settings
    parameters = set(inspect.signature(qo.Queue.push).parameters) - {"self", "payload", "kind"}
    assert set(PushOptions.__annotations__) == parameters


def test_every_public_method_has_a_docstring():
    kinds = [value for name in qo.__all__ if inspect.isclass(value := getattr(qo, name))]
    kinds += [Buffer, DeadLetters, Tokens, SyncBuffer, SyncDeadLetters, SyncTokens]
    ours = [kind for kind in kinds if not issubclass(kind, BaseException)]
    bare = []
    for kind in ours:
        for name, member in inspect.getmembers(kind):
            module = getattr(inspect.unwrap(getattr(member, "fget", member)), "__module__", None) or ""
            told = callable(member) or isinstance(member, property)
            if told and module.startswith("qo.") and not name.startswith("_") and not inspect.getdoc(member):
                bare.append(f"{kind.__name__}.{name}")
    assert bare == []


def test_a_claim_of_nothing_is_refused():
    with qo.connect("sqlite://:memory:") as client:
        for messages in (0, -1, 1.5, True):
            with pytest.raises(qo.Invalid, match="messages: must be a whole number of at least 1"):
                client.queue("q").claim(messages)
