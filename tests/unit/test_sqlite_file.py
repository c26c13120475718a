"""What is particular to SQLite: the file, its schema, its errors, and a second process."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

import qo
from qo.core.errors import Forbidden, Incompatible, StoreFull, Unavailable
from qo.stores.sqlite import schema
from qo.stores.sqlite.engine import SqliteEngine, options_of
from qo.stores.sqlite.schema import Migration
from qo.testing.clock import ManualClock
from tests.conformance.saying import claim, done, message, messages, payloads, settle


@pytest.fixture
def path(tmp_path) -> str:
    return str(tmp_path / "qo.db")


async def test_what_was_pushed_is_there_after_a_restart(path):
    first = await SqliteEngine.open(path)
    await first.push(messages(3, key="k"))
    [head] = await claim(first, messages=1)
    await first.close()
    second = await SqliteEngine.open(path)
    assert [each.answer for each in await settle(second, done(head))] == ["settled"]
    assert payloads(await claim(second)) == [b"1", b"2"]
    await second.close()


async def test_the_file_is_in_wal_mode_and_ours(path):
    store = await SqliteEngine.open(path)
    health = await store.health()
    assert health.details["journal mode"] == "wal"
    await store.close()
    with sqlite3.connect(path) as plain:
        assert plain.execute("PRAGMA application_id").fetchone()[0] == schema.APPLICATION_ID
    plain.close()


async def test_a_file_of_another_program_is_refused_and_not_touched(path):
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE theirs (a)")
    other.close()
    before = Path(path).read_bytes()
    with pytest.raises(Incompatible, match="another program"):
        await SqliteEngine.open(path)
    assert Path(path).read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("these are my notes, not a database. " * 50)
    with pytest.raises(Incompatible, match="not an SQLite database"):
        await SqliteEngine.open(str(file))
    assert file.read_text().startswith("these are my notes")


async def test_a_file_from_a_newer_qo_is_refused(path):
    store = await SqliteEngine.open(path)
    await store.close()
    newest = schema.migrations()[-1].number
    with sqlite3.connect(path) as plain:
        plain.execute(f"PRAGMA user_version = {newest + 1}")
    plain.close()
    with pytest.raises(Incompatible, match=f"schema {newest + 1}.*Upgrade qo"):
        await SqliteEngine.open(path)


async def test_a_file_from_an_older_qo_is_migrated_forward(path):
    store = await SqliteEngine.open(path)
    await store.push([message()])
    await store.close()
    newest = schema.migrations()[-1].number
    later = [*schema.migrations(), Migration(newest + 1, "later.sql", "ALTER TABLE queues ADD COLUMN color TEXT;")]
    store = await SqliteEngine.open(path, migrations=later)
    assert (await store.health()).schema == newest + 1
    assert len(await claim(store)) == 1
    await store.close()


async def test_a_migration_that_fails_leaves_the_file_as_it_was(path):
    store = await SqliteEngine.open(path)
    await store.close()
    newest = schema.migrations()[-1].number
    broken = [
        *schema.migrations(),
        Migration(newest + 1, "b.sql", "CREATE TABLE half (a); SELECT nonsense FROM nowhere;"),
    ]
    with pytest.raises(apsw.SQLError):
        await SqliteEngine.open(path, migrations=broken)
    store = await SqliteEngine.open(path)
    assert (await store.health()).schema == newest
    await store.close()


async def test_a_folder_that_does_not_exist_is_said_so(tmp_path):
    with pytest.raises(Unavailable, match="folder"):
        await SqliteEngine.open(str(tmp_path / "nowhere" / "qo.db"))


@pytest.fixture
def nobody():
    """Root may write anything, so stop being root for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


@pytest.fixture
def open_folder():
    folder = tempfile.mkdtemp()
    os.chmod(folder, 0o755)  # noqa: PTH101
    yield folder
    shutil.rmtree(folder)


async def test_a_read_only_file_is_said_so(open_folder, request):
    path = f"{open_folder}/qo.db"
    store = await SqliteEngine.open(path)
    await store.close()
    os.chmod(path, 0o444)  # noqa: PTH101
    migrations = schema.migrations()  # read while we may
    request.getfixturevalue("nobody")
    with pytest.raises(Forbidden, match="read-only"):
        await SqliteEngine.open(path, migrations=migrations)


async def test_a_full_disk_fails_the_push_and_nothing_is_half_written(path):
    """SQLite's own page limit gives the very error that a full disk gives."""
    store = await SqliteEngine.open(path)
    await store.push([message(payload=b"before")])

    def limit(tx, pages: int) -> None:
        tx.value(f"PRAGMA max_page_count = {pages}")

    await store._writer.do("limit", lambda tx: limit(tx, 1))  # SQLite makes that as many as there are
    with pytest.raises(StoreFull, match="full"):
        for _ in range(100):
            await store.push([message(payload=b"x" * 10_000, key="k"), message(payload=b"y" * 10_000)])
    jobs = await store.depth("orders", "default")
    taken = await claim(store, messages=1)
    assert payloads(taken) == [b"before"]
    await store._writer.do("limit", lambda tx: limit(tx, 1_000_000))
    await store.push([message(payload=b"after")])
    rest = [each.payload[:1] for each in await claim(store, messages=10_000)]
    assert rest.count(b"x") == rest.count(b"y") == (jobs.ready - 1) // 2
    assert rest.count(b"a") == 1
    await store.close()


LIMITED = """
import asyncio, resource, signal, sys
sys.path.insert(0, sys.argv[2])
from qo.core.errors import StoreFull
from qo.stores.sqlite.engine import SqliteEngine
from tests.conformance.saying import claim, message, messages

async def main(path):
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    store = await SqliteEngine.open(path)
    await store.push(messages(3))
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))
    try:
        await store.push([message(payload=b"x" * 500_000) for _ in range(20)])
    except StoreFull as error:
        print("full:", error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    await store.push(messages(1))
    print("stored:", len(await claim(store)))

asyncio.run(main(sys.argv[1]))
"""


def test_a_file_that_a_limit_of_the_process_ends_is_a_full_store(path):
    """`ulimit -f`: to SQLite an I/O error like any other."""
    repository = str(Path(__file__).parents[2])
    command = [sys.executable, "-c", LIMITED, path, repository]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "full: " in done.stdout, done.stderr
    assert "stored: 4" in done.stdout


async def test_the_file_and_those_beside_it_are_their_owner_s_alone(path):
    before = os.umask(0)
    try:
        store = await SqliteEngine.open(path)
    finally:
        os.umask(before)
    await store.push(messages(1))
    modes = {each.name: stat.S_IMODE(each.stat().st_mode) for each in Path(path).parent.iterdir()}
    await store.close()
    assert modes == {"qo.db": 0o600, "qo.db-wal": 0o600, "qo.db-shm": 0o600}


async def test_a_file_that_is_there_keeps_its_mode(path):
    Path(path).touch(mode=0o640)
    Path(path).chmod(0o640)
    store = await SqliteEngine.open(path)
    await store.push(messages(1))
    assert stat.S_IMODE(Path(path).stat().st_mode) == 0o640, "an operator may want a group to read it"
    await store.close()


async def test_the_file_gives_space_back_when_messages_are_gone(path):
    clock = ManualClock()
    store = await SqliteEngine.open(path, clock=clock.now)
    for _ in range(10):
        await store.push([message(payload=os.urandom(100_000)) for _ in range(20)])
    while taken := await claim(store, messages=1000):
        await settle(store, *map(done, taken))
    full = await pages(store)
    while (again := await store.tidy()) is not None:
        clock.move_to(max(again, clock.now()))
    assert await pages(store) < full / 4
    assert (await store.health()).problems == ()
    await store.close()


async def pages(store: SqliteEngine) -> int:
    """Asked of the store itself: closing a file that is opened a second time here would end the store's locks."""
    return await store._writer.do("look", lambda tx: int(tx.value("PRAGMA page_count")))


async def test_a_file_locked_by_someone_else_is_unavailable_not_lost(path, monkeypatch):
    monkeypatch.setattr("qo.stores.sqlite.engine.BUSY_TIMEOUT_MS", 50)
    store = await SqliteEngine.open(path)
    await store.push([message()])
    locker = apsw.Connection(path)
    locker.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="lock"):
        await store.push([message()])
    locker.execute("ROLLBACK")
    locker.close()
    await store.push([message()])
    assert len(await claim(store)) == 2
    await store.close()


async def test_gathered_calls_share_a_commit_and_a_bad_one_fails_alone(path):
    commits: list[list[str]] = []
    store = await SqliteEngine.open(
        path, probe=lambda point, names: commits.append(names) if point == "after commit" else None
    )

    def explode(tx):
        tx.run("INSERT INTO queues (name) VALUES (NULL)")

    twice = message()
    calls = [store.push([message()]), store._writer.do("explode", explode), store.push([twice]), store.push([twice])]
    one, bad, two, three = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(bad, apsw.ConstraintError)
    assert not isinstance(one, BaseException)
    assert two == three
    assert len(await claim(store)) == 2
    await store.close()


def _work(path: str, number: int, count: int) -> None:
    with qo.connect(f"sqlite:///{path}") as client:
        queue = client.queue("shared")
        for start in range(0, count, 10):
            queue.push_many([qo.Message([number, start + n], key=f"k{n % 3}") for n in range(10)])
            for delivery in queue.claim(7, lane_messages=3):
                delivery.complete(os.getpid())


async def test_two_processes_on_one_file_keep_every_promise(path):
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_work, args=(path, number, 100)) for number in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        await asyncio.to_thread(worker.join, 60)
    assert [worker.exitcode for worker in workers] == [0, 0]
    async with qo.connect(f"sqlite:///{path}") as client:
        queue = client.queue("shared")
        while deliveries := await queue.claim(100):
            await queue.complete_many(deliveries)
        jobs = await queue.jobs(limit=1000)
        assert len(jobs) == 200
        assert {job.state for job in jobs} == {"succeeded"}
        lanes = await queue.lanes()
        assert sum(lane.tail for lane in lanes) == 200


def test_paths_in_urls():
    assert options_of("sqlite:///qo.db")[0] == "qo.db"
    assert options_of("sqlite:////var/lib/qo.db")[0] == "/var/lib/qo.db"
    assert options_of("sqlite:///with%20space.db?synchronous=off") == ("with space.db", {"synchronous": "off"})
    assert options_of("sqlite://:memory:")[0] == options_of("sqlite:///:memory:")[0] == ":memory:"


async def test_the_view_of_jobs_has_results_as_text(tmp_path):
    async with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        await client.queue("q").push(1)
        [delivery] = await client.queue("q").claim()
        await delivery.complete({"sum": 3})
    with contextlib.closing(sqlite3.connect(tmp_path / "qo.db")) as plain:
        assert plain.execute("SELECT payload, result, state FROM jobs").fetchall() == [("1", '{"sum":3}', "succeeded")]
