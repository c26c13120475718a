"""The worst that one client may ask of a server: what it costs in memory, and how long it keeps another one waiting.

`python -m benchmarks.bounds [--stores sqlite postgres] [--only NAME ...]`. Each case has a store of its own, which one
server fills, and a fresh `qo serve` that is measured: its peak memory above what it had before, its memory afterwards
(all of it), and the answer times of another client, a process of its own, that pushes one tiny message every 5 ms
meanwhile. What a server refuses is said, and asked for once more in the largest size that it allows.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import json
import math
import multiprocessing
import os
import re
import resource
import signal
import socket
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

from tests.postgres import Server as Database
from tests.postgres import new_schema
from tests.serving import Serving

HOST, ANOTHER_ADDRESS = "127.0.0.1", "127.0.0.2"
MEBIBYTE = 1024 * 1024
LONGEST_SECONDS = 60
"""No case is waited for longer."""
PUSH_EVERY_SECONDS = 0.005
AFTERWARDS_SECONDS = 0.2
"""The other client goes on for so long after a case's answer."""
GRACE_SECONDS = 10

PATHS, PATH_LETTERS = 4000, 31_000
FIELD_BYTES = 15 * MEBIBYTE
LARGE_MESSAGES, LARGE_BYTES = 200, MEBIBYTE
LARGE_AT_ONCE = 4
PAGE = 1000
BATCH, UNIT = 10_000, 5000
PREPARED_AT_ONCE = 500
WANTS, WANTED_QUEUES = 100, 1000
SHARING_WANTS = 16
"""So many wants, or fewer, name `WANTED_QUEUES` together; more of them name as many each."""
STALL_SECONDS, SLOW_BYTES_PER_SECOND, SLOW_MESSAGES = 3, 300_000, 12
BODY_BYTES, BODY_TRIES = 40 * MEBIBYTE, 20
CONNECTIONS, IDLE_SECONDS = 3000, 3

LARGE, OTHER = "large", "other"
BOTH, SQLITE = ("sqlite", "postgres"), ("sqlite",)
WRONG = re.compile(r"error|warning|exception|traceback", re.IGNORECASE)
ALLOWED = re.compile(r"(?:at most|from 1 to) (\d+)")


class Refused(Exception):
    """The server did not take it."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(f"{status} {said}")
        found = ALLOWED.search(said)
        self.allowed = int(found[1]) if found else None


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    def read(self) -> Any:
        return json.loads(self.body)

    def checked(self) -> Self:
        if self.status >= 400:
            raise Refused(self.status, _detail(self.body))
        return self

    def counted(self, mark: bytes) -> str:
        """Its status, how often something stands in it, and its size."""
        return f"{self.status}: {self.body.count(mark)} in {len(self.body) / MEBIBYTE:.1f} MiB"


def _detail(body: bytes) -> str:
    with contextlib.suppress(ValueError, AttributeError):
        said = json.loads(body)
        return str(said.get("detail") or said.get("error"))
    return body[:200].decode(errors="replace")


@dataclass(frozen=True)
class Caller:
    """Somebody who calls a server, on a new connection each time."""

    port: int
    headers: Mapping[str, str] = field(default_factory=dict)

    def connect(self, address: str = HOST) -> HTTPConnection:
        return HTTPConnection(HOST, self.port, timeout=LONGEST_SECONDS, source_address=(address, 0))

    def ask(self, method: str, path: str, body: bytes = b"") -> Answer:
        with contextlib.closing(self.connect()) as connection:
            return exchanged(connection, method, path, body, self.headers)

    def get(self, path: str) -> Answer:
        return self.ask("GET", path).checked()

    def post(self, path: str, body: Any) -> Answer:
        return self.ask("POST", path, json.dumps(body).encode()).checked()

    def plain_socket(self, receive_bytes: int | None = None) -> socket.socket:
        found = socket.socket()
        found.settimeout(LONGEST_SECONDS)
        if receive_bytes is not None:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        found.connect((HOST, self.port))
        return found


def exchanged(
    connection: HTTPConnection, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> Answer:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # its answer may be there all the same
        connection.request(method, path, body or None, dict(headers or {}))
    response = connection.getresponse()
    return Answer(response.status, response.read())


# The other client


@dataclass(frozen=True)
class Sample:
    """One push of the other client."""

    began: float
    ended: float
    well: bool

    @property
    def milliseconds(self) -> float:
        return (self.ended - self.began) * 1000


def push_on(caller: Caller, pipe: Connection) -> None:
    """Push until told to stop, and then say how long each push took."""
    samples: list[Sample] = []
    connection = caller.connect()
    while not pipe.poll(PUSH_EVERY_SECONDS):
        samples.append(_push_once(connection, caller))
        if len(samples) == 1:
            pipe.send("began")
    pipe.send(samples)


def _push_once(connection: HTTPConnection, caller: Caller) -> Sample:
    began = time.monotonic()
    try:
        answer = exchanged(connection, "POST", f"/v1/queues/{OTHER}/messages", b'{"payload": 1}', caller.headers)
        return Sample(began, time.monotonic(), answer.status < 300)
    except (OSError, HTTPException):
        connection.close()  # it connects anew by itself
        return Sample(began, time.monotonic(), well=False)


class OtherClient:
    """A process that pushes beside a case."""

    def __init__(self, caller: Caller, server: Serving) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._server = server
        self._process = context.Process(target=push_on, args=(caller, theirs), daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        if not self._pipe.poll(LONGEST_SECONDS):
            raise TimeoutError("the other client did not begin")
        self._pipe.recv()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()

    def stop(self) -> list[Sample]:
        """What it measured. A server that does not answer it is ended, so that its last push has an end, too."""
        self._pipe.send("stop")
        if not self._pipe.poll(GRACE_SECONDS):
            self._server.process.kill()
        samples: list[Sample] = self._pipe.recv() if self._pipe.poll(GRACE_SECONDS) else []
        return samples


# Memory


@dataclass(frozen=True)
class Memory:
    """Of a process, in MiB; not a number, if it has ended."""

    process: int

    def reset_peak(self) -> None:
        Path(f"/proc/{self.process}/clear_refs").write_text("5")

    def peak(self) -> float:
        return self._read("VmHWM")

    def now(self) -> float:
        return self._read("VmRSS")

    def _read(self, name: str) -> float:
        found = re.search(rf"{name}:\s+(\d+) kB", Path(f"/proc/{self.process}/status").read_text())
        return int(found[1]) / 1024 if found else math.nan


# Cases: what is stored beforehand, and what is asked


def nothing(_: Caller) -> None:
    """Nothing is needed beforehand."""


def random_text(length: int) -> bytes:
    return base64.urlsafe_b64encode(os.urandom(length))[:length]


def push_large(caller: Caller, count: int = LARGE_MESSAGES) -> None:
    for begin in range(0, count, LARGE_AT_ONCE):
        messages = [
            b'{"payload":"%b"}' % random_text(LARGE_BYTES - 2) for _ in range(min(LARGE_AT_ONCE, count - begin))
        ]
        body = b'{"messages":[%b]}' % b",".join(messages)
        caller.ask("POST", f"/v1/queues/{LARGE}/messages", body).checked()


def push_few_large(caller: Caller) -> None:
    push_large(caller, SLOW_MESSAGES)


def push_all(caller: Caller, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ids of messages that each name their queue."""
    ids: list[str] = []
    for begin in range(0, len(messages), PREPARED_AT_ONCE):
        stored = caller.post("/v1/messages", {"messages": messages[begin : begin + PREPARED_AT_ONCE]})
        ids += [each["id"] for each in stored.read()["messages"]]
    return ids


def claim_all(caller: Caller, queue: str, count: int, at_once: int) -> Iterator[list[dict[str, Any]]]:
    """The deliveries of a queue, claim by claim."""
    taken = 0
    while taken < count:
        answer = caller.post(f"/v1/queues/{queue}/claim", {"messages": at_once, "lease_seconds": 3600})
        if answer.status != 200:
            return
        messages = answer.read()["messages"]
        taken += len(messages)
        yield messages


def place(delivery: Mapping[str, Any]) -> dict[str, Any]:
    return {name: delivery[name] for name in ("token", "lane", "offset")}


def bury_large(caller: Caller) -> None:
    push_large(caller)
    for messages in claim_all(caller, LARGE, LARGE_MESSAGES, 8):
        caller.post("/v1/settle", {"items": [place(each) | {"report": "bury"} for each in messages]})


def push_batch(caller: Caller) -> list[str]:
    return push_all(caller, [{"queue": "many", "payload": number} for number in range(BATCH)])


def claim_batch(caller: Caller) -> list[dict[str, Any]]:
    push_batch(caller)
    found = claim_all(caller, "many", BATCH, 1000)
    return [place(each) | {"result": {"n": number}} for messages in found for number, each in enumerate(messages)]


def wanted_queues(_: Caller) -> list[str]:
    """Names of queues that do not exist, for every want others."""
    return [f"w{number}" for number in range(WANTS * WANTED_QUEUES)]


def existing_queues(caller: Caller, **more: Any) -> list[str]:
    names = [f"e{number}" for number in range(WANTED_QUEUES)]
    push_all(caller, [{"queue": name, "payload": 1, **more} for name in names])
    return names


def idle_queues(caller: Caller) -> list[str]:
    """They exist, and there is nothing to take yet: a claim has to look at each."""
    return existing_queues(caller, delay_seconds=3600)


def push_kinds(caller: Caller) -> list[str]:
    kinds = [f"k{number}" for number in range(WANTED_QUEUES)]
    push_all(caller, [{"queue": "kinds", "payload": 1, "kind": kind} for kind in kinds])
    return kinds


def paths(caller: Caller, size: int, _: object) -> str:
    """One wide letter makes each letter of a decoded path take four bytes."""
    statuses: Counter[int] = Counter()
    with contextlib.closing(caller.connect()) as connection:
        for number in range(size):
            path = f"/v1/queues/%F0%9F%90%9D{number:06}{'a' * PATH_LETTERS}/messages"
            statuses[exchanged(connection, "POST", path, b"{}").status] += 1
    return _counted(statuses)


def _counted(found: Counter[Any]) -> str:
    return ", ".join(f"{name} x {count}" for name, count in found.most_common())


def unknown_field(caller: Caller, size: int, _: object) -> str:
    answer = caller.ask("POST", "/v1/queues/q/messages", b'{"%b":1}' % random_text(size - 32))
    if answer.status == 413:
        answer.checked()
    return f"{answer.status}: {len(answer.body) / MEBIBYTE:.1f} MiB"


def claim_bytes(caller: Caller, size: int, _: object) -> str:
    return caller.post(f"/v1/queues/{LARGE}/claim", {"messages": size}).counted(b'"lane":')


def jobs_page(caller: Caller, size: int, _: object) -> str:
    return caller.get(f"/v1/queues/{LARGE}/jobs?limit={size}").counted(b'"state":')


def dead_page(caller: Caller, size: int, _: object) -> str:
    return caller.get(f"/v1/queues/{LARGE}/dead?limit={size}").counted(b'"died_at":')


def queen_pop(caller: Caller, size: int, _: object) -> str:
    return caller.get(f"/api/v1/pop/queue/{LARGE}?batch={size}").counted(b'"transactionId":')


def stream_bytes(caller: Caller, size: int, _: object) -> str:
    with contextlib.closing(caller.connect()) as connection:
        connection.request("GET", f"/v1/queues/{LARGE}/stream?window={size}&messages={size}")
        response = connection.getresponse()
        if response.status != 200:
            Answer(response.status, response.read()).checked()
        events, received = _read_events(response.read1, size)
    return f"200: {events} in {received / MEBIBYTE:.1f} MiB"


def _read_events(read: Callable[[int], bytes], count: int) -> tuple[int, int]:
    """How many events came, of so many, and their bytes; the rest of the last one is read, too."""
    mark, ends = b"event: message\n", b"\n\n"
    events, received, kept = 0, 0, b""
    while piece := read(MEBIBYTE):
        received += len(piece)
        joined = kept + piece
        events += joined.count(mark)
        if events >= count and joined.endswith(ends):
            break
        kept = joined[-len(mark) + 1 :]
    return events, received


def then_claim(caller: Caller, size: int, queues: Sequence[str]) -> str:
    each = WANTED_QUEUES if size > SHARING_WANTS else WANTED_QUEUES // size
    wants = [
        {"queues": [queues[place % len(queues)] for place in range(number * each, (number + 1) * each)]}
        for number in range(size)
    ]
    answer = caller.post("/v1/settle", {"items": [], "then": wants})
    return f"{answer.status}: {size} wants of {each} queues"


def claim_queues(caller: Caller, size: int, queues: Sequence[str]) -> str:
    return caller.post("/v1/claim", {"queues": queues[:size], "messages": size}).counted(b'"lane":')


def claim_kinds(caller: Caller, size: int, kinds: Sequence[str]) -> str:
    return caller.post("/v1/queues/kinds/claim", {"kinds": kinds[:size], "messages": size}).counted(b'"lane":')


def push_with(more: Callable[[int], Mapping[str, Any]]) -> Callable[[Caller, int, object], str]:
    """A push of many messages that each say more."""

    def push(caller: Caller, size: int, _: object) -> str:
        messages = [{"payload": number, **more(number)} for number in range(size)]
        return caller.post("/v1/queues/many/messages", {"messages": messages}).counted(b'"stored"')

    return push


def settle_many(caller: Caller, size: int, items: Sequence[Mapping[str, Any]]) -> str:
    return caller.post("/v1/settle", {"items": items[:size]}).counted(b'"settled"')


def cancel_many(caller: Caller, size: int, ids: Sequence[str]) -> str:
    return caller.post("/v1/jobs/cancel", {"ids": ids[:size]}).counted(b'"canceled"')


def extend_many(caller: Caller, size: int, _: object) -> str:
    leases = [{"token": f"unknown {number}", "lease_seconds": 60} for number in range(size)]
    return caller.post("/v1/extend", {"leases": leases}).counted(b'"lost"')


def lookup_many(caller: Caller, size: int, ids: Sequence[str]) -> str:
    return caller.post("/v1/jobs/lookup", {"ids": ids[:size]}).counted(b'"state":')


def unit_many(caller: Caller, size: int, _: object) -> str:
    pushes = [{"queue": "many", "payload": number} for number in range(size)]
    return caller.post("/v1/units", {"push": pushes}).counted(b'"stored"')


def slow_reader(caller: Caller, size: int, _: object) -> str:
    """An answer that is taken steadily, and takes longer than the server lets a client stall."""
    body = b'{"messages":%d}' % size
    head = f"POST /v1/queues/{LARGE}/claim HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {len(body)}\r\n\r\n"
    with caller.plain_socket(receive_bytes=64 * 1024) as connection:
        connection.sendall(head.encode() + body)
        received, declared, ended = _read_slowly(connection)
    return f"{received / MEBIBYTE:.2f} of {declared / MEBIBYTE:.2f} MiB, {ended}"


def _read_slowly(connection: socket.socket) -> tuple[int, int, str]:
    """The bytes of a body that came and that were declared, and how it ended."""
    received, declared, ended = 0, -1, "complete"
    began = time.monotonic()
    try:
        while declared < 0 or received < declared:
            piece = connection.recv(SLOW_BYTES_PER_SECOND // 10)
            if not piece:
                return received, declared, "closed"
            if declared < 0:
                head, _, piece = piece.partition(b"\r\n\r\n")
                declared = int(head.lower().split(b"content-length:")[1].split()[0])
            received += len(piece)
            time.sleep(max(0, began + received / SLOW_BYTES_PER_SECOND - time.monotonic()))
    except ConnectionError as error:
        ended = type(error).__name__
    return received, declared, ended


def big_body(caller: Caller, size: int, _: object) -> str:
    return _counted(Counter(_send_without_reading(caller, BODY_BYTES) for _ in range(size)))


def _send_without_reading(caller: Caller, size: int) -> str:
    """What was there to be read afterwards, and how the sending ended."""
    head = f"POST /v1/queues/q/messages HTTP/1.1\r\nhost: {HOST}\r\ncontent-length: {size}\r\n\r\n"
    sent, piece = "all sent", b"a" * 65536
    with caller.plain_socket() as connection:
        connection.settimeout(GRACE_SECONDS)
        try:
            connection.sendall(head.encode())
            for _ in range(size // len(piece)):
                connection.sendall(piece)
        except OSError as error:
            sent = type(error).__name__
        return f"{_status_of(connection)} ({sent})"


def _status_of(connection: socket.socket) -> str:
    try:
        return connection.recv(65536)[9:12].decode() or "nothing"
    except OSError as error:
        return f"nothing ({type(error).__name__})"


def connections(caller: Caller, size: int, _: object) -> str:
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(size):
            with contextlib.suppress(OSError):
                opened.append(stack.enter_context(caller.plain_socket()))
        time.sleep(IDLE_SECONDS)
        still_open = sum(map(_is_open, opened))
        return f"{still_open} open; new: {_served(caller, HOST)}, elsewhere: {_served(caller, ANOTHER_ADDRESS)}"


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False  # it was closed, perhaps with a word


def _served(caller: Caller, address: str) -> str:
    try:
        with contextlib.closing(caller.connect(address)) as connection:
            return str(exchanged(connection, "GET", "/livez").status)
    except (OSError, HTTPException) as error:
        return type(error).__name__


@dataclass(frozen=True)
class Case:
    """One thing that a client may ask.

    run        asks for it, in this size, with what was prepared; says what was answered
    lower      the size if that is refused; 0: what the refusal says is allowed
    """

    name: str
    run: Callable[[Caller, int, Any], str]
    size: int
    prepare: Callable[[Caller], Any] = nothing
    stores: tuple[str, ...] = SQLITE
    lower: int = 0
    with_token: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)


STALLING = {"QO_LIMITS_STALL_SECONDS": str(STALL_SECONDS)}
CASES = (
    Case("paths", paths, PATHS, with_token=True),
    Case("unknown-field", unknown_field, FIELD_BYTES),
    Case("claim-bytes", claim_bytes, LARGE_MESSAGES, push_large, BOTH),
    Case("jobs-page", jobs_page, PAGE, push_large, BOTH),
    Case("dead-page", dead_page, PAGE, bury_large, BOTH),
    Case("stream-bytes", stream_bytes, LARGE_MESSAGES, push_large),
    Case("queen-pop", queen_pop, LARGE_MESSAGES, push_large),
    Case("then", then_claim, WANTS, wanted_queues, BOTH, lower=SHARING_WANTS),
    Case("then-existing", then_claim, WANTS, idle_queues, BOTH, lower=SHARING_WANTS),
    Case("claim-queues", claim_queues, WANTED_QUEUES, existing_queues),
    Case("claim-kinds", claim_kinds, WANTED_QUEUES, push_kinds),
    Case("push-plain", push_with(lambda _: {}), BATCH, stores=BOTH),
    Case("push-keys", push_with(lambda number: {"key": f"k{number}"}), BATCH, stores=BOTH),
    Case("push-dedupe", push_with(lambda number: {"dedupe": f"d{number}"}), BATCH, stores=BOTH),
    Case("push-delayed", push_with(lambda _: {"delay_seconds": 60}), BATCH, stores=BOTH),
    Case("settle-many", settle_many, BATCH, claim_batch, BOTH),
    Case("cancel-many", cancel_many, BATCH, push_batch, BOTH),
    Case("extend-many", extend_many, BATCH, stores=BOTH),
    Case("lookup-many", lookup_many, BATCH, push_batch, BOTH),
    Case("unit-many", unit_many, UNIT, stores=BOTH),
    Case("slow-reader", slow_reader, SLOW_MESSAGES, push_few_large, environment=STALLING),
    Case("big-body", big_body, BODY_TRIES),
    Case("connections", connections, CONNECTIONS),
)


# Running them


@dataclass(frozen=True)
class Measured:
    """What one case cost. `peak` is above what was there before; `allowed` what may be asked after a refusal."""

    answer: str
    peak: float
    after: float
    longest: float
    median: float
    seconds: float
    remark: str = ""
    refused: bool = False
    allowed: int | None = None


@dataclass(frozen=True)
class Outcome:
    answer: str
    refused: bool = False
    allowed: int | None = None


TITLES = ("case", "store", "answer", "peak MiB", "after MiB", "longest ms", "median ms", "seconds")
WIDTHS = (14, 9, 64)
NUMBER_WIDTHS = (9, 10, 11, 10, 8)


def title() -> str:
    words = [f"{word:<{width}}" for word, width in zip(TITLES, WIDTHS, strict=False)]
    numbers = [f"{word:>{width}}" for word, width in zip(TITLES[len(WIDTHS) :], NUMBER_WIDTHS, strict=True)]
    return "".join([*words, *numbers])


def line(case: Case, store: str, found: Measured) -> str:
    words = [
        f"{word[: width - 1]:<{width}}" for word, width in zip((case.name, store, found.answer), WIDTHS, strict=True)
    ]
    values = (found.peak, found.after, found.longest, found.median, found.seconds)
    digits = (1, 1, 1, 2, 2)
    numbers = [
        f"{value:>{width}.{places}f}" for value, width, places in zip(values, NUMBER_WIDTHS, digits, strict=True)
    ]
    return "".join([*words, *numbers]) + (f"\n    {found.remark}" if found.remark else "")


END_OTHERS = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Harness:
    """Where servers and their stores are."""

    def __init__(self, stores: Sequence[str]) -> None:
        self._database = Database(settings={}).start() if "postgres" in stores else None

    def run(self, case: Case, store: str) -> Iterator[Measured]:
        """The case; and, if it is refused, the largest that is allowed."""
        with tempfile.TemporaryDirectory() as folder:
            stand = Stand(case, Path(folder), self._new_store(store, folder))
            prepared, headers = stand.fill()
            found = stand.measure(case.size, prepared, headers)
            yield found
            lower = case.lower or found.allowed
            if found.refused and lower and lower < case.size:
                yield stand.measure(lower, prepared, headers)

    def _new_store(self, store: str, folder: str) -> str:
        if self._database is None or store == "sqlite":
            return f"sqlite:///{folder}/qo.db"
        return f"{self._database.url}&schema={new_schema()}"

    def tidy(self) -> None:
        """What a server that was ended left running in the database must not weigh on the next case."""
        if self._database is not None:
            self._database.psql(END_OTHERS)

    def close(self) -> None:
        if self._database is not None:
            self._database.remove()


@dataclass(frozen=True)
class Stand:
    """One case, and its store."""

    case: Case
    folder: Path
    store: str

    def fill(self) -> tuple[Any, Mapping[str, str]]:
        """What the case asks with, and the headers of those who have a token."""
        with self._serve("filling") as server:
            caller = Caller(_port(server))
            prepared = self.case.prepare(caller)
            headers = _new_token(caller) if self.case.with_token else {}
            server.stop(signal.SIGTERM)
        return prepared, headers

    def measure(self, size: int, prepared: Any, headers: Mapping[str, str]) -> Measured:
        flags = ("--auth", "token") if self.case.with_token else ()
        with self._serve("measured", *flags) as server, OtherClient(Caller(_port(server), headers), server) as other:
            return self._beside(other, server, size, prepared)

    def _serve(self, name: str, *flags: str) -> Serving:
        return Serving(self.folder, "--store", self.store, *flags, name=name, environment=self.case.environment)

    def _beside(self, other: OtherClient, server: Serving, size: int, prepared: Any) -> Measured:
        memory = Memory(server.process.pid)
        time.sleep(AFTERWARDS_SECONDS)
        memory.reset_peak()
        before, began = memory.now(), time.monotonic()
        outcome = self._outcome(Caller(_port(server)), size, prepared)
        ended = time.monotonic()
        time.sleep(AFTERWARDS_SECONDS)
        peak, after = memory.peak() - before, memory.now()
        samples = [each for each in other.stop() if each.ended >= began]
        times = [each.milliseconds for each in samples] or [math.nan]
        return Measured(
            outcome.answer,
            peak,
            after,
            max(times),
            statistics.median(times),
            ended - began,
            _remark(server, samples),
            outcome.refused,
            outcome.allowed,
        )

    def _outcome(self, caller: Caller, size: int, prepared: Any) -> Outcome:
        try:
            return Outcome(self.case.run(caller, size, prepared))
        except Refused as refused:
            return Outcome(str(refused), refused=True, allowed=refused.allowed)
        except (OSError, HTTPException) as error:
            return Outcome(f"{type(error).__name__}: {error}")


def _port(server: Serving) -> int:
    return int(server.url.rpartition(":")[2])


def _new_token(caller: Caller) -> Mapping[str, str]:
    made = caller.post("/v1/tokens", {"name": "bounds", "scopes": ["admin"]}).read()
    return {"authorization": f"Bearer {made['secret']}"}


def _remark(server: Serving, samples: Sequence[Sample]) -> str:
    """What else went wrong: for the other client, the server, and in its log."""
    remarks = []
    if failed := sum(not each.well for each in samples):
        remarks.append(f"the other client: {failed} of {len(samples)} pushes failed")
    if (ended := server.process.poll()) is not None:
        remarks.append(f"the server ended with {ended}")
    wrong = [text for text in server.said().splitlines() if WRONG.search(text)]
    if wrong:
        remarks.append(f"its log: {len(wrong)} such lines, the last: {wrong[-1][:200]}")
    return "; ".join(remarks)


def run_all(names: Sequence[str], stores: Sequence[str]) -> None:
    bench = Harness(stores)
    print(title(), flush=True)
    try:
        for case in CASES:
            for store in case.stores:
                if case.name in names and store in stores:
                    run_one(bench, case, store)
    finally:
        bench.close()


def run_one(bench: Harness, case: Case, store: str) -> None:
    """A case that fails says so, and the next one goes on."""
    try:
        for found in bench.run(case, store):
            print(line(case, store, found), flush=True)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is the result of this case
        print(f"{case.name:<14}{store:<9}failed: {type(error).__name__}: {str(error)[:300]}", flush=True)
    finally:
        bench.tidy()


def main() -> None:
    names = [case.name for case in CASES]
    command = argparse.ArgumentParser(description=__doc__)
    command.add_argument("--stores", nargs="*", default=list(BOTH), choices=BOTH)
    command.add_argument("--only", nargs="*", default=names, choices=names, metavar="NAME", help=", ".join(names))
    given = command.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    run_all(given.only, given.stores)


if __name__ == "__main__":
    main()
