"""The three boards: all jobs, one job (in job_board.py), the operator."""

from __future__ import annotations

from bamboo_sim.watching.definitions import job_board, source
from bamboo_sim.watching.definitions.panels import RATE, Board, Panel, Query, Row, Variable, one

_NAMESPACES = Variable("job_namespace", "Namespace", job_board.NAMESPACES, is_multi=True)
_FLEET = '{job_namespace=~"$job_namespace"}'
_CONNECTED = 'bamboo_job_workers{state="connected",job_namespace=~"$job_namespace"}'
_BY_JOB = "by (job_namespace, training_job)"
_NAME = "{{job_namespace}}/{{training_job}}"


def fleet() -> Board:
    """All jobs of the chosen namespaces."""
    return Board(
        "bamboo-fleet",
        "Bamboo / Fleet",
        "All BambooJobs: how many, on how many agents, how fast, at what price.",
        (_NAMESPACES,),
        (
            _jobs(),
            _fleet_agents(),
            _fleet_cost(),
        ),
    )


def _jobs() -> Row:
    return Row(
        "Jobs",
        (
            one(
                "Jobs by phase",
                "BambooJobs by phase, of all namespaces.",
                "sum by (phase) (bamboo_jobs)",
                "{{phase}}",
                is_stacked=True,
                is_step=True,
            ),
            one(
                "Time by state",
                "What jobs do with their time; the height is the number of jobs.",
                f"sum by (state) (rate(bamboo:job_time_seconds:max{_FLEET}{RATE}))",
                "{{state}}",
                is_stacked=True,
            ),
            one(
                "Throughput",
                "Samples in committed steps per second, for each job.",
                f"bamboo:job_samples:rate5m{_FLEET}",
                _NAME,
            ),
        ),
    )


def _fleet_agents() -> Row:
    return Row(
        "Agents",
        (
            one(
                "Agents connected by zone",
                "Agents that are connected to the operator.",
                f"sum by (zone) ({_CONNECTED})",
                "{{zone}}",
                is_stacked=True,
                is_step=True,
            ),
            one(
                "Agents missing",
                "Agents wanted that are not connected, for each job.",
                f"sum {_BY_JOB} (bamboo_job_workers_wanted{_FLEET}) - sum {_BY_JOB} ({_CONNECTED})"
                # a job without any pod has no agents by zone
                f" or sum {_BY_JOB} (bamboo_job_workers_wanted{_FLEET})",
                _NAME,
                is_step=True,
            ),
            one(
                "Losses per hour",
                "Members of jobs preempted or lost with their node, by whether they announced it.",
                f"sum by (noticed) (increase(bamboo:job_losses:max{_FLEET}[1h]))",
                "noticed: {{noticed}}",
                is_step=True,
            ),
        ),
    )


def _fleet_cost() -> Row:
    return Row(
        "Cost",
        (
            Panel(
                "Dollars per hour",
                "Price of the nodes with agents, and of the same nodes on demand.",
                (
                    Query(f"sum(bamboo_job_cost_dollars_per_hour{_FLEET})", "now"),
                    Query(f"sum(bamboo_job_on_demand_dollars_per_hour{_FLEET})", "on demand"),
                ),
                unit="currencyUSD",
                is_step=True,
            ),
            one(
                "Samples per dollar",
                "Throughput over price, for each job.",
                f"bamboo:job_samples_per_dollar:rate5m{_FLEET}",
                _NAME,
            ),
            one(
                "Share of time that trains",
                "Time in state Training over the last hour, for each job.",
                f"bamboo:job_training_share:ratio1h{_FLEET}",
                _NAME,
                unit="percentunit",
            ),
        ),
    )


def operator() -> Board:
    """The operator itself."""
    return Board(
        "bamboo-operator",
        "Bamboo / Operator",
        "The operator: who leads, how fast it reconciles, what the API server answers.",
        (),
        (
            _leadership(),
            _reconciles(),
            _outside(),
        ),
    )


def _leadership() -> Row:
    return Row(
        "Leadership",
        (
            one(
                "Leaders",
                "Must be 1.",
                "sum(bamboo_operator_leader)",
                kind="stat",
                width=4,
            ),
            one(
                "Agents connected",
                "Open streams of agents.",
                "sum(bamboo_agent_connections)",
                "streams",
                width=10,
                is_step=True,
            ),
            one(
                "Versions",
                "Operators by version.",
                "sum by (version) (bamboo_operator_build_info)",
                "{{version}}",
                width=10,
                is_step=True,
            ),
        ),
    )


def _reconciles() -> Row:
    return Row(
        "Reconciles",
        (
            one(
                "Reconciles per second",
                "By outcome. An error is repeated.",
                f"sum by (outcome) (rate(bamboo_operator_reconcile_total{RATE}))",
                "{{outcome}}",
                is_stacked=True,
            ),
            Panel(
                "Duration of a reconcile",
                "Median and 99th percentile.",
                tuple(
                    Query(
                        f"histogram_quantile({q}, sum by (le) (rate("
                        f"bamboo_operator_reconcile_duration_seconds_bucket{RATE})))",
                        name,
                    )
                    for q, name in ((0.5, "p50"), (0.99, "p99"))
                ),
                unit="s",
            ),
            one(
                "Jobs in the queue",
                "Jobs that wait for a reconcile.",
                "sum(bamboo_operator_queue_depth)",
                "jobs",
                is_step=True,
            ),
        ),
    )


def _outside() -> Row:
    return Row(
        "API server and event loop",
        (
            one(
                "API requests per second",
                "By verb and code.",
                f"sum by (verb, code) (rate(bamboo_operator_kube_api_requests_total{RATE}))",
                "{{verb}} {{code}}",
                width=6,
                is_stacked=True,
            ),
            one(
                "Age of the newest watch event",
                "By resource; it grows while nothing changes.",
                "time() - max by (resource) (bamboo_operator_watch_last_event_timestamp_seconds)",
                "{{resource}}",
                unit="s",
                width=6,
            ),
            one(
                "Delay of the event loop",
                "The longest of all operators.",
                "max(bamboo_operator_loop_lag_seconds)",
                "delay",
                unit="s",
                width=6,
            ),
            one(
                "Pods deleted by force",
                "Their node did not confirm the end.",
                "sum(bamboo_stuck_terminating_forced_total)",
                "pods",
                width=6,
                is_step=True,
            ),
        ),
    )


def every() -> dict[str, Board]:
    """All boards by the name of their file."""
    found = {"fleet": fleet(), "job": job_board.job(), "operator": operator()}
    return {name: source.bound_board(board) for name, board in found.items()}
