"""Attacks the operator and agents with made-up messages and manifests; counts what goes wrong.

    python benchmarks/security.py [--cases 10000] [--seed 1] [--port NAME|all] [--no-record]

Ports: an agent's data port, its process groups, the operator's port for agents, an agent's liveness
port, the ports for health and metrics of both; ``manifests`` are BambooJobs. Each gets at least
``cases`` of them. A breach is a process that ends, does not answer an honest client, logs an
exception or grows by more than 400 MB (ports for liveness and health: 200 MB), a job of another
that changes in any way, and a pod with more than it may have.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from bamboo_sim.attack import (
    data_port,
    group_port,
    health_ports,
    liveness_port,
    manifests,
    operator_port,
)
from bamboo_sim.programs import arguments, results_file
from bamboo_sim.programs.sample import Sample, TooSmallError

PORTS = {
    "data": data_port.run,
    "groups": group_port.run,
    "operator": operator_port.run,
    "liveness": liveness_port.run,
    "health": health_ports.run,
    "manifests": manifests.run,
}


def main() -> int:
    """Attack, write the file, print the figures. 1 if there was a breach, or less than was asked
    for."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--cases", type=arguments.at_least(1), default=10_000)
    parser.add_argument("--seed", type=arguments.at_least(0), default=1)
    parser.add_argument("--port", choices=[*PORTS, "all"], default="all")
    parser.add_argument("--no-record", action="store_true", help="write no result")
    given = parser.parse_args()
    names = [*PORTS] if given.port == "all" else [given.port]
    found: dict[str, Any] = {name: PORTS[name](given.cases, given.seed) for name in names}
    figures = {
        "cases": sum(sum(x["cases"].values()) for x in found.values()),
        "breaches": sum(sum(x["breaches"].values()) for x in found.values()),
    }
    for name, x in found.items():
        figures[f"{name}_cases"] = sum(x["cases"].values())
        figures[f"{name}_breaches"] = sum(x["breaches"].values())
        figures[f"{name}_crashes"] = x["breaches"].get("crash", 0)
        figures[f"{name}_hangs"] = x["breaches"].get("hang", 0)
    if "manifests" in found:
        figures["manifests_accepted"] = found["manifests"]["cases"].get("accepted", 0)
        figures["manifests_pods"] = found["manifests"]["pods"]
        figures["manifests_slowest_cpu_s"] = found["manifests"]["slowest_cpu_s"]
    tried = Sample("the attack", dict.fromkeys(found, given.cases), 0.0)
    for name, x in found.items():
        tried.add(name, sum(x["cases"].values()))
    print(json.dumps(found, indent=1))
    if given.port == "all" and not given.no_record:
        path = results_file.write("security", samples=found, figures=figures)
        print(f"-> {path}")
    print(*(f"{name}: {value}" for name, value in figures.items()), sep="\n")
    try:
        tried.check()
    except TooSmallError as error:
        print(f"bamboo: {error}", file=sys.stderr)
        return 1
    return 1 if figures["breaches"] else 0


if __name__ == "__main__":
    sys.exit(main())
