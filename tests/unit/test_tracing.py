"""OpenTelemetry: the trace context travels with a message, and a task runs in the trace that pushed it."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import qo
from qo import testing

SPANS = InMemorySpanExporter()


@pytest.fixture(scope="module", autouse=True)
def provider():
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(SPANS))
    trace.set_tracer_provider(provider)


async def test_a_task_runs_in_the_trace_that_pushed_it():
    SPANS.clear()
    worker = qo.Worker()
    seen = {}

    @worker.task()
    async def send(number: int) -> None:
        seen[number] = trace.get_current_span().get_span_context().trace_id

    @worker.task()
    def threaded(number: int) -> None:
        seen[number] = trace.get_current_span().get_span_context().trace_id

    @worker.task()
    async def fail(_: int) -> None:
        raise qo.PermanentError("no")

    async with testing.harness() as harness:
        queue = harness.client.queue("default")
        with trace.get_tracer("test").start_as_current_span("request") as span:
            of_request = span.get_span_context()
            [pushed] = await queue.push_many([qo.Message(1, kind="send", headers={"mine": "kept"})])
            await queue.push_many([qo.Message(2, kind="threaded")])
            await queue.push(3, kind="fail", key="k")
        await queue.push(4, kind="send")
        await harness.drain(worker)
        headers = (await pushed.job()).headers
    assert headers["mine"] == "kept"
    assert headers["traceparent"].split("-")[1] == f"{of_request.trace_id:032x}"
    assert seen[1] == seen[2] == of_request.trace_id
    assert seen[4] not in (0, of_request.trace_id)
    spans: Any = {
        (each.attributes or {})["qo.kind"]: each
        for each in SPANS.get_finished_spans()
        if each.name == "process default"
    }
    assert spans["threaded"].parent.span_id == of_request.span_id
    assert spans["threaded"].kind is trace.SpanKind.CONSUMER
    assert spans["fail"].status.status_code is trace.StatusCode.ERROR
    assert spans["fail"].attributes["qo.key"] == "k"
    assert spans["fail"].attributes["messaging.destination.name"] == "default"


def test_who_does_not_use_it_does_not_load_it():
    script = (
        "import asyncio, sys, qo\nfrom qo import testing\nworker = qo.Worker()\nworker.task('t')(lambda x: None)\n"
        "async def main():\n    async with testing.harness() as harness:\n"
        "        await harness.client.queue('default').push(1, kind='t')\n        await harness.drain(worker)\n"
        "asyncio.run(main())\nprint(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
