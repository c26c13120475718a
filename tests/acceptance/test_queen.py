"""Queen MQ's published client works unchanged: every builder method, option and admin call that its wire has."""

from __future__ import annotations

import asyncio
import uuid
from datetime import timedelta
from typing import Any

import pytest
from httpx import HTTPStatusError

from qo.server.settings import QueenSettings
from qo.testing.clock import ManualClock
from tests.acceptance.queens import STORES, Court, holding_court, open_store
from tests.postgres import Server


@pytest.fixture(scope="module")
def database():
    server = Server().start()
    yield server
    server.remove()


@pytest.fixture(params=STORES)
async def court(request, database):
    clock = ManualClock()
    store = await open_store(request.param, database, clock)
    async with holding_court(store, clock) as court:
        yield court


def data(messages) -> list:
    return [each["data"] for each in messages]


async def waiting(court: Court, count: int) -> None:
    while court.server.context.broker.waiting != count:
        await asyncio.sleep(0.001)


async def pop(court: Court, queue: str = "orders", *, batch: int = 100, group: str | None = None, **options) -> Any:
    """Without waiting."""
    builder = court.queen.queue(queue).batch(batch).wait(False)
    if group is not None:
        builder = builder.group(group).subscription_mode("all")
    for name, value in options.items():
        builder = getattr(builder, name)(value)
    return await builder.pop()


async def push(court: Court, *payloads, queue: str = "orders", partition: str | None = None) -> Any:
    builder = court.queen.queue(queue)
    if partition is not None:
        builder = builder.partition(partition)
    return await builder.push([{"data": each, "transactionId": f"t-{each}"} for each in payloads])


# Push and pop


async def test_push_pop_ack(court):
    results = await court.queen.queue("orders").push([{"data": {"n": 1}}, {"data": {"n": 2}}])
    assert [each["status"] for each in results] == ["queued", "queued"]
    assert [each["index"] for each in results] == [0, 1]
    messages = await pop(court)
    assert data(messages) == [{"n": 1}, {"n": 2}]
    first = messages[0]
    assert first["transactionId"] == results[0]["transaction_id"]
    assert first["id"] == results[0]["message_id"]
    assert (first["partition"], first["deliveryAttempt"], first["offset"]) == ("Default", 1, 0)
    assert first["producerSub"] is None
    assert first["createdAt"].endswith("Z")
    assert len({each["leaseId"] for each in messages}) == 1
    assert await pop(court) == []
    answer = await court.queen.ack(messages)
    assert answer["success"]
    assert [each["leaseReleased"] for each in answer["results"]][-1]
    court.clock.move(seconds=61)
    assert await pop(court) == []


@pytest.mark.parametrize("payload", [None, {}, [], 0, "text", {"é": [1, 2.5, None]}, False])
async def test_payloads_are_preserved(court, payload):
    await court.queen.queue("orders").push([{"data": payload}])
    [message] = await pop(court)
    assert message["data"] == payload


async def test_a_push_of_nothing(court):
    assert await court.ask("POST", "/api/v1/push", {"items": []}) == (201, [])


async def test_duplicates_answer_with_the_first_one_s_id(court):
    told = []

    async def on_duplicate(items, error):
        told.append([each["transactionId"] for each in items])

    [first] = await court.queen.queue("orders").push([{"data": 1, "transactionId": "a"}])
    answers = await (
        court.queen.queue("orders")
        .push([{"data": 2, "transactionId": "a"}, {"data": 3, "transactionId": "b"}, {"data": 4, "transactionId": "b"}])
        .on_duplicate(on_duplicate)
    )
    assert [each["status"] for each in answers] == ["duplicate", "queued", "duplicate"]
    assert answers[0]["message_id"] == first["message_id"]
    assert answers[2]["message_id"] == answers[1]["message_id"]
    assert told == [["a", "b"]]
    [elsewhere] = await court.queen.queue("orders").partition("p").push([{"data": 5, "transactionId": "a"}])
    assert elsewhere["status"] == "queued"


async def test_of_eight_sent_at_once_one_is_queued(court):
    async def send():
        return (await court.queen.queue("orders").push([{"data": 1, "transactionId": "same"}]))[0]

    answers = await asyncio.gather(*(send() for _ in range(8)))
    assert sorted(each["status"] for each in answers) == ["duplicate"] * 7 + ["queued"]
    assert len({each["message_id"] for each in answers}) == 1
    assert len(await pop(court)) == 1


async def test_callbacks_of_a_push(court):
    told = []

    async def on_success(items):
        told.append(("success", len(items)))

    async def on_error(items, error):
        told.append(("error", str(error)))

    await court.queen.queue("orders").push([{"data": 1}, {"data": 2}]).on_success(on_success).on_error(on_error)
    await court.queen.queue(" bad name ").push([{"data": 1}]).on_success(on_success).on_error(on_error)
    assert told[0] == ("success", 2)
    assert told[1][0] == "error"
    assert "white space" in str(told[1][1])


async def test_buffered_pushes(court):
    orders = court.queen.queue("orders").buffer({"message_count": 10, "time_millis": 60_000})
    for number in range(25):
        assert (await orders.push([{"data": number}]))["buffered"]
    await court.queen.queue("orders").flush_buffer()
    await court.queen.flush_all_buffers()
    assert court.queen.get_buffer_stats()["totalBufferedMessages"] == 0
    assert data(await pop(court)) == list(range(25))


async def test_a_waiting_pop_is_woken_by_the_push(court):
    task = asyncio.create_task(court.queen.queue("orders").batch(10).wait(True).pop())
    await waiting(court, 1)
    await push(court, 1)
    assert data(await task) == [1]


async def test_a_waiting_pop_of_an_unknown_queue_ends_with_nothing(court):
    task = asyncio.create_task(court.queen.queue("unknown").timeout_millis(5000).pop())
    await waiting(court, 1)
    court.clock.move(seconds=5)
    assert await task == []
    assert await pop(court, "unknown") == []


async def test_settled_at_delivery(court):
    await push(court, *range(3))
    messages = await court.queen.queue("orders").batch(2).commit_on_delivery().pop()
    assert data(messages) == [0, 1]
    assert {each["leaseId"] for each in messages} == {""}
    court.clock.move(hours=1)
    assert data(await pop(court)) == [2]


async def test_ten_thousand_messages_in_one_run_settled_at_delivery(court):
    for start in range(0, 10_000, 1000):
        await court.queen.queue("orders").push([{"data": number} for number in range(start, start + 1000)])
    messages = await court.queen.queue("orders").batch(10_000).wait(False).commit_on_delivery().pop()
    assert data(messages) == list(range(10_000))
    assert await pop(court) == []


async def test_partitions_are_ordered_and_apart(court):
    for partition in ("a", "b"):
        await push(court, f"{partition}1", f"{partition}2", partition=partition)
    assert data(await pop(court, partition="b")) == ["b1", "b2"]
    assert data(await pop(court)) == ["a1", "a2"]


async def test_one_pop_may_take_several_partitions(court):
    for number in range(5):
        await push(court, number, partition=f"p{number}")
    messages = await pop(court, partitions=3)
    assert data(messages) == [0, 1, 2]
    assert len({each["leaseId"] for each in messages}) == 1
    assert len({each["partitionId"] for each in messages}) == 3
    renewed = await court.queen.renew(messages)
    assert renewed[0]["renewed"] == 3
    await court.queen.ack(messages[0])
    assert (await court.queen.renew(messages[1]))["renewed"] == 2


async def test_autopilot_leaves_sizes_to_the_server(court):
    for number in range(3):
        await push(court, number, partition=f"p{number}")
    assert len(await court.queen.queue("orders").autopilot(False).wait(False).pop()) == 1
    result = await court.queen.queue("orders").wait(False).pop_result()
    assert len(result.messages) >= 1


async def test_names_with_slashes_dots_and_spaces(court):
    queue, partition = "billing/eu.invoices é", "customer 7/a"
    await push(court, 1, queue=queue, partition=partition)
    await push(court, 2, queue=queue)
    [one] = await court.queen.queue(queue).partition(partition).wait(False).pop()
    assert one["data"] == 1
    assert (await court.queen.ack(one))["success"]
    detail = await court.queen.admin.get_queue(queue)
    assert detail["name"] == queue
    assert (await court.queen.admin.get_queue_depth(queue))["pending"] == 1
    assert (await court.queen.queue(queue).delete())["deleted"]


async def test_namespaces_and_tasks(court):
    await push(court, 1, queue="billing.send")
    await push(court, 2, queue="billing.print")
    await court.queen.queue("plain").namespace("billing").task("archive").create()
    await push(court, 3, queue="plain")
    taken = []
    for _ in range(3):
        taken += await court.queen.queue().namespace("billing").batch(10).wait(False).pop()
    assert sorted(data(taken)) == [1, 2, 3]
    await court.queen.ack(taken)
    await push(court, 4, queue="billing.send")
    assert await court.queen.queue().task("print").wait(False).pop() == []
    assert data(await court.queen.queue().namespace("billing").task("send").wait(False).pop()) == [4]
    status, answer = await court.ask("GET", "/api/v1/pop")
    assert status == 400
    assert "namespace" in answer["error"]


# Acks


async def test_an_ack_completes_what_is_before_it(court):
    await push(court, *range(5))
    messages = await pop(court)
    answer = await court.queen.ack(messages[2])
    assert answer["success"]
    assert not answer["leaseReleased"]
    court.clock.move(seconds=61)
    [third] = await pop(court)
    assert third["data"] == 3, "one that was lost comes alone"
    await court.queen.ack(third)
    assert data(await pop(court)) == [4]


async def test_nacks_in_the_middle_of_a_batch(court):
    await push(court, *range(5))
    messages = await pop(court)
    items = [
        {"transactionId": each["transactionId"], "partitionId": each["partitionId"], "leaseId": each["leaseId"]}
        for each in messages
    ]
    for item, status in zip(items, ["completed", "completed", "failed", "completed", "retry"], strict=True):
        item["status"] = status
    status, answers = await court.ask("POST", "/api/v1/ack/batch", {"acknowledgments": items, "consumerGroup": None})
    assert status == 200
    assert [each["success"] for each in answers] == [True] * 5
    assert await pop(court) == [], "retryDelay is not over"
    court.clock.move(seconds=1)
    again = await pop(court)
    assert [(each["data"], each["deliveryAttempt"]) for each in again] == [(2, 2), (3, 1), (4, 1)]


async def test_a_failed_message_is_a_dead_letter_after_its_retries(court):
    await court.queen.queue("orders").config({"retry_limit": 2, "retry_delay": 5000}).create()
    await push(court, "bad", "next")
    for attempt in (1, 2, 3):
        [bad, *_] = await pop(court)
        assert (bad["data"], bad["deliveryAttempt"]) == ("bad", attempt)
        answer = await court.queen.ack(bad, False, {"error": f"boom {attempt}"})
        assert answer["success"]
        assert answer["dlq"] == (attempt == 3)
        if attempt < 3:
            court.clock.move(seconds=4)
            assert await pop(court) == []
            court.clock.move(seconds=1)
    assert data(await pop(court)) == ["next"], "what follows is claimable at once"
    letters = await court.queen.queue("orders").dlq().limit(10).offset(0).get()
    assert letters["total"] == 1
    [letter] = letters["messages"]
    assert (letter["data"], letter["errorMessage"], letter["retryCount"]) == ("bad", "boom 3", 2)
    assert (letter["queue"], letter["partition"], letter["consumerGroup"]) == ("orders", "Default", "__QUEUE_MODE__")


async def test_dead_letters_are_chosen_by_group_partition_and_time(court):
    await court.queen.queue("orders").config({"retry_limit": 0}).create()
    for partition in ("a", "b"):
        await push(court, partition, partition=partition)
        for group in (None, "g"):
            [message] = await pop(court, group=group, partition=partition)
            await court.queen.ack(message, False, {"group": group} if group else {})
            court.clock.move(seconds=10)
    orders = court.queen.queue("orders")
    assert (await orders.dlq().get())["total"] == 4
    assert (await orders.dlq("g").get())["total"] == 2
    assert (await court.queen.queue("orders").partition("a").dlq("g").get())["total"] == 1
    late = (court.clock.now() - timedelta(seconds=15)).isoformat()
    assert (await orders.dlq().from_(late).get())["total"] == 1
    assert (await orders.dlq().to(late).get())["total"] == 3
    assert len((await orders.dlq().limit(3).offset(2).get())["messages"]) == 2


@pytest.mark.parametrize(
    ("options", "buried"), [({}, 1), ({"dead_letter_queue": False}, 1), ({"dlq_after_max_retries": False}, 1)]
)
async def test_either_option_keeps_dead_letters(court, options, buried):
    await court.queen.queue("orders").config({"retry_limit": 0, **options}).create()
    await push(court, 1)
    [message] = await pop(court)
    await court.queen.ack(message, False)
    assert (await court.queen.queue("orders").dlq().get())["total"] == buried


async def test_both_options_off_drop(court):
    config = {"retry_limit": 0, "dead_letter_queue": False, "dlq_after_max_retries": False}
    await court.queen.queue("orders").config(config).create()
    await push(court, 1, 2)
    [message, _] = await pop(court)
    answer = await court.queen.ack(message, False)
    assert answer["success"]
    assert not answer["dlq"]
    assert (await court.queen.queue("orders").dlq().get())["total"] == 0
    assert data(await pop(court)) == [2]


async def test_retry_uses_no_attempt_and_dlq_buries_at_once(court):
    await push(court, 1, 2)
    [first, _] = await pop(court)
    assert (await court.queen.ack(first, "retry"))["success"]
    [again, second] = await pop(court)
    assert (again["data"], again["deliveryAttempt"]) == (1, 1)
    assert (await court.queen.ack(again, "dlq", {"error": "never"}))["dlq"]
    assert data(await pop(court)) == [2]
    assert not (await court.queen.ack(second))["success"], "its lease ended with the burial"
    [letter] = (await court.queen.queue("orders").dlq().get())["messages"]
    assert letter["errorMessage"] == "never"


@pytest.mark.parametrize("status", ["completed", "success", "acked", "ok", True, None])
async def test_words_that_complete(court, status):
    await push(court, 1)
    [message] = await pop(court)
    body = {key: message[key] for key in ("transactionId", "partitionId", "leaseId")}
    body["status"] = "completed" if status is True else status
    _, [answer] = await court.ask("POST", "/api/v1/ack", body)
    assert answer["success"]
    assert not answer["noop"]
    _, [again] = await court.ask("POST", "/api/v1/ack", body)
    assert again["success"]
    assert again["noop"]


async def test_stale_and_missing_leases(court):
    await push(court, 1, 2)
    old = await pop(court)
    court.clock.move(seconds=61)
    stale = await court.queen.ack(old[0])
    assert not stale["success"]
    assert "lease" in stale["error"]
    new = await pop(court)
    assert [(each["data"], each["deliveryAttempt"]) for each in new] == [(1, 1)], "it used no attempt, and comes alone"
    assert not (await court.queen.ack(old[0]))["success"]
    assert "lease" in (await court.queen.ack({**new[0], "leaseId": "no such lease"}))["error"]
    unfenced = {key: value for key, value in new[0].items() if key != "leaseId"}
    assert (await court.queen.ack(unfenced))["success"], "without a lease it is not fenced"
    nack = await court.queen.ack(new[0], False)
    assert not nack["success"]
    assert "already committed" in nack["error"]
    odd = await court.queen.ack({**new[0], "transactionId": "nobody"})
    assert "unresolvable" in odd["error"]
    odd = await court.queen.ack({**new[0], "partitionId": "nonsense"})
    assert "unresolvable" in odd["error"]


async def test_a_batch_with_a_refused_item_says_which(court):
    await push(court, 1, 2)
    messages = await pop(court)
    answer = await court.queen.ack([messages[0], {**messages[1], "leaseId": "gone"}])
    assert not answer["success"]
    assert [each["success"] for each in answer["results"]] == [True, False]


async def test_each_message_of_a_batch_may_have_its_own_verdict(court):
    await push(court, *range(4))
    messages = await pop(court)
    messages[0]["_status"], messages[1]["_status"] = True, False
    messages[1]["_error"] = "no"
    await court.queen.ack(messages[:2])
    court.clock.move(seconds=1)
    assert data(await pop(court)) == [1, 2, 3]


async def test_leases_are_renewed_and_never_shortened(court):
    await court.queen.queue("orders").config({"lease_time": 30}).create()
    await push(court, 1)
    [message] = await pop(court)
    renewed = await court.queen.renew(message)
    assert renewed["success"]
    assert renewed["renewed"] == 1
    court.clock.move(seconds=59)
    assert await pop(court) == []
    status, answer = await court.ask("POST", f"/api/v1/lease/{message['leaseId']}/extend", {"seconds": 600})
    assert status == 200
    longer = answer["newExpiresAt"]
    assert (await court.queen.renew(message))["newExpiresAt"] == longer
    assert answer["expiresAt"] == answer["lease_expires_at"] == longer
    await court.queen.ack(message)
    gone = await court.queen.renew(message)
    assert (gone["success"], gone["renewed"], gone["newExpiresAt"]) == (False, 0, None)


async def test_a_pop_may_say_how_long_its_lease_is(court):
    await push(court, 1)
    status, _ = await court.ask("GET", "/api/v1/pop/queue/orders?leaseSeconds=5")
    assert status == 200
    court.clock.move(seconds=5)
    assert len(await pop(court)) == 1


# Consuming


async def test_consume_in_order_with_concurrency(court):
    for partition in range(4):
        await push(court, *(f"{partition}-{number}" for number in range(10)), partition=f"p{partition}")
    seen: dict[str, list[int]] = {}
    stop = asyncio.Event()

    async def handle(message):
        partition, _, number = message["data"].partition("-")
        seen.setdefault(partition, []).append(int(number))
        await asyncio.sleep(0)
        if sum(map(len, seen.values())) == 40:
            stop.set()

    consuming = court.queen.queue("orders").concurrency(4).batch(3).each().timeout_millis(1000)
    task = asyncio.ensure_future(_run(consuming.consume(handle, signal=stop)))
    while not task.done():  # those who wait, because others are at their lanes, wait by this clock
        court.clock.move(seconds=1 if stop.is_set() else 0.02)
        await asyncio.sleep(0.01)
    assert seen == {str(partition): list(range(10)) for partition in range(4)}
    assert await pop(court) == []


async def _run(builder):
    return await builder


async def test_consume_up_to_a_limit_and_retry_what_fails(court):
    await push(court, *range(3))
    handled = []

    async def handle(message):
        handled.append(message["data"])
        if handled == [0]:
            raise ValueError("once")

    async def move():
        while len(handled) < 4:
            court.clock.move(seconds=1)
            await asyncio.sleep(0.01)

    moving = asyncio.create_task(move())
    await court.queen.queue("orders").batch(1).limit(4).consume(handle)
    await moving
    assert handled == [0, 0, 1, 2]


async def test_consume_batches_with_callbacks_that_ack(court):
    await push(court, *range(4))
    told = []

    async def handle(messages):
        return len(messages)

    async def on_success(messages, result):
        told.append((data(messages), result))
        await court.queen.ack(messages)

    await court.queen.queue("orders").batch(4).limit(4).consume(handle).on_success(on_success)
    assert told == [([0, 1, 2, 3], 4)]
    assert await pop(court) == []


async def test_consume_without_auto_ack_and_with_renewal(court):
    await push(court, 1)

    async def handle(message):
        assert (await court.queen.renew(message))["success"]
        await court.queen.ack(message)

    orders = court.queen.queue("orders").batch(1).auto_ack(False).renew_lease(True, 1000).limit(1)
    await orders.consume(handle)
    assert await pop(court) == []


async def test_consume_ends_when_idle(court):
    await push(court, 1)

    async def handle(message):
        pass

    async def move():
        while True:
            court.clock.move(seconds=1)
            await asyncio.sleep(0.01)

    moving = asyncio.create_task(move())
    await court.queen.queue("orders").batch(1).idle_millis(50).timeout_millis(500).consume(handle)
    moving.cancel()


async def test_traces(court):
    await push(court, 1)
    [message] = await pop(court)
    other = {}

    async def handle(message):
        other.update(message)
        answer = await message["trace"]({"data": {"step": 1}, "traceName": ["import", "nightly"], "eventType": "info"})
        assert answer["success"]
        assert (await message["trace"]({"data": {"step": 2}, "traceName": "import"}))["success"]

    await court.queen.ack(message, "retry")
    await court.queen.queue("orders").batch(1).limit(1).consume(handle)
    admin = court.queen.admin
    traces = (await admin.get_traces_for_message(other["partitionId"], other["transactionId"]))["traces"]
    assert [each["data"] for each in traces] == [{"step": 1}, {"step": 2}]
    by_name = await admin.get_traces_by_name("import", limit=1)
    assert by_name["total"] == 2
    assert by_name["traces"][0]["data"] == {"step": 2}
    names = await admin.get_trace_names()
    assert [each["traceName"] for each in names["traceNames"]] == ["import", "nightly"]


# Groups


async def test_groups_see_everything_and_start_where_they_say(court):
    await push(court, 1)
    assert await court.queen.queue("orders").group("new").wait(False).pop() == []
    assert data(await court.queen.queue("orders").group("all").subscription_mode("all").wait(False).pop()) == [1]
    await push(court, 2)
    assert data(await court.queen.queue("orders").group("new").subscription_mode("all").wait(False).pop()) == [2]
    assert data(await court.queen.queue("orders").batch(10).wait(False).pop()) == [1, 2]


async def test_a_group_may_start_at_a_time(court):
    await push(court, 1)
    court.clock.move(seconds=10)
    moment = court.clock.now().isoformat()
    await push(court, 2)
    orders = court.queen.queue("orders").batch(10).wait(False)
    assert data(await orders.group("since").subscription_from(moment).pop()) == [2]
    assert await court.queen.queue("orders").group("now").subscription_from("now").wait(False).pop() == []


async def test_a_group_that_started_at_new_sees_partitions_that_appear(court):
    await push(court, "old", partition="a")

    async def producer(number: int) -> None:
        await push(court, number, partition=f"p{number}")

    assert await court.queen.queue("orders").group("g").wait(False).pop() == []
    await asyncio.gather(*(producer(number) for number in range(20)))
    taken = []
    while messages := await court.queen.queue("orders").group("g").partitions(50).batch(50).wait(False).pop():
        taken += messages
    assert sorted(data(taken)) == list(range(20))


async def test_a_group_is_made_by_its_first_pop_on_a_queue_that_is_not_there(court):
    assert await court.queen.queue("later").group("g").wait(False).pop() == []
    await push(court, 1, queue="later")
    assert data(await court.queen.queue("later").group("g").wait(False).pop()) == [1]
    assert not (await court.store.queue("later")).settings.default_group
    assert data(await court.queen.queue("later").wait(False).pop()) == [1]
    assert (await court.store.queue("later")).settings.default_group


async def test_a_group_called_default_is_not_queue_mode(court):
    await push(court, 1)
    [message] = await pop(court, group="default")
    assert message["consumerGroup"] == "default"
    assert (await court.queen.ack(message, True, {"group": "default"}))["success"]
    assert data(await pop(court)) == [1]
    groups = (await court.queen.admin.list_consumer_groups())["consumerGroups"]
    assert [each["name"] for each in groups] == ["default"]


async def test_groups_are_listed_moved_and_deleted(court):
    admin = court.queen.admin
    await push(court, 1, 2, 3, partition="a")
    court.clock.move(seconds=100)
    [first, *_] = await pop(court, group="g", batch=1)
    await court.queen.ack(first, True, {"group": "g"})
    [group] = (await admin.list_consumer_groups())["consumerGroups"]
    assert (group["name"], group["totalLag"]) == ("g", 2)
    detail = await admin.get_consumer_group("g")
    assert detail["queues"][0]["partitions"][0]["lag"] == 2
    assert len((await admin.get_lagging_consumers(60))["consumerGroups"]) == 1
    assert (await admin.get_lagging_consumers(1000))["consumerGroups"] == []
    await admin.refresh_consumer_stats()
    moved = await admin.seek_consumer_group("g", "orders", {"toEnd": True})
    assert (moved["success"], moved["partitionsUpdated"]) == (True, 1)
    assert await pop(court, group="g") == []
    await admin.seek_consumer_group("g", "orders", {"timestamp": "2000-01-01T00:00:00Z"})
    assert data(await pop(court, group="g")) == [1, 2, 3]
    updated = await court.queen.update_consumer_group_timestamp("g", "2000-01-01T00:00:00.000Z")
    assert (updated["success"], updated["rowsUpdated"]) == (True, 1)
    assert data(await pop(court, group="g")) == [1, 2, 3], "a seek ends leases"
    gone = await court.queen.delete_consumer_group("g")
    assert gone == {"success": True, "consumerGroup": "g", "deletedPartitions": 1, "metadataDeleted": True}
    assert data(await pop(court, group="g")) == [1, 2, 3], "it reads anew from its mode"
    await admin.delete_consumer_group_for_queue("g", "orders")
    assert (await admin.list_consumer_groups())["consumerGroups"] == []
    nobody = await court.queen.delete_consumer_group("nobody")
    assert (nobody["success"], nobody["deletedPartitions"]) == (True, 0)


async def test_seeks_that_make_no_sense(court):
    assert (await court.ask("POST", "/api/v1/consumer-groups/g/queues/none/seek", {"toEnd": True}))[0] == 404
    await push(court, 1)
    assert (await court.ask("POST", "/api/v1/consumer-groups/g/queues/orders/seek", {}))[0] == 400
    assert (await court.ask("POST", "/api/v1/consumer-groups/g/queues/orders/seek"))[0] == 400
    status, answer = await court.ask("POST", "/api/v1/consumer-groups/g/queues/orders/partitions/Default/seek")
    assert (status, answer["partitionsUpdated"]) == (200, 1)
    assert await pop(court, group="g") == []


async def test_a_group_that_keeps_its_metadata_begins_where_it_began(court):
    await push(court, "before")
    court.clock.move(seconds=1)
    assert await court.queen.queue("orders").group("g").wait(False).pop() == []
    court.clock.move(seconds=1)
    await push(court, "after")
    [message] = await court.queen.queue("orders").group("g").wait(False).pop()
    await court.queen.ack(message, True, {"group": "g"})
    await court.queen.delete_consumer_group("g", delete_metadata=False)
    assert data(await court.queen.queue("orders").group("g").wait(False).pop()) == ["after"]


# Transactions


async def test_a_transaction_acks_and_pushes(court):
    await push(court, 1)
    [message] = await pop(court)
    result = await court.queen.transaction().ack(message).queue("next").push([{"data": "n"}]).commit()
    assert result["success"]
    assert [each["type"] for each in result["results"]] == ["ack", "push"]
    assert result["results"][1]["queueName"] == "next"
    assert data(await pop(court, "next")) == ["n"]
    assert await pop(court) == []


async def test_a_transaction_with_a_stale_lease_rolls_back(court):
    await push(court, 1)
    [message] = await pop(court)
    court.clock.move(seconds=61)
    with pytest.raises(Exception, match="rolled back"):
        await court.queen.transaction().ack(message).queue("next").push([{"data": "n"}]).commit()
    assert await pop(court, "next") == []
    [again] = await pop(court)
    await court.queen.ack(again)
    status, answer = await court.ask(
        "POST",
        "/api/v1/transaction",
        {
            "operations": [{"type": "ack", "transactionId": "t-1", "partitionId": again["partitionId"]}],
            "requiredLeases": [again["leaseId"]],
        },
    )
    assert status == 200
    assert (answer["success"], answer["results"], answer["reason"]) == (False, [], "ack_rejected")
    assert "rolled back" in answer["error"]
    bare = {"operations": [{"type": "ack", "transactionId": "t-1", "partitionId": again["partitionId"]}]}
    assert (await court.ask("POST", "/api/v1/transaction", bare))[1]["success"], "no lease information at all"


async def test_a_transaction_is_undone_by_a_duplicate_and_by_what_cannot_be_resolved(court):
    await push(court, 1)
    push_again = {"type": "push", "items": [{"queue": "orders", "payload": 1, "transactionId": "t-1"}]}
    _, answer = await court.ask("POST", "/api/v1/transaction", {"operations": [push_again]})
    assert (answer["success"], answer["reason"]) == (False, "duplicate")
    odd = {"type": "ack", "transactionId": "nobody", "partitionId": "nonsense"}
    _, answer = await court.ask("POST", "/api/v1/transaction", {"operations": [odd]})
    assert (answer["success"], answer["reason"]) == (False, "ack_rejected")


@pytest.mark.parametrize("status", ["failed", "retry", "dlq"])
async def test_a_transaction_may_nack(court, status):
    await push(court, 1)
    [message] = await pop(court)
    result = await court.queen.transaction().ack(message, status).queue("next").push([{"data": "n"}]).commit()
    assert result["success"]
    assert result["results"][0].get("dlq", False) == (status == "dlq")
    assert data(await pop(court, "next")) == ["n"]


@pytest.mark.parametrize("name", ["kv", "timers"])
async def test_conditions_that_are_not_supported_refuse_a_transaction(court, name):
    status, answer = await court.ask("POST", "/api/v1/transaction", {"operations": [], name: []})
    assert status == 400
    assert name in answer["error"]


# Options


DEFAULTS = {
    "leaseTime": 300,
    "retryLimit": 3,
    "retryDelay": 1000,
    "priority": 0,
    "maxSize": 0,
    "ttl": 0,
    "deadLetterQueue": True,
    "dlqAfterMaxRetries": True,
    "delayedProcessing": 0,
    "windowBuffer": 0,
    "retentionEnabled": False,
    "retentionSeconds": 0,
    "completedRetentionSeconds": 0,
    "maxWaitTimeSeconds": 0,
    "encryptionEnabled": False,
    "dedupWindowSeconds": 3600,
}


async def test_a_queue_that_is_created_has_the_defaults(court):
    answer = await court.queen.queue("a.b").create()
    assert answer["configured"]
    assert answer["options"] == DEFAULTS
    assert (answer["queue"], answer["namespace"], answer["task"]) == ("a.b", "a", "b")
    assert answer["queueId"]


OTHERS = {
    "leaseTime": 7,
    "retryLimit": 9,
    "retryDelay": 250,
    "priority": -3,
    "maxSize": 12,
    "ttl": 60,
    "deadLetterQueue": False,
    "dlqAfterMaxRetries": False,
    "delayedProcessing": 2,
    "windowBuffer": 3,
    "retentionEnabled": True,
    "retentionSeconds": 1000,
    "completedRetentionSeconds": 100,
    "maxWaitTimeSeconds": 50,
    "encryptionEnabled": True,
    "dedupWindowSeconds": 10,
}


async def test_options_are_merged_echoed_and_reset(court):
    for name, value in OTHERS.items():
        _, answer = await court.ask("POST", "/api/v1/configure", {"queue": "q", "options": {name: value}})
        assert answer["options"][name] == value
    assert answer["options"] == OTHERS
    _, answer = await court.ask("POST", "/api/v1/configure", {"queue": "q", "options": {"ttl": None}})
    assert answer["options"] == {**OTHERS, "ttl": 0}
    _, answer = await court.ask("POST", "/api/v1/configure", {"queue": "q", "options": {}, "mode": "replace"})
    assert answer["options"] == DEFAULTS


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"queue": 7},
        {"queue": "q", "options": {"leaseTime": "long"}},
        {"queue": "q", "options": {"encryptionEnabled": 1}},
    ],
)
async def test_configure_refuses_wrong_types(court, body):
    status, answer = await court.ask("POST", "/api/v1/configure", body)
    assert status == 400
    assert answer["error"]


async def test_the_lease_of_a_queue_that_a_push_created_is_a_minute(court):
    await push(court, 1)
    await pop(court)
    court.clock.move(seconds=59)
    assert await pop(court) == []
    court.clock.move(seconds=1)
    assert len(await pop(court)) == 1


async def test_delayed_processing(court):
    await court.queen.queue("orders").config({"delayed_processing": 5}).create()
    await push(court, 1)
    task = asyncio.create_task(court.queen.queue("orders").pop())
    await waiting(court, 1)
    court.clock.move(seconds=5)
    assert data(await task) == [1]


async def test_window_buffer(court):
    await court.queen.queue("orders").config({"window_buffer": 5}).create()
    await push(court, 1)
    court.clock.move(seconds=4)
    await push(court, 2)
    assert await pop(court) == []
    court.clock.move(seconds=1)
    messages = await pop(court)
    assert data(messages) == [1, 2]
    await court.queen.ack(messages)
    await push(court, *range(10, 110))
    assert len(await pop(court, batch=200)) == 100


async def test_max_size_refuses_the_whole_push(court):
    await court.queen.queue("orders").config({"max_size": 2}).create()
    await push(court, 1)
    body = {"items": [{"queue": "orders", "payload": n} for n in (2, 3)] + [{"queue": "other", "payload": 1}]}
    status, answer = await court.ask("POST", "/api/v1/push", body)
    assert status == 403
    assert answer["code"] == "queue_full"
    assert "max capacity" in answer["error"]
    assert await pop(court, "other") == []
    [message] = await pop(court)
    await court.queen.ack(message)
    await push(court, 2, 3)


@pytest.mark.parametrize("option", ["ttl", "max_wait_time_seconds"])
async def test_what_waits_too_long_is_gone(court, option):
    await court.queen.queue("orders").config({option: 10}).create()
    await push(court, 1)
    court.clock.move(seconds=9)
    await push(court, 2)
    court.clock.move(seconds=1)
    assert data(await pop(court)) == [2]


async def test_retention(court):
    rules = {"retention_enabled": True, "retention_seconds": 100, "completed_retention_seconds": 10}
    await court.queen.queue("orders").config(rules).create()
    await push(court, 1, 2)
    [first, _] = await pop(court)
    await court.queen.ack(first)
    admin = court.queen.admin
    assert (await admin.get_message(first["partitionId"], "t-1"))["status"] == "completed"
    for _ in range(20):  # the server's own housekeeping may be at it
        court.clock.move(seconds=61)
        await court.store.tidy()
        if (await court.ask("GET", f"/api/v1/messages/{first['partitionId']}/t-1"))[0] == 404:
            break
    assert await pop(court) == [], "older than the queue keeps"
    with pytest.raises(HTTPStatusError, match="there is no message"):
        await admin.get_message(first["partitionId"], "t-1")


async def test_encryption_at_rest(court):
    await court.queen.queue("orders").config({"encryption_enabled": True}).create()
    await court.queen.queue("orders").push([{"data": {"card": "4111"}}])
    [message] = await pop(court)
    assert message["data"] == {"card": "4111"}


async def test_dedup_window(court):
    await court.queen.queue("orders").config({"dedup_window_seconds": 10}).create()
    await push(court, 1)
    assert [each["status"] for each in await push(court, 1)] == ["duplicate"]
    court.clock.move(seconds=10)
    assert [each["status"] for each in await push(court, 1)] == ["queued"]
    await court.queen.queue("off").config({"dedup_window_seconds": 0}).create()
    await push(court, 1, queue="off")
    assert [each["status"] for each in await push(court, 1, queue="off")] == ["queued"]
    first, second = await pop(court, "off")
    assert (await court.queen.ack(first))["success"]
    assert (await court.queen.ack(second))["success"]


async def test_queues_of_a_higher_priority_are_popped_first(court):
    for name, priority in (("n.low", 0), ("n.high", 9)):
        await court.queen.queue(name).config({"priority": priority}).create()
        await push(court, name, queue=name)
    messages = await court.queen.queue().namespace("n").batch(1).wait(False).pop()
    assert data(messages) == ["n.high"]


async def test_queues_are_deleted(court):
    await push(court, 1)
    answer = await court.queen.queue("orders").delete()
    assert answer == {"deleted": True, "queue": "orders", "existed": True}
    answer = await court.queen.queue("orders").delete()
    assert answer == {"deleted": False, "queue": "orders", "existed": False}
    assert [each["status"] for each in await push(court, 1)] == ["queued"], "its dedupe records went with it"


# Messages and dead letters by their address


async def test_a_message_is_read_with_its_groups(court):
    await push(court, 1, 2)
    [message, _] = await pop(court, group="g")
    admin = court.queen.admin
    found = await admin.get_message(message["partitionId"], "t-1")
    assert (found["data"], found["status"]) == (1, "processing")
    assert [(each["name"], each["consumed"]) for each in found["consumerGroups"]] == [("g", False)]
    assert found["consumerGroups"][0]["leaseExpiresAt"].endswith("Z")
    await court.queen.ack(message, True, {"group": "g"})
    found = await admin.get_message(message["partitionId"], "t-1")
    assert found["consumerGroups"] == [{"name": "g", "consumed": True, "leaseExpiresAt": None}]
    assert found["status"] == "completed"
    listed = await admin.list_messages(queue="orders", limit=10)
    assert sorted(data(listed["messages"])) == [1, 2]
    assert data((await admin.list_messages(queue="orders", status="pending"))["messages"]) == [2, 1]
    assert (await admin.list_messages(queue="orders", partition="other"))["messages"] == []
    assert (await admin.list_messages(queue="nobody"))["messages"] == []


async def test_a_dead_letter_is_put_back_or_removed(court):
    await court.queen.queue("orders").config({"retry_limit": 0}).create()
    await push(court, 1, 2)
    for _ in range(2):
        [message, *_] = await pop(court)
        await court.queen.ack(message, False, {"error": "no"})
    admin = court.queen.admin
    place = message["partitionId"]
    assert (await admin.get_message(place, "t-1"))["status"] == "dead_letter"
    answer = await admin.retry_message(place, "t-1")
    assert (answer["success"], answer["result"], answer["dlqRowRemoved"]) == (True, "moved", True)
    [again] = await pop(court)
    assert again["data"] == 1
    assert again["id"] == answer["replayedAs"]
    assert (await court.queen.ack(again))["success"]
    assert (await admin.delete_message(place, "t-2"))["success"]
    assert (await court.queen.queue("orders").dlq().get())["total"] == 0
    for call in (admin.delete_message, admin.retry_message):
        with pytest.raises(HTTPStatusError) as refused:
            await call(place, "t-2")
        assert refused.value.response.status_code == 404


# What dashboards ask for


async def test_resources_and_status(court):
    await push(court, 1, 2, queue="billing.send", partition="a")
    await push(court, 3, queue="billing.send", partition="b")
    [held, _] = await pop(court, "billing.send", partitions=1)
    admin = court.queen.admin
    depth = await admin.get_queue_depth("billing.send")
    assert (depth["pending"], depth["processing"], depth["ready"]) == (3, 2, 1)
    assert sorted((each["partition"], each["pending"]) for each in depth["partitions"]) == [("a", 2), ("b", 1)]
    assert (await admin.get_queue_depth("billing.send", "__QUEUE_MODE__"))["pending"] == 3
    overview = await admin.get_overview()
    assert (overview["queues"], overview["messages"]["pending"]) == (1, 3)
    assert (await admin.get_namespaces())["namespaces"] == [{"namespace": "billing", "queues": 1}]
    assert (await admin.get_tasks())["tasks"] == [{"task": "send", "queues": 1}]
    assert [each["name"] for each in (await admin.list_queues(limit=5))["queues"]] == ["billing.send"]
    assert (await admin.get_queue("billing.send"))["options"]["leaseTime"] == 60
    assert {each["partition"] for each in (await admin.get_partitions(queue="billing.send"))["partitions"]} == {
        "a",
        "b",
    }
    assert (await admin.get_status())["status"] == "healthy"
    assert len((await admin.get_queue_stats())["queues"]) == 1
    assert (await admin.get_queue_detail("billing.send"))["pending"] == 3
    for call in (admin.get_analytics, admin.get_system_metrics, admin.get_worker_metrics):
        assert "metrics" in await call()
    assert (await admin.health())["status"] == "healthy"
    assert "qo_claims_total" in list(await admin.metrics())
    assert held["partition"] == "a"


# The wire itself


async def test_routes_that_are_not_there_say_so(court):
    for method, path in (("GET", "/api/v1/kv/x"), ("POST", "/api/v1/timers"), ("GET", "/api/v2/pop")):
        status, answer = await court.ask(method, path)
        assert status == 404
        assert answer["error"] == "no_such_route"


async def test_bad_bodies_are_told_as_queen_tells_them(court):
    status, answer = await court.ask("POST", "/api/v1/push", {"items": 7})
    assert status == 400
    assert set(answer) == {"error", "code"}
    async with court.session.post(
        "/api/v1/push", data=b"\x01", headers={"content-type": "application/x-queen-push"}
    ) as got:
        assert got.status == 400
    status, answer = await court.ask("GET", "/api/v1/ack")
    assert status == 405


async def test_unknown_fields_and_parameters_are_ignored(court):
    body = {"items": [{"queue": "orders", "payload": 1, "producerSub": "forged", "later": True}], "extra": 1}
    status, _ = await court.ask("POST", "/api/v1/push", body)
    assert status == 201
    status, answer = await court.ask(
        "GET", "/api/v1/pop/queue/orders?frames=true&conflation=true&novel=1&consumerGroup="
    )
    assert status == 200
    assert answer["messages"][0]["producerSub"] is None
    assert "conflation" not in answer
    assert answer["partitionsClaimed"] == 1


async def test_a_stopping_server_answers_waiting_pops_with_nothing(court):
    task = asyncio.create_task(court.queen.queue("orders").pop())
    await waiting(court, 1)
    await court.server.context.stop()
    assert await task == []


async def test_what_a_call_made_claimable_is_claimable_by_the_next_pop(court):
    """Also with `wait=false`, and while others are at the same queue."""

    async def through(number: int) -> None:
        name = str(uuid.uuid4())
        builder = court.queen.queue("busy").partition(f"p{number}")
        for step in range(5):
            await builder.push([{"data": step, "transactionId": f"{name}-{step}"}])
            [message] = await court.queen.queue("busy").partition(f"p{number}").batch(1).wait(False).pop()
            assert message["data"] == step
            assert (await court.queen.ack(message))["success"]

    await asyncio.gather(*(through(number) for number in range(8)))


# What a review found


async def test_what_our_own_wire_pushed_is_popped_and_acked(court):
    for body in ({"payload": 1, "key": "p"}, {"payload": 2}):
        await court.ask("POST", "/v1/queues/orders/messages", body)
    messages = await pop(court, partitions=10)
    assert sorted(data(messages)) == [1, 2]
    answer = await court.queen.ack(messages)
    assert answer["success"], answer
    court.clock.move(hours=1)
    assert await pop(court) == []


async def test_looking_at_a_pop_takes_nothing(court):
    await push(court, 1)
    async with court.session.head("/api/v1/pop/queue/orders?autoAck=true") as answer:
        assert answer.status == 405
    assert data(await pop(court)) == [1]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/api/v1/pop/queue/orders?leaseSeconds=1e20", None),
        ("GET", "/api/v1/dlq?queue=orders&offset=1000000000000000000000000000000", None),
        ("GET", "/api/v1/messages?queue=orders&offset=1e30&limit=1e30", None),
        ("GET", "/api/v1/traces/names?offset=1e300", None),
        ("POST", "/api/v1/configure", {"queue": "orders", "options": {"retryDelay": 10**30}}),
        ("POST", "/api/v1/configure", {"queue": "orders", "options": {"retryLimit": 3_000_000_000}}),
        ("POST", "/api/v1/configure", {"queue": "orders", "options": {"maxSize": 10**30}}),
        ("POST", "/api/v1/lease/x/extend", {"seconds": 1e300}),
    ],
)
async def test_numbers_that_are_too_large_are_no_error_of_ours(court, method, path, body):
    await push(court, 1)
    status, answer = await court.ask(method, path, body)
    assert status in (200, 204, 400), answer


async def test_a_bad_trace_id_fails_alone(court):
    items = [{"queue": "orders", "payload": 1, "traceId": "a\u0000b"}, {"queue": "orders", "payload": 2}]
    _, answers = await court.ask("POST", "/api/v1/push", {"items": items})
    assert [each["status"] for each in answers] == ["failed", "queued"]


async def test_messages_are_listed_by_partition_behind_many_others(court):
    await push(court, "wanted", partition="p1")
    await push(court, *range(150), partition="p2")
    listed = await court.queen.admin.list_messages(queue="orders", partition="p1")
    assert data(listed["messages"]) == ["wanted"]


async def test_configure_leaves_alone_what_it_does_not_name(court):
    await court.ask("POST", "/api/v1/configure", {"queue": "orders", "options": {"ttl": 60}})
    await court.ask("PATCH", "/v1/queues/orders", {"ttl": 120, "retain": 604800})
    _, answer = await court.ask("POST", "/api/v1/configure", {"queue": "orders", "options": {"leaseTime": 7}})
    assert answer["options"]["ttl"] == 120
    settings = (await court.store.queue("orders")).settings
    assert (settings.ttl, settings.retain, settings.lease.seconds) == (timedelta(seconds=120), timedelta(days=7), 7)


async def test_a_path_of_many_names_is_read_quickly(court):
    path = "/api/v1/consumer-groups/g" + "/queues/a" * 1000 + "/partitions/b" * 1000 + "/x"
    async with asyncio.timeout(5):
        status, _ = await court.ask("POST", path)
    assert status in (404, 405)


# What clients of 0.15 ask for


async def test_every_required_lease_is_checked(court):
    await push(court, 1, partition="a")
    await push(court, 2, partition="b")
    [first] = await pop(court, batch=1)
    [second] = await pop(court, batch=1)
    ack = {
        "type": "ack",
        "transactionId": first["transactionId"],
        "partitionId": first["partitionId"],
        "leaseId": first["leaseId"],
    }
    body = {"operations": [ack], "requiredLeases": [first["leaseId"], "never-was"]}
    status, answer = await court.ask("POST", "/api/v1/transaction", body)
    assert (status, answer["success"], answer["reason"]) == (200, False, "ack_rejected")
    body["requiredLeases"] = [first["leaseId"], second["leaseId"]]
    assert (await court.ask("POST", "/api/v1/transaction", body))[1]["success"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
async def test_an_unknown_path_below_a_message_is_404(court, method):
    await push(court, 1)
    [message] = await pop(court)
    path = f"/api/v1/messages/{message['partitionId']}/t-1/dlq"
    status, _ = await court.ask(method, path)
    assert status == 404


async def test_retention_is_applied_by_pops(court):
    """Not when housekeeping comes, up to a minute later."""
    await court.queen.queue("orders").config({"retentionEnabled": True, "retentionSeconds": 10}).create()
    await push(court, 1, partition="p")
    court.clock.move(seconds=5)
    await push(court, 2, partition="p")
    court.clock.move(seconds=6)
    assert data(await pop(court)) == [2]


@pytest.mark.parametrize(("default", "seen"), [("new", []), ("all", [1])])
async def test_where_a_group_starts_is_a_setting(database, default, seen):
    clock = ManualClock()
    store = await open_store("sqlite", database, clock)
    async with holding_court(store, clock, queen=QueenSettings(default_subscription=default)) as court:
        await push(court, 1)
        assert data(await court.queen.queue("orders").group("late").batch(10).wait(False).pop()) == seen
