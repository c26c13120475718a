"""Configuration: qo.toml, the environment and flags, in that order of increasing weight.

Every setting is a field of a settings class, which has its default and checks it;
here are only its names. `qo.environment` reads the file and the variables.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from qo.core.durations import duration
from qo.core.errors import Invalid, not_one_of
from qo.core.names import suggestion
from qo.core.polling import (
    DEFAULT_BACKOFF_MULTIPLIER,
    DEFAULT_MAX_INTERVAL_MS,
    DEFAULT_MIN_INTERVAL_MS,
    PollingStrategy,
)
from qo.core.scaling import ScalingSettings
from qo.environment import (
    CONFIG_VARIABLE,
    DEFAULT,
    DEFAULT_URL,
    FILE,
    HOST_VARIABLE,
    PREFIX,
    TOKEN_VARIABLE,
    Chosen,
    read_document,
    variables,
)
from qo.server.settings import LogSettings, ServerSettings
from qo.worker.options import CLAIM_BATCH_SIZE, GRACE_SECONDS, MAX_CONCURRENT_TASKS, THREADS

WORK_KINDS = "work_kinds"

FLAGS = {
    "worker.max_concurrent_tasks": "concurrency",
    "worker.claim_batch_size": "batch",
    "worker.grace_seconds": "grace",
    "workers.default_count": "min",
    "workers.max_count": "max",
    "workers.lease_timeout_seconds": "lease",
    "log.level": "log-level",
    "log.format": "log-format",
    "log.requests": "log-requests",
}
"""Flags that have other names than their settings."""

ALIASES = {
    "POLL_WORKER_INTERVAL": "long_polling.check_interval_ms",
    "POLL_DB_INTERVAL": "long_polling.group_interval_ms",
    "QUEUE_MAX_POLL_INTERVAL": "long_polling.max_interval_ms",
    "QUEUE_BACKOFF_THRESHOLD": "long_polling.backoff_threshold",
    "QUEUE_BACKOFF_MULTIPLIER": "long_polling.backoff_multiplier",
    "QUEUE_BACKOFF_CLEANUP_THRESHOLD": "long_polling.forget_after_seconds",
    "QUEEN_ENCRYPTION_KEY": "encryption.key",
    "DEFAULT_SUBSCRIPTION_MODE": "queen.default_subscription",
    "MAX_CONCURRENT_TASKS": "worker.max_concurrent_tasks",
    "CLAIM_BATCH_SIZE": "worker.claim_batch_size",
    "POLL_INTERVAL_MS": "worker.poll_interval_ms",
}
"""Names that Queen MQ has for some settings. Ours weigh more."""

WITHOUT_EFFECT = {
    "POLL_WORKER_COUNT": "nothing polls in threads here",
    "POLL_BACKOFF_THRESHOLD": "QUEUE_BACKOFF_THRESHOLD is what sets it",
    "POLL_MAX_INTERVAL": "QUEUE_MAX_POLL_INTERVAL is what sets it",
    "RETENTION_INTERVAL": "messages are removed when their time is over, and never popped after it",
}
"""Names that are accepted, with a warning."""


SECRETS = ("jwt.secret", "encryption.key")
"""Never shown."""


class Setting(NamedTuple):
    """A setting by its name in the file; its type and its default."""

    key: str
    kind: Any
    default: Any

    @property
    def unit(self) -> float:
        """The seconds that 1 stands for, if it is a length of time; else 0."""
        if self.key.endswith(("_ms", "_interval_ms")):
            return 0.001
        return 1.0 if self.key.endswith("_seconds") or self.key == "worker.poll_interval" else 0.0

    @property
    def variable(self) -> str:
        return PREFIX + self.key.removeprefix("worker.").replace(".", "_").upper()


WORKER = [
    Setting("worker.max_concurrent_tasks", int, MAX_CONCURRENT_TASKS),
    Setting("worker.claim_batch_size", int, CLAIM_BATCH_SIZE),
    Setting("worker.grace_seconds", float, GRACE_SECONDS),
    Setting("worker.threads", int, THREADS),
    Setting("worker.poll_interval", float, 0.0),
    Setting("worker.poll_interval_ms", float, 0.0),
    Setting("worker.polling.strategy", str, "adaptive"),
    Setting("worker.polling.min_interval_ms", float, float(DEFAULT_MIN_INTERVAL_MS)),
    Setting("worker.polling.max_interval_ms", float, float(DEFAULT_MAX_INTERVAL_MS)),
    Setting("worker.polling.backoff_multiplier", float, DEFAULT_BACKOFF_MULTIPLIER),
    Setting("worker.polling.interval_ms", float, 0.0),
]
"""Of `qo work`. A poll interval of 0 says nothing; above, it is a fixed one, and weighs less than a strategy."""


COUNTS = ("default_count", "max_count")
"""What has `qo work` manage worker processes, if it is said."""


class Value(NamedTuple):
    """What is in effect, and where it came from."""

    value: Any
    source: str


@dataclasses.dataclass(frozen=True, slots=True)
class Configuration:
    """Every setting, by key, and what should be said about what was given."""

    values: dict[str, Value]
    warnings: list[str]
    file: str = ""
    """The file that was read; empty: none."""
    found_file: bool = False
    """Whether that file was read because it lay there, and not because someone named it."""

    def __getitem__(self, key: str) -> Any:
        return self.values[key].value

    @property
    def store(self) -> Chosen:
        """The store or server, and where that came from."""
        url, source = self.values["store"]
        found = self.found_file and source == self.file
        return Chosen(url, source, found, self["encryption.key"])

    def named(self, error: Invalid) -> Invalid:
        """The same error, of a setting as it was given: by its flag, its variable, or its key in a file."""
        for key, (_, source) in self.values.items():
            if error.field in (key, key.rpartition(".")[2], FLAGS.get(key)) and source != DEFAULT:
                return Invalid(key if source == self.file else source, error.problem, error.allowed)
        return error

    def with_value(self, key: str, value: Any, source: str) -> Configuration:
        return dataclasses.replace(self, values={**self.values, key: Value(value, source)})

    def polling(self) -> PollingStrategy:
        """A strategy that is said, then a fixed interval that is, then the adaptive default."""
        said = [
            key for key, value in self.values.items() if key.startswith("worker.polling.") and value.source != DEFAULT
        ]
        older = 1000 * self["worker.poll_interval"]  # in seconds
        interval = older or self["worker.poll_interval_ms"] or self["workers.poll_interval_ms"]
        if not said and interval > 0:
            return PollingStrategy.fixed(interval)
        match self["worker.polling.strategy"]:
            case "fixed":
                return PollingStrategy.fixed(self["worker.polling.interval_ms"])
            case "adaptive":
                return PollingStrategy.adaptive(
                    self["worker.polling.min_interval_ms"],
                    self["worker.polling.max_interval_ms"],
                    self["worker.polling.backoff_multiplier"],
                )
            case other:
                raise not_one_of("worker.polling.strategy", other, ("adaptive", "fixed"))

    def scaling(self) -> ScalingSettings | None:
        """How many workers there may be; None: nobody has said, and one runs by itself.

        A bound that is said moves one that is not.
        """
        names = [each.name for each in dataclasses.fields(ScalingSettings)]
        given = {name: self[f"workers.{name}"] for name in names}
        least, most = COUNTS
        if self.values[f"workers.{most}"].source == DEFAULT:
            given[most] = max(given[most], given[least])
        if self.values[f"workers.{least}"].source == DEFAULT:
            given[least] = min(given[least], given[most])
        settings = ScalingSettings(**given)
        is_set = any(self.values[f"workers.{name}"].source != DEFAULT for name in COUNTS)
        return settings if is_set else None

    def logs(self) -> LogSettings:
        """The settings of logs, which workers have too."""
        return LogSettings(**{each.name: self[f"log.{each.name}"] for each in dataclasses.fields(LogSettings)})

    def server_settings(self) -> ServerSettings:
        """The settings of a server, checked as a whole."""
        given: dict[str, Any] = {}
        for part in dataclasses.fields(ServerSettings):
            if part.name == "store":
                given["store"] = self["store"]
                continue
            kind = typing.get_type_hints(ServerSettings)[part.name]
            given[part.name] = kind(
                **{each.name: self[f"{part.name}.{each.name}"] for each in dataclasses.fields(kind)}
            )
        return ServerSettings(**given)


def settings() -> dict[str, Setting]:
    """Every setting there is, by its key."""
    found = {"store": Setting("store", str, DEFAULT_URL)}
    for part, kind in typing.get_type_hints(ServerSettings).items():
        if part == "store":
            continue
        kinds = typing.get_type_hints(kind)
        for each in dataclasses.fields(kind):
            key = f"{part}.{each.name}"
            found[key] = Setting(key, kinds[each.name], each.default)
    kinds = typing.get_type_hints(ScalingSettings)
    for each in dataclasses.fields(ScalingSettings):
        key = f"workers.{each.name}"
        found[key] = Setting(key, kinds[each.name], each.default)
    return found | {each.key: each for each in WORKER}


def read_configuration(
    flags: Mapping[str, Any] | None = None,
    *,
    path: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Configuration:
    """What is in effect. Flags that are None were not given."""
    around = variables() if environment is None else environment
    known = settings()
    named_file = path or around.get(CONFIG_VARIABLE) or None
    document = read_document(named_file)
    file = named_file or FILE
    values = {key: Value(setting.default, DEFAULT) for key, setting in known.items()}
    warnings = [f"{name} has no effect: {why}" for name, why in WITHOUT_EFFECT.items() if name in around]
    values |= _from_file(known, document, file)
    values |= _jwt_of_queen(around, warnings)
    values |= _from_environment(known, around)
    for key, value in (flags or {}).items():
        if value is not None:
            values[key] = Value(value, f"--{FLAGS.get(key) or key.rpartition('.')[2].replace('_', '-')}")
    return Configuration(values, warnings, file if document else "", named_file is None)


def work_kinds(path: str | None = None) -> Mapping[str, Any]:
    """The kinds of work that the file has for the catalog."""
    found = read_document(path or variables().get(CONFIG_VARIABLE) or None).get(WORK_KINDS, {})
    if not isinstance(found, Mapping):
        raise Invalid(WORK_KINDS, "must be tables: [work_kinds.NAME]")
    return found


def _jwt_of_queen(around: Mapping[str, str], warnings: list[str]) -> dict[str, Value]:
    """Queen checks tokens only where JWT_ENABLED says so; then calls need one, and JWT_SECRET is its key."""
    enabled = Setting("jwt.enabled", bool, default=False)
    if "JWT_ENABLED" in around and _read("JWT_ENABLED", enabled, around["JWT_ENABLED"]):
        found = {"server.auth": Value("token", "JWT_ENABLED")}
        if "JWT_SECRET" in around:
            found["jwt.secret"] = Value(around["JWT_SECRET"], "JWT_SECRET")
        return found
    if "JWT_SECRET" in around:
        warnings.append("JWT_SECRET has no effect: JWT_ENABLED is not true")
    return {}


def _from_environment(known: Mapping[str, Setting], around: Mapping[str, str]) -> dict[str, Value]:
    """The aliases first: our own names weigh more. A name that is nearly one of ours is a mistake."""
    found = {}
    for alias, key in ALIASES.items():
        if alias in around:
            found[key] = Value(_read(alias, known[key], around[alias]), alias)
    names = {setting.variable: setting for setting in known.values()}
    for name in sorted(around):
        if name in names:
            found[names[name].key] = Value(_read(name, names[name], around[name]), name)
        elif name.startswith(PREFIX) and name not in (CONFIG_VARIABLE, TOKEN_VARIABLE, HOST_VARIABLE):
            raise Invalid(name, "is not a setting" + suggestion(name, names))
    return found


def _from_file(known: Mapping[str, Setting], document: Mapping[str, Any], file: str) -> dict[str, Value]:
    found = {}
    for key, value in _flat(document, known):
        if key not in known:
            raise Invalid(key, f"in {file}: is not a setting" + suggestion(key, known))
        found[key] = Value(_checked(key, known[key], value), file)
    return found


def _flat(document: Mapping[str, Any], known: Mapping[str, Setting]) -> Sequence[tuple[str, Any]]:
    sections = {key[:place] for key in known for place, character in enumerate(key) if character == "."}
    pairs: list[tuple[str, Any]] = []
    for name, value in document.items():
        if name == WORK_KINDS and isinstance(value, Mapping):
            continue  # the catalog's, which reads them itself
        if isinstance(value, Mapping) and name in sections:
            inner = {f"{name}.{each}": inside for each, inside in value.items()}
            pairs += _flat(inner, known)
        else:
            pairs.append((name, value))
    return pairs


def _checked(key: str, setting: Setting, value: Any) -> Any:
    if setting.unit and isinstance(value, str):
        return _length(key, setting, value)
    if setting.kind is float and type(value) is int:
        return float(value)
    if type(value) is not setting.kind:
        raise Invalid(key, f"must be of type {setting.kind.__name__}, not {type(value).__name__}")
    return value


def _read(name: str, setting: Setting, text: str) -> Any:
    """A value as the environment says it."""
    if setting.kind is bool:
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off", ""):
            return False
        raise Invalid(name, f"must be true or false, not '{text}'")
    try:
        return setting.kind(text)
    except ValueError:
        if setting.unit:
            return _length(name, setting, text)
        raise Invalid(name, f"must be of type {setting.kind.__name__}, not '{text}'") from None


def _length(name: str, setting: Setting, text: str) -> Any:
    """A length as text ("250ms", "1h30m"), in the unit that the setting's name says; a bare number is of that unit."""
    try:
        return setting.kind(float(text))
    except ValueError:
        return setting.kind(duration(name, text).total_seconds() / setting.unit)
