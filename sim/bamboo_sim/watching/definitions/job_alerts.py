"""Alerts about one job. Each has a page in docs/runbooks."""

from __future__ import annotations

from bamboo_sim.watching.definitions.alert import BY_JOB, DESCRIBE, JOB, WHO, Alert, condition

_ALMOST = 0.95
"""Share of a window that stands for all of it: scrapes do not fall on its ends."""
_LONG_STEP = 3
"""A step that takes more than the window by this number is no standstill after one window."""

_TRAINING = 'state="Training"'
_NOT_TRAINING = 'state!~"Training|Suspended"'


def _spent(states: str, window: str) -> str:
    """Jobs that have spent the whole window in these states. It counts while nobody leads, too."""
    spent = f"increase(bamboo:job_time_seconds:max{{{states}}}[${{{window}}}])"
    return f"sum {BY_JOB} ({spent}) > {_ALMOST} * ${{{window}.s}}"


def _trains_without_a_step(window: str) -> str:
    trained = _spent(_TRAINING, window)
    return f"increase(bamboo:job_steps:max[${{{window}}}]) == 0 and {trained}"


_NEWEST = f"max {BY_JOB} (bamboo_checkpoint_last_timestamp_seconds)"

PROGRESS = (
    Alert(
        "BambooJobStandsStill",
        f"({_trains_without_a_step('window')}"
        f" and max {BY_JOB} (bamboo_job_plan_steps) > 0"
        f" unless max {BY_JOB} (bamboo_job_step_seconds) > ${{window.s}} / {_LONG_STEP}"
        f" or {_trains_without_a_step('firstStepWindow')})"
        f" and {condition('Running', 1)}",
        "5m",
        "critical",
        f"{WHO} does not make progress",
        "It trains, but has committed no step for ${window}; or for ${firstStepWindow}, if no step"
        " of the plan in force is committed yet or a step takes long.",
        f"{DESCRIBE}: the condition Stalled says which agent waits for what.",
        {"window": "15m", "firstStepWindow": "1h"},
    ),
    Alert(
        "BambooJobStalled",
        f"max by ({JOB}, reason) (bamboo_job_condition_reason"
        '{type="Stalled",status="True",reason!="StartsFail"}) == 1',
        "5m",
        "critical",
        f"{WHO} is stuck: {{{{ $labels.reason }}}}",
        "The condition Stalled is true: something does not resolve by itself.",
        f"{DESCRIBE}: the message of the condition Stalled names the agent and the cause.",
    ),
    Alert(
        "BambooStartsFail",
        f"max {BY_JOB} (bamboo_job_condition_reason"
        '{type="Stalled",status="True",reason="StartsFail"}) == 1'
        f" and sum {BY_JOB} (increase(bamboo:job_failures:max[${{window}}])) > ${{starts}} - 0.5"
        f" or max {BY_JOB}"
        ' (increase(bamboo:job_failures:max{cause="StartFailed"}[${window}])) > ${starts} - 0.5'
        " and bamboo:job_missing_agents:max > 0",
        "5m",
        "warning",
        f"{WHO}: agents do not start",
        "Pods of agents end before the operator has heard the agents, or soon afterwards without an"
        " order, at least ${starts} in ${window}, and agents are still missing.",
        f"{DESCRIBE}: the message of the condition Stalled has the last end and what to do.",
        {"window": "20m", "starts": 3},  # the longest pause between two is 5 minutes
    ),
    Alert(
        "BambooJobNotRunning",
        f"{_spent(_NOT_TRAINING, 'window')}"
        f' unless max {BY_JOB} (bamboo_job_condition{{type=~"Running|Suspended|Complete|Failed"}})'
        " == 1"
        f' unless min {BY_JOB} (bamboo_job_condition{{type=~"Accepted|CapacityAvailable"}}) == 0',
        "0s",
        "warning",
        f"{WHO} has not trained for ${{window}}",
        "It is accepted and its agents have nodes, but they do not come so far that training"
        " begins or goes on.",
        "kubectl -n {{ $labels.job_namespace }} get pods"
        " -l bamboo.dev/job={{ $labels.training_job }}: a pod in Init or ContainerCreating waits"
        " for its own containers or volumes.",
        {"window": "1h"},
    ),
    Alert(
        "BambooJobNotAccepted",
        condition("Accepted", 0),
        "10m",
        "warning",
        f"{WHO} is not accepted",
        "Its spec cannot be used, the API server rejects its pods, or the operator has no room for"
        " its plans. The condition Accepted says why.",
        f"{DESCRIBE}: the condition Accepted names the field, or what the API server says.",
    ),
    Alert(
        "BambooJobWaitsForCapacity",
        condition("CapacityAvailable", 0),
        "30m",
        "warning",
        f"{WHO} has waited for nodes for ${{for}}",
        "Some agents have no node. The condition CapacityAvailable says why.",
        "bamboo explain {{ $labels.training_job }} -n {{ $labels.job_namespace }}: it says which"
        " pods wait, what the nodes lack, and what would help.",
    ),
    Alert(
        "BambooJobSlow",
        "min_over_time(bamboo:job_step_seconds:max[${window}])"
        " > ${times} * quantile_over_time(0.5, bamboo:job_step_seconds:max[${past}:5m])"
        " and max_over_time(bamboo:job_missing_agents:max[${window}]) == 0"
        " and bamboo:job_agents_wanted:max >= max_over_time(bamboo:job_agents_wanted:max[${past}])"
        f" and {condition('Running', 1)}",
        "10m",
        "warning",
        f"{WHO} trains slowly",
        "For ${window} each step has taken more than ${times} times as long as most steps of the"
        " last ${past}, although no agent is missing.",
        'Open the board Bamboo / Job and compare "Step by agent": one slow agent holds up all.',
        {"window": "10m", "past": "1d", "times": 5},
    ),
    Alert(
        "BambooPausesTooLong",
        "bamboo:job_pause_share:ratio1h > ${share}",
        "30m",
        "warning",
        f"{WHO} has spent much of the last hour in pauses",
        "Of the last hour, more than the share ${share} went by between stops of training and the"
        " next committed step.",
        'Open the board Bamboo / Job and look at "Pauses by cause".',
        {"share": 0.2},
    ),
    Alert(
        "BambooJobFailed",
        condition("Failed", 1),
        "0s",
        "warning",
        f"{WHO} has failed",
        "The job has failed and stays failed.",
        f"{DESCRIBE}: the condition Failed has the reason and the last words.",
    ),
)

PROTECTION = (
    Alert(
        "BambooCheckpointTooOld",
        f"max {BY_JOB} (bamboo_checkpoint_behind_steps)"
        f" > ${{intervals}} * max {BY_JOB} (bamboo_checkpoint_interval_steps)"
        f" and (time() - {_NEWEST} > ${{atLeast.s}}"
        f" or max {BY_JOB} (bamboo_job_time_seconds_total{{{_TRAINING}}}) > ${{atLeast.s}}"
        f" unless {_NEWEST})"
        f" and {condition('Running', 1)}",
        "5m",
        "warning",
        f"{WHO} writes no new checkpoint",
        "It has trained for more than ${intervals} times spec.checkpoint.everySteps since its"
        " newest complete checkpoint, or since its start. If a layer loses its last copy, it"
        " repeats that work.",
        f"{DESCRIBE}: the condition Checkpointed has the error, if files cannot be written.",
        {"intervals": 2, "atLeast": "15m"},
    ),
    Alert(
        "BambooCheckpointFails",
        f"max {BY_JOB} (bamboo_job_condition_reason"
        '{type="Checkpointed",reason="WriteFailed"}) == 1',
        "10m",
        "warning",
        f"{WHO} cannot write checkpoints",
        "A file of a checkpoint cannot be written, perhaps because its disk is full. Agents try"
        " again.",
        f"{DESCRIBE}: the condition Checkpointed names the agent and the error.",
    ),
    Alert(
        "BambooOneLossFromRestore",
        f"max {BY_JOB} (bamboo_job_least_copies) == 1 and {condition('Degraded', 1)}",
        "10m",
        "warning",
        f"{WHO}: the loss of one agent would cost a restore",
        "The job asks for redundancy, but some layer has only one live copy.",
        f"{DESCRIBE}: the conditions Degraded and CapacityAvailable say whether agents are"
        " missing. Drain no node of the job meanwhile.",
    ),
    Alert(
        "BambooWorkRepeated",
        "increase(bamboo:job_repeated_steps:max[${window}]) > ${steps}",
        "0s",
        "warning",
        f"{WHO} repeats steps that were committed",
        "Losses were more than the redundancy bears, so a new attempt began from a checkpoint, or"
        " from the start.",
        "kubectl -n {{ $labels.job_namespace }} get events --field-selector"
        " involvedObject.name={{ $labels.training_job }},reason=AgentLost: were neighbours lost"
        " together?",
        {"window": "1h", "steps": 0},
    ),
    Alert(
        "BambooUnannouncedLosses",
        f'sum {BY_JOB} (increase(bamboo:job_losses:max{{noticed="false"}}[${{window}}]))'
        " > ${losses}"
        f' and sum {BY_JOB} (increase(bamboo:job_losses:max{{noticed="true"}}[${{window}}])) == 0',
        "0s",
        "info",
        f"{WHO} loses agents without notice",
        "Of more than ${losses} losses in ${window} none was announced: perhaps the cloud's"
        " notices do not reach the agents.",
        "Check that pods can reach the cloud's metadata server, or that a termination handler"
        " taints nodes.",
        {"window": "6h", "losses": 4},
    ),
    Alert(
        "BambooAgentsFail",
        f'sum {BY_JOB} (increase(bamboo:job_failures:max{{cause!="StartFailed"}}[${{window}}]))'
        " > ${failures}",
        "0s",
        "warning",
        f"{WHO}: agents fail by themselves",
        "More than ${failures} agents failed in ${window}. Too many failures end the job.",
        f"{DESCRIBE}: status.failures has causes, nodes and last words.",
        {"window": "30m", "failures": 3},
    ),
    Alert(
        "BambooCorruptionFound",
        "increase(bamboo:job_corruptions:max[${window}]) > 0"
        f' or sum {BY_JOB} (increase(bamboo:job_failures:max{{cause="Corruption"}}[${{window}}]))'
        " > 0",
        "0s",
        "critical",
        f"{WHO}: two agents computed different bits",
        "A device or its memory is probably faulty.",
        "kubectl -n {{ $labels.job_namespace }} get events --field-selector"
        " involvedObject.name={{ $labels.training_job }},reason=Corruption: it names the agents;"
        " cordon the node of a convicted one.",
        {"window": "1h"},
    ),
)
