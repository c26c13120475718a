"""A registry of metrics, written out as Prometheus reads them or as JSON."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

Labels = tuple[str, ...]

SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)


class Sample(NamedTuple):
    """One number: what follows the metric's name, its labels, and its value."""

    suffix: str
    labels: Mapping[str, str]
    value: float


class Metric:
    """A name, what it means, and the names of its labels."""

    kind = "untyped"
    joined = "sum"
    """What makes one number of those of several processes: their sum, or the greatest (`max`)."""

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        self.name = name
        self.help = help
        self.labels = tuple(labels)

    def samples(self) -> Iterable[Sample]:
        raise NotImplementedError

    def _named(self, values: Labels) -> dict[str, str]:
        return dict(zip(self.labels, values, strict=True))


class Counter(Metric):
    """A number that only grows."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Sequence[str] = ()) -> None:
        super().__init__(name, help, labels)
        self._values: dict[Labels, float] = {} if labels else {(): 0}

    def add(self, amount: float = 1, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + amount

    def value(self, *labels: str) -> float:
        return self._values.get(labels, 0)

    def samples(self) -> Iterable[Sample]:
        return [Sample("", self._named(labels), value) for labels, value in sorted(self._values.items())]


class Gauge(Metric):
    """A number that is looked up when someone asks."""

    kind = "gauge"

    def __init__(
        self, name: str, help: str, read: Callable[[], Mapping[Labels, float] | float], labels: Sequence[str] = ()
    ) -> None:
        super().__init__(name, help, labels)
        self._read = read

    def samples(self) -> Iterable[Sample]:
        found = self._read()
        if not isinstance(found, Mapping):
            return [Sample("", {}, found)]
        return [Sample("", self._named(labels), value) for labels, value in sorted(found.items())]


class Tally:
    """How often a value fell into each bucket."""

    __slots__ = ("counts", "total")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * (buckets + 1)
        self.total = 0.0


class Histogram(Metric):
    """How values are spread."""

    kind = "histogram"

    def __init__(self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS) -> None:
        super().__init__(name, help, labels)
        self.buckets = tuple(buckets)
        self._tallies: dict[Labels, Tally] = {} if labels else {(): Tally(len(self.buckets))}

    def observe(self, value: float, *labels: str) -> None:
        tally = self._tallies.get(labels)
        if tally is None:
            tally = self._tallies[labels] = Tally(len(self.buckets))
        tally.counts[bisect_left(self.buckets, value)] += 1
        tally.total += value

    def samples(self) -> Iterable[Sample]:
        for labels, tally in sorted(self._tallies.items()):
            named, count = self._named(labels), 0
            for limit, hits in zip((*map(_number, self.buckets), "+Inf"), tally.counts, strict=True):
                count += hits
                yield Sample("_bucket", {**named, "le": limit}, count)
            yield Sample("_sum", named, tally.total)
            yield Sample("_count", named, count)


M = TypeVar("M", bound=Metric)


class Registry:
    """Metrics by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._metrics: dict[str, Metric] = {}

    def counter(self, name: str, help: str, labels: Sequence[str] = ()) -> Counter:
        return self._add(Counter(name, help, labels))

    def histogram(
        self, name: str, help: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        return self._add(Histogram(name, help, labels, buckets))

    def gauge(
        self, name: str, help: str, read: Callable[[], Mapping[Labels, float] | float], labels: Sequence[str] = ()
    ) -> Gauge:
        return self._add(Gauge(name, help, read, labels))

    def counted(self, name: str, help: str, read: Callable[[], float]) -> Gauge:
        """A number that only grows, and that somebody else keeps."""
        metric = self.gauge(name, help, read)
        metric.kind = Counter.kind
        return metric

    def metrics(self) -> list[Metric]:
        return list(self._metrics.values())

    def _add(self, metric: M) -> M:
        if metric.name in self._metrics:
            raise ValueError(f"there is a metric {metric.name} already")
        self._metrics[metric.name] = metric
        return metric


def prometheus_text(metrics: Iterable[Metric]) -> str:
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}"]
        for suffix, labels, value in metric.samples():
            inside = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{suffix}{'{' + inside + '}' if inside else ''} {_number(value)}")
    return "\n".join(lines) + "\n"


def as_json(metrics: Iterable[Metric]) -> dict[str, Any]:
    """Each metric by name: its kind, its help and its samples."""
    return {
        metric.name: {
            "type": metric.kind,
            "help": metric.help,
            "samples": [
                {"name": metric.name + suffix, "labels": dict(labels), "value": value}
                for suffix, labels, value in metric.samples()
            ],
        }
        for metric in metrics
    }


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
