"""Alerts about the operator. Each has a page in docs/runbooks."""

from __future__ import annotations

from bamboo_sim.watching.definitions.alert import Alert

_PODS = "kubectl -n ${release.namespace} get pods -l app.kubernetes.io/name=bamboo-operator"
_RESTARTS = (
    "increase(kube_pod_container_status_restarts_total"
    '{namespace="${release.namespace}",pod=~"${release.name}-.+",container="operator"}[${window}])'
)

OPERATOR = (
    Alert(
        "BambooNoLeader",
        "sum(bamboo_operator_leader) == 0"
        " or absent(sum(bamboo_operator_leader))"
        " and max(max_over_time(bamboo_operator_leader[${seenWithin}])) == 1",
        "2m",
        "critical",
        "No operator leads",
        "Training goes on, but after a loss agents wait for a plan, and no job starts.",
        f"{_PODS}: are there pods, and are they ready?",
        {"seenWithin": "1d"},
    ),
    Alert(
        "BambooOperatorMissing",
        "absent(sum(bamboo_operator_leader))",
        "15m",
        "warning",
        "Prometheus sees no operator",
        "No operator runs, Prometheus does not scrape it, or its target has other labels than the"
        " chart's value monitoring.targetLabels. Until then no other alert about jobs can fire.",
        f"{_PODS}. If they run, look for bamboo_operator_leader in Prometheus.",
    ),
    Alert(
        "BambooOperatorRestarts",
        "max(changes(bamboo_operator_start_timestamp_seconds[${window}])) > ${restarts} - 0.5"
        f" or max({_RESTARTS}) > ${{restarts}} - 0.5",
        "0s",
        "warning",
        "The operator's container restarts again and again",
        "In ${window} the container of one operator pod has begun anew at least ${restarts} times.",
        "kubectl -n ${release.namespace} logs --previous"
        " -l app.kubernetes.io/name=bamboo-operator --tail 50: the last lines say why.",
        {"window": "30m", "restarts": 3},
    ),
    Alert(
        "BambooOperatorFails",
        'sum(rate(bamboo_operator_reconcile_total{outcome="error"}[${window}])) > ${perSecond}',
        "10m",
        "warning",
        "Reconciles fail",
        "The operator gets errors for some job again and again.",
        "kubectl get bj -A: a job with such errors has the reason ReconcileError in its condition"
        " Stalled.",
        {"window": "10m", "perSecond": 0.05},
    ),
)
