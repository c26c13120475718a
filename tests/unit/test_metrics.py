"""Metrics: counted as things happen, written out when someone asks."""

from __future__ import annotations

import pytest
from benchmarks.worker import per_second

from qo.metrics.registry import Registry, as_json, prometheus_text


def test_the_text_that_prometheus_reads():
    registry = Registry()
    counter = registry.counter("c_total", "Counted.", ["kind"])
    counter.add(2, 'a"b\\c\nd')
    registry.counter("plain_total", "Plain.")
    histogram = registry.histogram("h_seconds", "Spread.", buckets=(0.5, 1))
    for value in (0.1, 0.5, 0.7, 3):
        histogram.observe(value)
    registry.gauge("g", "Looked up.", lambda: {("x",): 1.5}, ["of"])
    registry.counted("kept_total", "Kept elsewhere.", lambda: 7)
    assert (
        prometheus_text(registry.metrics())
        == """\
# HELP c_total Counted.
# TYPE c_total counter
c_total{kind="a\\"b\\\\c\\nd"} 2
# HELP plain_total Plain.
# TYPE plain_total counter
plain_total 0
# HELP h_seconds Spread.
# TYPE h_seconds histogram
h_seconds_bucket{le="0.5"} 2
h_seconds_bucket{le="1"} 3
h_seconds_bucket{le="+Inf"} 4
h_seconds_sum 4.3
h_seconds_count 4
# HELP g Looked up.
# TYPE g gauge
g{of="x"} 1.5
# HELP kept_total Kept elsewhere.
# TYPE kept_total counter
kept_total 7
"""
    )
    assert counter.value('a"b\\c\nd') == 2
    assert as_json(registry.metrics())["g"] == {
        "type": "gauge",
        "help": "Looked up.",
        "samples": [{"name": "g", "labels": {"of": "x"}, "value": 1.5}],
    }


def test_a_name_is_given_once():
    registry = Registry()
    registry.counter("c", "")
    with pytest.raises(ValueError, match="already"):
        registry.counter("c", "")


def test_a_benchmark_s_figure_that_was_not_measured_is_an_error():
    assert per_second(100, 2.0) == 50
    for count, seconds in ((100, 0.0), (100, -1.0), (0, 1.0), (100, float("nan"))):
        with pytest.raises(SystemExit, match="nothing was measured"):
            per_second(count, seconds)
