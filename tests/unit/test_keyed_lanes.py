"""A keyed lane's run: what is left of it when its holder has settled a part."""

from __future__ import annotations

from datetime import UTC, datetime

from qo.core.keyed_lanes import Run, settle_run
from qo.core.lease import Complete
from qo.core.queue import QueueSettings

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_attempts_and_losses_end_with_the_head_that_had_them():
    run = Run(start=0, end=3, attempts=2, losses=1)
    change = settle_run(run, {0: Complete(None)}, QueueSettings(), NOW, 0.5, lambda _: False)
    assert (change.lease, change.attempts, change.losses) == ((1, 3), 0, 0)
