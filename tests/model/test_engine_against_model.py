"""The engine does what the model says, over thousands of random steps, and the steps go everywhere."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import EngineAgainstModel, PostgresAgainstModel, SqliteAgainstModel, seen
from tests.postgres import QUICK, Server

MACHINES: dict[str, type[EngineAgainstModel]] = {"sqlite": SqliteAgainstModel, "postgres": PostgresAgainstModel}
CHOSEN = os.environ.get("QO_MODEL_ENGINES", "sqlite,postgres").split(",")
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
if os.environ.get("QO_MODEL_SHRINK") != "no":
    PHASES.append(Phase.shrink)
STEPS_PER_EXAMPLE = 50
EXAMPLES = int(os.environ.get("QO_MODEL_EXAMPLES", "520"))
LEAST_STEPS = 20_000
LEAST_OF_EACH = 50

VERDICTS = ("completed", "retrying", "released", "buried", "canceled")
MUST_BE_SEEN = (
    [f"push {answer} {lane}" for answer in ("stored", "duplicate") for lane in ("keyed", "open")]
    + [
        f"claim {what} {lane}"
        for what in ("leased", "settled at delivery", "first", "again")
        for lane in ("keyed", "open")
    ]
    + ["claim nothing until", "claim nothing never"]
    + [f"settle {answer} {lane}" for answer in ("settled", "repeated", "lost", "unknown") for lane in ("keyed", "open")]
    + ["settle given_back keyed"]
    + [f"verdict {verdict} {lane}" for verdict in VERDICTS for lane in ("keyed", "open")]
    + ["extend held", "extend lost", "extend told of a cancel", "transact done", "transact rolled back"]
    + [f"cancel {answer}" for answer in ("canceled", "requested", "finished", "not_found")]
    + ["create group True", "create group False", "delete group True", "delete group False"]
    + ["records changed", "records not as expected", "record due"]
    + ["dead letter retried keyed", "dead letter retried open"]
    + [f"job {state}" for state in ("None", "queued", "assigned", "succeeded", "failed", "canceled")]
    + [f"rule {rule}" for rule in ("push again", "pass time", "look", "pause", "seek", "purge", "tidy", "restart")]
)


MORE_ROUNDS = 4
"""Chance may leave something out; then a few more examples are drawn before that counts as a failure."""


def drive(machine: type[EngineAgainstModel], examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=PHASES,
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )


def steps() -> int:
    return sum(count for what, count in seen.items() if what.startswith("rule "))


def left_out() -> dict[str, int]:
    return {what: seen[what] for what in MUST_BE_SEEN if seen[what] < LEAST_OF_EACH}


@pytest.fixture(params=[machine for name, machine in MACHINES.items() if name in CHOSEN])
def machine(request) -> Iterator[type[EngineAgainstModel]]:
    if request.param is not PostgresAgainstModel:
        yield request.param
        return
    PostgresAgainstModel.server = Server(settings={**QUICK, "fsync": "off"}).start()
    PostgresAgainstModel.shared_loop = asyncio.new_event_loop()
    yield PostgresAgainstModel
    if PostgresAgainstModel.kept is not None:
        PostgresAgainstModel.shared_loop.run_until_complete(PostgresAgainstModel.kept.close())
    PostgresAgainstModel.shared_loop.close()
    PostgresAgainstModel.server.remove()


def test_the_engine_does_what_the_model_says(machine):
    seen.clear()
    drive(machine, EXAMPLES)
    if EXAMPLES >= 500:  # a shorter run, as the mutants use, need not go everywhere
        for _ in range(MORE_ROUNDS):
            if left_out() or steps() < LEAST_STEPS:
                drive(machine, EXAMPLES // 4)
        assert steps() >= LEAST_STEPS
        assert left_out() == {}
    for what, count in sorted(seen.items()):
        print(f"{count:>7}  {what}")
    print(f"{steps()} steps")
