"""`qo work`: run a worker."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import sys
from datetime import timedelta
from typing import Any

from qo.cli.configuration import Configuration, read_configuration, work_kinds
from qo.core.errors import Invalid
from qo.core.names import DEFAULT_QUEUE
from qo.worker.catalog import catalog_worker, read_kinds
from qo.worker.options import CLAIM_BATCH_SIZE, GRACE_SECONDS, MAX_CONCURRENT_TASKS, WorkerRunOptions
from qo.worker.worker import Worker


def add_to(commands: Any) -> None:
    command: argparse.ArgumentParser = commands.add_parser(
        "work",
        help="run a worker",
        description="Run a worker: `qo work app:worker` imports the module `app` and runs its `worker`, until SIGTERM "
        "or SIGINT; then it claims no more, lets tasks finish within the grace period, gives the rest back and exits "
        "0. A second signal gives back at once.",
    )
    command.add_argument("worker", metavar="MODULE:NAME", nargs="?", help="where the worker is")
    command.add_argument(
        "--catalog",
        action="store_true",
        help="run the built-in kinds of work, and those of qo.toml, instead of a worker",
    )
    command.add_argument("--config", metavar="FILE", help="the configuration (default qo.toml, if there is one)")
    command.add_argument("--store", metavar="URL", help="a store or a server, instead of the worker's own")
    command.add_argument("--queue", action="append", help="take from this queue; may be given several times")
    command.add_argument("--concurrency", type=int, help=f"tasks at once (default {MAX_CONCURRENT_TASKS})")
    command.add_argument("--batch", type=int, help=f"messages in one claim (default {CLAIM_BATCH_SIZE})")
    command.add_argument("--lease", type=float, default=30.0, help="seconds that a claim holds (default 30)")
    command.add_argument(
        "--grace", type=float, default=GRACE_SECONDS, help=f"seconds to finish when stopped (default {GRACE_SECONDS:g})"
    )
    command.add_argument("--metrics-port", type=int, help="serve metrics on this port of this machine")
    command.set_defaults(run=_work)


def _work(given: argparse.Namespace) -> int:
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s")
    flags = {
        "worker.max_concurrent_tasks": given.concurrency,
        "worker.claim_batch_size": given.batch,
        "store": given.store,
    }
    configuration = read_configuration(flags, path=given.config)
    worker = _chosen(given, configuration)
    options = WorkerRunOptions(
        max_concurrent_tasks=configuration["worker.max_concurrent_tasks"],
        claim_batch_size=configuration["worker.claim_batch_size"],
        polling=configuration.polling(),
        lease=timedelta(seconds=given.lease),
        grace_seconds=given.grace,
        metrics_port=given.metrics_port,
    )
    print(f"working on {', '.join(worker.queues)}: {', '.join(sorted(worker.tasks))}", file=sys.stderr, flush=True)
    ran = asyncio.run(worker.run(options))
    print(f"stopped; {ran.succeeded} tasks done, {ran.failed} failed", file=sys.stderr)
    return 0


def _chosen(given: argparse.Namespace, configuration: Configuration) -> Worker:
    if given.catalog == (given.worker is not None):
        raise Invalid("worker", "name a worker as MODULE:NAME, or say --catalog")
    if given.catalog:
        kinds = read_kinds(work_kinds(given.config))
        return catalog_worker(configuration["store"], tuple(given.queue or [DEFAULT_QUEUE]), kinds)
    worker = find(given.worker)
    if given.store is not None:
        worker.where = given.store
    if given.queue:
        worker.queues = tuple(given.queue)
    return worker


def find(text: str) -> Worker:
    """The worker that `module:name` names; modules are looked for where you are, too."""
    module, colon, name = text.partition(":")
    if not colon or not module or not name:
        raise Invalid("worker", f"must be MODULE:NAME, such as app:worker, not '{text}'")
    sys.path.insert(0, "")
    try:
        found = getattr(importlib.import_module(module), name, None)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise Invalid("worker", f"there is no module '{module}' here") from None
    if not isinstance(found, Worker):
        raise Invalid("worker", f"'{name}' in '{module}' is not a qo.Worker")
    return found
