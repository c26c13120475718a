"""`qo work`: run a worker."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import logging
import os
import signal
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import qo
from qo.cli.arguments import length
from qo.cli.configuration import Configuration, read_configuration, work_kinds
from qo.cli.opened import add_store_options, hint_at_token, saying_that_it_is_away
from qo.client.queue import Queue
from qo.connect import described, is_server
from qo.core.errors import Invalid
from qo.core.names import DEFAULT_QUEUE, checked_name
from qo.core.queue import DEFAULT_LEASE
from qo.core.scaling import DEFAULT_COUNT, MAX_COUNT, ScalingSettings
from qo.environment import HOST_VARIABLE, TOKEN_VARIABLE, host_of, servers_of, token_for
from qo.manager.managed import SOCKET_OPTION, run_managed
from qo.manager.manager import Manager
from qo.server.logs import set_up as set_up_logs
from qo.server.settings import LOG_FORMATS, LOG_LEVELS
from qo.worker.catalog import catalog_worker, read_kinds
from qo.worker.metrics_server import exposed
from qo.worker.options import CLAIM_BATCH_SIZE, GRACE_SECONDS, MAX_CONCURRENT_TASKS, WorkerRunOptions
from qo.worker.worker import Worker, run_quickly

log = logging.getLogger("qo.worker")

LEASE = DEFAULT_LEASE.total_seconds()


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
    add_store_options(command)
    command.add_argument("--queue", action="append", help="take from this queue; may be given several times")
    command.add_argument("--concurrency", type=int, help=f"tasks at once (default {MAX_CONCURRENT_TASKS})")
    command.add_argument("--batch", type=int, help=f"messages in one claim (default {CLAIM_BATCH_SIZE})")
    command.add_argument("--lease", type=length, metavar="LENGTH", help=f"how long a claim holds (default {LEASE:g} s)")
    command.add_argument(
        "--min", type=int, help=f"manage worker processes, at least so many; 0 is allowed (default {DEFAULT_COUNT})"
    )
    command.add_argument("--max", type=int, help=f"manage worker processes, at most so many (default {MAX_COUNT})")
    command.add_argument(
        "--grace",
        type=length,
        metavar="LENGTH",
        help=f"how long tasks may take to finish when stopped (default {GRACE_SECONDS:g} s)",
    )
    command.add_argument("--metrics-port", type=int, help="serve metrics on this port of this machine")
    command.add_argument("--log-level", choices=LOG_LEVELS, help="(default info)")
    command.add_argument("--log-format", choices=LOG_FORMATS, help="(default text)")
    command.add_argument(SOCKET_OPTION, type=int, help=argparse.SUPPRESS)
    command.set_defaults(run=_work)


def _work(given: argparse.Namespace) -> int:
    flags = {
        "worker.max_concurrent_tasks": given.concurrency,
        "worker.claim_batch_size": given.batch,
        "store": given.store,
        "worker.grace_seconds": None if given.grace is None else given.grace.total_seconds(),
        "workers.default_count": given.min,
        "workers.max_count": given.max,
        "workers.lease_timeout_seconds": None if given.lease is None else given.lease.total_seconds(),
        "log.level": given.log_level,
        "log.format": given.log_format,
    }
    configuration = read_configuration(flags, path=given.config)
    set_up_logs(configuration.logs())
    for warning in configuration.warnings:
        print(f"qo work: {warning}", file=sys.stderr)
    worker, configuration = _chosen(given, configuration)
    try:
        options, scaling = _options(given, configuration), configuration.scaling()
    except Invalid as error:
        raise configuration.named(error) from None
    with hint_at_token():
        if scaling is not None and given.manager_socket is None:
            return asyncio.run(_manage(worker, scaling, options, given, configuration))
        socket = given.manager_socket
        ran = run_quickly(worker.run(options) if socket is None else run_managed(worker, options, socket))
    log.info("stopped; %d attempts succeeded, %d failed", ran.succeeded, ran.failed)
    if ran.left_behind:  # a thread cannot be stopped, and Python would wait for it
        os._exit(0)
    return 0


def _options(given: argparse.Namespace, configuration: Configuration) -> WorkerRunOptions:
    return WorkerRunOptions(
        max_concurrent_tasks=configuration["worker.max_concurrent_tasks"],
        claim_batch_size=configuration["worker.claim_batch_size"],
        threads=configuration["worker.threads"],
        polling=configuration.polling(),
        lease=timedelta(seconds=configuration["workers.lease_timeout_seconds"]),
        grace_seconds=configuration["worker.grace_seconds"],
        signals=True,
        metrics_port=given.metrics_port,
    )


async def _manage(
    worker: Worker,
    scaling: ScalingSettings,
    options: WorkerRunOptions,
    given: argparse.Namespace,
    configuration: Configuration,
) -> int:
    if isinstance(worker.where, Queue):
        raise Invalid("worker", "has a client's queue; to be managed it needs a store's or a server's URL")
    if given.token is not None:
        os.environ[TOKEN_VARIABLE] = given.token  # for the workers; others may read a command line
        os.environ[HOST_VARIABLE] = ",".join(host_of(each) for url in _urls(worker) for each in servers_of(url))
    async with saying_that_it_is_away("work", configuration.store):
        client = await worker.connected(options.polling)
    try:
        manager = Manager(
            client.broker,
            [sys.executable, "-m", "qo.cli.main", "work", *_passed_on(given)],
            scaling,
            queues=worker.queues,
            group=worker.group,
            kinds=frozenset(worker.tasks),
            grace_seconds=options.grace_seconds,
        )
        loop = asyncio.get_running_loop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, manager.stop)
        log.info(
            "managing %d to %d workers on %s of %s",
            scaling.default_count,
            scaling.max_count,
            ", ".join(worker.queues),
            described(configuration["store"], configuration.store.source),
        )
        async with exposed(manager.metrics, options.metrics_port):
            await manager.run()
    finally:
        await client.close()
    log.info("stopped")
    return 0


def _passed_on(given: argparse.Namespace) -> list[str]:
    """The command line of a worker that is managed."""
    passed = ["--catalog"] if given.catalog else [given.worker]
    for name in ("config", "store", "concurrency", "batch", "lease", "grace", "log_level", "log_format"):
        value = getattr(given, name)
        said = str(value.total_seconds()) if isinstance(value, timedelta) else str(value)
        passed += [] if value is None else [f"--{name.replace('_', '-')}", said]
    for queue in given.queue or ():
        passed += ["--queue", queue]
    return passed


def _chosen(given: argparse.Namespace, configuration: Configuration) -> tuple[Worker, Configuration]:
    """The worker, on the store that a flag names, or on its own, or on the configured one; and that configuration."""
    if given.catalog and given.worker is not None:
        raise Invalid("worker", "name a worker or say --catalog, not both")
    if not given.catalog and given.worker is None:
        raise Invalid("worker", "name a worker as MODULE:NAME, or say --catalog")
    queues = tuple(checked_name("--queue", each) for each in given.queue or ())
    if given.catalog:
        worker = catalog_worker(None, queues or (DEFAULT_QUEUE,), read_kinds(work_kinds(given.config)))
    else:
        worker = find(given.worker)
    if isinstance(worker.where, Queue):
        return worker, configuration
    token = given.token
    if given.store is None and worker.where is not None:
        worker.where_from = given.worker
        for url in _urls(worker):
            configuration = configuration.with_value("store", url, given.worker)
            token = _token(given, configuration)  # it goes to each of them
    else:
        worker.where, worker.where_from = configuration["store"], configuration.store.source
        token = _token(given, configuration)
    worker.use(token=token, encryption_key=configuration["encryption.key"])
    worker.queues = queues or worker.queues
    return worker, configuration


def _urls(worker: Worker) -> list[str]:
    assert not isinstance(worker.where, Queue)
    return [worker.where] if isinstance(worker.where, str) else list(worker.where or ())


def _token(given: argparse.Namespace, configuration: Configuration) -> str | None:
    return token_for(configuration.store, given.token) if is_server(configuration["store"]) else given.token


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
            raise _import_error(module, error) from None
        raise Invalid("worker", f"there is no module '{module}' here") from None
    except Exception as error:  # noqa: BLE001 - a user's module may raise anything
        raise _import_error(module, error) from None
    if not isinstance(found, Worker):
        raise Invalid("worker", f"'{name}' in '{module}' is not a qo.Worker")
    return found


def _import_error(module: str, error: Exception) -> Invalid:
    """What went wrong in the user's module, from where it begins."""
    told = traceback.TracebackException.from_exception(error)
    own = (str(Path(qo.__file__).parent), "<frozen importlib", importlib.__file__)
    told.stack = traceback.StackSummary.from_list([each for each in told.stack if not each.filename.startswith(own)])
    return Invalid("worker", f"module '{module}' could not be imported:\n{''.join(told.format()).rstrip()}")
