"""The commands, as a user types them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import re
import subprocess
import sys

import pytest

import qo
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.conformance.saying import message
from tests.conformance.test_workers import heartbeat
from tests.serving import Serving


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
        await store.heartbeat([heartbeat("one", kinds=("send",))])
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
    ],
)
def test_mistakes_get_a_sentence_and_no_traceback(tmp_path, words, code, says):
    (tmp_path / "notes.txt").write_text("notes " * 100)
    said = run(*words, folder=tmp_path)
    assert said.returncode == code
    assert says in said.stderr
    assert "Traceback" not in said.stderr


def test_called_bare_it_helps(tmp_path):
    said = run(folder=tmp_path)
    assert said.returncode == 0
    assert "Begin with `qo demo`" in said.stdout
    assert said.stderr == ""


# One job


@pytest.fixture
def jobs(tmp_path):
    """A job that succeeded, one that died with a trace, one that waits; a worker ran them."""
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        queue = client.queue("orders")
        queue.configure(history="full", retry={"attempts": 2, "delay": 0})
        handles = [queue.submit(kind, {"n": 1}) for kind in ("good", "bad")]
        (tmp_path / "app.py").write_text(APP)
        done = run("work", "app:worker", folder=tmp_path)
        assert done.returncode == 0, done.stderr
        waiting = queue.submit("good", [1, 2], delay="1h")
    return [each.id for each in (*handles, waiting)]


APP = """
import qo

worker = qo.Worker(queues="orders")


@worker.task
async def good(payload):
    return {"done": payload}


@worker.task
async def bad(payload):
    raise ValueError("no such customer")


@worker.on("failure")
def ended(message):
    if message.attempt == 2:
        worker.stop()
"""


def test_a_job_by_its_id(tmp_path, jobs):
    good, bad, waiting = jobs
    said = run("job", good, folder=tmp_path).stdout
    for line in (
        "state             succeeded",
        'payload           {"n": 1}',
        'result            {"done": {"n": 1}}',
        "running",
    ):
        assert line in said, said
    said = run("job", bad, folder=tmp_path).stdout
    for line in (
        "state             failed",
        "attempt           2",
        "  ValueError: no such customer",
        "app.py",
        "raise Value",
    ):
        assert line in said, said
    assert "attempt 1 failed" in said, "its history"
    told = json.loads(run("job", good, "--json", folder=tmp_path).stdout)
    assert (told["payload"], told["result"], told["state"]) == ({"n": 1}, {"done": {"n": 1}}, "succeeded")
    assert [event["state"] for event in told["events"]] == ["queued", "assigned", "running", "succeeded"]
    assert json.loads(run("job", waiting, "--json", folder=tmp_path).stdout)["payload"] == [1, 2]
    assert run("job", bad, "--watch", folder=tmp_path).returncode == 1
    assert run("job", good, "--watch", folder=tmp_path).returncode == 0
    absent = run("job", "01920000-0000-7000-8000-000000000000", folder=tmp_path)
    assert (absent.returncode, "nothing is known of job" in absent.stderr) == (1, True)
    assert "id: must be" in run("job", "5", folder=tmp_path).stderr


def test_a_job_that_waits_for_its_next_attempt_shows_why_the_last_failed(tmp_path):
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        job = client.queue("orders").submit("charge", {})
        [delivery] = client.queue("orders").claim()
        delivery.fail("ValueError: no such customer\n  trace", after="1h")
    said = run("job", job.id, folder=tmp_path).stdout
    for line in ("state             queued", "attempt           1", "error\n  ValueError: no such customer\n    trace"):
        assert line in said, said


def test_a_watched_job_tells_of_its_changes_until_it_ends(tmp_path, jobs):
    command = [sys.executable, "-m", "qo.cli.main", "job", jobs[2], "--watch"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watching:
        assert watching.stderr is not None
        assert watching.stderr.readline().startswith("qo job: store")
        assert watching.stderr.readline() == "queued, attempt 0\n"
        assert run("cancel", jobs[2], folder=tmp_path).stdout == "canceled\n"
        out, _ = watching.communicate(timeout=60)
    assert watching.returncode == 1
    assert "state             canceled" in out


def test_cancel_by_id(tmp_path, jobs):
    assert run("cancel", jobs[2], "--json", folder=tmp_path).stdout == f'{{"id": "{jobs[2]}", "answer": "canceled"}}\n'
    again = run("cancel", jobs[0], folder=tmp_path)
    assert (again.returncode, again.stdout) == (1, "it had ended before\n")
    assert run("cancel", "01920000-0000-7000-8000-000000000000", folder=tmp_path).returncode == 1


def test_a_dead_letter_by_its_id_and_payloads_in_json(tmp_path, jobs):
    said = run("dead", "show", "orders", jobs[1], folder=tmp_path).stdout
    for line in (
        "reason      failed",
        "attempts    2",
        'payload     {"n": 1}',
        "  ValueError: no such customer",
        "app.py",
    ):
        assert line in said, said
    assert "\n  Traceback" in said
    listed = json.loads(run("dead", "list", "orders", "--json", folder=tmp_path).stdout)
    assert [(each["id"], each["payload"]) for each in listed] == [(jobs[1], {"n": 1})]
    assert json.loads(run("dead", "show", "orders", jobs[1], "--json", folder=tmp_path).stdout) == listed[0]
    assert "no dead letter" in run("dead", "show", "orders", jobs[0], folder=tmp_path).stderr
    table = run("dead", "list", "orders", folder=tmp_path).stdout
    assert "ValueError: no such customer" in table
    assert "Traceback" not in table
    listed = json.loads(run("jobs", "orders", "--json", folder=tmp_path).stdout)
    assert {each["id"]: each["payload"] for each in listed} == {jobs[0]: {"n": 1}, jobs[1]: {"n": 1}, jobs[2]: [1, 2]}
    told, id = run("dead", "retry", "orders", folder=tmp_path).stdout.splitlines()
    assert told == "1 pushed again"
    assert run("job", id, folder=tmp_path).returncode == 0, "it says under which id"


def test_the_log_of_a_worker_has_ids_and_says_what_comes_next(tmp_path):
    (tmp_path / "app.py").write_text(APP)
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        client.queue("orders").configure(retry={"attempts": 2, "delay": "10ms", "jitter": 0})
        job = client.queue("orders").submit("bad", 1)
    said = run("work", "app:worker", "--log-format", "json", "--log-level", "warning", folder=tmp_path).stderr
    lines = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [line["message"] for line in lines] == [
        "task 'bad' failed: ValueError: no such customer; retry in 10 ms (2 of 2)",
        "task 'bad' failed: ValueError: no such customer; dead",
    ]
    assert {(line["message_id"], line["queue"], line["kind"]) for line in lines} == {(job.id, "orders", "bad")}
    assert [line["attempt"] for line in lines] == [1, 2]
    assert "raise ValueError" in lines[0]["error"]


# Where the store is away


def test_a_store_that_is_away_is_said_to_be_while_it_is_tried(tmp_path):
    command = [sys.executable, "-m", "qo.cli.main", "queues", "--store", "postgresql://me:secret@127.0.0.1:1/db"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as asking:
        assert asking.stderr is not None
        said = [asking.stderr.readline() for _ in range(3)]
        asking.kill()
    assert said[0] == "qo queues: store postgresql://me:***@127.0.0.1:1/db (from --store)\n"
    assert "trying again for up to 30 s" in said[1], said
    assert "does not answer yet; still trying (Ctrl-C ends it)" in said[2]


def test_a_server_that_is_away_is_said_to_be_while_it_is_tried(tmp_path):
    said = run("queues", "--store", "http://127.0.0.1:1", folder=tmp_path)
    assert said.returncode == 1
    assert "no answer from http://127.0.0.1:1" in said.stderr
    assert "trying again for up to 5 s" in said.stderr


def test_doctor_takes_a_token(tmp_path):
    made = run("token", "create", "ops", "--scope", "admin", folder=tmp_path).stdout.strip()
    with Serving(tmp_path, "--auth", "token") as server:
        refused = run("doctor", server.url, folder=tmp_path)
        assert (refused.returncode, "--token, or the variable QO_TOKEN" in refused.stderr) == (1, True)
        said = run("doctor", server.url, "--token", made, folder=tmp_path)
        assert said.returncode == 0, said.stderr
        assert said.stdout.endswith("healthy\n")


# On a terminal


def on_a_terminal(*words: str, folder, given: bytes = b"") -> str:
    """What a person sees: the command's output on a terminal of its own."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "qo.cli.main", *words]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    process = subprocess.Popen(
        command, cwd=folder, stdin=subprocess.PIPE, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    assert process.stdin is not None
    process.stdin.write(given)
    process.stdin.close()
    seen = b""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while data := os.read(ours, 65536):
            seen += data
    os.close(ours)
    assert process.wait(60) == 0, seen
    return seen.decode()


def test_tables_and_bars_are_drawn_where_there_is_a_terminal(tmp_path):
    seen = on_a_terminal("push", "q", "--lines", folder=tmp_path, given=b"1\n" * 3000)
    assert "pushing to 'q'" in seen
    assert "3000" in seen
    seen = on_a_terminal("queues", folder=tmp_path)
    assert "─" in seen, "a table that is drawn"
    assert "3000" in seen
    plain = run("queues", folder=tmp_path).stdout
    assert plain.split() == ["queue", "ready", "retrying", "leased", "delayed", "dead", "q", "3000", "0", "0", "0", "0"]
    on_a_terminal("purge", "q", "--yes", folder=tmp_path)
    assert json.loads(run("queues", "--json", folder=tmp_path).stdout)[0]["ready"] == 0


def test_output_that_is_sent_elsewhere_is_not_drawn_over(tmp_path):
    """The bar is on the terminal; what the command prints goes where it was sent."""
    script = "from qo.cli.main import main; import sys; sys.exit(main(['push', 'q', '--lines']))"
    ours, theirs = pty.openpty()
    with (tmp_path / "ids.txt").open("wb") as ids:
        pushed = subprocess.run(
            [sys.executable, "-c", script], cwd=tmp_path, input=b"1\n" * 5, stdout=ids, stderr=theirs, check=False
        )
    os.close(theirs)
    os.close(ours)
    assert (pushed.returncode, len((tmp_path / "ids.txt").read_text().splitlines())) == (0, 5)


@pytest.mark.parametrize("command", ["dead", "token"])
def test_a_command_of_several_explains_itself_when_it_is_called_bare(tmp_path, command):
    said = run(command, folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "ACTION" in said.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_shell_completion(tmp_path, shell):
    said = run("completion", shell, folder=tmp_path)
    assert said.returncode == 0, said.stderr
    assert "doctor" in said.stdout
    assert "--log-format" in said.stdout


def test_completion_in_bash_completes(tmp_path):
    script = run("completion", "bash", folder=tmp_path).stdout
    (tmp_path / "completion.sh").write_text(script)
    ask = (
        "source completion.sh; COMP_WORDS=(qo do); COMP_CWORD=1; COMP_LINE='qo do'; COMP_POINT=5; "
        "$(complete -p qo | sed 's/.*-F \\([^ ]*\\) .*/\\1/'); echo ${COMPREPLY[@]}"
    )
    said = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert said.stdout.split() == ["doctor"], said.stderr
