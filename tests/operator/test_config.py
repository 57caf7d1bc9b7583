"""The operator's configuration."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from bamboo_core.validation.pod_rules import PodRules
from bamboo_operator import __main__ as program
from bamboo_operator.admission.held_tasks import TaskLimits
from bamboo_operator.config import ConfigError, from_env
from bamboo_operator.process import event_loop
from bamboo_operator.process.event_loop import LoopHearing
from bamboo_operator.process.logs import JsonFormatter


def test_defaults() -> None:
    config = from_env({"POD_IP": "10.0.0.7", "POD_NAME": "op-1", "POD_NAMESPACE": "sys"})
    assert (config.advertise, config.listen) == ("10.0.0.7:9443", "10.0.0.7:9443")
    assert (config.namespace, config.identity, config.namespaces) == ("sys", "op-1", ())
    assert config.pod_rules == PodRules()
    assert (config.event_logs, config.prices) == ("", ())


def test_what_the_chart_sets() -> None:
    config = from_env(
        {
            "POD_IP": "::1",
            "POD_SERVICE_ACCOUNT": "op",
            "POD_UID": "uid-op",
            "BAMBOO_ADVERTISE_ADDRESS": "op.sys.svc:9000",
            "BAMBOO_GRPC_PORT": "9000",
            "BAMBOO_NAMESPACES": "a,b",
            "BAMBOO_LOG_LEVEL": "debug",
            "BAMBOO_AGENT_EVENT_LOGS": "/logs",
            "BAMBOO_MOST_TASKS": "2000",
            "BAMBOO_MOST_TASKS_OF_NAMESPACE": "1000",
            "BAMBOO_TRUST_POD_TEMPLATES": "true",
            "BAMBOO_JOB_SECRETS": "s3,job-*",
            "BAMBOO_JOB_SERVICE_ACCOUNTS": "",
            "BAMBOO_JOB_CSI_DRIVERS": "fuse",
            "BAMBOO_PRICES": '[{"labels": {"pool": "x"}, "dollarsPerHour": 1}]',
        }
    )
    assert (config.advertise, config.listen) == ("op.sys.svc:9000", "[::1]:9000")
    assert (config.namespaces, config.log_level) == (("a", "b"), "debug")
    assert (config.account, config.pod_uid, config.event_logs) == ("op", "uid-op", "/logs")
    assert config.tasks == TaskLimits(2000, 1000)
    assert config.pod_rules == PodRules(
        trusted=True, secrets=("s3", "job-*"), service_accounts=(), csi_drivers=("fuse",)
    )
    assert [pool.dollars_per_hour for pool in config.prices] == [1.0]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({}, "neither BAMBOO_ADVERTISE_ADDRESS nor POD_IP is set"),
        ({"POD_IP": "x", "BAMBOO_MOST_TASKS": "0"}, "BAMBOO_MOST_TASKS '0' is not a number from 1"),
        ({"BAMBOO_ADVERTISE_ADDRESS": "host"}, "'host' is not host:port"),
        ({"POD_IP": "x", "BAMBOO_GRPC_PORT": "0"}, "BAMBOO_GRPC_PORT '0' is not a number from 1"),
        ({"POD_IP": "x", "BAMBOO_GRPC_PORT": "8080"}, "BAMBOO_METRICS_PORT 8080 .* must differ"),
        ({"POD_IP": "x", "BAMBOO_WORKERS": "many"}, "BAMBOO_WORKERS 'many'"),
        ({"POD_IP": "x", "BAMBOO_AGENT_EVENT_LOGS": "logs"}, "'logs' is not an absolute path"),
        ({"POD_IP": "x", "BAMBOO_TRUST_POD_TEMPLATES": "yes"}, "'yes' is not true or false"),
        ({"POD_IP": "x", "BAMBOO_PRICES": "1"}, "BAMBOO_PRICES .the chart's prices.: is no list"),
        ({"POD_IP": "x", "BAMBOO_LOG_LEVEL": "loud"}, "'loud' is not one of debug, info"),
    ],
)
def test_mistakes_are_one_sentence(env: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        from_env(env)


def test_logs_are_json_lines_with_fields() -> None:
    record = logging.makeLogRecord(
        {"name": "x", "levelname": "INFO", "msg": "hello %s", "args": ("you",), "job": "a/b"}
    )
    line = json.loads(JsonFormatter().format(record))
    assert (line["message"], line["level"], line["job"]) == ("hello you", "info", "a/b")


def test_the_deepest_job_that_the_api_server_takes_can_be_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(work: Coroutine[Any, Any, int], hearing: LoopHearing) -> int:
        work.close()
        json.loads('{"items": ' + "[" * 9_998 + "]" * 9_998 + "}")
        return 0

    monkeypatch.setattr(event_loop, "run", run)
    monkeypatch.setattr("bamboo_operator.process.logs.configure", lambda level: None)
    monkeypatch.setenv("POD_IP", "10.0.0.7")
    limit = sys.getrecursionlimit()
    try:
        with pytest.raises(SystemExit) as end:
            program.main()
    finally:
        sys.setrecursionlimit(limit)
    assert end.value.code == 0
