"""What users test their own tasks with: a queue in memory, a clock that they move, workers that run when told to."""

from qo.testing.clock import ManualClock
from qo.testing.worker_harness import Drained, Harness, harness

__all__ = ["Drained", "Harness", "ManualClock", "harness"]
