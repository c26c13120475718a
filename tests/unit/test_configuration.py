"""Configuration: the file, the environment and flags, and mistakes in them."""

from __future__ import annotations

import pytest

from qo.cli.configuration import ALIASES, WITHOUT_EFFECT, read_configuration, settings, work_kinds
from qo.core.errors import Invalid
from qo.core.polling import PollingStrategy
from qo.core.scaling import ScalingSettings
from qo.environment import token_for
from qo.server.settings import LimitSettings, ListenSettings, LogSettings, MetricSettings, PollSettings
from qo.stores.opening import without_password


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(flags=None, **environment):
    return read_configuration(flags, environment=environment)


def test_each_source_weighs_more_than_the_one_before(here):
    assert read().values["server.port"] == (6632, "default")
    (here / "qo.toml").write_text('store = "sqlite:///a.db"\n[server]\nport = 7000\n[limits]\nrequest_seconds = 5\n')
    assert read().values["server.port"] == (7000, "qo.toml")
    assert read(QO_SERVER_PORT="7001").values["server.port"] == (7001, "QO_SERVER_PORT")
    assert read({"server.port": 7002}, QO_SERVER_PORT="7001").values["server.port"] == (7002, "--port")
    assert read({"server.port": None}).values["server.port"] == (7000, "qo.toml")
    built = read(QO_LOG_REQUESTS="true", QO_STORE="sqlite:///b.db").server_settings()
    assert (built.store, built.limits.request_seconds, built.log.requests) == ("sqlite:///b.db", 5.0, True)


def test_a_file_by_name(here):
    other = here / "other.toml"
    other.write_text("[log]\nlevel = 'debug'\n")
    assert read_configuration(path=str(other), environment={})["log.level"] == "debug"
    assert read(QO_CONFIG=str(other))["log.level"] == "debug"
    with pytest.raises(Invalid, match=r"no file nowhere\.toml"):
        read_configuration(path="nowhere.toml", environment={})


@pytest.mark.parametrize(
    ("text", "field", "says"),
    [
        ("[server]\nprot = 1", "server.prot", "did you mean 'server.port'"),
        ("stoer = 'x'", "stoer", "did you mean 'store'"),
        ("[servre]\nport = 1", "servre", "is not a setting"),
        ("[server]\nport = 'many'", "server.port", "must be of type int, not str"),
        ("[server]\nport = true", "server.port", "must be of type int, not bool"),
        ("[server\n", "config", "is not TOML"),
    ],
)
def test_mistakes_in_the_file(here, text, field, says):
    (here / "qo.toml").write_text(text)
    with pytest.raises(Invalid, match=says) as raised:
        read()
    assert raised.value.field == field


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("QO_SERVER_PROT", "1", "did you mean 'QO_SERVER_PORT'"),
        ("QO_STOER", "sqlite://:memory:", "did you mean 'QO_STORE'"),
        ("QO_SERVER_PORT", "many", "must be of type int"),
        ("QO_LOG_REQUESTS", "maybe", "must be true or false"),
        ("POLL_DB_INTERVAL", "soon", "text such as .*'250ms'"),
    ],
)
def test_mistakes_in_the_environment(name, value, says):
    with pytest.raises(Invalid, match=says) as raised:
        read(**{name: value})
    assert raised.value.field == name


def test_the_names_of_queen_are_aliases():
    given = {name: "a0" * 32 if "KEY" in name else "all" if "MODE" in name else "7" for name in ALIASES}
    built = read(**given).server_settings().long_polling
    assert built == PollSettings(
        check_interval_ms=7,
        group_interval_ms=7,
        max_interval_ms=7,
        backoff_threshold=7,
        backoff_multiplier=7,
        forget_after_seconds=7,
    )
    assert read(POLL_DB_INTERVAL="7", QO_LONG_POLLING_GROUP_INTERVAL_MS="8")["long_polling.group_interval_ms"] == 8
    assert set(ALIASES) == {
        "POLL_WORKER_INTERVAL",
        "POLL_DB_INTERVAL",
        "QUEUE_MAX_POLL_INTERVAL",
        "QUEUE_BACKOFF_THRESHOLD",
        "QUEUE_BACKOFF_MULTIPLIER",
        "QUEUE_BACKOFF_CLEANUP_THRESHOLD",
        "QUEEN_ENCRYPTION_KEY",
        "DEFAULT_SUBSCRIPTION_MODE",
        "MAX_CONCURRENT_TASKS",
        "CLAIM_BATCH_SIZE",
        "POLL_INTERVAL_MS",
    }


def test_polling_is_what_is_said_then_a_fixed_interval_then_adaptive(here):
    assert read().polling() == PollingStrategy.adaptive(100, 5000, 2.0)
    assert read(POLL_INTERVAL_MS="250").polling() == PollingStrategy.fixed(250)
    assert read(QO_POLL_INTERVAL="0.5").polling() == PollingStrategy.fixed(500)
    assert read(POLL_INTERVAL_MS="250", QO_POLLING_MAX_INTERVAL_MS="30000").polling().max_interval.seconds == 30
    (here / "qo.toml").write_text(
        '[worker.polling]\nstrategy = "fixed"\ninterval_ms = 500\n[work_kinds.x]\nduration_ms = 1\n'
    )
    assert read().polling() == PollingStrategy.fixed(500)
    assert work_kinds() == {"x": {"duration_ms": 1}}
    with pytest.raises(Invalid, match="one of adaptive, fixed"):
        read(QO_POLLING_STRATEGY="guess").polling()


def test_names_without_effect_are_accepted_with_a_warning():
    warnings = read(**dict.fromkeys(WITHOUT_EFFECT, "7")).warnings
    assert [warning.split()[0] for warning in warnings] == [
        "POLL_WORKER_COUNT",
        "POLL_BACKOFF_THRESHOLD",
        "POLL_MAX_INTERVAL",
        "RETENTION_INTERVAL",
    ]


def test_queen_s_switch_for_tokens():
    secret = "s" * 32
    configuration = read(JWT_ENABLED="true", JWT_SECRET=secret)
    assert (configuration["server.auth"], configuration["jwt.secret"]) == ("token", secret)
    assert configuration.server_settings().jwt.given
    assert read(JWT_ENABLED="true", JWT_SECRET=secret, QO_JWT_SECRET="t" * 32)["jwt.secret"] == "t" * 32
    left = read(JWT_ENABLED="false", JWT_SECRET=secret)
    assert (left["server.auth"], left["jwt.secret"]) == ("none", "")
    assert left.warnings == ["JWT_SECRET has no effect: JWT_ENABLED is not true"]
    with pytest.raises(Invalid, match="JWT_ENABLED"):
        read(JWT_ENABLED="maybe")


def test_where_groups_of_queen_start():
    assert read()["queen.default_subscription"] == "new"
    assert read(DEFAULT_SUBSCRIPTION_MODE="all").server_settings().queen.default_subscription == "all"
    with pytest.raises(Invalid, match="must be one of new, all"):
        read(DEFAULT_SUBSCRIPTION_MODE="some").server_settings()


def test_the_defaults_are_the_seed_s():
    poll = PollSettings()
    assert (poll.check_interval_ms, poll.group_interval_ms, poll.max_interval_ms) == (50, 100, 2000)
    assert (poll.backoff_threshold, poll.backoff_multiplier, poll.forget_after_seconds) == (1, 2.0, 3600)
    assert settings()["server.port"].default == 6632


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: ListenSettings(host="0.0.0.0"), "server.host"),
        (lambda: ListenSettings(host="::"), "server.host"),
        (lambda: ListenSettings(host="example.org"), "server.host"),
        (lambda: ListenSettings(port=70000), "server.port"),
        (lambda: ListenSettings(workers=0), "server.workers"),
        (lambda: ListenSettings(auth="maybe"), "server.auth"),
        (lambda: ListenSettings(stop_seconds=-1), "server.stop_seconds"),
        (lambda: LimitSettings(body_bytes=0), "limits.body_bytes"),
        (lambda: LimitSettings(stall_seconds=float("nan")), "limits.stall_seconds"),
        (lambda: PollSettings(group_interval_ms=0), "group_interval_ms"),
        (lambda: PollSettings(max_interval_ms=10), "max_interval_ms"),
        (lambda: PollSettings(backoff_threshold=0), "backoff_threshold"),
        (lambda: PollSettings(backoff_multiplier=0.5), "backoff_multiplier"),
        (lambda: PollSettings(forget_after_seconds=0), "forget_after_seconds"),
        (lambda: LogSettings(level="loud"), "log.level"),
        (lambda: LogSettings(format="xml"), "log.format"),
        (lambda: MetricSettings(queues=-1), "metrics.queues"),
    ],
)
def test_a_bad_value_is_named(make, field):
    with pytest.raises(Invalid) as raised:
        make()
    assert raised.value.field == field


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "::1", "localhost"])
def test_loopback_needs_no_authentication(host):
    ListenSettings(host=host)
    ListenSettings(host="0.0.0.0", auth="token")
    ListenSettings(host="0.0.0.0", insecure=True)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:secret@h/d?schema=qo", "postgresql://u:***@h/d?schema=qo"),
        ("postgresql://u@h/d?password=secret&schema=qo", "postgresql://u@h/d?password=***&schema=qo"),
        ("postgresql://u@h/d?sslpassword=secret", "postgresql://u@h/d?sslpassword=***"),
        ("sqlite:///qo.db?synchronous=off", "sqlite:///qo.db?synchronous=off"),
    ],
)
def test_a_url_is_shown_without_its_password(url, shown):
    assert without_password(url) == shown


def test_variables_of_others_and_our_own_are_let_be():
    assert read(QO_CONFIG="", QO_TOKEN="x", QUOTA="1").warnings == []


def test_workers_are_managed_if_either_bound_is_said(here):
    assert read().scaling() is None
    assert read({"workers.default_count": 0}).scaling() == ScalingSettings(default_count=0, max_count=8)
    assert read({"workers.default_count": 20}).scaling() == ScalingSettings(default_count=20, max_count=20)
    assert read({"workers.max_count": 1}).scaling() == ScalingSettings(default_count=1, max_count=1)
    (here / "qo.toml").write_text("[workers]\ndefault_count = 2\nmax_count = 8\npoll_interval_ms = 250\n")
    settings = read(QO_WORKERS_SCALE_INTERVAL_MS="500").scaling()
    assert settings == ScalingSettings(poll_interval_ms=250.0, scale_interval_ms=500.0)
    assert read().polling() == PollingStrategy.fixed(250)
    with pytest.raises(Invalid, match=r"workers\.max_count"):
        read({"workers.default_count": 9}).scaling()


# A token of the environment goes where its owner says


TOKEN = "qo_000000000000_" + "0" * 64


def token_in(configuration, **environment):
    return token_for(configuration.store, None, {"QO_TOKEN": TOKEN, **environment})


def test_a_file_that_lies_there_cannot_have_the_token_sent_to_its_server(here):
    (here / "qo.toml").write_text('store = "https://else.where:6632"')
    with pytest.raises(Invalid, match=r"is not sent to else\.where:6632, which only qo\.toml") as raised:
        token_in(read())
    assert raised.value.field == "QO_TOKEN"
    assert TOKEN not in str(raised.value)


def test_whom_the_owner_names_gets_the_token(here):
    (here / "qo.toml").write_text('store = "https://else.where:6632"')
    assert token_in(read({"store": "https://mine"})) == TOKEN
    assert token_in(read(QO_STORE="https://mine")) == TOKEN
    assert token_in(read_configuration(path="qo.toml", environment={})) == TOKEN, "a file that was named"
    assert token_in(read(), QO_TOKEN_HOST="mine, else.where") == TOKEN
    assert token_in(read(), QO_TOKEN_HOST="else.where:6632") == TOKEN
    assert token_for(read().store, "given", {}) == "given"
    assert token_for(read().store, None, {}) is None


@pytest.mark.parametrize("hosts", ["mine", "else.where:6633", "where", "https://else.where:6632"])
def test_a_host_that_is_not_named_gets_no_token(here, hosts):
    for configuration in (read(QO_STORE="https://else.where:6632"), read({"store": "https://else.where:6632"})):
        with pytest.raises(Invalid, match=r"does not name else\.where:6632"):
            token_in(configuration, QO_TOKEN_HOST=hosts)
