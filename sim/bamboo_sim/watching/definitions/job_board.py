"""The board of one job.

One operator after the other exports a job's series, so each query says how to join them.
"""

from __future__ import annotations

from bamboo_sim.watching.definitions.panels import (
    RATE,
    TIMELINE,
    Board,
    Panel,
    Query,
    Row,
    Variable,
    one,
)

NAMESPACES = "label_values(bamboo_job_plan_epoch, job_namespace)"
_JOB = 'job_namespace="$job_namespace",training_job="$training_job"'


def _series(name: str, labels: str = "") -> str:
    return f"{name}{{{_JOB}{',' if labels else ''}{labels}}}"


def _max(name: str, *by: str, labels: str = "") -> str:
    each = f" by ({', '.join(by)}) " if by else ""
    return f"max{each}({_series(name, labels)})"


def job() -> Board:
    """One job."""
    names = Variable(
        "training_job",
        "Job",
        'label_values(bamboo_job_plan_epoch{job_namespace="$job_namespace"}, training_job)',
    )
    namespaces = Variable("job_namespace", "Namespace", NAMESPACES)
    return Board(
        "bamboo-job",
        "Bamboo / Job",
        "One BambooJob: progress, agents, pauses, protection, cost.",
        (namespaces, names),
        (_progress(), _agents(), _disturbances(), _protection(), _inside(), _seldom()),
    )


def _progress() -> Row:
    return Row(
        "Progress",
        (
            one(
                "Steps",
                "Committed steps, repeated ones included.",
                _max("bamboo_job_steps_total"),
                kind="stat",
                width=4,
            ),
            one(
                "Share of time that trains",
                "Time in state Training over the last hour.",
                _series("bamboo:job_training_share:ratio1h"),
                unit="percentunit",
                kind="stat",
                width=4,
            ),
            one(
                "Training loss",
                "Loss of the last committed step.",
                _max("bamboo_job_training_loss"),
                "loss",
            ),
            one(
                "Samples per second",
                "Samples in committed steps per second.",
                f"rate({_series('bamboo:job_samples:max')}{RATE})",
                "samples/s",
            ),
        ),
    )


def _agents() -> Row:
    connected = _max("bamboo_job_workers", "zone", labels='state="connected"')
    return Row(
        "Agents",
        (
            one(
                "Agents by zone",
                "Connected agents.",
                connected,
                "{{zone}}",
                is_stacked=True,
                is_step=True,
            ),
            Panel(
                "Agents and pipelines",
                "Wanted, connected and training.",
                (
                    Query(_max("bamboo_job_workers_wanted"), "agents wanted"),
                    Query(f"sum({connected})", "agents connected"),
                    Query(
                        _max("bamboo_job_pipelines", labels='state="active"'), "pipelines training"
                    ),
                    Query(
                        _max("bamboo_job_pipelines", labels='state="feasible"'),
                        "pipelines feasible",
                    ),
                ),
                is_step=True,
            ),
            one(
                "Time by state",
                "What the job does with its time.",
                f"sum by (state) (rate({_series('bamboo:job_time_seconds:max')}{RATE}))",
                "{{state}}",
                unit="percentunit",
                is_stacked=True,
            ),
        ),
    )


def _disturbances() -> Row:
    pauses = _max("bamboo_job_pauses_total", "cause")
    after_losses = _max("bamboo_job_pauses_total", "cause", labels='cause="Loss"')
    return Row(
        "Losses and pauses",
        (
            one(
                "Agents lost",
                "Preempted or lost with their node, by whether they announced it.",
                _max("bamboo_preemptions_total", "noticed"),
                "noticed: {{noticed}}",
                width=6,
                is_step=True,
            ),
            one(
                "Pauses by cause",
                "Stops of training for a new plan.",
                f"{pauses} > 0 or {after_losses}",
                "{{cause}}",
                width=6,
                is_step=True,
            ),
            one(
                "Seconds paused by phase",
                "From the stop to the next committed step.",
                f"sum by (phase) ({_max('bamboo_job_pause_seconds_total', 'cause', 'phase')})",
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
                    Query(_max("bamboo_job_tasks_redone_total"), "tasks"),
                    Query(_max("bamboo_job_repeated_steps_total"), "steps"),
                ),
                width=6,
                is_step=True,
            ),
            one(
                "Conditions that are true",
                "Conditions of the job, as kubectl describe shows them.",
                _max("bamboo_job_condition", "type"),
                "{{type}}",
                kind=TIMELINE,
                width=24,
                height=9,
            ),
        ),
    )


def _protection() -> Row:
    return Row(
        "Protection and cost",
        (
            one(
                "Live copies",
                "Of the layers with the fewest; with one, a loss costs a restore.",
                _max("bamboo_job_least_copies"),
                "copies",
                is_step=True,
            ),
            one(
                "Age of the newest checkpoint",
                "Work that a restore would repeat.",
                f"time() - {_max('bamboo_checkpoint_last_timestamp_seconds')}",
                "age",
                unit="s",
            ),
            Panel(
                "Dollars per hour",
                "Price of the nodes with agents, and of the same nodes on demand.",
                (
                    Query(_max("bamboo_job_cost_dollars_per_hour"), "now"),
                    Query(_max("bamboo_job_on_demand_dollars_per_hour"), "on demand"),
                ),
                unit="currencyUSD",
                is_step=True,
            ),
        ),
    )


def _inside() -> Row:
    return Row(
        "Inside a step",
        (
            one(
                "Step",
                "Duration of the last committed step.",
                _max("bamboo_job_step_seconds"),
                "step",
                unit="s",
            ),
            one(
                "Step by agent",
                "Duration of the last committed step, as each agent saw it. Needs the PodMonitor.",
                _max("bamboo_agent_step_seconds", "agent"),
                "{{agent}}",
                unit="s",
            ),
            one(
                "Busy time by agent",
                "Share of time that each agent computes. Needs the PodMonitor.",
                f"sum by (agent) (rate({_series('bamboo_agent_compute_seconds_total')}{RATE}))",
                "{{agent}}",
                unit="percentunit",
            ),
            one(
                "Agents that compute",
                "Computing time of all agents per second.",
                f"sum(rate({_series('bamboo_job_busy_seconds_total')}{RATE}))",
                "busy",
            ),
            one(
                "Traffic by lane",
                "What agents send each other: boundary tensors, sums of gradients, copies.",
                f"sum by (lane) (rate({_series('bamboo_job_sent_bytes_total')}{RATE}))",
                "{{lane}}",
                unit="Bps",
                is_stacked=True,
            ),
            one(
                "Traffic by zones",
                "The same by the zones of both ends; clouds charge for what leaves a zone.",
                "sum by (from_zone, to_zone) (rate("
                f"{_series('bamboo_job_sent_bytes_total')}{RATE}))",
                "{{from_zone}} to {{to_zone}}",
                unit="Bps",
                is_stacked=True,
            ),
        ),
    )


def _seldom() -> Row:
    failures = _max("bamboo_job_failures_total", "cause")
    return Row(
        "Seldom: failures, stalls, wrong bits, restores, host memory",
        (
            one(
                "Failures of agents",
                "Agents that failed by themselves, by cause.",
                f"{failures} > 0 or sum({failures})",
                "{{cause}}",
                is_step=True,
            ),
            one(
                "Stalls",
                "Times that training stood still although all agents lived.",
                _max("bamboo_stalls_total", "cause"),
                "{{cause}}",
                is_step=True,
            ),
            Panel(
                "Corruption and skipped steps",
                "Forwards with two results, and steps that were not finite.",
                (
                    Query(_max("bamboo_job_corruptions_total"), "corruptions"),
                    Query(_max("bamboo_job_skipped_steps_total"), "skipped steps"),
                ),
                is_step=True,
            ),
            one(
                "Attempt",
                "Number of restores.",
                _max("bamboo_job_attempt"),
                "attempt",
                is_step=True,
            ),
            one(
                "Computed ahead",
                "Layers of a micro-batch's forward that agents compute ahead, in mode Eager.",
                f"sum(rate({_series('bamboo_job_slices_ahead_total')}{RATE}))",
                "slices/s",
            ),
            Panel(
                "Host memory",
                "Most that one agent has had there: computed ahead, and replicas.",
                (
                    Query(_max("bamboo_job_host_memory_bytes"), "computed ahead"),
                    Query(_max("bamboo_job_replica_host_bytes"), "replicas"),
                ),
                unit="bytes",
            ),
        ),
        is_collapsed=True,
    )
