"""Durations: seconds as a number, a timedelta, or text; everywhere the same."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

import qo
from qo.cli.configuration import read_configuration
from qo.cli.main import parser
from qo.core.durations import duration, duration_text


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (90, 90),
        (1.5, 1.5),
        ("90", 90),
        ("1.5", 1.5),
        ("250ms", 0.25),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("2d", 172800),
        ("1w", 604800),
        (".5s", 0.5),
        (timedelta(minutes=2), 120),
        ("1e2", 100),
    ],
)
def test_what_a_duration_may_be(given, seconds):
    assert duration("wait", given) == timedelta(seconds=seconds)


@pytest.mark.parametrize("given", ["soon", "", "1y", "h1", "1 h x", True, None, [], "nan", "inf", float("nan"), 1e300])
def test_what_it_may_not_be_is_said_by_name(given):
    with pytest.raises(qo.Invalid, match="wait: must be"):
        duration("wait", given)


def test_a_long_text_is_not_repeated():
    with pytest.raises(qo.Invalid) as raised:
        duration("wait", "9" * 10_000)
    assert len(str(raised.value)) < 300


@given(st.integers(0, 10**6), st.integers(0, 59), st.integers(0, 59))
def test_parts_add_up(hours, minutes, seconds):
    wanted = timedelta(hours=min(hours, 10**5), minutes=minutes, seconds=seconds)
    assert duration("x", f"{min(hours, 10**5)}h{minutes}m{seconds}s") == wanted


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (0.02, "20 ms"), (1, "1 s"), (90, "1 min 30 s"), (5400, "1 h 30 min"), (1.5, "1.5 s")],
)
def test_as_a_person_reads_it(seconds, text):
    assert duration_text(timedelta(seconds=seconds)) == text


def test_a_policy_takes_all_three():
    assert qo.RetryPolicy(delay=1, max_delay="1h30m") == qo.RetryPolicy(
        delay=timedelta(seconds=1), max_delay=timedelta(minutes=90)
    )
    with pytest.raises(qo.Invalid, match=r"retry\.delay"):
        qo.RetryPolicy(delay="soon")


@pytest.mark.parametrize("lease", [3, 3.0, "3s", timedelta(seconds=3)])
def test_options_of_a_run_take_all_three(lease):
    options = qo.WorkerRunOptions(lease=lease, grace_seconds="1m", latency_threshold_seconds=timedelta(seconds=2))
    assert (options.lease, options.grace_seconds) == (timedelta(seconds=3), 60.0)
    assert options.latency_threshold_seconds == 2.0


def test_a_dedupe_window_and_settings_take_all_three():
    assert qo.Dedupe("k", window="5m").window == timedelta(minutes=5)
    assert qo.QueueSettings(lease=45, ttl="1d").ttl == timedelta(days=1)
    with pytest.raises(qo.Invalid, match=r"dedupe\.window"):
        qo.Dedupe("k", window=0)


async def test_a_context_takes_all_three(tmp_path):
    worker = qo.Worker(f"sqlite:///{tmp_path}/qo.db", queues="q")
    kept = []

    @worker.task
    async def step(_: int, context: qo.Context) -> None:
        for length in (60, "1m", timedelta(minutes=1)):
            context.extend(length)
        try:
            context.extend("soon")
        except qo.Invalid as error:
            kept.append(str(error))

    async with worker.running(), qo.connect(f"sqlite:///{tmp_path}/qo.db") as client:
        await (await client.queue("q").submit("step", 1)).result(timeout=30)
    assert "length: must be" in kept[0]


async def test_steps_pushes_and_settings_take_text():
    async with qo.connect("sqlite://:memory:") as client:
        queue = client.queue("q")
        await queue.configure(lease="1m30s", retry={"delay": "500ms"})
        settings = await queue.settings()
        assert (settings.lease, settings.retry.delay) == (timedelta(seconds=90), timedelta(milliseconds=500))
        await queue.push(1, delay="1h", ttl="2d")
        assert (await queue.depth()).delayed == 1
        assert await queue.lease("5m").claim(wait="10ms") == []


def test_the_file_and_the_environment_take_text(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qo.toml").write_text('[server]\nstop_seconds = "1m"\n[long_polling]\nmax_interval_ms = "2s"\n')
    configuration = read_configuration(environment={"QO_LIMITS_KEEP_ALIVE_SECONDS": "2m", "POLL_DB_INTERVAL": "250"})
    assert configuration["server.stop_seconds"] == 60.0
    assert configuration["long_polling.max_interval_ms"] == 2000.0
    assert configuration["limits.keep_alive_seconds"] == 120.0
    assert configuration["long_polling.group_interval_ms"] == 250.0


def test_the_command_line_takes_text(capsys):
    assert parser().parse_args(["push", "q", "1", "--delay", "1h30m"]).delay == timedelta(minutes=90)
    assert parser().parse_args(["work", "a:b", "--grace", "500ms", "--lease", "45"]).lease == timedelta(seconds=45)
    with pytest.raises(SystemExit):
        parser().parse_args(["pop", "q", "--wait", "soon"])
    assert "such as '90'" in capsys.readouterr().err


def test_intervals_of_polling_and_the_rest_after_a_failure_follow_the_rule_too():
    second = timedelta(seconds=1)
    for length in ("1s", second, 1000):
        assert qo.PollingStrategy.fixed(length).min_interval == second
        assert qo.PollingStrategy.adaptive(length, "1m").min_interval == second
    assert qo.PollingStrategy(1, "2s").max_interval == 2 * second
    assert qo.Fail("no", after="1s") == qo.Fail("no", after=second) == qo.Fail("no", after=1)
    for wrong in (True, "soon", None, [1]):
        with pytest.raises(qo.Invalid, match="interval_ms: must be a timedelta"):
            qo.PollingStrategy.fixed(wrong)
