"""The three boards: all jobs, one job, the operator."""

from __future__ import annotations

from bamboo_sim.watching.panels import Board, Panel, Query, Row, Variable

_NAMESPACES = Variable(
    "job_namespace",
    "Namespace",
    "label_values(bamboo_job_plan_epoch, job_namespace)",
    is_multi=True,
)
_FLEET = '{job_namespace=~"$job_namespace"}'
_JOB = 'job_namespace="$job_namespace",training_job="$training_job"'
_NAME = "{{job_namespace}}/{{training_job}}"
_RATE = "[$__rate_interval]"


def _one(title: str, text: str, expr: str, legend: str = "", **more: object) -> Panel:
    return Panel(title, text, (Query(expr, legend),), **more)  # type: ignore[arg-type]


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
            _one(
                "Jobs by phase",
                "BambooJobs by phase, of all namespaces.",
                "sum by (phase) (bamboo_jobs)",
                "{{phase}}",
                is_stacked=True,
                is_step=True,
            ),
            _one(
                "Time by state",
                "What jobs do with their time; the height is the number of jobs.",
                f"sum by (state) (rate(bamboo_job_time_seconds_total{_FLEET}{_RATE}))",
                "{{state}}",
                is_stacked=True,
            ),
            _one(
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
            _one(
                "Agents connected by zone",
                "Agents that are connected to the operator.",
                'sum by (zone) (bamboo_job_workers{state="connected",'
                'job_namespace=~"$job_namespace"})',
                "{{zone}}",
                is_stacked=True,
                is_step=True,
            ),
            _one(
                "Agents missing",
                "Agents wanted that are not connected, for each job.",
                f"sum by (job_namespace, training_job) (bamboo_job_workers_wanted{_FLEET})"
                " - sum by (job_namespace, training_job)"
                ' (bamboo_job_workers{state="connected",job_namespace=~"$job_namespace"})',
                _NAME,
                is_step=True,
            ),
            _one(
                "Losses per hour",
                "Agents preempted or lost with their node, by whether they announced it.",
                f"sum by (noticed) (increase(bamboo_preemptions_total{_FLEET}[1h]))",
                "noticed: {{noticed}}",
                is_step=True,
            ),
        ),
    )


def _fleet_cost() -> Row:
    return Row(
        "Cost",
        (
            _one(
                "Dollars per hour",
                "Price of the nodes with agents, and of the same nodes on demand.",
                f"sum(bamboo_job_cost_dollars_per_hour{_FLEET})",
                "now",
                unit="currencyUSD",
                is_step=True,
            ),
            _one(
                "Samples per dollar",
                "Throughput over price, for each job.",
                f"bamboo:job_samples_per_dollar:rate5m{_FLEET}",
                _NAME,
            ),
            _one(
                "Share of time that trains",
                "Time in state Training over the last hour, for each job.",
                f"bamboo:job_training_share:ratio1h{_FLEET}",
                _NAME,
                unit="percentunit",
            ),
        ),
    )


def job() -> Board:
    """One job."""
    names = Variable(
        "training_job",
        "Job",
        'label_values(bamboo_job_plan_epoch{job_namespace="$job_namespace"}, training_job)',
    )
    namespaces = Variable("job_namespace", "Namespace", _NAMESPACES.query)
    return Board(
        "bamboo-job",
        "Bamboo / Job",
        "One BambooJob: progress, agents, pauses, protection, cost.",
        (namespaces, names),
        (_progress(), _agents(), _disturbances(), _protection(), _inside()),
    )


def _progress() -> Row:
    return Row(
        "Progress",
        (
            _one(
                "Steps",
                "Committed steps, repeated ones included.",
                f"bamboo_job_steps_total{{{_JOB}}}",
                kind="stat",
                width=4,
            ),
            _one(
                "Share of time that trains",
                "Time in state Training over the last hour.",
                f"bamboo:job_training_share:ratio1h{{{_JOB}}}",
                unit="percentunit",
                kind="stat",
                width=4,
            ),
            _one(
                "Training loss",
                "Loss of the last committed step.",
                f"bamboo_job_training_loss{{{_JOB}}}",
                "loss",
            ),
            _one(
                "Samples per second",
                "Samples in committed steps per second.",
                f"rate(bamboo_job_samples_total{{{_JOB}}}{_RATE})",
                "samples/s",
            ),
        ),
    )


def _agents() -> Row:
    return Row(
        "Agents",
        (
            _one(
                "Agents by zone",
                "Connected agents.",
                f'sum by (zone) (bamboo_job_workers{{{_JOB},state="connected"}})',
                "{{zone}}",
                is_stacked=True,
                is_step=True,
            ),
            Panel(
                "Agents and pipelines",
                "Wanted, connected and training.",
                (
                    Query(f"bamboo_job_workers_wanted{{{_JOB}}}", "agents wanted"),
                    Query(
                        f'sum(bamboo_job_workers{{{_JOB},state="connected"}})', "agents connected"
                    ),
                    Query(f'bamboo_job_pipelines{{{_JOB},state="active"}}', "pipelines training"),
                    Query(f'bamboo_job_pipelines{{{_JOB},state="feasible"}}', "pipelines feasible"),
                ),
                is_step=True,
            ),
            _one(
                "Time by state",
                "What the job does with its time.",
                f"sum by (state) (rate(bamboo_job_time_seconds_total{{{_JOB}}}{_RATE}))",
                "{{state}}",
                unit="percentunit",
                is_stacked=True,
            ),
        ),
    )


def _disturbances() -> Row:
    return Row(
        "Losses and pauses",
        (
            _one(
                "Agents lost",
                "Preempted or lost with their node, by whether they announced it.",
                f"bamboo_preemptions_total{{{_JOB}}}",
                "noticed: {{noticed}}",
                width=6,
                is_step=True,
            ),
            _one(
                "Pauses by cause",
                "Stops of training for a new plan.",
                f"bamboo_job_pauses_total{{{_JOB}}} > 0 or bamboo_job_pauses_total"
                f'{{{_JOB},cause="Loss"}}',
                "{{cause}}",
                width=6,
                is_step=True,
            ),
            _one(
                "Seconds paused by phase",
                "From the stop to the next committed step.",
                f"sum by (phase) (bamboo_job_pause_seconds_total{{{_JOB}}})",
                "{{phase}}",
                unit="s",
                width=6,
                is_stacked=True,
                is_step=True,
            ),
            Panel(
                "Work done again",
                "Tasks within a step after a loss, and whole steps after a restore.",
                (
                    Query(f"bamboo_job_tasks_redone_total{{{_JOB}}}", "tasks"),
                    Query(f"bamboo_job_repeated_steps_total{{{_JOB}}}", "steps"),
                ),
                width=6,
                is_step=True,
            ),
            _one(
                "Failures of agents",
                "Agents that failed by themselves, by cause.",
                f"sum by (cause) (bamboo_job_failures_total{{{_JOB}}}) > 0"
                f" or sum(bamboo_job_failures_total{{{_JOB}}})",
                "{{cause}}",
                is_step=True,
            ),
            _one(
                "Stalls",
                "Times that training stood still although all agents lived.",
                f"bamboo_stalls_total{{{_JOB}}}",
                "{{cause}}",
                is_step=True,
            ),
            Panel(
                "Corruption and skipped steps",
                "Forwards with two results, and steps that were not finite.",
                (
                    Query(f"bamboo_job_corruptions_total{{{_JOB}}}", "corruptions"),
                    Query(f"bamboo_job_skipped_steps_total{{{_JOB}}}", "skipped steps"),
                ),
                is_step=True,
            ),
        ),
    )


def _protection() -> Row:
    return Row(
        "Protection and cost",
        (
            _one(
                "Live copies",
                "Of the layers with the fewest; with one, a loss costs a restore.",
                f"bamboo_job_least_copies{{{_JOB}}}",
                "copies",
                width=6,
                is_step=True,
            ),
            _one(
                "Age of the newest checkpoint",
                "Work that a restore would repeat.",
                f"time() - bamboo_checkpoint_last_timestamp_seconds{{{_JOB}}}",
                "age",
                unit="s",
                width=6,
            ),
            _one(
                "Attempt",
                "Number of restores.",
                f"bamboo_job_attempt{{{_JOB}}}",
                "attempt",
                width=6,
                is_step=True,
            ),
            Panel(
                "Dollars per hour",
                "Price of the nodes with agents, and of the same nodes on demand.",
                (
                    Query(f"bamboo_job_cost_dollars_per_hour{{{_JOB}}}", "now"),
                    Query(f"bamboo_job_on_demand_dollars_per_hour{{{_JOB}}}", "on demand"),
                ),
                unit="currencyUSD",
                width=6,
                is_step=True,
            ),
        ),
    )


def _inside() -> Row:
    return Row(
        "Inside a step",
        (
            _one(
                "Step",
                "Duration of the last committed step.",
                f"bamboo_job_step_seconds{{{_JOB}}}",
                "step",
                unit="s",
            ),
            _one(
                "Agents that compute",
                "Computing time of all agents per second.",
                f"rate(bamboo_job_busy_seconds_total{{{_JOB}}}{_RATE})",
                "busy",
            ),
            _one(
                "Traffic by lane",
                "What agents send each other: boundary tensors, sums of gradients, copies.",
                f"sum by (lane) (rate(bamboo_job_sent_bytes_total{{{_JOB}}}{_RATE}))",
                "{{lane}}",
                unit="Bps",
                is_stacked=True,
            ),
            _one(
                "Traffic by zones",
                "The same by the zones of both ends; clouds charge for what leaves a zone.",
                f"sum by (from_zone, to_zone) (rate(bamboo_job_sent_bytes_total{{{_JOB}}}{_RATE}))",
                "{{from_zone}} to {{to_zone}}",
                unit="Bps",
                is_stacked=True,
            ),
            _one(
                "Computed ahead",
                "Layers of a micro-batch's forward that agents compute ahead, in mode Eager.",
                f"rate(bamboo_job_slices_ahead_total{{{_JOB}}}{_RATE})",
                "slices/s",
            ),
            Panel(
                "Host memory",
                "Most that one agent has had there: computed ahead, and replicas.",
                (
                    Query(f"bamboo_job_host_memory_bytes{{{_JOB}}}", "computed ahead"),
                    Query(f"bamboo_job_replica_host_bytes{{{_JOB}}}", "replicas"),
                ),
                unit="bytes",
            ),
            _one(
                "Conditions that are true",
                "Conditions of the job, as kubectl describe shows them.",
                f"bamboo_job_condition{{{_JOB}}} == 1",
                "{{type}}",
                is_step=True,
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
            _one(
                "Leaders",
                "Must be 1.",
                "sum(bamboo_operator_leader)",
                kind="stat",
                width=4,
            ),
            _one(
                "Agents connected",
                "Open streams of agents.",
                "sum(bamboo_agent_connections)",
                "streams",
                width=10,
                is_step=True,
            ),
            _one(
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
            _one(
                "Reconciles per second",
                "By outcome. An error is repeated.",
                f"sum by (outcome) (rate(bamboo_operator_reconcile_total{_RATE}))",
                "{{outcome}}",
                is_stacked=True,
            ),
            Panel(
                "Duration of a reconcile",
                "Median and 99th percentile.",
                tuple(
                    Query(
                        f"histogram_quantile({q}, sum by (le) (rate("
                        f"bamboo_operator_reconcile_duration_seconds_bucket{_RATE})))",
                        name,
                    )
                    for q, name in ((0.5, "p50"), (0.99, "p99"))
                ),
                unit="s",
            ),
            _one(
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
            _one(
                "API requests per second",
                "By verb and code.",
                f"sum by (verb, code) (rate(bamboo_operator_kube_api_requests_total{_RATE}))",
                "{{verb}} {{code}}",
                width=6,
                is_stacked=True,
            ),
            _one(
                "Age of the newest watch event",
                "By resource; it grows while nothing changes.",
                "time() - max by (resource) (bamboo_operator_watch_last_event_timestamp_seconds)",
                "{{resource}}",
                unit="s",
                width=6,
            ),
            _one(
                "Delay of the event loop",
                "The longest of all operators.",
                "max(bamboo_operator_loop_lag_seconds)",
                "delay",
                unit="s",
                width=6,
            ),
            _one(
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
    return {"fleet": fleet(), "job": job(), "operator": operator()}
