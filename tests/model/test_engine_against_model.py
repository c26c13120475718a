"""The engine does what the model says, over thousands of random steps."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.model.machine import EngineAgainstModel, seen

STEPS_PER_EXAMPLE = 50
EXAMPLES = int(os.environ.get("QO_MODEL_EXAMPLES", "450"))


def test_the_engine_does_what_the_model_says():
    seen.clear()
    run_state_machine_as_test(
        EngineAgainstModel,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.target, Phase.shrink],
            print_blob=True,
            report_multiple_bugs=False,
        ),
    )
    steps = sum(count for what, count in seen.items() if what.startswith("rule "))
    for what, count in sorted(seen.items()):
        print(f"{count:>7}  {what}")
    print(f"{steps} steps")
