"""Which store it is, where nobody says so in code: one answer for `connect`, workers and commands."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest

import qo
from qo.connect import described
from qo.environment import Chosen, chosen_store, token_for
from tests.serving import Serving, plain_environment

OTHER = "sqlite:///other.db"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("QO_STORE", "QO_CONFIG", "QO_TOKEN", "QO_TOKEN_HOST"):
        monkeypatch.delenv(name, raising=False)


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qo.cli.main", *words],
        env={**plain_environment(), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_the_variable_weighs_more_than_the_file_and_the_file_than_the_default():
    assert chosen_store({}) == ("sqlite:///qo.db", "default", False, "")
    Path("qo.toml").write_text('store = "sqlite:///file.db"\n[encryption]\nkey = "ab"\n')
    assert chosen_store({}) == ("sqlite:///file.db", "qo.toml", True, "ab")
    Path("named.toml").write_text('store = "sqlite:///named.db"')
    assert chosen_store({"QO_CONFIG": "named.toml"})[:3] == ("sqlite:///named.db", "named.toml", False)
    assert chosen_store({"QO_STORE": OTHER})[:2] == (OTHER, "QO_STORE")


@pytest.mark.parametrize("way", ["variable", "file"])
async def test_connect_without_a_url_is_the_configured_store(way, monkeypatch):
    if way == "variable":
        monkeypatch.setenv("QO_STORE", OTHER)
    else:
        Path("qo.toml").write_text(f'store = "{OTHER}"')
    async with qo.connect() as client:
        await client.queue("q").push(1)
    assert Path("other.db").exists()
    assert not Path("qo.db").exists()


def test_the_sync_client_too(monkeypatch):
    monkeypatch.setenv("QO_STORE", OTHER)
    with qo.connect() as client:
        client.queue("q").push(1)
    assert Path("other.db").exists()


async def test_a_worker_without_a_url_works_on_the_configured_store_and_says_so(monkeypatch, caplog):
    monkeypatch.setenv("QO_STORE", OTHER)
    worker = qo.Worker(queues="q")

    @worker.task
    async def step(number: int) -> int:
        return number + 1

    caplog.set_level(logging.INFO, "qo.worker")
    async with worker.running(), qo.connect(OTHER) as client:
        assert await (await client.queue("q").submit("step", 1)).result(timeout=30) == 2
    assert "working on q of sqlite:///other.db (from QO_STORE)" in caplog.text


def test_a_token_in_the_environment_is_not_sent_where_a_file_of_the_folder_says(monkeypatch):
    Path("qo.toml").write_text('store = "http://elsewhere:1"')
    monkeypatch.setenv("QO_TOKEN", "secret")
    with pytest.raises(qo.Invalid, match="is not sent to elsewhere:1"), qo.connect():
        pass


def test_a_url_is_described_without_its_password():
    assert described("postgresql://me:secret@host/db") == "postgresql://me:***@host/db (from argument)"
    assert described(None) == "sqlite:///qo.db (the default)"


def test_commands_say_which_store_and_why():
    run("push", "q", "1")
    assert run("queues").stderr == "qo queues: store sqlite:///qo.db (the default)\n"
    assert "store sqlite:///other.db (from QO_STORE)" in run("push", "q", "1", QO_STORE=OTHER).stderr
    assert "store sqlite:///other.db (from --store)" in run("doctor", "--store", OTHER).stderr
    assert "store sqlite:///other.db (from the command line)" in run("doctor", OTHER).stderr
    Path("qo.toml").write_text(f'store = "{OTHER}"')
    said = run("doctor")
    assert "store sqlite:///other.db (from qo.toml)" in said.stderr
    assert "queue q: 1 ready" in said.stdout


def test_doctor_does_not_call_a_file_healthy_that_nobody_uses():
    said = run("doctor", QO_STORE="sqlite:///absent.db")
    assert said.returncode == 1
    assert "there is no store at sqlite:///absent.db (from QO_STORE)" in said.stderr
    assert not Path("absent.db").exists()


def test_qo_work_uses_the_configured_store_for_a_worker_that_names_none():
    Path("app.py").write_text(
        "import qo\nworker = qo.Worker(queues='q')\n\n@worker.task\nasync def step(_):\n    worker.stop()\n"
    )
    run("push", "q", "1", "--kind", "step", QO_STORE=OTHER)
    said = run("work", "app:worker", QO_STORE=OTHER)
    assert said.returncode == 0, said.stderr
    assert "working on q of sqlite:///other.db (from QO_STORE): step" in said.stderr
    assert "1 attempts succeeded" in said.stderr
    assert not Path("qo.db").exists()


def test_qo_work_keeps_the_store_that_a_worker_names_itself():
    Path("app.py").write_text(
        f"import qo\nworker = qo.Worker('{OTHER}', queues='q')\n\n@worker.task\nasync def step(_):\n    worker.stop()\n"
    )
    run("push", "q", "1", "--kind", "step", QO_STORE=OTHER)
    said = run("work", "app:worker", QO_STORE="sqlite:///unused.db")
    assert "working on q of sqlite:///other.db (from app:worker): step" in said.stderr, said.stderr
    assert not Path("unused.db").exists()


def test_a_token_goes_to_every_server_that_is_named_or_to_none():
    both = Chosen("https://good:1,https://other:2", "QO_STORE")
    around = {"QO_TOKEN": "secret"}
    assert token_for(both, None, around) == "secret"
    assert token_for(both, None, {**around, "QO_TOKEN_HOST": "good:1,other"}) == "secret"
    with pytest.raises(qo.Invalid, match="does not name other:2"):
        token_for(both, None, {**around, "QO_TOKEN_HOST": "good:1"})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--queue", ""], "--queue: must not be empty"),
        (["--concurrency", "0"], "--concurrency: must be a whole number from 1"),
        (["--batch", "0"], "--batch: must be a whole number from 1"),
        (["--lease", "0"], "--lease: must be"),
        (["--grace", "-1s"], "--grace"),
    ],
)
def test_qo_work_names_the_flag_that_is_wrong(arguments, says):
    said = run("work", "--catalog", *arguments)
    assert said.returncode in (1, 2)
    assert says in said.stderr


def test_a_worker_whose_token_is_refused_ends(tmp_path):
    with Serving(tmp_path, "--auth", "token") as server:
        said = run("work", "--catalog", QO_STORE=server.url, QO_TOKEN="qo_wrong")
    assert said.returncode == 1
    assert "QO_TOKEN" in said.stderr
