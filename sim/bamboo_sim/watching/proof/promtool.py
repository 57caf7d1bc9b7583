"""Unit tests of rules: the form that promtool reads, and its answers."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bamboo_devcluster.programs import prometheus

_FIRED = re.compile(r'alertname="(\w+)"')
_WRONG = re.compile(r"alertname: (\w+), time:")

Test = Mapping[str, Any]


def series(name: str, labels: Mapping[str, str], values: str) -> dict[str, str]:
    """An input: its values in promtool's notation, one for each minute."""
    inside = ",".join(f'{k}="{v}"' for k, v in labels.items())
    return {"series": f"{name}{{{inside}}}", "values": values}


def test(name: str, inputs: Sequence[Mapping[str, str]], **asked: Any) -> dict[str, Any]:
    """A test with its inputs. asked: as promtool calls it, such as ``alert_rule_test``."""
    return {"name": name, "interval": "1m", "input_series": list(inputs), **asked}


def fired_until(minute: int, expected: Sequence[str]) -> dict[str, Any]:
    """The alerts that must have fired until that minute, and no others."""
    return {
        "expr": 'count by (alertname) (max_over_time(ALERTS{alertstate="firing"}[1d]))',
        "eval_time": f"{minute}m",
        "exp_samples": [{"labels": f'{{alertname="{x}"}}', "value": 1} for x in sorted(expected)],
    }


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run promtool; the caller looks at what came of it."""
    program = prometheus.ensure(print)["promtool"]
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def try_rules(
    folder: Path, text: str, tests: Sequence[Test], every: str = "1m"
) -> subprocess.CompletedProcess[str]:
    """Try the rules on the tests, in an empty folder. every: time between two evaluations."""
    body = {"rule_files": ["rules.yaml"], "evaluation_interval": every, "tests": list(tests)}
    (folder / "rules.yaml").write_text(text, encoding="utf-8")
    (folder / "tests.yaml").write_text(yaml.safe_dump(body, sort_keys=False), encoding="utf-8")
    return run("test", "rules", str(folder / "tests.yaml"))


def fired(done: subprocess.CompletedProcess[str]) -> frozenset[str]:
    """Alerts that had fired, in the answer to a :func:`fired_until` that failed."""
    return frozenset(_FIRED.findall("".join(re.findall(r"got:(.*)", done.stdout + done.stderr))))


def wrong(done: subprocess.CompletedProcess[str]) -> frozenset[str]:
    """Alerts that were not as an ``alert_rule_test`` expected."""
    return frozenset(_WRONG.findall(done.stdout + done.stderr))
