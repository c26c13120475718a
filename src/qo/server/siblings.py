"""Several processes behind one port: whichever is asked for metrics answers for all of them.

Each process answers on a Unix socket, in a folder of the supervisor's, with what it has
counted. Whoever is asked adds them up. A process that does not answer within a second
is left out: what it counted comes back with the next question.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path

import msgspec

from qo.metrics.registry import Metric, Sample

log = logging.getLogger("qo.server")

ANSWER_SECONDS = 1.0


class MetricState(msgspec.Struct):
    """A metric of another process."""

    name: str
    kind: str
    help: str
    joined: str
    samples: list[Sample]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(list[MetricState]).decode


class Joined(Metric):
    """One metric of several processes: added up, or the greatest of them where a sum means nothing."""

    def __init__(self, of: Sequence[MetricState]) -> None:
        super().__init__(of[0].name, of[0].help)
        self.kind = of[0].kind
        self._of = of

    def samples(self) -> Iterable[Sample]:
        found: dict[tuple[str, tuple[tuple[str, str], ...]], list[float]] = {}
        for told in self._of:
            for sample in told.samples:
                found.setdefault((sample.suffix, tuple(sample.labels.items())), []).append(sample.value)
        joined = max if self._of[0].joined == "max" else sum
        return [Sample(suffix, dict(labels), joined(values)) for (suffix, labels), values in found.items()]


@contextlib.asynccontextmanager
async def answering(folder: Path | None, metrics: Sequence[Metric]) -> AsyncIterator[None]:
    """Answer the other processes, if there may be any, with these metrics."""
    if folder is None:
        yield
        return

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            writer.write(_encode([_as_state(each) for each in metrics]))
            await writer.drain()
        writer.close()

    path = _socket(folder, os.getpid())
    try:
        server = await asyncio.start_unix_server(answer, path)
    except OSError as error:  # such as a path that is too long
        log.warning("metrics are this process's own: %s cannot be listened on (%s)", path, error)
        yield
        return
    try:
        yield
    finally:
        server.close()
        path.unlink(missing_ok=True)


async def of_all(folder: Path | None, own: Sequence[Metric]) -> list[Metric]:
    """This process's metrics, and those of the others with them."""
    if folder is None:
        return list(own)
    answers = await asyncio.gather(*map(_asked, _others(folder)))
    told: dict[str, list[MetricState]] = {}
    for metrics in ([_as_state(each) for each in own], *answers):
        for metric in metrics:
            told.setdefault(metric.name, []).append(metric)
    return [Joined(each) for each in told.values()]


def _others(folder: Path) -> list[Path]:
    mine = _socket(folder, os.getpid())
    return [path for path in sorted(folder.glob("*.sock")) if path != mine]


def _as_state(metric: Metric) -> MetricState:
    return MetricState(metric.name, metric.kind, metric.help, metric.joined, list(metric.samples()))


async def _asked(path: Path) -> list[MetricState]:
    try:
        async with asyncio.timeout(ANSWER_SECONDS):
            reader, writer = await asyncio.open_unix_connection(path)
            try:
                return _decode(await reader.read(-1))
            finally:
                writer.close()
    except (OSError, TimeoutError, msgspec.DecodeError):
        return []


def _socket(folder: Path, process: int) -> Path:
    return folder / f"{process}.sock"
