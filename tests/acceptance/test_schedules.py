"""Schedules over HTTP and on the command line, as their users meet them."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request

import pytest

import qo
from tests.serving import Serving

RULE = {"target": {"queue": "reports", "payload": {"a": 1}}, "specs": [{"cron": "0 9 * * mon-fri"}]}


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    with Serving(tmp_path_factory.mktemp("schedules")) as server:
        yield server.url


def ask(url: str, method: str, path: str, body=None, **headers) -> tuple[int, dict, dict]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"content-type": "application/json", **headers}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.loads(answer.read() or b"{}"), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read()), dict(error.headers)


def test_its_life_over_http(url):
    status, made, headers = ask(url, "POST", "/v1/schedules", {"name": "daily", **RULE})
    assert (status, made["rule"], len(made["coming"])) == (201, "At 09:00 on Monday through Friday", 5)
    tag = headers["etag"]
    assert ask(url, "POST", "/v1/schedules", {"name": "daily", **RULE})[0] == 409
    assert ask(url, "PUT", "/v1/schedules/daily", RULE)[0] == 200
    assert ask(url, "PUT", "/v1/schedules/weekly", {**RULE, "specs": [{"every": "1w"}], "tags": ["x"]})[0] == 201
    status, changed, _ = ask(url, "PATCH", "/v1/schedules/daily", {"timezone": "Europe/Berlin"}, **{"if-match": tag})
    assert (status, changed["timezone"], changed["specs"]) == (200, "Europe/Berlin", RULE["specs"])
    assert ask(url, "PATCH", "/v1/schedules/daily", {"timezone": "UTC"}, **{"if-match": tag})[0] == 409
    assert [each["name"] for each in ask(url, "GET", "/v1/schedules?tag=x")[1]["schedules"]] == ["weekly"]
    assert ask(url, "POST", "/v1/schedules/pause", {"tag": "x", "note": "enough"})[1] == {"count": 1}
    assert ask(url, "GET", "/v1/schedules/weekly")[1]["note"] == "enough"
    assert ask(url, "POST", "/v1/schedules/resume", {"names": ["weekly"]})[1] == {"count": 1}
    status, fired, _ = ask(url, "POST", "/v1/schedules/daily/runs", {"label": "try"})
    assert (status, fired["run"]["by"]) == (202, "manual")
    job = ask(url, "GET", f"/v1/jobs/{fired['run']['job']}")[1]
    assert (job["payload"], job["headers"]["qo-schedule"]) == ({"a": 1}, "daily")
    range_ = {"begin": "2026-01-05T00:00:00Z", "end": "2026-01-12T00:00:00Z"}
    status, filled, _ = ask(url, "POST", "/v1/schedules/daily/backfill", range_)
    assert (status, len(filled["runs"])) == (202, 5)
    assert len(ask(url, "GET", "/v1/schedules/daily/runs")[1]["runs"]) == 6
    assert ask(url, "DELETE", "/v1/schedules/daily")[0] == 204
    assert ask(url, "GET", "/v1/schedules/daily")[0] == 404


def test_a_preview_of_what_is_not_stored(url):
    plan = {**RULE, "timezone": "America/New_York"}
    status, shown, _ = ask(url, "POST", "/v1/previews", {"plan": plan, "count": 2, "after": "2026-03-06T15:00:00Z"})
    assert status == 200
    assert [each["fires_at"] for each in shown["coming"]] == ["2026-03-09T13:00:00Z", "2026-03-10T13:00:00Z"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"specs": [{"cron": "1--100000000 * * * *"}]}, "specs.cron"),
        ({"specs": [{"cron": "0 9 * * *", "every": 5}]}, "specs"),
        ({"specs": [{"every": 0.1}]}, "every"),
        ({"specs": []}, "specs"),
        ({"timezone": "Mars/Base"}, "timezone"),
        ({"overlap": "perhaps"}, "overlap"),
        ({"target": {"queue": "q", "headers": {"qo-slot": "x"}}}, "headers"),
        ({"jitter": 5}, "jitter"),
    ],
)
def test_what_is_wrong_is_said_by_name(url, change, field):
    status, problem, _ = ask(url, "POST", "/v1/schedules", {"name": "wrong", **RULE, **change})
    assert (status, problem["field"]) in ((422, field), (400, field)), problem


def run(*words: str, folder) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qo.cli.main", "schedules", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)


def test_its_life_on_the_command_line(tmp_path):
    made = run("create", "nightly", "reports", '{"a": 1}', "--cron", "@daily", "--tag", "t", folder=tmp_path)
    assert made.returncode == 0, made.stderr
    assert "At 00:00 every day" in made.stdout
    assert run("create", "nightly", "reports", "--every", "1h", folder=tmp_path).returncode == 1
    again = run("create", "nightly", "reports", "--every", "1h", "--replace", "--json", folder=tmp_path)
    assert json.loads(again.stdout)["rule"] == "Every 1 h"
    assert "nightly" in run("list", folder=tmp_path).stdout
    assert run("pause", "nightly", "--note", "why not", folder=tmp_path).stdout == "1 paused\n"
    assert "paused: why not" in run("show", "nightly", folder=tmp_path).stdout
    assert run("resume", "nightly", folder=tmp_path).stdout == "1 resumed\n"
    assert "pushed job" in run("run", "nightly", "--label", "by hand", folder=tmp_path).stdout
    assert "by hand" in run("show", "nightly", folder=tmp_path).stdout
    shown = run("preview", "--cron", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2026-10-24T12:00:00Z",
                "--count", "1", folder=tmp_path)  # fmt: skip
    assert shown.stdout == "2026-10-25 00:30:00Z\n"
    assert run("delete", "nightly", "--yes", folder=tmp_path).stdout == "removed\n"
    bad = run("create", "x", "q", "--cron", "99 * * * *", folder=tmp_path)
    assert (bad.returncode, "no cron rule" in bad.stderr) == (1, True)


def test_a_schedule_that_the_command_line_makes_is_fired_by_a_server_on_that_file(tmp_path):
    with Serving(tmp_path) as server:
        assert run("create", "tick", "ticks", "--every", "1", folder=tmp_path).returncode == 0
        with qo.connect(server.url) as client:
            [delivery] = client.queue("ticks").claim(1, wait=30)
            assert delivery.headers["qo-fired-by"] == "schedule"


async def test_a_task_with_a_schedule_runs_when_it_is_due_and_the_doctor_finds_it_orphaned_later(tmp_path):
    url = f"sqlite:///{tmp_path / 'qo.db'}"
    worker = qo.Worker(url)
    seen = []

    @worker.task(every=1)
    async def tick(context: qo.Context) -> None:
        seen.append(context.headers["qo-schedule"])
        worker.stop()

    await worker.run()
    assert seen == ["default.tick"]
    async with qo.connect(url) as client:
        [info] = await client.schedules.list(tag="code")
        assert (info.name, info.plan.target.kind) == ("default.tick", "tick")
    command = [sys.executable, "-m", "qo.cli.main", "doctor", url]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert "no living worker has its task 'tick'" in said.stdout


def test_what_cannot_be_done_is_said(url, tmp_path):
    assert ask(url, "POST", "/v1/schedules", {"name": "pause", **RULE})[1]["field"] == "name"
    assert ask(url, "PUT", "/v1/schedules/kept", RULE)[0] == 201
    for method, body in (("PUT", RULE), ("DELETE", None)):
        status, problem, _ = ask(url, method, "/v1/schedules/kept", body, **{"if-match": '"1"'})
        assert (status, problem["field"]) == (422, "If-Match") or status == 400, problem
    assert ask(url, "GET", "/v1/schedules/kept")[0] == 200
    for after in ("2026-01-01T00:00:00", "9999-12-31T23:59:59Z"):
        assert ask(url, "POST", "/v1/previews", {"name": "kept", "after": after})[0] in (400, 422)
    assert ask(url, "POST", "/v1/previews", {})[1]["field"] == "name"
    assert run("list", folder=tmp_path).returncode == 1, "looking makes no store"
    assert list(tmp_path.iterdir()) == []
    said = run("preview", "--every", "1h", "--dst-gap", "x", folder=tmp_path)
    assert "'shift', 'skip'" in said.stderr or "shift, skip" in said.stderr


async def test_a_rule_and_a_message_are_changed_in_place(tmp_path):
    async with qo.connect(f"sqlite:///{tmp_path / 'qo.db'}") as client:
        await client.schedules.create("x", "reports", {"a": 1}, every="1h", tags=["t"])
        info = await client.schedules.change("x", cron="@daily", payload={"a": 2}, kind="other", jitter="5s")
        assert (info.rule, info.plan.target.kind, info.plan.target.payload) == (
            "At 00:00 every day",
            "other",
            b'{"a":2}',
        )
        assert (info.plan.tags, info.plan.jitter_seconds) == (("t",), 5.0)
        for options, field in (({"tags": "abc"}, "tags"), ({"exclude": 5}, "exclude"), ({"headers": []}, "headers"),
                               ({"anchor": info.created_at}, "anchor")):  # fmt: skip
            with pytest.raises(qo.Invalid, match=field):
                await client.schedules.change("x", **options)
        with pytest.raises(qo.Invalid, match="goes with a rule"):
            await client.schedules.preview("x", timezone="Asia/Tokyo")
        with pytest.raises(qo.Invalid, match="name of a schedule"):
            await client.schedules.preview()


def test_a_task_whose_rule_is_none_is_refused_when_it_is_registered():
    with pytest.raises(qo.Invalid, match="cron"):
        qo.Worker("sqlite://:memory:").task("x", cron="99 * * * *")(lambda: None)
    with pytest.raises(qo.Invalid, match="specs"):
        qo.Worker("sqlite://:memory:").task("x", timezone="UTC")(lambda: None)


async def test_a_task_with_a_schedule_may_take_nothing(tmp_path):
    worker = qo.Worker(f"sqlite:///{tmp_path / 'qo.db'}")

    @worker.task(every=1)
    def tick() -> None:
        worker.stop()

    ran = await worker.run()
    assert (ran.succeeded, ran.failed) == (1, 0)
