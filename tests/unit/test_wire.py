"""Every value that crosses the wire comes back equal, or is refused: a field that is dropped on the way is found."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from qo.client.remote.access import RemoteAccess
from qo.client.remote.admin import RemoteAdmin
from qo.client.remote.inspect import RemoteInspect
from qo.core import errors
from qo.core.access import Scope, Token
from qo.core.errors import Invalid, QoError, RolledBack
from qo.core.lease import (
    AckByName,
    Delivered,
    Done,
    Extended,
    Extension,
    GroupName,
    Lost,
    Nothing,
    Settled,
    Settlement,
    Undone,
    Unit,
    Want,
)
from qo.core.message import Duplicate, NewMessage, Refused, Stored
from qo.core.outcome import DeadLetter, Depth, Event, GroupInfo, Health, Job, LaneInfo, QueueInfo
from qo.core.queue import QueueSettings
from qo.core.record import Delete
from qo.core.retry import MOST_ATTEMPTS
from qo.core.scaling import Demand
from qo.core.verbs import Access, Admin, Inspect, Schedules
from qo.core.worker import Heartbeat, WaitingKind, WorkerInfo
from qo.wire import claims, jobs, messages, problems, queues, settling, tokens
from qo.wire.operations import OPERATIONS, of_verb

NAMES = st.from_regex(r"[a-z.]{1,8}", fullmatch=True)
TIMES = st.integers(0, 10**15).map(lambda past: datetime(1990, 1, 1, tzinfo=UTC) + timedelta(microseconds=past))
LENGTHS = st.timedeltas(timedelta(microseconds=1), timedelta(days=36500))
PAYLOADS = st.sampled_from([b"", b"{}", b'{"a": 1.0}', b" 1", b"\xff\x00", "\u00fc".encode(), b'"\xc3\xbc"', b"null"])
OF_FIELD: dict[str, st.SearchStrategy[Any]] = {
    "priority": st.integers(-100, 100),
    "multiplier": st.floats(1, 1e6),
    "jitter": st.floats(0, 1),
    "memory_usage": st.floats(0, 1),
    "max_lost": st.sampled_from([0, 3, 9]),
    "messages": st.integers(1, 10000),
    "lanes": st.integers(1, 10000),
    "lane_messages": st.integers(1, 10000),
    "max_bytes": st.integers(1, 1 << 20),
    "notes": st.dictionaries(NAMES, st.none() | st.integers(-5, 5) | NAMES),
    "new_queue": st.none(),
    "named": st.just(value=True),
    "digest": st.just(b""),
    "sealed_since": st.none(),
    "nonce": st.none(),
    "records": st.just(()),
    "removed_groups": st.just(()),
    "versions": st.just(()),
    "limit": st.integers(1, MOST_ATTEMPTS),
    "scopes": st.lists(st.sampled_from(Scope), min_size=1, max_size=4, unique=True).map(tuple),
}
"""Where the type of a field allows more than its class does, or than the wire is asked to carry."""
OF_TYPE: dict[Any, st.SearchStrategy[Any]] = {
    str: NAMES,
    bool: st.booleans(),
    int: st.integers(1, 1 << 40),
    float: st.floats(0, 1e9),
    datetime: TIMES,
    timedelta: LENGTHS,
    bytes: PAYLOADS,
    Invalid: st.builds(Invalid, NAMES, NAMES, st.lists(NAMES, max_size=2)),
}


def comparable(value: Any) -> Any:
    """Errors are equal only to themselves; what they say is compared."""
    if isinstance(value, Done):
        return value.settled, value.acked, [comparable(each) for each in value.pushed]
    return vars(value.error) if isinstance(value, Refused) else value


def values_of(hint: Any, field: str = "") -> st.SearchStrategy[Any]:
    """Any value of a type, as far as its own checks allow."""
    if field in OF_FIELD:
        known = OF_FIELD[field]
        return st.none() | known if type(None) in typing.get_args(hint) else known
    if field == "id" and hint is str:
        return st.from_regex(r"[0-9a-f]{12}", fullmatch=True)
    if hint in OF_TYPE:
        return OF_TYPE[hint]
    if isinstance(hint, typing.NewType):
        return st.binary(min_size=16, max_size=16) if hint.__supertype__ is bytes else values_of(hint.__supertype__)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return st.one_of(*(st.none() if each is type(None) else values_of(each, field) for each in inner))
    if origin is tuple:
        return st.lists(values_of(inner[0]), max_size=2).map(tuple)
    if origin is frozenset:
        return st.frozensets(values_of(inner[0]), max_size=2)
    if origin is Mapping:
        return st.dictionaries(NAMES, NAMES, max_size=2)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return st.sampled_from(hint)
    return st.composite(_built)(hint)


def _built(draw: Callable[[Any], Any], kind: type) -> Any:
    hints = typing.get_type_hints(kind)
    names = [each.name for each in dataclasses.fields(kind)] if dataclasses.is_dataclass(kind) else _fields(kind)
    given = {name: draw(values_of(hints[name], name)) for name in names}
    try:
        return kind(**given)
    except Invalid:
        assume(condition=False)


def _fields(kind: type) -> tuple[str, ...]:
    fields: tuple[str, ...] = kind.__struct_fields__  # type: ignore[attr-defined]
    return fields


def as_it_is(value: Any) -> Any:
    return value


def read_unit(body: settling.UnitBody) -> Unit:
    """As the server reads it; the nonce is a header."""
    return Unit(
        settlements=tuple(settling.read_settlement(each) for each in body.settle),
        acks=tuple(settling.read_ack(each) for each in body.acks),
        pushes=tuple(messages.read_message(each, None, b"") for each in body.push),
        refuse_duplicates=body.refuse_duplicates,
        leases=tuple(body.leases),
    )


ALIKE = (LaneInfo, Depth, Event, Health, Demand, Heartbeat, WorkerInfo, WaitingKind)
CROSSINGS: list[tuple[Any, Callable[[Any], Any], Any, Callable[[Any], Any]]] = [
    # A value; how it is written; what is sent; how it is read.
    (NewMessage, messages.write_message, messages.MessageBody, lambda body: messages.read_message(body, None, b"")),
    (Stored | Duplicate, lambda each: messages.write_pushed([each])[0], messages.PushedBody, messages._pushed),
    (Want, claims.write_want, claims.WantBody, lambda body: claims.read_want(body, "")),
    (Delivered, lambda each: claims.write_deliveries([each])[0], claims.DeliveryBody, claims._delivered),
    (Nothing, settling.write_claimed, settling.ClaimedBody, settling.read_claimed),
    (Settlement, settling.write_settlement, settling.SettlementBody, settling.read_settlement),
    (
        Settled,
        lambda each: settling.write_settled([each])[0],
        settling.SettledBody,
        lambda body: settling.read_settled([body])[0],
    ),
    (AckByName, settling.write_ack, settling.AckBody, settling.read_ack),
    (Unit, settling.write_unit, settling.UnitBody, read_unit),
    (Done, settling.write_done, settling.UnitReply, settling.read_done),
    (
        Undone,
        lambda each: problems.problem_of(settling.write_undone(each)),
        problems.Problem,
        lambda body: settling.read_undone(typing.cast("RolledBack", problems.error_of(body))),
    ),
    (Extension, settling.write_extension, settling.LeaseBody, settling.read_extension),
    (Extended | Lost, settling.write_held, settling.HeldBody, settling.read_held),
    (Job, jobs.write_job, jobs.JobBody, jobs.read_job),
    (DeadLetter, jobs.write_dead, jobs.DeadBody, jobs.read_dead),
    (QueueInfo, queues.write_queue, queues.QueueBody, queues.read_queue),
    (QueueSettings, queues.plain_settings, dict[str, Any], queues.read_settings),
    (GroupInfo, queues.write_group, queues.GroupBody, queues.read_group),
    (Token, tokens.write_token, tokens.TokenBody, tokens.read_token),
    *(
        (kind, as_it_is, kind, as_it_is)
        for kind in (LaneInfo, Depth, Event, Health, Demand, Heartbeat, WorkerInfo, WaitingKind)
    ),
]


@pytest.mark.parametrize(("kind", "write", "body", "read"), CROSSINGS, ids=[str(each[0]) for each in CROSSINGS])
def test_a_value_comes_back_equal_or_is_refused(kind, write, body, read):
    """At least half of them are not refused, or this would say nothing."""
    crossed = refused = 0

    @settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
    @given(values_of(kind))
    def crosses(value: Any) -> None:
        nonlocal crossed, refused
        try:
            sent = msgspec.json.encode(write(value))
            found = read(msgspec.json.decode(sent, type=body))
        except Invalid:
            refused += 1
            return
        assert comparable(found) == comparable(value)
        crossed += 1

    crosses()
    assert crossed >= refused


ERRORS = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, QoError)]


@pytest.mark.parametrize("kind", [each for each in ERRORS if each is not QoError])
def test_an_error_is_the_same_on_the_other_side(kind):
    error = kind("field", "problem", ["a"]) if issubclass(kind, Invalid) else kind("what happened")
    told = msgspec.json.decode(msgspec.json.encode(problems.problem_of(error)), type=problems.Problem)
    found = problems.error_of(told)
    assert type(found) is kind
    assert str(found) == str(error)
    assert vars(found) == vars(error)


def test_records_are_not_on_the_wire():
    for unit in (Unit(records=(Delete(kind="k", name="n"),)), Unit(removed_groups=(GroupName("q", "g"),))):
        with pytest.raises(Invalid, match="records"):
            settling.write_unit(unit)


@pytest.mark.parametrize("write", [messages.write_message, claims.write_want])
def test_what_the_wire_has_no_room_for_is_refused(write):
    new = QueueSettings(max_size=1)
    value = (
        NewMessage(b"0" * 16, "q", b"1", new_queue=new)
        if write is messages.write_message
        else Want(token="t", queues=("q",), new_queue=new)
    )
    with pytest.raises(Invalid, match="new_queue"):
        write(value)


def verbs_of(protocol: type) -> set[str]:
    return {name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")}


def test_every_verb_that_a_client_may_make_is_made_by_an_operation_or_by_hand():
    parts = {"admin": (Admin, RemoteAdmin), "inspect": (Inspect, RemoteInspect), "access": (Access, RemoteAccess)}
    for part, (protocol, remote) in parts.items():
        by_hand = verbs_of(remote)
        for name in verbs_of(protocol):
            assert bool(of_verb(part, name)) != (name in by_hand), f"{part}.{name}"


@pytest.mark.parametrize(
    "operation", [each for each in OPERATIONS if each.verb is not None], ids=lambda each: each.name
)
def test_an_operation_says_all_of_its_verb_s_arguments(operation):
    protocol = {"admin": Admin, "inspect": Inspect, "access": Access, "schedules": Schedules}[operation.verb.part]
    wanted = set(inspect.signature(getattr(protocol, operation.verb.name)).parameters) - {"self"}
    fields = [*operation.parameters, *operation.verb.fixed, *(["nonce"] if operation.takes_key else [])]
    fields += [] if operation.query is None else operation.query.__struct_fields__
    if operation.body is not None:
        fields += [operation.verb.body] if operation.verb.body else operation.body.__struct_fields__
    assert sorted(fields) == sorted(wanted)
