"""One clock: processes whose wall clocks are wrong, or are put back, and a store whose clock is right."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import pytest

from qo.stores.postgres.schema import in_schema
from tests.postgres import Server, new_schema
from tests.serving import Serving, plain_environment

SOURCE = Path(__file__).parents[1] / "skew.c"
MINUTES_AHEAD, MINUTES_BEHIND = 600, -600
LONG, NEARLY = 100, 60
"""A length that is asked for, and by how much it may be off on a busy machine: far less than the clocks are."""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler")
    built = tmp_path_factory.mktemp("skew") / "skew.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", built, SOURCE, "-ldl"], check=True)
    return built


@pytest.fixture(scope="module")
def database() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.remove()


class Skewed:
    """An environment in which the wall clock is wrong."""

    def __init__(self, library: Path, file: Path, seconds: int) -> None:
        self.environment = {"LD_PRELOAD": str(library), "SKEW_FILE": str(file)}
        self._file = file
        self.set(seconds)

    def set(self, seconds: int) -> None:
        self._file.write_text(f"{seconds}\n")


class Place:
    """A schema of a database, a server before it whose clock is wrong, and short ways to talk to both."""

    def __init__(self, database: Server, folder: Path, skewed: Skewed) -> None:
        self.schema = new_schema()
        self.url = f"{database.url}&schema={self.schema}"
        self._database = database
        self.skewed = skewed
        self.server = Serving(folder, "--store", self.url, environment=skewed.environment)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = Request(self.server.url + path, data, headers, method=method)
        with urlopen(request, timeout=25) as answer:
            said = answer.read()
            return json.loads(said) if said else None

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self.ask("POST", path, body or {}, **headers)

    def waiters(self) -> int:
        with urlopen(f"{self.server.url}/metrics/prometheus", timeout=25) as answer:
            lines = answer.read().decode().splitlines()
        return next(int(float(line.split()[1])) for line in lines if line.startswith("qo_waiters "))

    def seconds(self, what: str) -> float:
        """A length, by the database's own clock."""
        return float(self._database.psql(in_schema(f"SELECT extract(epoch FROM {what})", self.schema)))

    def due_in(self, queue: str) -> float:
        return self.seconds(f"(SELECT max(due_at) FROM qo.intake WHERE queue = '{queue}') - clock_timestamp()")

    def until(self, text: str) -> float:
        return self.seconds(f"'{text}'::timestamptz - clock_timestamp()")


@pytest.fixture(params=[MINUTES_AHEAD, MINUTES_BEHIND], ids=["ahead", "behind"])
def place(request, library, database, tmp_path) -> Iterator[Place]:
    place = Place(database, tmp_path, Skewed(library, tmp_path / "skew", request.param))
    with place.server:
        yield place


def is_about(seconds: float, wanted: float = LONG) -> bool:
    return abs(seconds - wanted) < NEARLY


def test_every_length_of_a_push_is_the_store_s(place):
    for path, body in (
        ("/v1/queues/one/messages", {"payload": 1, "delay_seconds": LONG}),
        ("/v1/queues/one-of-many/messages", {"messages": [{"payload": 1, "delay_seconds": LONG}]}),
        ("/v1/messages", {"messages": [{"queue": "batch", "payload": 1, "delay_seconds": LONG}]}),
        ("/v1/units", {"push": [{"queue": "unit", "payload": 1, "delay_seconds": LONG}]}),
    ):
        place.post(path, body)
    place.ask("PATCH", "/v1/queues/by-setting", {"delay": LONG})
    place.post("/v1/queues/by-setting/messages", {"payload": 1})
    place.post("/api/v1/configure", {"queue": "queen", "options": {"delayedProcessing": LONG}})
    place.post("/api/v1/push", {"items": [{"queue": "queen", "payload": 1}]})
    for queue in ("one", "one-of-many", "batch", "unit", "by-setting", "queen"):
        assert is_about(place.due_in(queue)), queue
    place.post("/v1/queues/living/messages", {"payload": 1, "ttl_seconds": LONG})
    assert len(place.post("/v1/queues/living/claim")["messages"]) == 1
    once = {"payload": 1, "dedupe": {"key": "k", "window_seconds": LONG}}
    said = [place.post("/v1/queues/once/messages", once)["answer"] for _ in range(2)]
    assert said == ["stored", "duplicate"]
    place.post("/v1/queues/soon/messages", {"payload": 1, "delay_seconds": 1})
    assert place.post("/v1/queues/soon/claim?wait=true&timeout_ms=20000")["messages"][0]["payload"] == 1


def test_every_length_of_a_lease_is_the_store_s(place):
    for number in range(3):
        place.post("/v1/queues/q/messages", {"payload": number, "key": f"k{number}"})
    [first] = place.post("/v1/queues/q/claim", {"lease_seconds": LONG})["messages"]
    assert is_about(place.until(first["expires_at"]))
    [held] = place.post("/v1/extend", {"leases": [{"token": first["token"], "lease_seconds": 2 * LONG}]})["leases"]
    assert is_about(place.until(held["expires_at"]), 2 * LONG)
    [short] = place.post("/v1/queues/q/claim", {"lease_seconds": 1})["messages"]
    kept = {name: first[name] for name in ("token", "lane", "offset")}
    place.post("/v1/settle", {"items": [{**kept, "report": "fail", "error": "no", "after_seconds": 1}]})
    again = set()
    for _ in range(3):
        taken = place.post("/v1/queues/q/claim?wait=true&timeout_ms=20000", {"lease_seconds": LONG})["messages"]
        again |= {each["key"] for each in taken}
    assert again == {"k0", "k1", "k2"}, "what was lost and what failed came back, and not ten minutes later"
    assert short["key"] in again
    place.post("/api/v1/push", {"items": [{"queue": "queen", "payload": 1}]})
    popped = place.ask("GET", f"/api/v1/pop/queue/queen?leaseSeconds={LONG}")
    lease = popped["messages"][0]["leaseId"]
    extended = place.post(f"/api/v1/lease/{lease}/extend", {"seconds": 2 * LONG})
    expiry = next(value for name, value in extended.items() if "xpires" in name)
    assert is_about(place.until(expiry), 2 * LONG)


def test_every_wait_ends_in_its_time(place):
    assert place.post("/v1/queues/none/claim?wait=true&timeout_ms=300") is None
    assert place.ask("GET", "/v1/scaling?queue=none&wait=true&timeout_ms=300") is None
    assert place.ask("GET", "/api/v1/pop/queue/none?wait=true&timeout=300") is None
    id = place.post("/v1/queues/q/messages", {"payload": 1, "delay_seconds": LONG})["id"]
    assert place.ask("GET", f"/v1/jobs/{id}/result?wait=true&timeout_ms=300")["state"] == "queued"
    assert is_about(place.ask("GET", "/v1/scaling?queue=q")["next_seconds"])


def test_the_life_of_a_token_is_the_store_s(place):
    made = place.post("/v1/tokens", {"name": "t", "scopes": ["read"], "lasts_seconds": LONG})
    assert is_about(place.until(made["token"]["expires_at"]))


CLIENT = """
import asyncio, sys
import asyncpg, qo

LONG = float(sys.argv[3])

async def main(store, server):
    for url, name in ((store, "direct"), (server, "remote")):
        async with qo.connect(url) as client:
            await client.queue(name).push(1, delay=LONG)
            await client.queue(name).push_many([qo.Message(1, delay=LONG)])
            await client.queue(name + "-job").submit("k", 1, delay=LONG)
            await client.tokens.create(name, ["read"], lasts=LONG)
            assert await client.queue("none").claim(wait=0.2) == []
    dsn, _, schema = store.rpartition("&schema=")
    connection = await asyncpg.connect(dsn)
    await qo.enqueue(connection, "enqueued", 1, delay=LONG, schema=schema)
    await connection.close()

asyncio.run(main(*sys.argv[1:3]))
"""


def test_every_length_that_a_client_says_is_the_store_s(place):
    """The client's clock is as wrong as the server's."""
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, place.url, place.server.url, str(LONG)],
        env={**plain_environment(), **place.skewed.environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for queue in ("direct", "direct-job", "remote", "remote-job", "enqueued"):
        assert is_about(place.due_in(queue)), queue
    for token in place.ask("GET", "/v1/tokens")["tokens"]:
        assert is_about(place.until(token["expires_at"])), token


def test_a_clock_that_is_put_back_keeps_nobody_waiting(library, database, tmp_path):
    place = Place(database, tmp_path, Skewed(library, tmp_path / "skew", 0))
    with place.server:
        place.post("/v1/queues/later/messages", {"payload": "came", "delay_seconds": 5})
        answers: dict[str, Any] = {}

        def wait(queue: str, milliseconds: int) -> None:
            answers[queue] = place.post(f"/v1/queues/{queue}/claim?wait=true&timeout_ms={milliseconds}")

        waiting = [
            threading.Thread(target=wait, args=each, daemon=True) for each in (("none", 4000), ("later", 20_000))
        ]
        for each in waiting:
            each.start()
        while place.waiters() < len(waiting) and all(each.is_alive() for each in waiting):
            pass
        place.skewed.set(-3600)
        for each in waiting:
            each.join(25)
        assert not any(each.is_alive() for each in waiting), "an hour too long"
        assert answers["none"] is None
        assert answers["later"]["messages"][0]["payload"] == "came"
