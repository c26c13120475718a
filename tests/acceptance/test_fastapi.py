"""A worker inside a web application: real uvicorn, real FastAPI, and the recipe of the documents."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Self
from urllib.request import Request, urlopen

import pytest

import qo
from tests.serving import plain_environment

RECIPE = Path(__file__).parents[2] / "docs/how-to/fastapi.md"

APP = """
import asyncio
import time
from contextlib import asynccontextmanager

import qo
from fastapi import FastAPI

worker = qo.Worker("sqlite:///qo.db", queues="q")


@worker.task
async def slow(number: int) -> int:
    open(f"began-{number}", "w").close()
    await asyncio.sleep(1)
    return number


@worker.task
async def endless(number: int) -> int:
    open(f"began-{number}", "w").close()
    await asyncio.sleep(600)
    return number


@asynccontextmanager
async def lifespan(app: FastAPI):
    async with qo.connect("sqlite:///qo.db") as client:
        app.state.queue = client.queue("q")
        async with worker.running(qo.WorkerRunOptions(grace_seconds=3)):
            yield


app = FastAPI(lifespan=lifespan)


@app.post("/{kind}/{number}")
async def push(kind: str, number: int):
    return await (await app.state.queue.submit(kind, number)).info()
"""


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port: int = listening.getsockname()[1]
        return port


class Application:
    """uvicorn with an application, in this folder."""

    def __init__(self, folder: Path, code: str) -> None:
        (folder / "app.py").write_text(code)
        self.port = free_port()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "uvicorn", "app:app", "--port", str(self.port)],
            cwd=folder,
            env=plain_environment(),
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                assert self.process.poll() is None, self.process.communicate()
                time.sleep(0.02)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def post(self, path: str, body: object = None) -> dict:
        data = b"" if body is None else json.dumps(body).encode()
        request = Request(
            f"http://127.0.0.1:{self.port}{path}", data, {"content-type": "application/json"}, method="POST"
        )
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)


def until(condition) -> None:
    while not condition():
        time.sleep(0.02)


@pytest.mark.parametrize("with_signal", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_during_a_task_lets_it_finish_loses_nothing_and_exits(with_signal, tmp_path):
    with Application(tmp_path, APP) as app:
        slow, endless = app.post("/slow/1"), app.post("/endless/2")
        assert slow["payload"] == 1
        assert slow["state"] in ("queued", "running"), "plain data, which FastAPI can answer with"
        until(lambda: (tmp_path / "began-1").exists() and (tmp_path / "began-2").exists())
        app.process.send_signal(with_signal)
        _, said = app.process.communicate(timeout=60)
    assert "Application shutdown complete" in said
    assert app.process.returncode in (0, -with_signal), said
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        assert client.job(slow["id"]).result(timeout=0) == 1
        info = client.job(endless["id"]).info()
        assert (info["state"], info["attempt"]) == ("queued", 0), "given back, with no attempt used"


def test_the_recipe_of_the_documents_runs(tmp_path):
    [code] = re.findall(r"^```python app\n(.*?)^```$", RECIPE.read_text(), re.MULTILINE | re.DOTALL)
    with Application(tmp_path, code) as app:
        pushed = app.post("/orders", {"customer": 7, "cents": 1200})
        url = f"http://127.0.0.1:{app.port}/orders/{pushed['id']}"

        def ended() -> bool:
            with urlopen(url, timeout=30) as answer:
                return json.load(answer)["state"] == "succeeded"

        until(ended)
        with urlopen(url, timeout=30) as answer:
            assert json.load(answer)["result"] == {"charged": 1200}
        app.process.send_signal(signal.SIGTERM)
        _, said = app.process.communicate(timeout=60)
    assert "Application shutdown complete" in said, said
