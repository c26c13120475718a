"""What is deployed: pinned, without rights that it does not need, and explained line by line."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
EXPLAINED = (REPOSITORY / "docs/how-to/deploy.md").read_text()
PINNED = re.compile(r"^([a-z0-9-]+)==(\S+)", re.MULTILINE)


def pins(path: Path) -> dict[str, str]:
    return dict(PINNED.findall(path.read_text()))


def test_what_is_deployed_is_what_was_tested():
    tested, deployed = pins(REPOSITORY / "requirements.lock"), pins(DEPLOY / "requirements.lock")
    assert deployed
    assert deployed.items() <= tested.items()
    assert {"uvicorn", "asyncpg", "apsw", "msgspec", "aiohttp"} <= deployed.keys()
    assert not {"pytest", "mypy", "huey"} & deployed.keys()


def test_each_pin_has_hashes():
    entries = re.split(r"\n(?=[a-z0-9])", (DEPLOY / "requirements.lock").read_text().strip())
    assert len(entries) == len(pins(DEPLOY / "requirements.lock"))
    assert [entry for entry in entries if "--hash=sha256:" not in entry] == []


def test_each_line_of_the_unit_is_explained():
    unit = (DEPLOY / "qo.service").read_text()
    names = re.findall(r"^([A-Z]\w+)=", unit, re.MULTILINE)
    assert len(names) > 30
    assert [name for name in names if name != "Description" and f"{name}=" not in EXPLAINED] == []


@pytest.mark.parametrize(
    "line", ["UMask=0077", "MemoryMax=", "RestrictNamespaces=yes", "NoNewPrivileges=yes", "ProtectKernelModules=yes"]
)
def test_the_unit_has_no_rights_that_it_does_not_need(line):
    assert re.search(rf"^{re.escape(line)}", (DEPLOY / "qo.service").read_text(), re.MULTILINE)


def test_systemd_understands_the_unit(tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("no systemd here")
    unit = tmp_path / "qo.service"
    unit.write_text((DEPLOY / "qo.service").read_text().replace("/opt/qo/bin/qo", "/bin/true"))
    done = subprocess.run([program, "verify", str(unit)], capture_output=True, text=True, timeout=60, check=False)
    if "Failed to" in done.stderr and "qo.service" not in done.stderr:
        pytest.skip("systemd cannot be asked here")
    assert [line for line in done.stderr.splitlines() if "qo.service" in line] == []


def test_each_instruction_of_the_image_is_explained():
    image = (DEPLOY / "Dockerfile").read_text()
    words = set(re.findall(r"^([A-Z]+) ", image, re.MULTILINE)) - {"FROM", "RUN", "COPY"}
    assert {"ARG", "ENV", "USER", "HEALTHCHECK", "STOPSIGNAL"} <= words
    assert [word for word in words if word not in EXPLAINED] == []
    for name in re.findall(r"\b((?:QO|PYTHON)[A-Z_]+)=", image):
        assert name in EXPLAINED, name


def test_the_image_is_pinned_checked_and_not_root():
    image = (DEPLOY / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE=python:3\.\d+\.\d+-slim-\w+$", image, re.MULTILINE), "an exact version"
    assert "--require-hashes" in image
    assert re.findall(r"^FROM (\S+)", image, re.MULTILINE) == ["${BASE}", "${BASE}"]
    user = image.rpartition("\nUSER ")[2].split()[0]
    assert user == "6632:6632"
    assert "pip install" not in image.rpartition("\nFROM ")[2], "nothing is fetched in the image that is kept"
