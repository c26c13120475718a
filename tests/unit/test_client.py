"""The embedded API, async and sync, as a user holds it."""

from __future__ import annotations

import asyncio
import threading
from datetime import UTC, datetime, timedelta

import pytest

import qo
from qo.core.lease import Complete, Fail
from qo.testing.clock import ManualClock

MEMORY = "sqlite://:memory:"


@pytest.fixture
async def client():
    async with qo.connect(MEMORY) as client:
        yield client


async def test_push_claim_complete(client):
    queue = client.queue("orders")
    job = await queue.push({"id": 1, "tags": ["a", None]})
    [delivery] = await queue.claim()
    assert delivery.payload == {"id": 1, "tags": ["a", None]}
    assert delivery.id == job.id
    assert await job.status() == "assigned"
    assert await delivery.complete({"ok": True}) == "completed"
    assert await job.result() == {"ok": True}
    assert await queue.claim() == []


async def test_bytes_pass_as_they_are(client):
    queue = client.queue("blobs")
    await queue.push(b"\x00\xff not json")
    await queue.push("text")
    raw, text = await queue.claim(2)
    assert raw.payload == raw.body == b"\x00\xff not json"
    assert text.payload == "text"


async def test_submit_gives_a_job_whose_result_can_be_awaited(client):
    queue = client.queue("math")

    async def square(delivery: qo.Delivery) -> int:
        return delivery.payload**2

    consumer = asyncio.create_task(queue.consume(square))
    jobs = [await queue.submit("square", number) for number in range(20)]
    assert [await job.result(timeout=10) for job in jobs] == [number**2 for number in range(20)]
    consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)


async def test_a_failed_and_a_canceled_job_raise(client):
    queue = client.queue("q")
    bad, unwanted = await queue.submit("a"), await queue.submit("b", delay=60)
    [delivery] = await queue.claim()
    await delivery.bury("broken")
    assert await unwanted.cancel() == "canceled"
    with pytest.raises(qo.JobFailed, match="broken"):
        await bad.result()
    with pytest.raises(qo.JobCanceled):
        await unwanted.result()
    with pytest.raises(qo.NotFound):
        await queue.job("01890a5d-ac96-774b-bcce-b302099a8057").result()
    waiting = await queue.submit("c", delay=60)
    with pytest.raises(qo.TimedOut):
        await waiting.result(timeout=0.01)


async def test_settling_what_is_no_longer_ours_raises():
    clock = ManualClock()
    async with qo.connect(MEMORY, clock=clock) as client:
        queue = client.queue("q")
        await queue.push(1)
        [delivery] = await queue.claim(lease=5)
        clock.move(seconds=6)
        with pytest.raises(qo.LeaseLost, match="has ended"):
            await delivery.complete()
        with pytest.raises(qo.LeaseLost):
            await delivery.extend()


async def test_later_items_of_a_run_that_was_cut_raise(client):
    queue = client.queue("q")
    await queue.push_many([qo.Message(number, key="k") for number in range(3)])
    first, second, third = await queue.claim(3)
    await first.fail("no")
    with pytest.raises(qo.LeaseLost):
        await third.complete()
    assert not second.settled


async def test_a_delivery_is_a_context_manager(client):
    queue = client.queue("q")
    good, bad = await queue.push(1), await queue.push(2)
    one, two = await queue.claim(2)
    async with one:
        pass
    with pytest.raises(RuntimeError):
        async with two:
            raise RuntimeError("oops")
    assert await good.status() == "succeeded"
    assert await bad.status() == "queued"
    assert (await queue.depth()).retrying == 1


async def test_iteration_releases_what_it_did_not_yield(client):
    queue = client.queue("q")
    await queue.push_many([qo.Message(number) for number in range(5)])
    deliveries = queue.consume(batch=5)
    async for delivery in deliveries:
        await delivery.complete()
        break
    await deliveries.aclose()
    assert (await queue.depth()).leased == 0
    assert [delivery.payload async for delivery in queue.consume(idle=0)] == [1, 2, 3, 4]


async def test_a_handler_s_errors_fail_the_message_and_not_the_consumer(client):
    queue = client.queue("q")
    await queue.configure(retry=qo.RetryPolicy(attempts=2, delay=timedelta(0)))
    await queue.push_many([qo.Message(number) for number in range(4)])

    async def handle(delivery):
        if delivery.payload == 2:
            raise ValueError("two")

    assert await queue.consume(handle, idle=0.2) == 5
    [letter] = await queue.dead.list()
    assert (letter.error, letter.attempts) == ("ValueError: two", 2)


async def test_an_empty_key_is_refused_and_not_dropped(client):
    with pytest.raises(qo.Invalid, match="key"):
        await client.queue("q").push(1, key="")


async def test_messages_of_one_key_run_in_order_and_others_at_once(client):
    queue = client.queue("q")
    await queue.push_many([qo.Message([key, number], key=key) for number in range(5) for key in "abc"])
    running: set[str] = set()
    seen: list[list] = []
    most = 0

    async def handle(delivery):
        nonlocal most
        key, _ = delivery.payload
        assert key not in running
        running.add(key)
        most = max(most, len(running))
        await asyncio.sleep(0.001)
        seen.append(delivery.payload)
        running.discard(key)

    assert await queue.consume(handle, idle=0.2) == 15
    assert most > 1
    for key in "abc":
        assert [number for each, number in seen if each == key] == list(range(5))


async def test_a_cancelled_consumer_gives_back_what_it_had(client):
    queue = client.queue("q")
    await queue.push(1)
    started = asyncio.Event()

    async def handle(delivery):
        started.set()
        await asyncio.Event().wait()

    consumer = asyncio.create_task(queue.consume(handle))
    await started.wait()
    consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)
    [delivery] = await queue.claim()
    assert delivery.attempt == 1


async def test_leases_are_kept_while_a_handler_runs_and_cancels_reach_it(client):
    queue = client.queue("q")
    job = await queue.push(1)
    started = asyncio.Event()

    async def handle(delivery):
        started.set()
        await asyncio.Event().wait()

    consumer = asyncio.create_task(queue.consume(handle, lease=0.3, idle=5))
    await started.wait()
    before = (await job.job()).lease_expires_at
    while (await job.job()).lease_expires_at == before:
        await asyncio.sleep(0.01)
    assert await job.cancel() == "requested"
    with pytest.raises(qo.JobCanceled):
        await job.result(timeout=10)
    consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)


async def test_settles_and_pushes_together_or_not_at_all(client):
    inbox, outbox = client.queue("in"), client.queue("out")
    await inbox.push(1)
    [delivery] = await inbox.claim()
    [handle] = await client.transact([delivery.settlement(Complete())], outbox.prepare([qo.Message(2)]))
    assert await handle.status() == "queued"
    with pytest.raises(qo.RolledBack, match="repeated"):
        await client.transact([delivery.settlement(Fail())], outbox.prepare([qo.Message(3)]))
    assert [each.payload for each in await outbox.claim(10)] == [2]


async def test_dedupe_and_nonce(client):
    queue = client.queue("q")
    first = await queue.push(1, dedupe="k")
    second = await queue.push(1, dedupe="k")
    assert (second.id, first.duplicate, second.duplicate) == (first.id, False, True)
    once = await queue.push_many([qo.Message(5)], nonce="n")
    again = await queue.push_many([qo.Message(5)], nonce="n")
    assert len(once) == len(again) == 1
    assert (await queue.depth()).ready == 2


async def test_groups_seek_and_inspection(client):
    queue = client.queue("events")
    audit = queue.group("audit", start="all")
    assert await audit.register()
    await queue.push_many([qo.Message(number) for number in range(3)])
    assert len(await audit.claim(10, auto_settle=True)) == 3
    assert (await audit.depth()).ready == 0
    assert await audit.seek(1) == 1
    assert [each.payload for each in await audit.claim(10)] == [1, 2]
    assert sorted(group.name for group in await queue.groups()) == ["audit", "default"]
    assert await audit.delete_group()
    assert [info.name for info in await client.queues()] == ["events"]
    assert len(await queue.jobs(state="queued")) == 3
    [lane] = await queue.lanes()
    assert (lane.tail, lane.lag) == (3, 3)
    assert await queue.purge() == 3
    assert await queue.delete()
    assert not await queue.exists()
    await client.create_group("all", namespace="mail")
    await client.queue("mail.send").push(1)
    assert "all" in [group.name for group in await client.queue("mail.send").groups()]


async def test_dead_letters_come_back(client):
    queue = client.queue("q")
    await queue.push(1)
    [delivery] = await queue.claim()
    await delivery.bury("x")
    [letter] = await queue.dead.list()
    [new] = await queue.dead.retry(letter.id)
    [again] = await queue.claim()
    assert (again.id, again.delivered.retry_of) == (new, delivery.delivered.id)
    await again.bury()
    assert await queue.dead.purge() == 1


@pytest.mark.parametrize(
    ("options", "field", "says"),
    [
        ({"payload": object()}, "payload", "JSON"),
        ({"payload": float("nan")}, "payload", "NaN"),
        ({"payload": {"a": [1, {"b": float("inf")}], "c": None}}, "payload", "NaN or infinity"),
        ({"payload": "\ud800"}, "payload", "JSON"),
        ({"delay": -1}, "delay", "negative"),
        ({"delay": float("nan")}, "delay", "finite"),
        ({"delay": "soon"}, "delay", "seconds"),
        ({"delay": 1, "due_at": datetime(2030, 1, 1, tzinfo=UTC)}, "delay", "not both"),
        ({"due_at": datetime(2030, 1, 1)}, "due_at", "time zone"),  # noqa: DTZ001
        ({"kind": ""}, "kind", "empty"),
        ({"key": "x" * 600}, "key", "512"),
        ({"ttl": 0}, "ttl", "greater"),
        ({"priority": 1000}, "priority", "-100 to 100"),
        ({"payload": b"x" * 2_000_000}, "payload", "max_payload"),
    ],
)
async def test_bad_input_names_the_field_and_says_what_is_allowed(client, options, field, says):
    queue = client.queue("q")
    with pytest.raises(qo.Invalid, match=says) as raised:
        await queue.push(**{"payload": 1, **options})
    assert raised.value.field == field
    await queue.configure()
    assert (await queue.depth()).ready == 0


@pytest.mark.parametrize("name", ["", "x" * 256, " a"])
def test_a_bad_queue_name_is_refused_at_once(name):
    with qo.connect(MEMORY) as client, pytest.raises(qo.Invalid, match="queue"):
        client.queue(name)


async def test_a_payload_that_claims_to_be_json_and_is_not(client):
    queue = client.queue("q")
    await queue.push(b"{", headers={"content-type": "application/json"})
    [delivery] = await queue.claim()
    with pytest.raises(qo.Invalid, match="body"):
        _ = delivery.payload
    assert delivery.body == b"{"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://x", "sqlite://"),
        ("sqlit:///x", "did you mean 'sqlite'"),
        ("sqlite://", "names no file"),
        ("sqlite:///x.db?synchronos=off", "did you mean 'synchronous'"),
        ("sqlite:///x.db?synchronous=maybe", "full, normal"),
    ],
)
async def test_a_bad_url_says_what_is_allowed(url, says):
    with pytest.raises(qo.Invalid, match=says):
        await qo.connect(url).open()


async def test_a_consumer_holds_no_more_than_it_can_run_and_gives_all_of_it_back(client):
    queue = client.queue("q")
    await queue.push_many([qo.Message(number) for number in range(5)])
    started = asyncio.Event()

    async def handle(delivery):
        started.set()
        await asyncio.Event().wait()

    consumer = asyncio.create_task(queue.consume(handle, concurrency=2))
    await started.wait()
    await asyncio.sleep(0.05)
    assert (await queue.depth()).leased == 2
    consumer.cancel()
    await asyncio.gather(consumer, return_exceptions=True)
    assert (await queue.depth()).leased == 0
    assert len(await queue.claim(10)) == 5


async def test_a_consumer_goes_on_with_a_lane_whose_message_took_longer_than_idle(client):
    queue = client.queue("q")
    await queue.push_many([qo.Message(number, key="k") for number in range(3)])

    async def handle(delivery):
        await asyncio.sleep(0.05)

    assert await queue.consume(handle, idle=0.01) == 3


async def test_what_ends_a_program_ends_the_consumer_and_gives_back(client):
    queue = client.queue("q")
    await queue.push(1)

    async def handle(delivery):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await queue.consume(handle)
    assert [delivery.attempt for delivery in await queue.claim()] == [1]


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda queue: queue.claim(kinds="mail"), "kinds"),
        (lambda queue: queue.claim(wait=-1), "wait"),
        (lambda queue: queue.push(1, dedupe=5), "dedupe"),
        (lambda queue: queue.push(1, due_at="tomorrow"), "due_at"),
        (lambda queue: queue.push_many([{"a": 1}]), "messages"),
        (lambda queue: queue.push_many([qo.Message(1)], nonce=""), "nonce"),
        (lambda queue: queue.jobs(state="zz"), "state"),
    ],
)
async def test_wrong_arguments_are_named(client, call, field):
    with pytest.raises(qo.Invalid) as raised:
        await call(client.queue("q"))
    assert raised.value.field == field


async def test_wrong_handlers_are_refused_before_anything_is_taken(client):
    queue = client.queue("q")

    async def good(delivery):
        pass

    for handler, options in ((5, {}), (good, {"batch": 0}), (lambda delivery: None, {})):
        with pytest.raises(qo.Invalid):
            await queue.consume(handler, **options)
    with pytest.raises(qo.Invalid):
        qo.connect(5)
    with pytest.raises(qo.Invalid):
        qo.connect(MEMORY, polling=5)
    with pytest.raises(qo.Invalid):
        qo.Dedupe("k", window="soon")


class TestSync:
    def test_an_exit_in_a_handler_reaches_the_caller(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
            queue.push(1)

            def handle(delivery):
                raise SystemExit(3)

            with pytest.raises(SystemExit):
                queue.consume(handle)
            assert [delivery.attempt for delivery in queue.claim()] == [1]

    def test_a_canceled_job_s_thread_finishes_and_its_result_counts(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
            job = queue.push(1)
            told = threading.Event()

            def handle(delivery):
                assert job.cancel() == "requested"
                while not delivery.extend(1):
                    pass
                told.set()
                return "finished all the same"

            assert queue.consume(handle, lease=0.3, idle=0.1) == 1
            assert told.is_set()
            assert job.result() == "finished all the same"

    def test_wrong_handlers_are_refused(self):
        async def handle(delivery):
            pass

        with qo.connect(MEMORY) as client:
            for bad, options in ((5, {}), (handle, {}), (print, {"concurrency": 0})):
                with pytest.raises(qo.Invalid):
                    client.queue("q").consume(bad, **options)

    def test_the_same_in_a_program_without_an_event_loop(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("orders")
            job = queue.push({"id": 1}, key="k")
            queue.push_many([qo.Message(2), qo.Message(3)])
            first, *others = queue.claim(3, wait=1)
            assert first.payload == {"id": 1}
            assert first.complete("done") == "completed"
            assert job.result(timeout=1) == "done"
            queue.push(4)
            verdicts, [next_one] = queue.complete_and_claim(others, 10)
            assert (verdicts, next_one.payload) == (["completed", "completed"], 4)
            assert queue.complete_many([next_one]) == ["completed"]
            assert job.status() == "succeeded"
            assert queue.depth().ready == 0
            assert client.health().problems == ()

    def test_handlers_run_in_threads(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
            queue.push_many([qo.Message(number) for number in range(10)])
            threads = set()

            def handle(delivery):
                threads.add(threading.current_thread().name)
                return delivery.payload

            assert queue.consume(handle, idle=0.1) == 10
            assert all(name.startswith("qo-handler") for name in threads)

    def test_iteration_and_context_managers(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
            queue.push_many([qo.Message(number) for number in range(3)])
            for delivery in queue.consume(idle=0):
                with delivery:
                    pass
            assert queue.depth().leased == 0
            job = queue.submit("later", delay=60)
            assert job.cancel() == "canceled"
            with pytest.raises(qo.JobCanceled):
                job.result()

    def test_the_other_verbs(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
            assert queue.configure(lease=5).lease == timedelta(seconds=5)
            group = queue.group("g")
            assert group.register()
            queue.push(1)
            [delivery] = group.claim()
            assert delivery.extend(10) is False
            delivery.bury("x")
            assert [letter.error for letter in group.dead.list()] == ["x"]
            assert len(group.dead.retry()) == 1
            [again] = group.claim()
            again.release()
            assert group.seek("new") == 1
            queue.pause()
            assert queue.claim() == []
            queue.resume()
            [mine] = queue.claim()
            [handle] = client.transact([mine.settlement(Complete())], queue.prepare([qo.Message(9)]))
            assert handle.status() == "queued"
            assert [job.state for job in queue.jobs(state="queued")] == ["queued"]
            assert {info.name for info in queue.groups()} == {"default", "g"}
            assert len(queue.lanes()) == 1
            assert queue.info().name == "q"
            assert [info.name for info in client.queues()] == ["q"]
            assert group.delete_group()
            assert queue.purge() == 3
            assert queue.delete()

    def test_calls_after_closing_are_refused(self):
        with qo.connect(MEMORY) as client:
            queue = client.queue("q")
        with pytest.raises(qo.Closed):
            queue.push(1)
        client.close()


async def test_a_list_has_as_many_as_were_asked_for_however_large_they_are():
    """A store answers page by page, each no more than a budget of bytes."""
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        for number in range(20):
            await queue.push(f"{number}" + "x" * 1_000_000)
        found = await queue.jobs(limit=18)
        assert [job.payload[:3] for job in found] == [
            f'"{number}'.encode()[:3].ljust(3, b"x") for number in range(19, 1, -1)
        ]
        assert len(await queue.jobs(limit=1000)) == 20
        while deliveries := await queue.claim(8):
            for each in deliveries:
                await each.bury("no")
        assert len(await queue.dead.list(limit=1000)) == 20


def test_the_sync_client_refuses_an_empty_key_too(tmp_path):
    with qo.connect(f"sqlite:///{tmp_path}/qo.db") as client, pytest.raises(qo.Invalid, match="key"):
        client.queue("q").push(1, key="")
