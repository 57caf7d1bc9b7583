"""Kueue: when a job may run and with how many agents, and what becomes of its Workload."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.controller.builders import JOB, nodes, pod, spec

from bamboo_core.admission import quota
from bamboo_core.admission.quota import Deed, Grant
from bamboo_core.api.reasons import Reason
from bamboo_core.api.spec import PipelinesSpec
from bamboo_core.controller.reconcile import step
from bamboo_core.controller.view import ClusterView, Memory, TrainingView

SPEC = replace(spec(), pipelines=PipelinesSpec(count=3, stages=2, min=1))
WAITS = Grant("q", 6, 2, message="no quota is left")
ADMITTED = replace(WAITS, agents=6, is_admitted=True, has_quota=True, message="")
EVICTED = replace(ADMITTED, is_admitted=False, agents=0, is_evicted=True, message="preempted")


@pytest.mark.parametrize(
    ("grant", "why"),
    [
        (None, "its Workload for Kueue is being made"),
        (WAITS, "it waits in queue q until Kueue admits it: no quota is left"),
        (
            replace(WAITS, has_queue=False, message="LocalQueue q doesn't exist"),
            "it waits in queue q until Kueue admits it: LocalQueue q doesn't exist; create or start"
            " that queue, or put another queue's name into the label kueue.x-k8s.io/queue-name",
        ),
        (EVICTED, "Kueue has evicted it: preempted"),
        (
            replace(EVICTED, has_quota=False, message="1 more needed"),
            "it waits in queue q until Kueue admits it: 1 more needed",
        ),
        (
            replace(ADMITTED, is_of_others=True),
            "its agents ask for something else than its Workload, so it queues again",
        ),
        (
            replace(ADMITTED, is_active=False, is_of_others=True),
            "spec.active of its Workload is false: somebody has stopped it in Kueue",
        ),
        (
            replace(ADMITTED, is_finished=True),
            "its Workload is finished; delete the Workload to queue the job again",
        ),
        (
            replace(ADMITTED, agents=1),
            "Kueue has admitted it with 1 agent, and the fewest are 2; set spec.suspend to true,"
            " and then to false, to queue it again",
        ),
    ],
)
def test_a_job_is_suspended_until_it_is_admitted(grant: Grant | None, why: str) -> None:
    held, said = quota.order(SPEC, grant)
    assert held == replace(SPEC, suspend=True)
    assert said == why


@pytest.mark.parametrize(("agents", "count"), [(6, 3), (9, 3), (5, 2), (2, 1)])
def test_it_has_no_more_pipelines_than_it_has_quota_for(agents: int, count: int) -> None:
    held, why = quota.order(SPEC, replace(ADMITTED, agents=agents))
    assert (held.pipelines.count, held.suspend, why) == (count, False, "")
    assert held == replace(SPEC, pipelines=replace(SPEC.pipelines, count=count))


@pytest.mark.parametrize(("raised", "least"), [(1, 1), (2, 2), (3, 2)])
def test_a_minimum_that_is_raised_later_does_not_stop_it(raised: int, least: int) -> None:
    grant, grid = replace(ADMITTED, agents=4), replace(SPEC.pipelines, min=raised)
    held, why = quota.order(replace(SPEC, pipelines=grid), grant)
    assert (held.suspend, why) == (False, "")
    assert (held.pipelines.count, held.pipelines.min) == (2, least)


def test_the_users_suspension_needs_no_explanation() -> None:
    asleep = replace(SPEC, suspend=True)
    assert quota.order(asleep, ADMITTED) == (asleep, "")


def test_pods_go_where_the_quota_is() -> None:
    spot = {"key": "spot", "operator": "Exists"}
    grant = replace(ADMITTED, selector=(("pool", "spot"),), tolerations=(spot,))
    template = {"spec": {"nodeSelector": {"gpu": "a"}, "tolerations": [{"key": "x"}]}}
    asked = replace(SPEC, worker=replace(SPEC.worker, pod_template=template))
    held, _ = quota.order(asked, grant)
    assert held.worker.pod_template == {
        "spec": {
            "nodeSelector": {"gpu": "a", "pool": "spot"},
            "tolerations": [{"key": "x"}, spot],
        }
    }
    assert template["spec"]["nodeSelector"] == {"gpu": "a"}


ASLEEP = replace(SPEC, suspend=True)
LONGER = replace(SPEC, pipelines=PipelinesSpec(count=3, stages=8, min=1))
HIGHER = replace(SPEC, pipelines=PipelinesSpec(count=3, stages=2, min=3))


@pytest.mark.parametrize(
    ("asked", "grant", "has_pods", "has_ended", "deed"),
    [
        (SPEC, None, False, False, Deed.CREATE),
        (ASLEEP, None, False, False, Deed.NONE),
        (SPEC, WAITS, False, False, Deed.NONE),
        (SPEC, ADMITTED, True, False, Deed.NONE),
        (SPEC, ADMITTED, False, False, Deed.NONE),
        (SPEC, replace(ADMITTED, is_of_others=True), True, False, Deed.NONE),
        (SPEC, replace(ADMITTED, is_of_others=True), False, False, Deed.DELETE),
        (SPEC, replace(WAITS, is_of_others=True), False, False, Deed.DELETE),
        # Nobody gets round an administrator's stop by changing the job.
        (SPEC, replace(WAITS, is_of_others=True, is_active=False), False, False, Deed.NONE),
        # The quota is given back once the last pod has gone.
        (SPEC, EVICTED, True, False, Deed.NONE),
        (SPEC, EVICTED, False, False, Deed.RELEASE),
        (SPEC, replace(EVICTED, has_quota=False), False, False, Deed.NONE),
        (SPEC, replace(EVICTED, is_active=False), False, False, Deed.RELEASE),
        (ASLEEP, ADMITTED, True, False, Deed.NONE),
        (ASLEEP, ADMITTED, False, False, Deed.DELETE),
        # What an administrator has stopped stays stopped.
        (ASLEEP, replace(WAITS, is_active=False), False, False, Deed.NONE),
        # A Workload cannot be changed, but one that waits can be made again.
        (SPEC, replace(WAITS, queue="other"), False, False, Deed.DELETE),
        (SPEC, replace(WAITS, most=8), False, False, Deed.DELETE),
        (SPEC, replace(WAITS, least=4), False, False, Deed.DELETE),
        (SPEC, replace(ADMITTED, most=8), False, False, Deed.NONE),
        (HIGHER, replace(ADMITTED, agents=4), False, False, Deed.NONE),
        # Quota for less than one pipeline is of no use.
        (LONGER, ADMITTED, True, False, Deed.NONE),
        (LONGER, ADMITTED, False, False, Deed.DELETE),
        (LONGER, replace(ADMITTED, is_admitted=False, agents=0), False, False, Deed.NONE),
        # The Workload would be the same again.
        (SPEC, replace(ADMITTED, agents=1), False, False, Deed.NONE),
        (SPEC, ADMITTED, True, True, Deed.NONE),
        (SPEC, ADMITTED, False, True, Deed.FINISH),
        (SPEC, replace(ADMITTED, is_finished=True), False, True, Deed.NONE),
        (SPEC, None, False, True, Deed.NONE),
    ],
)
def test_what_is_done_about_the_workload(
    asked: object, grant: Grant | None, has_pods: bool, has_ended: bool, deed: Deed
) -> None:
    found = quota.deed(
        asked,
        grant,
        "q",
        has_pods=has_pods,
        has_ended=has_ended,
        is_working=False,  # type: ignore[arg-type]
    )
    assert found is deed


@pytest.mark.parametrize(
    ("grant", "is_working", "deed"),
    [
        (ADMITTED, True, Deed.READY),
        (replace(ADMITTED, is_ready=True), True, Deed.NONE),
        (replace(ADMITTED, is_ready=True), False, Deed.READY),
        (ADMITTED, False, Deed.NONE),
        # Kueue asks only about jobs that it has admitted.
        (replace(EVICTED, is_ready=True), False, Deed.NONE),
        (replace(ADMITTED, is_finished=True), True, Deed.NONE),
    ],
)
def test_kueue_hears_whether_the_job_works(grant: Grant, is_working: bool, deed: Deed) -> None:
    found = quota.deed(SPEC, grant, "q", has_pods=True, has_ended=False, is_working=is_working)
    assert found is deed


def test_conditions_name_kueue_not_the_user() -> None:
    held, why = quota.order(SPEC, WAITS)
    job = replace(JOB, queued=why)

    def found(*pods: object) -> dict[str, tuple[bool | None, str, str]]:
        view = ClusterView(nodes(a=4, b=4), pods)  # type: ignore[arg-type]
        status = step(held, view, TrainingView(), Memory(), job=job, now=1.0).status
        return {c.type: (c.status, c.reason, c.message) for c in status.conditions}

    assert found()["Suspended"] == (True, Reason.QUEUED_BY_KUEUE, why)
    assert found()["Running"] == (False, Reason.QUEUED_BY_KUEUE, why)
    assert found(pod())["Suspended"][:2] == (False, Reason.RESUMED)
