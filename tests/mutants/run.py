"""Break promises on purpose, one at a time, and see which test notices.

Each patch in this folder makes qo wrong in one way. Every patch is applied to a
copy of the sources; the conformance and unit tests, and then a short run of the
model, must fail on it. A patch that nothing catches, or that does not apply any
more, fails the run. Usage: python -m tests.mutants.run [NAME ...]
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
SUITES = (["tests/conformance"], ["tests/unit"], ["tests/model"])
"""The quickest first: most are caught there."""
SHORT = {
    "QO_MODEL_EXAMPLES": "120",
    "QO_MODEL_SHRINK": "no",
    "QO_MODEL_ENGINES": "sqlite",
    "QO_ENGINES": "sqlite-file,sqlite-memory",
}
"""That a mutant is caught is enough; the shortest way to catch it need not be found."""
NOT_MUTATED = ("-k", "not test_every_statement_is_used and not postgres and not enqueue")


def caught_by(patch: Path) -> str | None:
    """The first test that fails on the broken sources; None if none does."""
    with tempfile.TemporaryDirectory(prefix="qo-mutant-") as folder:
        shutil.copytree(REPOSITORY / "src", Path(folder, "src"))
        subprocess.run(["git", "apply", str(patch)], cwd=folder, check=True)
        environment = {**os.environ, **SHORT, "PYTHONPATH": f"{folder}/src"}
        for suite in SUITES:
            command = [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "--timeout=60",
                *NOT_MUTATED,
            ]
            run = subprocess.run(
                [*command, *suite], cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False
            )
            if run.returncode != 0:
                failed = re.search(r"^(?:FAILED|ERROR) (\S+)", run.stdout, re.MULTILINE)
                return failed[1] if failed else "a run that broke off"
    return None


def main(names: list[str]) -> int:
    patches = [patch for patch in sorted(HERE.glob("*.patch")) if not names or patch.stem in names]
    survivors = []
    for patch in patches:
        began = time.monotonic()
        test = caught_by(patch)
        print(f"{patch.stem}: {test or 'NOT CAUGHT'} ({time.monotonic() - began:.0f} s)", flush=True)
        if test is None:
            survivors.append(patch.stem)
    print(f"{len(patches) - len(survivors)} of {len(patches)} mutants caught")
    return 1 if survivors or not patches else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
