"""The supervisor's configuration. The operator sets it in the pod's environment."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from bamboo_agent import logs
from bamboo_agent.addresses import split_address
from bamboo_agent.notices.client import ADDRESS
from bamboo_core.api.spec import NoticeSource

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_T = TypeVar("_T")


class ConfigError(Exception):
    """A variable is missing or wrong. The text is one sentence that names it."""


@dataclass(frozen=True)
class Config:
    """What the supervisor must know before it can connect to the operator."""

    operator_address: str
    address_file: Path | None  # holds a newer operator_address, if it exists
    operator_name: str  # in the operator's certificate; empty: the host of operator_address
    job: str
    agent: str
    pod_uid: str
    pod_ip: str
    node: str
    zone: str
    machine: str  # node UID + boot ID, as far as known
    token_file: Path
    ca_file: Path
    grace_s: float  # between SIGTERM and SIGKILL
    health_port: int  # 0: any free port
    notices: tuple[NoticeSource, ...]
    metadata_address: str  # host:port of the cloud's metadata server
    log_level: str
    termination_file: Path
    event_log: Path | None


def from_env(env: Mapping[str, str]) -> Config:
    """Read the configuration. ConfigError names the first variable that is missing or wrong."""
    operator_address = _address(env, "BAMBOO_OPERATOR_ADDRESS")
    return Config(
        operator_address=operator_address,
        address_file=Path(env["BAMBOO_ADDRESS_FILE"]) if env.get("BAMBOO_ADDRESS_FILE") else None,
        operator_name=env.get("BAMBOO_OPERATOR_NAME", ""),
        job=_job(env, logs.JOB_VARIABLE),
        agent=_required(env, "BAMBOO_AGENT"),
        pod_uid=_required(env, "BAMBOO_POD_UID"),
        pod_ip=_required(env, "BAMBOO_POD_IP"),
        node=_required(env, "BAMBOO_NODE"),
        zone=env.get("BAMBOO_ZONE", ""),
        machine=f"{env.get('BAMBOO_NODE_UID', '')}/{_boot_id()}",
        token_file=_file(env, "BAMBOO_TOKEN_FILE"),
        ca_file=_file(env, "BAMBOO_CA_FILE"),
        grace_s=_number(env, "BAMBOO_GRACE_S", 15.0, float, 3600),
        health_port=_number(env, "BAMBOO_HEALTH_PORT", 0, int, 65535),
        notices=notice_sources(env),
        metadata_address=metadata_address(env),
        log_level=_choice(env, logs.LEVEL_VARIABLE, ("info", "debug", "warning", "error")),
        termination_file=Path(env.get("BAMBOO_TERMINATION_FILE", "/dev/termination-log")),
        event_log=_event_log(env, "BAMBOO_EVENT_LOG"),
    )


def _required(env: Mapping[str, str], name: str) -> str:
    value = env.get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set; the operator sets it in the agent's pod.")
    return value


def _address(env: Mapping[str, str], name: str) -> str:
    value = _required(env, name)
    try:
        split_address(value)
    except ValueError as error:
        raise ConfigError(f"{name}: {error}; set it to the operator's gRPC endpoint.") from error
    return value


def _job(env: Mapping[str, str], name: str) -> str:
    value = _required(env, name)
    namespace, slash, job = value.partition("/")
    if not (namespace and slash and job) or "/" in job:
        raise ConfigError(f"{name}: {value!r} is not NAMESPACE/NAME of a BambooJob.")
    return value


def _file(env: Mapping[str, str], name: str) -> Path:
    path = Path(_required(env, name))
    try:
        path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: cannot read {path}: {error.strerror}.") from error
    return path


def _event_log(env: Mapping[str, str], name: str) -> Path | None:
    if not env.get(name):
        return None
    path = Path(env[name])
    try:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    except OSError as error:
        raise ConfigError(
            f"{name}: cannot write below {path}: {error.strerror}; mount a volume there with"
            " spec.worker.podTemplate, or empty the chart's agents.eventLogDirectory."
        ) from error
    return path


def _number(
    env: Mapping[str, str], name: str, default: _T, kind: Callable[[str], _T], most: float
) -> _T:
    text = env.get(name, "")
    if not text:
        return default
    try:
        value = kind(text)
    except ValueError:
        value = None
    if not isinstance(value, int | float) or not 0 <= value <= most:
        raise ConfigError(f"{name}: {text!r} is not a number from 0 to {most:g}.")
    return value


def _choice(env: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = env.get(name, allowed[0]) or allowed[0]
    if value not in allowed:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(allowed)}.")
    return value


def notice_sources(env: Mapping[str, str]) -> tuple[NoticeSource, ...]:
    """BAMBOO_NOTICES: sources of notices, separated by commas; none if it is empty."""
    names = [n.strip() for n in env.get("BAMBOO_NOTICES", "").split(",") if n.strip()]
    for one in names:
        if one not in list(NoticeSource):
            allowed = ", ".join(NoticeSource)
            raise ConfigError(f"BAMBOO_NOTICES: {one!r} is not one of {allowed}.")
    return tuple(NoticeSource(name) for name in names)


def metadata_address(env: Mapping[str, str]) -> str:
    """BAMBOO_METADATA_ADDRESS: for tests, another server than that of the cloud."""
    address = env.get("BAMBOO_METADATA_ADDRESS") or ADDRESS
    try:
        split_address(address)
    except ValueError as error:
        raise ConfigError(f"BAMBOO_METADATA_ADDRESS: {error}; leave it out.") from error
    return address


def _boot_id() -> str:
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""
