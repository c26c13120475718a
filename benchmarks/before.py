"""This tree beside an earlier revision of it, in one run: did anything get slower?

`python -m benchmarks.before REVISION [--quick] [--only STORE …]`. Both run the same load in processes of their own,
round after round in turns, each on a store of its own; medians of one run and their ratio are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.postgres import Ground

HERE = Path(__file__).parent.parent
STORES = ("sqlite", "postgres", "http")
LOAD = """
import asyncio, json, sys, time, uvloop, qo
url, count = sys.argv[1], int(sys.argv[2])
pad = {"customer": 12345, "text": "x" * 150}
found = {}

async def pushed(name, queue, messages, batch):
    began = time.perf_counter()
    for start in range(0, len(messages), batch):
        await queue.push_many(messages[start : start + batch])
    found[f"push, {name}"] = len(messages) / (time.perf_counter() - began)

async def drained(name, queue, total, batch):
    began, done = time.perf_counter(), 0
    while done < total:
        taken = await queue.claim(batch)
        await queue.complete_many(taken)
        done += len(taken)
    found[f"drain, {name}"] = total / (time.perf_counter() - began)

async def at_once(name, queue, total, many):
    async def one():
        for _ in range(total // many):
            await queue.push(pad)
    began = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(many)))
    found[f"push, {name}"] = total / (time.perf_counter() - began)

async def single(name, queue, total):
    began = time.perf_counter()
    for _ in range(total):
        await queue.push(pad)
        [delivery] = await queue.claim()
        await delivery.complete()
    found[f"push, claim and complete, {name}"] = total / (time.perf_counter() - began)

async def working(total):
    worker = qo.Worker(url, queues="w")
    done, began = 0, 0.0
    @worker.task("noop")
    async def noop(_):
        nonlocal done, began
        done += 1
        if done == 1: began = time.perf_counter()
        if done == total:
            found["worker, no-op tasks"] = (total - 1) / (time.perf_counter() - began)
            worker.stop()
    await worker.run()

async def main():
    async with qo.connect(url) as client:
        await client.queue("warm").push_many([qo.Message(pad)] * 100)
        queue = client.queue("q")
        await pushed("open, batches of 1000", queue, [qo.Message(pad)] * count, 1000)
        await drained("open, batches of 1000", queue, count, 1000)
        queue = client.queue("k")
        await pushed("50 keys, batches of 1000", queue, [qo.Message(pad, key=f"k{n % 50}") for n in range(count)], 1000)
        await drained("50 keys, batches of 1000", queue, count, 1000)
        queue = client.queue("k1000")
        few = count // 4
        messages = [qo.Message(pad, key=f"k{n % 1000}") for n in range(few)]
        await pushed("1000 keys, batches of 1000", queue, messages, 1000)
        await drained("1000 keys, batches of 1000", queue, few, 1000)
        queue = client.queue("s")
        await at_once("64 at once", queue, count // 2, 64)
        await single("one by one", client.queue("o"), count // 40)
        for start in range(0, count, 1000):
            await client.queue("w").push_many([qo.Message(1, kind="noop")] * 1000)
    await working(count)
    print(json.dumps(found))

uvloop.run(main())
"""
SERVE = "import sys; from qo.cli.main import main; sys.argv = ['qo', *sys.argv[1:]]; main()"

Found = dict[str, dict[str, list[float]]]
"""Rates by load and revision."""


@contextmanager
def checkout(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        subprocess.run(["git", "clone", "--quiet", "--shared", "--no-checkout", HERE, tree], check=True)
        subprocess.run(["git", "checkout", "--quiet", revision], cwd=tree, check=True)
        yield tree


def load(tree: Path, url: str, count: int) -> dict[str, float]:
    done = subprocess.run(
        [sys.executable, "-c", LOAD, url, str(count)], check=True, stdout=subprocess.PIPE, env=_environment(tree)
    )
    return dict(json.loads(done.stdout))


def _environment(tree: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(tree / "src")}


@contextmanager
def served(tree: Path, store: str) -> Iterator[str]:
    """A server of that tree's, and its URL."""
    with tempfile.NamedTemporaryFile("w+") as log:
        command = [sys.executable, "-c", SERVE, "serve", "--store", store, "--port", "0"]
        process = subprocess.Popen(command, stderr=log, env=_environment(tree))
        try:
            while "listening on" not in (text := Path(log.name).read_text()):
                if process.poll() is not None:
                    raise SystemExit(text)
            yield text.split("listening on ")[1].split()[0].rstrip(",")
        finally:
            process.terminate()
            process.wait()


def measure(tree: Path, store: str, ground: Ground, folder: str, count: int) -> dict[str, float]:
    file = f"sqlite:///{folder}/{secrets.token_hex(4)}.db"
    match store:
        case "sqlite":
            return load(tree, file, count)
        case "postgres":
            return load(tree, ground.schema(), count)
        case _:
            with served(tree, file) as url:
                return load(tree, url, count // 2)


def main() -> None:
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("revision", help="what to compare with, as git names it")
    command.add_argument("--quick", action="store_true", help="short rounds, and three instead of seven")
    command.add_argument("--only", nargs="+", choices=STORES, default=STORES, metavar="STORE", help=", ".join(STORES))
    given = command.parse_args()
    rounds, count = (3, 4000) if given.quick else (7, 20_000)
    ground = Ground()
    try:
        with checkout(given.revision) as before, tempfile.TemporaryDirectory() as folder:
            for store in given.only:
                found: Found = defaultdict(lambda: defaultdict(list))
                for number in range(rounds):
                    order = [("before", before), ("now", HERE)]
                    for name, tree in order if number % 2 else reversed(order):
                        for role, rate in measure(tree, store, ground, folder, count).items():
                            found[role][name].append(rate)
                show(store, found, given.revision, rounds)
    finally:
        ground.server.remove()


def show(store: str, found: Found, revision: str, rounds: int) -> None:
    print(f"{store}: per second at {revision}, now, and now / {revision}; medians of {rounds} rounds")
    for role, by in found.items():
        was, now = (statistics.median(by[name]) for name in ("before", "now"))
        print(f"{was:12,.0f} {now:12,.0f} {now / was:8.2f}  {role}", flush=True)


if __name__ == "__main__":
    main()
