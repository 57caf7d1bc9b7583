"""The environment of the supervisor: what is read, and how what is wrong is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bamboo_agent.addresses import join_address, split_address
from bamboo_agent.supervisor.config import ConfigError, from_env
from bamboo_core.api.spec import NoticeSource


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca").write_text("c")
    return {
        "BAMBOO_OPERATOR_ADDRESS": "10.0.0.1:9443",
        "BAMBOO_JOB": "ns/job",
        "BAMBOO_AGENT": "job-0-0",
        "BAMBOO_POD_UID": "uid",
        "BAMBOO_POD_IP": "10.0.0.2",
        "BAMBOO_NODE": "node",
        "BAMBOO_TOKEN_FILE": str(tmp_path / "token"),
        "BAMBOO_CA_FILE": str(tmp_path / "ca"),
    }


def test_defaults(env: dict[str, str]) -> None:
    config = from_env(env)
    assert config.zone == ""
    assert config.grace_s == 15.0
    assert config.health_port == 0
    assert config.notices == ()
    assert config.metadata_address == "169.254.169.254:80"
    assert config.event_log is None
    assert "/" in config.machine


def test_all_of_it(env: dict[str, str], tmp_path: Path) -> None:
    config = from_env(
        env
        | {
            "BAMBOO_ZONE": "zone-a",
            "BAMBOO_GRACE_S": "2.5",
            "BAMBOO_HEALTH_PORT": "0",
            "BAMBOO_NOTICES": "AwsSpot, AwsRebalance",
            "BAMBOO_METADATA_ADDRESS": "127.0.0.1:80",
            "BAMBOO_LOG_LEVEL": "debug",
            "BAMBOO_NODE_UID": "node-uid",
            "BAMBOO_EVENT_LOG": str(tmp_path / "events/ns/job"),
        }
    )
    assert (config.zone, config.grace_s, config.health_port) == ("zone-a", 2.5, 0)
    assert config.notices == (NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE)
    assert config.metadata_address == "127.0.0.1:80"
    assert config.machine.startswith("node-uid/")
    assert config.event_log == tmp_path / "events/ns/job"
    assert config.event_log.is_dir()


@pytest.mark.parametrize(
    "name",
    [
        "BAMBOO_OPERATOR_ADDRESS",
        "BAMBOO_JOB",
        "BAMBOO_AGENT",
        "BAMBOO_POD_UID",
        "BAMBOO_POD_IP",
        "BAMBOO_NODE",
        "BAMBOO_TOKEN_FILE",
        "BAMBOO_CA_FILE",
    ],
)
def test_a_variable_that_is_missing(env: dict[str, str], name: str) -> None:
    del env[name]
    with pytest.raises(ConfigError, match=f"^{name} is not set; .*\\.$"):
        from_env(env)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("BAMBOO_OPERATOR_ADDRESS", "operator", "'operator' is not host:port"),
        ("BAMBOO_OPERATOR_ADDRESS", "operator:99999", "'operator:99999' is not host:port"),
        ("BAMBOO_JOB", "job", "'job' is not NAMESPACE/NAME"),
        ("BAMBOO_JOB", "a/b/c", "'a/b/c' is not NAMESPACE/NAME"),
        ("BAMBOO_TOKEN_FILE", "/nowhere/token", "cannot read /nowhere/token: No such file"),
        ("BAMBOO_CA_FILE", "/", "cannot read /: Is a directory"),
        ("BAMBOO_EVENT_LOG", "/dev/null/x", "cannot write below /dev/null/x: Not a directory"),
        ("BAMBOO_GRACE_S", "soon", "'soon' is not a number from 0 to 3600"),
        ("BAMBOO_GRACE_S", "-1", "'-1' is not a number from 0 to 3600"),
        ("BAMBOO_GRACE_S", "nan", "'nan' is not a number from 0 to 3600"),
        ("BAMBOO_HEALTH_PORT", "70000", "'70000' is not a number from 0 to 65535"),
        ("BAMBOO_HEALTH_PORT", "1.5", "'1.5' is not a number from 0 to 65535"),
        ("BAMBOO_NOTICES", "Gce,azure", "'azure' is not one of Auto, None, Gce, AwsSpot"),
        ("BAMBOO_METADATA_ADDRESS", "metadata", "'metadata' is not host:port"),
        ("BAMBOO_LOG_LEVEL", "loud", "'loud' is not one of info, debug, warning, error"),
    ],
)
def test_a_variable_that_is_wrong(env: dict[str, str], name: str, value: str, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_env(env | {name: value})
    text = str(caught.value)
    assert text.startswith(f"{name}: ")
    assert words in text
    assert "\n" not in text


def test_the_process_ends_with_2_and_one_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bamboo_agent"], env={}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        "bamboo-agent: BAMBOO_OPERATOR_ADDRESS is not set;"
        " the operator sets it in the agent's pod.\n"
    )


LATE = """
import asyncio, atexit, os, signal
from types import SimpleNamespace
from bamboo_agent import __main__ as agent

class SupervisorShell:
    def __init__(self, config):
        self.supervisor = SimpleNamespace(fence=None)

    async def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, print)
        return 2

atexit.register(os.kill, os.getpid(), signal.SIGTERM)
agent.SupervisorShell = SupervisorShell
agent.main()
"""


def test_a_signal_that_comes_too_late_does_not_change_the_exit_code(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LATE],
        env=env | {"BAMBOO_POD_IP": "127.0.0.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2, done.stderr


def test_an_address_that_is_not_ours(env: dict[str, str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bamboo_agent"],
        env=env | {"BAMBOO_POD_IP": "192.0.2.1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "BAMBOO_POD_IP: cannot listen on 192.0.2.1" in done.stderr


@pytest.mark.parametrize("address", ["10.0.0.1:80", "operator.ns.svc:9443", "[fd00::1]:443"])
def test_addresses_are_split_and_joined(address: str) -> None:
    assert join_address(*split_address(address)) == address
