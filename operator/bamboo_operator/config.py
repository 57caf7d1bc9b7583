"""The operator's configuration, built once from the environment (the chart sets it)."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass, field

from bamboo_core.validation.pod_rules import OFFERED, PodRules
from bamboo_operator.admission.held_tasks import TaskLimits
from bamboo_operator.money import prices
from bamboo_operator.money.prices import Pool

LEVELS = ("debug", "info", "warning", "error")
_TASKS = 1_000_000_000


class ConfigError(Exception):
    """A variable is missing or wrong. The text names it and the remedy."""


@dataclass(frozen=True)
class Config:
    """The configuration of one process."""

    namespace: str
    identity: str
    listen: str  # host:port where the operator serves agents
    advertise: str  # host:port where agents connect
    http_host: str  # for health and metrics
    health_port: int
    metrics_port: int
    namespaces: tuple[str, ...]  # to watch; empty: all
    log_level: str
    workers: int
    resync_s: float
    event_logs: str  # absolute folder for the agents' event logs; empty: no event logs
    disruption_budgets: bool  # limit evictions of agents
    pod_rules: PodRules  # what jobs may put into their pods
    prices: tuple[Pool, ...]  # of node pools; empty: not known
    pod_uid: str = ""  # of the operator's pod; empty: it runs outside of the cluster
    account: str = ""  # the operator's service account; empty: it runs outside of the cluster
    kueue: bool = False  # jobs may name a queue
    tasks: TaskLimits = field(default_factory=TaskLimits)


def from_env(env: Mapping[str, str]) -> Config:
    """ConfigError names the first wrong variable."""
    port = _number(env, "BAMBOO_GRPC_PORT", 9443, 65535)
    health_port = _number(env, "BAMBOO_HEALTH_PORT", 8081, 65535)
    metrics_port = _number(env, "BAMBOO_METRICS_PORT", 8080, 65535)
    if len({port, health_port, metrics_port}) < 3:
        raise ConfigError(
            f"BAMBOO_GRPC_PORT {port}, BAMBOO_HEALTH_PORT {health_port} and BAMBOO_METRICS_PORT"
            f" {metrics_port} (the chart's ports) must differ; choose another for one of them."
        )
    http_host = env.get("BAMBOO_HTTP_HOST") or env.get("POD_IP") or "0.0.0.0"
    return Config(
        namespace=env.get("POD_NAMESPACE") or "bamboo-system",
        identity=env.get("POD_NAME") or socket.gethostname(),
        listen=_join(env.get("BAMBOO_GRPC_HOST") or http_host, port),
        advertise=_advertise(env, port),
        http_host=http_host,
        health_port=health_port,
        metrics_port=metrics_port,
        namespaces=_names(env, "BAMBOO_NAMESPACES"),
        log_level=_level(env),
        workers=_number(env, "BAMBOO_WORKERS", 8, 256),
        resync_s=float(_number(env, "BAMBOO_RESYNC_SECONDS", 15, 3600)),
        event_logs=_folder(env, "BAMBOO_AGENT_EVENT_LOGS"),
        disruption_budgets=_switch(env, "BAMBOO_DISRUPTION_BUDGETS", default="true"),
        pod_rules=PodRules(
            trusted=_switch(env, "BAMBOO_TRUST_POD_TEMPLATES"),
            secrets=_names(env, "BAMBOO_JOB_SECRETS", OFFERED),
            service_accounts=_names(env, "BAMBOO_JOB_SERVICE_ACCOUNTS", OFFERED),
            csi_drivers=_names(env, "BAMBOO_JOB_CSI_DRIVERS"),
        ),
        prices=_prices(env, "BAMBOO_PRICES"),
        pod_uid=env.get("POD_UID", ""),
        account=env.get("POD_SERVICE_ACCOUNT", ""),
        kueue=_switch(env, "BAMBOO_KUEUE"),
        tasks=TaskLimits(
            _number(env, "BAMBOO_MOST_TASKS", TaskLimits.all_jobs, _TASKS),
            _number(env, "BAMBOO_MOST_TASKS_OF_NAMESPACE", TaskLimits.namespace, _TASKS),
        ),
    )


def _advertise(env: Mapping[str, str], port: int) -> str:
    address = env.get("BAMBOO_ADVERTISE_ADDRESS", "")
    if not address:
        host = env.get("POD_IP", "")
        if not host:
            raise ConfigError(
                "neither BAMBOO_ADVERTISE_ADDRESS nor POD_IP is set; set one, so that agents can"
                " find the operator."
            )
        return _join(host, port)
    host, colon, digits = address.rpartition(":")
    if not (host and colon and digits.isdecimal() and 0 < int(digits) < 65536):
        raise ConfigError(f"BAMBOO_ADVERTISE_ADDRESS {address!r} is not host:port.")
    return address


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _number(env: Mapping[str, str], name: str, default: int, most: int) -> int:
    text = env.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or not 0 < int(text) <= most:
        raise ConfigError(f"{name} {text!r} is not a number from 1 to {most}.")
    return int(text)


def _names(env: Mapping[str, str], name: str, default: str = "") -> tuple[str, ...]:
    """Separated by commas. An empty text means none; the default is for a variable not set."""
    return tuple(n for n in env.get(name, default).split(",") if n)


def _switch(env: Mapping[str, str], name: str, *, default: str = "false") -> bool:
    text = env.get(name) or default
    if text not in ("true", "false"):
        raise ConfigError(f"{name} {text!r} is not true or false; use one of them.")
    return text == "true"


def _folder(env: Mapping[str, str], name: str) -> str:
    path = env.get(name, "")
    if path and not path.startswith("/"):
        raise ConfigError(f"{name} {path!r} is not an absolute path; begin it with /.")
    return path


def _prices(env: Mapping[str, str], name: str) -> tuple[Pool, ...]:
    try:
        return prices.parse(env.get(name, ""))
    except ValueError as error:
        raise ConfigError(f"{name} (the chart's prices): {error}.") from error


def _level(env: Mapping[str, str]) -> str:
    level = env.get("BAMBOO_LOG_LEVEL") or "info"
    if level not in LEVELS:
        raise ConfigError(
            f"BAMBOO_LOG_LEVEL {level!r} is not one of {', '.join(LEVELS)}; use one of them."
        )
    return level
