"""Drives an engine and the model side by side and compares every answer."""

from __future__ import annotations

import asyncio
import copy
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from qo.core.lane import LaneId, Start, StartAt
from qo.core.lease import (
    Bury,
    Claimed,
    Complete,
    Delivered,
    Done,
    Extended,
    Extension,
    Fail,
    GroupName,
    LeaseToken,
    Nothing,
    Obstacle,
    Release,
    Settlement,
    Unit,
    Want,
)
from qo.core.message import Dedupe, DedupeScope, MessageId, NewMessage, Stored, id_text, message_ids
from qo.core.record import ABSENT, Delete, Put, RecordChange
from qo.core.retry import RetryPolicy
from qo.core.verbs import Engine
from qo.stores.postgres.address import read_address
from qo.stores.postgres.engine import PostgresEngine
from qo.stores.sqlite.engine import SqliteEngine
from qo.testing.clock import ManualClock
from tests.model.model import Model, Queue
from tests.postgres import Server

QUEUES = ("a", "b.c")
GROUPS = ("default", "other")
KINDS = ("mail", "report")
LEASE = timedelta(seconds=30)
RETRY = RetryPolicy(attempts=3, delay=timedelta(seconds=2), jitter=0.0)
MAX_LOST = 4

seen: Counter[str] = Counter()
"""What happened over the whole run: rules, and each answer of each verb by kind of lane."""


class Receipt(NamedTuple):
    """A delivery that may be settled later, rightly or not."""

    token: LeaseToken
    lane: LaneId
    offset: int
    keyed: bool
    id: MessageId
    group: str


messages = st.lists(
    st.fixed_dictionaries(
        {
            "key": st.sampled_from([None, None, "k1", "k2"]),
            "kind": st.sampled_from(KINDS),
            "priority": st.sampled_from([0, 0, 0, 7]),
            "delay": st.sampled_from([None, None, None, 5, 40, -3]),
            "ttl": st.sampled_from([None, None, None, 20, 90]),
            "dedupe": st.sampled_from(
                [None] * 6
                + [
                    Dedupe("once"),
                    Dedupe("once", None, DedupeScope.LANE),
                    Dedupe("window", timedelta(seconds=60)),
                    Dedupe("window", timedelta(seconds=60), DedupeScope.LANE),
                ]
            ),
        }
    ),
    min_size=1,
    max_size=5,
)
reports = st.sampled_from(
    [
        Complete(b"1"),
        Complete(),
        Complete(),
        Complete(),
        Fail("no"),
        Fail("no"),
        Fail("no", timedelta(seconds=9)),
        Release(),
        Bury("x"),
    ]
)


class EngineAgainstModel(RuleBasedStateMachine):
    """Every engine has its own subclass, which opens it empty, and again as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.engine = self.open_empty()
        self.model = Model(self.clock.now(), attempts=RETRY.attempts, delay=RETRY.delay, max_lost=MAX_LOST, lease=LEASE)
        self.receipts: list[Receipt] = []
        self.lane_numbers: dict[int, int] = {}
        self.ids: list[MessageId] = []
        self.tokens = 0
        self.nonces: list[tuple[str, tuple[NewMessage, ...]]] = []

    # The two sides

    def open_empty(self) -> Engine:
        raise NotImplementedError

    def open(self) -> Engine:
        raise NotImplementedError

    def do(self, call):
        return self.loop.run_until_complete(call)

    def tick(self, name: str) -> None:
        """Every step takes a moment, so that no two things happen at the same time."""
        seen[f"rule {name}"] += 1
        self.move(timedelta(microseconds=1))

    def move(self, length: timedelta) -> None:
        self.clock.move_to(self.clock.now() + length)
        self.model.move(self.clock.now())

    def teardown(self) -> None:
        self.do(self.engine.close())
        self.loop.close()

    @initialize()
    def settings(self) -> None:
        for queue in QUEUES:
            changes = {
                "retry": RETRY,
                "max_lost": MAX_LOST,
                "retain": timedelta(days=3650),
                "group_idle": timedelta(days=3650),
            }
            self.do(self.engine.configure(queue, changes))
            self.model.queues[queue] = Queue(queue)

    # Rules

    def build(self, queue: str, drawn) -> tuple[NewMessage, ...]:
        now = self.clock.now()
        ids = message_ids(int(now.timestamp() * 1000), len(self.ids) * 1000 + 7, len(drawn))
        self.ids += ids
        return tuple(
            NewMessage(
                id=id,
                queue=queue,
                payload=b"1",
                key=each["key"],
                kind=each["kind"],
                priority=each["priority"],
                due_at=None if each["delay"] is None else now + timedelta(seconds=each["delay"]),
                ttl=None if each["ttl"] is None else timedelta(seconds=each["ttl"]),
                dedupe=each["dedupe"],
            )
            for id, each in zip(ids, drawn, strict=True)
        )

    @rule(queue=st.sampled_from(QUEUES), drawn=messages)
    def push(self, queue, drawn) -> None:
        self.tick("push")
        self._push(self.build(queue, drawn), None)

    def _push(self, batch: tuple[NewMessage, ...], nonce: str | None) -> None:
        answers = self.do(self.engine.push(batch, nonce=nonce))
        said = [("stored" if isinstance(each, Stored) else "duplicate", each.id) for each in answers]
        assert said == self.model.push(batch, nonce)
        for message, (answer, _) in zip(batch, said, strict=True):
            seen[f"push {answer} {_kind_of_lane(message.key is not None)}"] += 1

    @rule(queue=st.sampled_from(QUEUES), drawn=messages)
    def push_with_nonce(self, queue, drawn) -> None:
        self.tick("push with nonce")
        batch, nonce = self.build(queue, drawn), f"nonce-{len(self.nonces)}"
        self.nonces.append((nonce, batch))
        self._push(batch, nonce)

    @precondition(lambda self: self.nonces)
    @rule(data=st.data())
    def push_again(self, data) -> None:
        self.tick("push again")
        nonce, batch = data.draw(st.sampled_from(self.nonces[-3:]))
        if nonce in self.model.nonces:
            self._push(batch, nonce)

    def want(self, data, group: str) -> Want:
        self.tokens += 1
        return Want(
            token=LeaseToken(f"token-{self.tokens}"),
            queues=data.draw(
                st.sampled_from(
                    [("a",), ("b.c",), ("a",), ("a", "b.c"), ("b.c", "nowhere") if group == "default" else ("a",)]
                )
            ),
            group=group,
            kinds=data.draw(st.sampled_from([None, None, None, frozenset(["mail"]), frozenset(KINDS)])),
            key=data.draw(st.sampled_from([None, None, None, None, "k1"])),
            messages=data.draw(st.sampled_from([1, 2, 3, 10, 10])),
            lanes=data.draw(st.sampled_from([None, None, 1, 2])),
            lane_messages=data.draw(st.sampled_from([None, None, 1, 2])),
            lease=data.draw(st.sampled_from([None, timedelta(seconds=5), timedelta(seconds=60)])),
            owner=data.draw(st.sampled_from([None, "w1", "w2"])),
            auto_settle=data.draw(st.sampled_from([False] * 9 + [True])),
        )

    @rule(data=st.data(), group=st.sampled_from((*GROUPS, "default")))
    def claim(self, data, group) -> None:
        self.tick("claim")
        want = self.want(data, group)
        [answer] = self.do(self.engine.claim([want]))
        self.compare_claim(want, answer)

    @rule(data=st.data(), group=st.sampled_from((*GROUPS, "default")))
    def claim_and_settle(self, data, group) -> None:
        """What most consumers do: take what there is, and say what became of it."""
        self.tick("claim and settle")
        self.tokens += 1
        want = Want(token=LeaseToken(f"token-{self.tokens}"), queues=("a", "b.c"), group=group, messages=8)
        [answer] = self.do(self.engine.claim([want]))
        self.compare_claim(want, answer)
        if isinstance(answer, Claimed):
            mine = [each for each in self.receipts if each.token == want.token]
            chosen = data.draw(st.lists(st.sampled_from(mine), min_size=1, max_size=6))
            self.settle_items(self.reported(data, chosen))

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), drawn=messages)
    def push_and_claim(self, data, queue, drawn) -> None:
        self.tick("push and claim")
        self._push(self.build(queue, drawn), None)
        self.tokens += 1
        auto = data.draw(st.sampled_from([False, False, True]))
        want = Want(token=LeaseToken(f"token-{self.tokens}"), queues=(queue,), messages=5, auto_settle=auto, owner="w1")
        [answer] = self.do(self.engine.claim([want]))
        self.compare_claim(want, answer)

    def compare_claim(self, want: Want, answer: Claimed | Nothing) -> None:
        expected = self.model.claim(want)
        if isinstance(answer, Nothing):
            assert expected == []
            self.compare_ask_again(want, answer)
            return
        got = [(each.id, self.number_of(each, expected), each.offset, each.attempt) for each in answer.deliveries]
        assert got == expected, (got, expected)
        for each in answer.deliveries:
            keyed = each.key is not None
            seen[f"claim {'settled at delivery' if want.auto_settle else 'leased'} {_kind_of_lane(keyed)}"] += 1
            seen[f"claim {'again' if each.attempt > 1 else 'first'} {_kind_of_lane(keyed)}"] += 1
            if not want.auto_settle:
                self.receipts.append(Receipt(each.token, each.lane, each.offset, keyed, each.id, want.group))

    def number_of(self, delivered: Delivered, expected: list[tuple[bytes, int, int, int]]) -> int:
        """The model's number of a store's lane; once they met they stay together."""
        number = next((lane for id, lane, _, _ in expected if id == delivered.id), -1)
        return self.lane_numbers.setdefault(delivered.lane, number)

    def compare_ask_again(self, want: Want, answer: Nothing) -> None:
        """May be early, because it does not look at kinds; must not be late, nor never if something is to come."""
        seen["claim nothing never" if answer.ask_again is None else "claim nothing until"] += 1
        exact = self.model.next_change(want)
        if exact is not None:
            assert answer.ask_again is not None
            assert answer.ask_again <= exact
        if answer.ask_again is not None:
            assert answer.ask_again > self.clock.now()

    def draw_settlements(self, data, most: int = 4) -> tuple[Settlement, ...]:
        """Some items of a recent claim, in any order, some old or wrong ones among them."""
        recent = self.receipts[-12:]
        token = data.draw(st.sampled_from(recent)).token
        same = [each for each in recent if each.token == token]
        chosen = data.draw(st.lists(st.sampled_from(same + same + recent), min_size=1, max_size=most))
        return self.reported(data, chosen)

    def reported(self, data, chosen: list[Receipt]) -> tuple[Settlement, ...]:
        return tuple(
            Settlement(token=each.token, lane=each.lane, offset=each.offset, report=data.draw(reports))
            for each in chosen
        )

    def settle_items(self, items: tuple[Settlement, ...]) -> None:
        answers, _ = self.do(self.engine.settle(items))
        self.compare_settled(items, answers)

    def compare_settled(self, items: tuple[Settlement, ...], answers) -> None:
        expected = self.model.settle(items, self.lane_numbers)
        assert [(each.answer, each.verdict) for each in answers] == expected
        keyed = {(each.token, each.lane): each.keyed for each in self.receipts}
        for item, answer in zip(items, answers, strict=True):
            ended = self.has_ended(item)
            assert answer.lease_ended == ended, (item, answer)
            lane = _kind_of_lane(keyed.get((item.token, item.lane), False))
            seen[f"settle {answer.answer} {lane}"] += 1
            if answer.verdict is not None:
                seen[f"verdict {answer.verdict} {lane}"] += 1

    def has_ended(self, item: Settlement) -> bool:
        number = self.lane_numbers.get(item.lane)
        return all(
            lease.ended_at is not None
            for lease in self.model.leases
            if (lease.token, lease.lane.number) == (item.token, number)
        )

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def settle(self, data) -> None:
        self.tick("settle")
        self.settle_items(self.draw_settlements(data))

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def complete_a_whole_claim(self, data) -> None:
        self.tick("complete a whole claim")
        token = data.draw(st.sampled_from(self.receipts[-12:])).token
        items = tuple(
            Settlement(token=each.token, lane=each.lane, offset=each.offset, report=Complete())
            for each in self.receipts
            if each.token == token
        )
        answers, _ = self.do(self.engine.settle(items))
        self.compare_settled(items, answers)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), group=st.sampled_from(GROUPS))
    def settle_and_claim_on(self, data, group) -> None:
        self.tick("settle and claim on")
        items, want = self.draw_settlements(data), self.want(data, group)
        answers, [claimed] = self.do(self.engine.settle(items, [want]))
        self.compare_settled(items, answers)
        self.compare_claim(want, claimed)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), seconds=st.sampled_from([3, 20, 100]))
    def extend(self, data, seconds) -> None:
        self.tick("extend")
        self.extend_token(data.draw(st.sampled_from(self.receipts[-12:])).token, seconds)

    def extend_token(self, token: LeaseToken, seconds: int) -> None:
        [answer] = self.do(self.engine.extend([Extension(token=token, lease=timedelta(seconds=seconds))]))
        expected = self.model.extend(token, timedelta(seconds=seconds))
        if isinstance(answer, Extended):
            assert expected is not None
            told = {(self.lane_numbers[place.lane], place.offset) for place in answer.canceled}
            assert (answer.expires_at, told) == expected
            seen["extend told of a cancel" if told else "extend held"] += 1
        else:
            assert expected is None
            seen["extend lost"] += 1

    @precondition(lambda self: self.receipts)
    @rule(data=st.data(), drawn=messages, queue=st.sampled_from(QUEUES), refuse=st.booleans())
    def transact(self, data, drawn, queue, refuse) -> None:
        self.tick("transact")
        items = self.draw_settlements(data, most=2)
        changes = self.draw_changes(data) if data.draw(st.booleans()) else ()
        gone = (GroupName(queue, "other"),) if data.draw(st.sampled_from([False] * 9 + [True])) else ()
        pushes = self.build(queue, drawn[:2])
        unit = Unit(settlements=items, pushes=pushes, refuse_duplicates=refuse, records=changes, removed_groups=gone)
        [answer] = self.do(self.engine.transact([unit]))
        done = self.model.transact(unit, self.lane_numbers, copy.deepcopy(self.model))
        assert isinstance(answer, Done) == done, answer
        seen["transact done" if done else "transact rolled back"] += 1

    def draw_changes(self, data) -> tuple[RecordChange, ...]:
        """Changes of records that expect what is there, most of the time."""
        return tuple(self.draw_change(data) for _ in range(data.draw(st.sampled_from([1, 1, 2]))))

    def draw_change(self, data) -> RecordChange:
        kind, name = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(["x", "y"]))
        version = self.model.kept[kind, name][0] if (kind, name) in self.model.kept else ABSENT
        expected = data.draw(st.sampled_from([None, version, version, version, ABSENT, version + 1]))
        if data.draw(st.sampled_from([False, False, True])):
            return Delete(kind=kind, name=name, expected=expected)
        seconds = data.draw(st.sampled_from([None, 0, 5, 40]))
        due = None if seconds is None else self.clock.now() + timedelta(seconds=seconds)
        return Put(kind=kind, name=name, body=b"%d" % self.tokens, due_at=due, expected=expected)

    @rule(data=st.data())
    def change_records(self, data) -> None:
        self.tick("change records")
        unit = Unit(records=self.draw_changes(data))
        [answer] = self.do(self.engine.transact([unit]))
        expected = copy.deepcopy(self.model).change_kept(unit.records)
        if isinstance(answer, Done):
            assert list(answer.versions) == expected
            self.model.change_kept(unit.records)
            seen["records changed"] += 1
        else:
            assert expected is None
            assert answer.obstacle is Obstacle.RECORD
            seen["records not as expected"] += 1

    def look_at_records(self) -> None:
        for kind in KINDS:
            found = self.do(self.engine.records(kind, "", 100))
            assert [(each.name, each.version, each.due_at, each.body) for each in found] == self.model.kept_of(kind)
            due = self.do(self.engine.due_records(kind, 100))
            assert ([each.name for each in due.records], due.next_at) == self.model.due_kept(kind)
            seen["record due"] += len(due.records)

    @precondition(lambda self: self.receipts)
    @rule(data=st.data())
    def cancel_what_is_held(self, data) -> None:
        """Its holder is told by the next extend; then anything but completion ends it."""
        self.tick("cancel what is held")
        held = data.draw(st.sampled_from(self.receipts[-6:]))
        [answer] = self.do(self.engine.cancel([held.id], held.group))
        assert answer == self.model.cancel(held.id, held.group)
        seen[f"cancel {answer}"] += 1
        self.extend_token(held.token, 20)
        self.settle_items(self.reported(data, [held]))

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), group=st.sampled_from(GROUPS))
    def bury_and_retry(self, data, queue, group) -> None:
        self.tick("bury and retry")
        self.tokens += 1
        want = Want(token=LeaseToken(f"token-{self.tokens}"), queues=(queue,), group=group, messages=3)
        [answer] = self.do(self.engine.claim([want]))
        self.compare_claim(want, answer)
        if isinstance(answer, Claimed):
            mine = [each for each in self.receipts if each.token == want.token]
            self.settle_items(
                tuple(
                    Settlement(token=each.token, lane=each.lane, offset=each.offset, report=Bury("x")) for each in mine
                )
            )
            self.retry_dead(queue, group)

    @precondition(lambda self: self.ids)
    @rule(data=st.data(), group=st.sampled_from(GROUPS + ("default",) * 3))
    def cancel(self, data, group) -> None:
        self.tick("cancel")
        id = data.draw(st.sampled_from(self.ids[-15:]))
        [answer] = self.do(self.engine.cancel([id], group))
        assert answer == self.model.cancel(id, group)
        seen[f"cancel {answer}"] += 1

    @rule(data=st.data(), queue=st.sampled_from(QUEUES), group=st.sampled_from(GROUPS))
    def arrange(self, data, queue, group) -> None:
        """One of the rarer things. They share a rule so that most steps move messages."""
        ways = {
            "pause": lambda: self.pause_and_resume(data, queue, group),
            "create group": lambda: self.create_group(data, queue),
            "delete group": lambda: self.delete_group(queue),
            "seek": lambda: self.seek(data, queue, group),
            "retry dead": lambda: self.retry_dead(queue, group),
            "purge": lambda: self.purge_and_push_again(queue),
            "tidy": self.tidy,
            "restart": self.restart,
            "settle what never was": lambda: self.settle_what_never_was(data),
        }
        way = data.draw(st.sampled_from([*sorted(ways), "create group", "delete group", "purge"]))
        self.tick(way)
        ways[way]()

    def settle_what_never_was(self, data) -> None:
        offset, lane = data.draw(st.sampled_from([0, 9999])), data.draw(st.sampled_from([1, 2, 777]))
        bogus = [Settlement(token=LeaseToken("nobody's"), lane=LaneId(lane), offset=offset, report=Complete())]
        bogus += [
            Settlement(token=each.token, lane=each.lane, offset=9999, report=Complete()) for each in self.receipts[-4:]
        ]
        self.settle_items(tuple(bogus))

    def pause_and_resume(self, data, queue, group) -> None:
        self.do(self.engine.pause(queue, True))
        self.model.queues[queue].paused = True
        want = self.want(data, group)
        [answer] = self.do(self.engine.claim([want]))
        self.compare_claim(want, answer)
        self.do(self.engine.pause(queue, False))
        self.model.queues[queue].paused = False

    def create_group(self, data, queue) -> None:
        start, ago = data.draw(st.sampled_from(["all", "new", "time"])), data.draw(st.sampled_from([1, 30]))
        time = self.clock.now() - timedelta(seconds=ago) if start == "time" else None
        made = self.do(self.engine.create_group([queue], "other", Start(StartAt(start), time)))
        assert made == self.model.create_group(queue, "other", start, time)
        seen[f"create group {made}"] += 1

    def delete_group(self, queue) -> None:
        gone = self.do(self.engine.delete_group(queue, "other"))
        assert gone == self.model.delete_group(queue, "other")
        seen[f"delete group {gone}"] += 1

    def seek(self, data, queue, group) -> None:
        if group not in self.model.queues[queue].groups:
            return
        to, ago = data.draw(st.sampled_from(["all", "all", "new", "time", 1])), data.draw(st.sampled_from([1, 30]))
        time = self.clock.now() - timedelta(seconds=ago) if to == "time" else None
        target = to if isinstance(to, int) else Start(StartAt(to), time)
        assert self.do(self.engine.seek(queue, group, target)) == self.model.seek(queue, group, to, time, None)

    def retry_dead(self, queue, group) -> None:
        if group not in self.model.queues[queue].groups:
            return
        self.advance(queue, group)
        letters = self.do(self.engine.dead(queue, group, None, 100))
        expected = self.model.retry_dead(queue, group)
        assert [letter.id for letter in letters] == [id_text(letter[0]) for letter in expected]
        new = self.do(self.engine.retry_dead(queue, group, None))
        for letter, id in zip(expected, new, strict=True):
            self.model.revive(letter, id, group)
            self.ids.append(id)
            seen[f"dead letter retried {_kind_of_lane(letter[2] is not None)}"] += 1

    def purge_and_push_again(self, queue) -> None:
        assert self.do(self.engine.purge(queue)) == self.model.purge(queue)
        plain = {"kind": "mail", "priority": 0, "delay": None, "ttl": None, "dedupe": None}
        self._push(self.build(queue, [{**plain, "key": "k1"}, {**plain, "key": None}]), None)

    def tidy(self) -> None:
        self.move(timedelta(seconds=61))
        for queue in QUEUES:
            for group in self.model.queues[queue].groups:
                self.advance(queue, group)
        self.do(self.engine.tidy())
        self.model.tidy()

    def restart(self) -> None:
        self.do(self.engine.close())
        self.engine = self.open()

    @rule(seconds=st.sampled_from([1, 2, 5, 10, 31, 31, 61, 700, 4000]))
    def pass_time(self, seconds) -> None:
        self.tick("pass time")
        self.move(timedelta(seconds=seconds))

    def advance(self, queue: str, group: str) -> None:
        """A claim that nothing answers still brings the group up to date."""
        self.tokens += 1
        want = Want(
            token=LeaseToken(f"token-{self.tokens}"), queues=(queue,), group=group, kinds=frozenset(["no such kind"])
        )
        [answer] = self.do(self.engine.claim([want]))
        assert isinstance(answer, Nothing)
        assert self.model.claim(want) == []

    @rule()
    def look(self) -> None:
        """Depths and states agree, once time has been let in."""
        self.tick("look")
        self.look_at_records()
        for name, queue in self.model.queues.items():
            if queue.paused:
                continue
            for group in queue.groups:
                self.advance(name, group)
                depth = self.do(self.engine.depth(name, group))
                expected = self.model.depth(name, group)
                assert {word: getattr(depth, word) for word in expected} == expected
        if any(queue.paused for queue in self.model.queues.values()):
            return
        ids = self.ids[-10:]
        for id, job in zip(ids, self.do(self.engine.jobs(ids)), strict=True):
            state = None if job is None or job.state is None else job.state.value
            assert state == self.model.job(id), id_text(id)
            seen[f"job {state}"] += 1


def _kind_of_lane(keyed: bool) -> str:
    return "keyed" if keyed else "open"


class SqliteAgainstModel(EngineAgainstModel):
    def open_empty(self) -> Engine:
        self.folder = tempfile.mkdtemp(prefix="qo-model-")
        return self.open()

    def open(self) -> Engine:
        path = str(Path(self.folder, "model.db"))
        return self.do(SqliteEngine.open(path, synchronous="off", clock=self.clock.now, draw=lambda: 0.5))

    def teardown(self) -> None:
        super().teardown()
        shutil.rmtree(self.folder)


EMPTY_ALL = """
DO $$ DECLARE name text; BEGIN
    FOR name IN SELECT tablename FROM pg_tables
                WHERE schemaname = 'qo' AND tablename NOT IN ('migrations', 'defaults') LOOP
        EXECUTE format('DELETE FROM qo.%I', name);
    END LOOP;
END $$
"""


class PostgresAgainstModel(EngineAgainstModel):
    """One engine serves many examples, because a new connection has to compile every function."""

    server: Server
    kept: PostgresEngine | None = None
    shared_loop: asyncio.AbstractEventLoop

    def open_empty(self) -> Engine:
        self.loop.close()
        self.loop = self.shared_loop
        engine = self.kept or self.open()
        engine.call._clock = self.clock.now
        engine.call.short_paths = not engine.call.short_paths  # every other example goes by the general functions alone
        self.do(engine.call.pool.call(lambda connection, _: connection.execute(EMPTY_ALL)))
        return engine

    def open(self) -> PostgresEngine:
        address = replace(read_address(self.server.url), wake="poll", pool=2)
        return self.do(PostgresEngine.open(address, clock=self.clock.now, draw=lambda: 0.5))

    def teardown(self) -> None:
        assert isinstance(self.engine, PostgresEngine)
        type(self).kept = self.engine
