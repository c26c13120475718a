"""Run every suite, with seconds for each. `--soak` runs them at full length, and the mutants.

Two at a time: the model keeps one core busy while the others wait for processes and
databases. A suite's output is printed when it is done.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

COVERED = {"unit", "conformance", "acceptance"}
AT_ONCE = 2
SOAK = {
    "QO_KILLS": "500",
    "QO_MODEL_EXAMPLES": "4000",
    "QO_SILENT_SECONDS": "60",
    "QO_RETRY_SECONDS": "20",
    "QO_CONCURRENCY_SECONDS": "60",
    "QO_PLAN_MESSAGES": "1000000",
    "QO_FUZZ_SECONDS": "60",
    "QO_WORKER_KILL_SECONDS": "300",
    "QO_SHARE": "0.2",
    "QO_ZONES": "1000",
    "QO_ZONE_CHANGES": "1000",
    "QO_SCHEDULES": "200",
    "QO_SCHEDULE_SECONDS": "60",
}


class Suite(NamedTuple):
    name: str
    folder: str
    environment: dict[str, str] = {}  # noqa: RUF012 - never changed


SUITES = [
    Suite("model on postgres", "model", {"QO_MODEL_ENGINES": "postgres"}),
    Suite("unit", "unit"),
    Suite("conformance", "conformance"),
    Suite("model on sqlite", "model", {"QO_MODEL_ENGINES": "sqlite"}),
    Suite("acceptance", "acceptance"),
    Suite("crash", "crash"),
]


class Done(NamedTuple):
    name: str
    seconds: float
    code: int
    output: str


def run(name: str, command: list[str], environment: dict[str, str]) -> Done:
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    finished = Done(name, time.monotonic() - began, done.returncode, done.stdout)
    print(f"== {name}\n{finished.output}", flush=True)
    return finished


def run_suite(suite: Suite, *, soak: bool) -> Done:
    measured = ["-m", "coverage", "run"] if suite.folder in COVERED else []
    length = ["--timeout=14400", "-s"] if soak else ["--timeout=600"]
    command = [sys.executable, *measured, "-m", "pytest", "-q", *length, f"tests/{suite.folder}"]
    return run(suite.name, command, {**suite.environment, **(SOAK if soak else {})})


def main(arguments: list[str]) -> int:
    soak = "--soak" in arguments
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = list(pool.map(lambda suite: run_suite(suite, soak=soak), SUITES))
    if soak:
        results.append(run("mutants", [sys.executable, "-m", "tests.mutants.run"], {}))
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q"], check=False)
    results.append(run("coverage", [sys.executable, "-m", "coverage", "report", "--fail-under=90"], {}))
    for done in results:
        print(f"{done.seconds:>8.1f} s  {done.name}  {'ok' if done.code == 0 else 'FAILED'}")
    print(f"{time.monotonic() - began:>8.1f} s  in all")
    failed = sum(done.code != 0 for done in results)
    print(f"suites: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
