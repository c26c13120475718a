"""Every snippet in the documents runs, and prints what the document says; every reference is complete."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tools.reference import HTTP, with_routes
from tools.sync_shell import TARGET, generated

import qo
from qo.broker.broker import LocalBroker
from qo.cli.configuration import ALIASES, WITHOUT_EFFECT, settings
from qo.cli.main import parser
from qo.client.steps import Steps
from qo.core import errors
from qo.server.authenticator import ANYONE
from qo.server.routes import queen, service
from qo.stores.sqlite.engine import SqliteEngine
from qo.wire.claims import ClaimBody
from qo.wire.messages import MessageBody
from qo.wire.problems import KINDS
from qo.wire.queen import options
from qo.wire.settling import SettlementBody
from tests.acceptance.shell import run_lines
from tests.conformance.remote import serving
from tests.postgres import Server
from tests.serving import Serving, plain_environment

REPOSITORY = Path(__file__).parents[2]
DOCUMENTS = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:)([^)#]+)\)")


SERVER = "localhost:6632"
"""What the documents call the reader's server."""
DATABASE = "postgresql://localhost/app"
"""What the documents call the reader's database."""

BLOCK = re.compile(r"^```(python|sh(?: server)?)\n(.*?)^```$(?:\s*^```output\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    server = Server().start()
    yield server
    server.remove()


class Reader:
    """Someone who follows a document from its beginning, in one folder, with one server and one database."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack, database: Callable[[], Server]) -> None:
        self._folder = folder
        self._stack = stack
        self._database = database
        self._server: Serving | None = None

    def url(self) -> str:
        if self._server is None:
            self._server = self._stack.enter_context(Serving(self._folder))
        return self._server.url

    def run(self, kind: str, code: str) -> str:
        if DATABASE in code:
            code = code.replace(DATABASE, self._database().url)
        if SERVER in code or kind == "sh server":
            code = code.replace(f"http://{SERVER}", self.url()).replace(SERVER, self.url().removeprefix("http://"))
        if kind != "python":
            return run_lines(code, self._folder)
        run = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=self._folder,
            env=plain_environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.mark.parametrize(
    "path",
    [path for path in DOCUMENTS if BLOCK.search(path.read_text())],
    ids=lambda path: str(path.relative_to(REPOSITORY)),
)
def test_a_document_s_blocks_run_in_order_and_print_what_they_say(request, path, tmp_path):
    """As a reader meets them, in one folder. Where the document's output has an ellipsis, anything may stand."""

    def database() -> Server:
        server: Server = request.getfixturevalue("server")
        server.psql("SET client_min_messages = error; DROP SCHEMA IF EXISTS qo CASCADE")
        return server

    with contextlib.ExitStack() as stack:
        reader = Reader(tmp_path, stack, functools.cache(database))
        for kind, code, output in BLOCK.findall(path.read_text()):
            said = reader.run(kind, code)
            pattern = ".*".join(re.escape(part) for part in output.split("…"))
            assert re.fullmatch(pattern, said, re.DOTALL), f"{code}\n---\n{said}"


@pytest.mark.parametrize("example", sorted((REPOSITORY / "examples").glob("*.py")), ids=lambda path: path.name)
def test_an_example_runs_and_prints_what_it_says(example, tmp_path):
    """The expected output stands at the end of the file's docstring, after `Prints:`."""
    expected = re.search(r"Prints:\n\n(.*?)\"\"\"", example.read_text(), re.DOTALL)
    assert expected is not None
    run = subprocess.run(
        [sys.executable, "-W", "error", str(example)], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.split() == expected[1].split()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_lead_somewhere(path):
    assert [link for link in LINK.findall(path.read_text()) if not (path.parent / link).exists()] == []


def test_the_reference_has_every_setting_with_its_default():
    text = (REPOSITORY / "docs/reference/settings.md").read_text()
    settings = [field.name for field in dataclasses.fields(qo.QueueSettings)]
    policy = [field.name for field in dataclasses.fields(qo.RetryPolicy)]
    assert [name for name in settings + policy if f"| `{name}` |" not in text] == []
    assert f"| `max_payload` | {qo.QueueSettings().max_payload} |" in text
    assert f"| `max_lost` | {qo.QueueSettings().max_lost} |" in text
    assert f"| `attempts` | {qo.RetryPolicy().attempts} |" in text


def test_the_reference_has_every_error():
    text = (REPOSITORY / "docs/reference/errors.md").read_text()
    names = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, errors.QoError)
    ]
    assert [name for name in names if name not in text] == []
    assert [name for name in names if name not in qo.__all__] == []
    drawn = errors.__doc__ or ""
    assert [name for name in names if name not in drawn] == []


def test_the_reference_has_every_route_with_its_scope():
    text = HTTP.read_text()
    assert text == with_routes(text), "run `make generated`"
    assert [kind.name for kind in KINDS if f"| {kind.status.value} | `{kind.name}` |" not in text] == []


def test_the_reference_has_every_route_and_option_of_queen():
    text = (REPOSITORY / "docs/reference/queen.md").read_text()
    rows = [f"| `{each.method} {each.path.replace('*}', '}')}` |" for each in queen.ROUTES]
    assert [row for row in rows if row not in text] == []
    assert [name for name in options.DEFAULTS if f"`{name}`" not in text] == []


@pytest.mark.parametrize("body", [MessageBody, ClaimBody, SettlementBody])
def test_the_reference_has_every_field_of_the_common_calls(body):
    rows = [line for line in (REPOSITORY / "docs/reference/http.md").read_text().splitlines() if line.startswith("| `")]
    named = " ".join(row for row in rows)
    assert [name for name in body.__struct_fields__ if f"`{name}`" not in named] == []


def test_the_reference_has_every_setting_of_a_server():
    text = (REPOSITORY / "docs/reference/server.md").read_text()
    missing = [each.key for each in settings().values() if f"| `{each.key}` | {each.default} |" not in text]
    assert missing == []
    assert [name for name in ALIASES if f"| `{name}` | `{ALIASES[name]}` |" not in text] == []
    assert [name for name in WITHOUT_EFFECT if f"`{name}`" not in text] == []


async def test_the_reference_has_every_metric():
    text = (REPOSITORY / "docs/reference/server.md").read_text()
    async with serving(LocalBroker(await SqliteEngine.open(":memory:"))) as running:
        metrics = await service.all_metrics(running.context, ANYONE)
    assert [each.name for each in metrics if f"| `{each.name}` | {each.kind} |" not in text] == []


def test_the_reference_has_every_command():
    text = (REPOSITORY / "docs/reference/commands.md").read_text()
    [commands] = [action.choices for action in parser()._actions if isinstance(action.choices, dict)]
    assert [name for name in commands if f"`qo {name}" not in text] == []


def test_the_reference_has_every_method_of_a_queue():
    text = (REPOSITORY / "docs/reference/client.md").read_text()
    named = {**vars(qo.Queue), **vars(Steps)}
    public = [name for name in named if not name.startswith("_") and callable(getattr(qo.Queue, name))]
    inside = {"want", "with_options"}
    assert [name for name in public if f"{name}(" not in text and name not in inside] == []


def test_the_sync_client_is_written_from_the_async_one():
    assert TARGET.read_text() == generated(), "run `make generated`"


def test_every_public_thing_has_a_docstring():
    bare = [name for name in qo.__all__ if not inspect.getdoc(getattr(qo, name))]
    assert bare == []
