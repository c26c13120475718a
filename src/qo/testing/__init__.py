"""What users test their own tasks with: a queue in memory, a clock that they move, workers that run when told to."""

from qo.testing.bench import Bench, Drained, bench
from qo.testing.clock import ManualClock

__all__ = ["Bench", "Drained", "ManualClock", "bench"]
