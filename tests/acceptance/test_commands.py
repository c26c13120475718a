"""The commands, as a user types them."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys

import pytest

import qo
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.conformance.saying import message
from tests.conformance.test_workers import beat


def run(*words: str, folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qo.cli.main", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_version(tmp_path):
    assert run("--version", folder=tmp_path).stdout == f"qo {qo.__version__}\n"


def test_help_names_the_commands(tmp_path):
    said = run("--help", folder=tmp_path).stdout
    assert "demo" in said
    assert "doctor" in said


def test_the_demo_accounts_for_every_job(tmp_path):
    said = run("demo", "--jobs", "600", folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "done        599" in said.stdout
    assert "dead        1" in said.stdout
    assert "every job is accounted for" in said.stdout
    assert list(tmp_path.iterdir()) == []


def test_the_demo_can_keep_its_store_and_the_doctor_reads_it(tmp_path):
    url = "sqlite:///kept.db"
    assert run("demo", "--jobs", "20", "--store", url, folder=tmp_path).returncode == 0
    said = run("doctor", url, folder=tmp_path)
    assert said.returncode == 0
    assert "SQLite" in said.stdout
    assert "messages: 20" in said.stdout
    assert "queue demo: 0 ready" in said.stdout
    assert said.stdout.endswith("healthy\n")


def test_workers_are_listed_and_what_nobody_takes_is_told(tmp_path):
    async def fill() -> None:
        past = ManualClock()
        store = await SqliteEngine.open(str(tmp_path / "qo.db"), clock=past.now)
        await store.push([message(kind="sned")])
        await store.beat([beat("one", kinds=("send",))])
        await store.close()

    asyncio.run(fill())
    said = run("workers", folder=tmp_path)
    assert said.returncode == 0
    assert re.search(r"one +alive +orders +send +6 +10 +50% +none", said.stdout)
    assert "nobody takes 'sned' of queue 'orders' for group 'default'" in said.stdout
    found = json.loads(run("workers", "--json", folder=tmp_path).stdout)
    assert (found["workers"][0]["id"], found["unserved"][0]["kind"]) == ("one", "sned")
    said = run("doctor", "sqlite:///qo.db", folder=tmp_path)
    assert said.returncode == 1
    assert "attention: no worker takes 'sned' of queue 'orders'" in said.stdout


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("doctor", "mysql://x"), 1, "must begin with"),
        (("doctor", "sqlite:///no/such/folder/x.db"), 1, "there is no store"),
        (("demo", "--store", "sqlite:///no/such/folder/x.db"), 1, "folder"),
        (("demo", "--jobs", "many"), 2, "whole number"),
        (("doctor", "sqlite:///notes.txt"), 1, "not an SQLite database"),
        (("demo", "--jobs", "0"), 2, "at least 1"),
        (("dance",), 2, "invalid choice"),
        ((), 2, "COMMAND"),
    ],
)
def test_mistakes_get_a_sentence_and_no_traceback(tmp_path, words, code, says):
    (tmp_path / "notes.txt").write_text("notes " * 100)
    said = run(*words, folder=tmp_path)
    assert said.returncode == code
    assert says in said.stderr
    assert "Traceback" not in said.stderr
