"""Run every suite, with seconds for each. `--soak` runs them at full length, and the mutants."""

from __future__ import annotations

import os
import subprocess
import sys
import time

SUITES = ["unit", "conformance", "acceptance", "model", "crash"]
COVERED = {"unit", "conformance", "acceptance"}
SOAK = {"QO_KILLS": "500", "QO_MODEL_EXAMPLES": "4000"}


def run(name: str, command: list[str], extra: dict[str, str]) -> tuple[str, float, int]:
    print(f"== {name}", flush=True)
    began = time.monotonic()
    code = subprocess.run(command, env={**os.environ, **extra}, check=False).returncode
    return name, time.monotonic() - began, code


def main(arguments: list[str]) -> int:
    soak = "--soak" in arguments
    extra = SOAK if soak else {}
    results = []
    for suite in SUITES:
        measured = ["-m", "coverage", "run"] if suite in COVERED else []
        timeout = ["--timeout=7200"] if soak else []
        shown = ["-s"] if soak else []
        command = [sys.executable, *measured, "-m", "pytest", "-q", *timeout, *shown, f"tests/{suite}"]
        results.append(run(suite, command, extra))
    if soak:
        results.append(run("mutants", [sys.executable, "-m", "tests.mutants.run"], {}))
    subprocess.run([sys.executable, "-m", "coverage", "combine", "-q"], check=False)
    results.append(run("coverage", [sys.executable, "-m", "coverage", "report", "--fail-under=90"], {}))
    for name, seconds, code in results:
        print(f"{seconds:>8.1f} s  {name}  {'ok' if code == 0 else 'FAILED'}")
    print(f"{sum(seconds for _, seconds, _ in results):>8.1f} s  in all")
    failed = sum(code != 0 for _, _, code in results)
    print(f"suites: {len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
