"""`qo serve` as its users meet it: a process, curl's requests, signals, and two servers on one database."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import aiohttp
import pytest

import qo
from tests.postgres import QUICK, Server, new_schema
from tests.serving import Serving, plain_environment
from tests.unit.test_postgres import HOUSEKEEPING_SECONDS, statements

SILENT_SECONDS = float(os.environ.get("QO_SILENT_SECONDS", "10"))
WAITERS = 1000


def call(url: str, body: object = None, method: str | None = None, headers: dict[str, str] | None = None):
    data = None if body is None else json.dumps(body).encode()
    request = Request(url, data=data, method=method or ("POST" if data is not None else "GET"), headers=headers or {})
    try:
        with urlopen(request, timeout=60) as answer:
            content = answer.read()
            return answer.status, json.loads(content) if content else None
    except HTTPError as error:
        with error:
            return error.code, json.loads(error.read() or b"null")


def run(*words: str, folder, said: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "qo.cli.main", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        input=said,
        check=False,
        timeout=60,
        env={**plain_environment(), **environment},
    )


def test_push_claim_settle_and_stop(tmp_path):
    with Serving(tmp_path) as server:
        status, pushed = call(f"{server.url}/v1/queues/orders/messages", {"payload": {"order": 1}})
        assert (status, pushed["answer"]) == (201, "stored")
        status, claimed = call(f"{server.url}/v1/queues/orders/claim", {"wait": True, "timeout_ms": 5000})
        assert (status, claimed["messages"][0]["payload"]) == (200, {"order": 1})
        item = {name: claimed["messages"][0][name] for name in ("token", "lane", "offset")}
        assert call(f"{server.url}/v1/settle", {"items": [item]})[1]["items"][0]["verdict"] == "completed"
        assert server.stop() == 0
    assert (tmp_path / "qo.db").exists()
    assert "Traceback" not in server.said()


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_a_server_that_is_told_to_stop_answers_who_waits(tmp_path, signum):
    with Serving(tmp_path) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        waiting = socket.create_connection((host, int(port)))
        head = b"POST /v1/queues/q/claim?wait=true&timeout_ms=60000 HTTP/1.1\r\n"
        waiting.sendall(head + b"host: localhost\r\ncontent-length: 0\r\n\r\n")
        while call(f"{server.url}/health")[1]["waiters"] == 0:
            time.sleep(0.01)
        assert server.stop(signum) == 0
        waiting.settimeout(10)
        assert waiting.recv(1000).startswith(b"HTTP/1.1 204")
        waiting.close()


def test_the_port_is_taken(tmp_path):
    with Serving(tmp_path) as server:
        port = server.url.rpartition(":")[2]
        said = run("serve", "--port", port, folder=tmp_path)
        assert said.returncode == 1
        assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in said.stderr


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--host", "0.0.0.0"), "needs authentication"),
        (("--workers", "2"), "must be 1 on this store"),
        (("--store", "http://localhost"), "names a server"),
        (("--config", "nowhere.toml"), "there is no file"),
        (("--store", "mysql://x"), "must begin with"),
    ],
)
def test_what_cannot_be_served_is_said(tmp_path, flags, says):
    said = run("serve", "--port", "0", *flags, folder=tmp_path)
    assert said.returncode == 1
    assert says in said.stderr
    assert "Traceback" not in said.stderr


def test_settings_come_from_everywhere(tmp_path):
    (tmp_path / "qo.toml").write_text('store = "sqlite:///other.db"\n[log]\nformat = "json"\nrequests = true\n')
    environment = {"QO_LIMITS_BATCH": "2", "POLL_WORKER_COUNT": "4"}
    with Serving(tmp_path, environment=environment) as server:
        messages = {"messages": [{"payload": "unseen"}] * 3}
        assert call(f"{server.url}/v1/queues/q/messages", messages)[0] == 413
        assert server.stop() == 0
    lines = [json.loads(line) for line in server.said().splitlines() if line.startswith("{")]
    [request] = [line for line in lines if line.get("route") == "push"]
    assert (request["status"], request["method"], request["level"]) == (413, "POST", "info")
    assert "unseen" not in server.said()
    assert "POLL_WORKER_COUNT has no effect" in server.said()
    assert (tmp_path / "other.db").exists()


def test_tokens_from_the_command_line_open_the_server(tmp_path):
    made = run("token", "create", "ci", "--scope", "produce", "--prefix", "orders", folder=tmp_path)
    token = made.stdout.strip()
    assert made.returncode == 0
    with Serving(tmp_path, "--auth", "token") as server:
        refused = run("push", "orders", "1", "--store", server.url, folder=tmp_path)
        assert (refused.returncode, "a token is needed" in refused.stderr) == (1, True)
        pushed = run("push", "orders", "1", "--store", server.url, folder=tmp_path, QO_TOKEN=token)
        assert pushed.returncode == 0, pushed.stderr
        assert run("pop", "orders", "--store", server.url, "--token", token, folder=tmp_path).returncode == 1
        listed = run("token", "list", folder=tmp_path)
        assert token.split("_")[1] in listed.stdout
        assert token not in listed.stdout
        assert run("token", "revoke", token.split("_")[1], folder=tmp_path).returncode == 0
        assert run("token", "revoke", token.split("_")[1], folder=tmp_path).returncode == 1


@pytest.fixture(params=["file", "server"])
def store(request, tmp_path) -> Iterator[str]:
    if request.param == "file":
        yield "sqlite:///qo.db"
    else:
        with Serving(tmp_path) as server:
            yield server.url


def test_the_commands_on_a_store_and_on_a_server(tmp_path, store):
    def qo_(*words: str, code: int = 0, said: str = "") -> str:
        done = run(*words, "--store", store, folder=tmp_path, said=said)
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout

    if store.startswith("http"):
        assert "no queues yet" in qo_("queues")
    else:
        qo_("queues", code=1)  # there is no file, and looking makes none
        assert not (tmp_path / "qo.db").exists()
    [id] = qo_("push", "orders", '{"n": 1}', "--kind", "charge", "--key", "c7", "--header", "a=b").split()
    assert json.loads(qo_("push", "orders", "again", "--dedupe", "d", "--json"))["duplicate"] is False
    assert "a duplicate" in qo_("push", "orders", "again", "--dedupe", "d")
    assert len(qo_("push", "orders", "--lines", said="1\n2\nthree\n").split()) == 3
    assert qo_("push", "orders", said='"from standard input"').count("\n") == 1
    table = qo_("queues").splitlines()
    assert table[0].split() == ["queue", "ready", "retrying", "leased", "delayed", "dead"]
    assert table[1].split() == ["orders", "6", "0", "0", "0", "0"]
    assert json.loads(qo_("queues", "--json"))[0]["ready"] == 6
    popped: Any = json.loads(qo_("pop", "orders", "--key", "c7", "--json"))
    assert (popped["id"], popped["payload"], popped["headers"]) == (id, {"n": 1}, {"a": "b"})
    assert qo_("pop", "orders", "-n", "2", "--release").split() == ['"again"', "1"]
    assert qo_("pop", "orders", "-n", "2").split() == ['"again"', "1"]
    jobs = qo_("jobs", "orders", "--state", "succeeded")
    assert id in jobs
    assert jobs.count("succeeded") == 3
    assert {job["state"] for job in json.loads(qo_("jobs", "orders", "--json"))} == {"succeeded", "queued"}
    assert "is paused" in qo_("pause", "orders")
    assert "paused" in qo_("queues")
    qo_("pop", "orders", code=1)
    assert "goes on" in qo_("resume", "orders")
    qo_("purge", "orders", code=1)
    qo_("pause", "ordres", code=1)
    assert "6 messages removed" in qo_("purge", "orders", "--yes")
    for said in ("bytes", "json"):
        done = subprocess.run(
            [sys.executable, "-m", "qo.cli.main", "push", "binary", "--store", store],
            cwd=tmp_path, env=plain_environment(), input=b"\x00\xff\xfe", capture_output=True, check=True,
        )  # fmt: skip
        assert done.stderr.startswith(b"qo push: store ")
        assert done.stderr.count(b"\n") == 1
        more = ["--json"] if said == "json" else []
        popped = subprocess.run(
            [sys.executable, "-m", "qo.cli.main", "pop", "binary", "--store", store, *more],
            cwd=tmp_path, env=plain_environment(), capture_output=True, check=True,
        )  # fmt: skip
        if said == "bytes":
            assert popped.stdout == b"\x00\xff\xfe\n"
        else:
            assert json.loads(popped.stdout)["payload_base64"] == "AP/+"
    assert "no dead letters" in qo_("dead", "list", "orders")
    assert "no such jobs" in qo_("jobs", "orders")


def test_dead_letters_from_the_command_line(tmp_path):
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        queue = client.queue("orders")
        for number in range(3):
            queue.push(number)
        for delivery in queue.claim(3):
            delivery.bury("it is cursed")
    listed = run("dead", "list", "orders", folder=tmp_path).stdout
    assert listed.count("it is cursed") == 3
    ids = [letter["id"] for letter in json.loads(run("dead", "list", "orders", "--json", folder=tmp_path).stdout)]
    assert "1 pushed again" in run("dead", "retry", "orders", ids[0], folder=tmp_path).stdout
    assert run("dead", "purge", "orders", folder=tmp_path).returncode == 1
    assert "2 dead letters removed" in run("dead", "purge", "orders", "--yes", folder=tmp_path).stdout


def test_config_shows_where_each_value_came_from(tmp_path):
    (tmp_path / "qo.toml").write_text("[server]\nport = 7000\n")
    said = run("config", folder=tmp_path, QO_LOG_LEVEL="debug", QO_STORE="postgresql://u:secret@h/d")
    rows = {line.split()[0]: line.split() for line in said.stdout.splitlines()}
    assert rows["server.port"][1:3] == ["7000", "qo.toml"]
    assert rows["log.level"][1:3] == ["debug", "QO_LOG_LEVEL"]
    assert rows["server.host"][1:3] == ["127.0.0.1", "default"]
    assert "u:secret" not in said.stdout
    shown = json.loads(run("config", "--json", folder=tmp_path).stdout)
    assert shown["server.port"] == {"value": 7000, "source": "qo.toml"}
    bad = run("config", folder=tmp_path, QO_SERVER_PROT="1")
    assert (bad.returncode, "did you mean 'QO_SERVER_PORT'" in bad.stderr) == (1, True)


# Two servers on one database


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    server = Server(settings={**QUICK, "log_statement": "all", "log_duration": "off"}).start()
    yield server
    server.remove()


@pytest.fixture
def shared(database) -> str:
    return f"{database.url}&schema={new_schema()}"


async def waiters(server: Serving) -> int:
    return (await asyncio.to_thread(call, f"{server.url}/health"))[1]["waiters"]


async def test_a_push_on_one_server_wakes_a_waiter_on_the_other(tmp_path, shared):
    with (
        Serving(tmp_path, "--store", shared, name="one") as one,
        Serving(tmp_path, "--store", shared, name="two") as two,
    ):
        async with qo.connect(one.url) as producer, qo.connect(two.url) as consumer:
            claim = asyncio.create_task(consumer.queue("q").claim(wait=30))
            while not await waiters(two):
                await asyncio.sleep(0.01)
            job = await producer.queue("q").push({"n": 1})
            result = asyncio.create_task(job.result(30))
            [delivery] = await asyncio.wait_for(claim, 10)
            await delivery.complete("done")
            assert await asyncio.wait_for(result, 10) == "done"
        assert (one.stop(), two.stop()) == (0, 0)


async def test_when_a_server_is_killed_the_other_serves_its_waiters_and_its_leases(tmp_path, shared):
    with (
        Serving(tmp_path, "--store", shared, name="one") as one,
        Serving(tmp_path, "--store", shared, name="two") as two,
    ):
        async with qo.connect([one.url, two.url]) as client:
            queue = client.queue("q")
            await queue.configure(lease=2)
            await queue.push("leased")
            [lost] = await queue.claim()
            claims = [asyncio.create_task(queue.claim(wait=60, auto_settle=True)) for _ in range(20)]
            while await waiters(one) < 20:
                await asyncio.sleep(0.01)
            one.process.kill()
            async with qo.connect(two.url) as other:
                await other.queue("q").push_many([qo.Message(number) for number in range(19)])
            taken = [each for claim in await asyncio.wait_for(asyncio.gather(*claims), 30) for each in claim]
            assert sorted(map(str, (each.payload for each in taken))) == sorted([*map(str, range(19)), "leased"])
            assert {each.attempt for each in taken} == {1}
            with pytest.raises(qo.LeaseLost):
                await lost.complete()


def test_several_processes_share_a_port(tmp_path, shared):
    with Serving(tmp_path, "--store", shared, "--workers", "2") as server:
        children: set[int] = set()
        while len(children) < 2:
            children = set(_children(server.process.pid))
            time.sleep(0.01)
        for number in range(10):
            assert call(f"{server.url}/v1/queues/q/messages", {"payload": number})[0] == 201
        os.kill(min(children), signal.SIGKILL)
        while len(set(_children(server.process.pid)) - {min(children)}) < 2:
            time.sleep(0.01)
        assert call(f"{server.url}/v1/queues/q/depth")[1]["ready"] == 10
        assert server.stop() == 0
        assert "serving processes died" in server.said()


def test_several_processes_give_one_set_of_metrics(tmp_path, shared):
    """Whichever is asked: what all of them have counted."""
    with Serving(tmp_path, "--store", shared, "--workers", "3") as server:
        while len(set(_children(server.process.pid))) < 3:
            time.sleep(0.01)

        def processes() -> int:
            return len(list(Path(tempfile.gettempdir()).glob("qo-serve-*/*.sock")))

        while processes() < 3:
            time.sleep(0.01)
        for number in range(30):
            assert call(f"{server.url}/v1/queues/q/messages", {"payload": number})[0] == 201
        for _ in range(10):  # the system chooses who answers
            metrics = call(f"{server.url}/metrics")[1]
            [pushed] = [
                sample["value"]
                for sample in metrics["qo_http_requests_total"]["samples"]
                if sample["labels"]["status"] == "201"
            ]
            assert pushed == 30
            names = [sample["name"] for sample in metrics["qo_waiters"]["samples"]]
            assert names == ["qo_waiters"], "one number, not one for each process"
        assert server.stop() == 0
    assert not processes()


def test_serving_processes_end_with_their_parent_and_free_the_port(tmp_path, shared):
    with Serving(tmp_path, "--store", shared, "--workers", "2") as server:
        children: set[int] = set()
        while len(children) < 2:
            children = set(_children(server.process.pid))
            time.sleep(0.01)
        assert call(f"{server.url}/v1/queues/q/messages", {"payload": 1})[0] == 201
        server.process.kill()
        server.process.wait()
        deadline = time.monotonic() + 60
        while any(Path(f"/proc/{child}").exists() for child in children):
            assert time.monotonic() < deadline, "they hold the port"
            time.sleep(0.01)
        assert "the supervisor is gone" in server.said()
        port = int(server.url.rpartition(":")[2])
        with Serving(tmp_path, "--store", shared, "--port", str(port), name="next") as after:
            assert call(f"{after.url}/v1/queues/q/depth")[1]["ready"] == 1


def _children(process: int) -> list[int]:
    """Serving processes; not the one that minds what multiprocessing shares."""
    return [int(each.name) for each in Path("/proc").iterdir() if each.name.isdigit() and _serves_for(each, process)]


def _serves_for(each: Path, parent: int) -> bool:
    try:
        above = int((each / "stat").read_text().rpartition(")")[2].split()[1])
        return above == parent and "spawn_main" in (each / "cmdline").read_text()
    except (OSError, IndexError):  # it has ended
        return False


async def test_a_thousand_waiters_on_two_servers_and_nothing_to_do_are_silent(tmp_path, database, shared):
    with (
        Serving(tmp_path, "--store", shared, name="one") as one,
        Serving(tmp_path, "--store", shared, name="two") as two,
    ):
        async with qo.connect(one.url) as client:
            await client.queue("q").push(1)
            [delivery] = await client.queue("q").claim()
            await delivery.complete()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
            path = "/v1/queues/q/claim?wait=true&timeout_ms=600000&auto_settle=true"
            claims = [
                asyncio.create_task(session.post(server.url + path))
                for server in (one, two)
                for _ in range(WAITERS // 2)
            ]
            while await waiters(one) + await waiters(two) < WAITERS:
                await asyncio.sleep(0.05)
            await asyncio.sleep(HOUSEKEEPING_SECONDS + 5 if SILENT_SECONDS >= 60 else 1)
            before = database.log.stat().st_size
            await asyncio.sleep(SILENT_SECONDS)
            assert statements(database, before) == []
            async with session.post(f"{two.url}/v1/queues/q/messages", data='{"payload": 1}') as pushed:
                assert pushed.status == 201
            done, _ = await asyncio.wait(claims, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            assert len(done) == 1
            for claim in claims:
                claim.cancel()
            await asyncio.gather(*claims, return_exceptions=True)
