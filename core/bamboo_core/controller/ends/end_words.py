"""The end of an agent in words, with what can be done about it."""

from __future__ import annotations

from typing import NamedTuple

from bamboo_core.api import texts
from bamboo_core.api.reasons import FailureCause, failure_cause
from bamboo_core.controller.ends import causes
from bamboo_core.controller.view import Awaited, LastWords, PodView
from bamboo_core.protocol.exit_codes import ExitCode

_CONFIGURATION = "bamboo-agent: "
"""The agent's last words begin so if its own configuration is wrong: see its ``__main__``."""
_MOST_WORDS = 300
"""Bytes of what a pod's status says, so that a remedy can follow."""


class End(NamedTuple):
    """The end of an agent. start: of a failed start, else None."""

    words: LastWords
    start: Awaited | None = None
    counts: bool = True  # towards spec.runPolicy.backoffLimit
    remedy: str = ""


def words_of(pod: PodView) -> LastWords:
    """The cause and the message of a failed pod."""
    return LastWords(
        pod.agent,
        _cause(pod),
        _last_message(pod),
        is_user_error=pod.exit_code == ExitCode.USER,
        node=pod.node,
    )


def _cause(pod: PodView) -> FailureCause:
    if pod.exit_reason == FailureCause.OOM_KILLED:
        return FailureCause.OOM_KILLED
    said = failure_cause(pod.trouble)
    if said is FailureCause.AGENT_FAILED and pod.exit_code == ExitCode.USER:
        return FailureCause.USER_CODE_FAILED
    return said


def failed_start(pod: PodView) -> End:
    """A pod that ended before its agent was heard, or was of any use. Whatever can be the node's
    fault counts for the node, and not towards the limit."""
    counts, seat = causes.is_own_fault(pod), Awaited(pod.slot, pod.incarnation)
    if pod.exit_code is not None and not pod.beside.reason and counts:
        words = words_of(pod)
        if words.is_user_error and not _says_configuration(pod):
            text = f"agent {pod.name} was never heard: {words.message}"
            words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
        return End(words, seat, remedy=_start_remedy(pod))
    text = f"agent {pod.name} was never heard: {_how_it_ended(pod)}"
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node="" if counts else pod.node)
    return End(words, seat, counts, _start_remedy(pod))


def cut_short(pod: PodView, now: float) -> list[End]:
    """The end of an agent that was heard and that nobody has told to end. Early it is a failed
    start. Late a kill is a loss, since nobody knows better."""
    is_early = causes.ran_s(pod, now) < causes.PROVEN_S
    seat = Awaited(pod.slot, pod.incarnation) if is_early else None
    if not causes.may_be_lost(pod):
        text = (
            f"agent {pod.name} ended with exit code {pod.exit_code}, and the operator had not"
            " released it"
        )
        words = LastWords(pod.agent, FailureCause.AGENT_FAILED, text, node=pod.node)
        remedy = f"{_start_remedy(pod)}, be the last that ends, and end with the agent's exit code"
        return [End(words, seat, remedy=remedy)]
    if not is_early:
        return []
    text = (
        f"agent {pod.name} ended {causes.ran_s(pod, now):.0f} s after its start with exit code"
        f" {pod.exit_code}, while its node stayed: {_who_ended(pod)}"
    )
    words = LastWords(pod.agent, FailureCause.START_FAILED, text, node=pod.node)
    return [End(words, seat, counts=False, remedy=_start_remedy(pod))]


def _who_ended(pod: PodView) -> str:
    if pod.is_killed:
        return "a liveness probe or somebody has killed it"
    return "it lost the operator, or its command says so"


def _says_configuration(pod: PodView) -> bool:
    """Whether the agent itself says with exit code 2 that its configuration is wrong. Other
    programs end with that code, too."""
    is_told = failure_cause(pod.trouble) is not FailureCause.AGENT_FAILED
    return is_told or any(x.startswith(_CONFIGURATION) for x in pod.trouble.splitlines())


def _how_it_ended(pod: PodView) -> str:
    beside = pod.beside
    if beside.reason:
        where = f" on node {pod.node}" if pod.node else ""
        words = f": {texts.cut(beside.message, _MOST_WORDS)}" if beside.message else ""
        return f"its pod has ended{where} with the reason {beside.reason}{words}"
    if pod.exit_code is not None:
        return f"somebody has killed its container (exit code {pod.exit_code})"
    if beside.exit_code is not None:
        said = "" if beside.state in ("", "Error", "Completed") else f", {beside.state}"
        words = f": {texts.cut(beside.words, _MOST_WORDS)}" if beside.words else ""
        return f"container {beside.container} ended with exit code {beside.exit_code}{said}{words}"
    return "its pod has ended, and its status does not say why"


def _start_remedy(pod: PodView) -> str:
    beside, see = pod.beside, f"kubectl describe pod {pod.name}"
    if beside.is_of_pod:
        field = "spec.worker.resources and spec.worker.podTemplate"
        return f"let its containers use less, or ask for more in {field}"
    if beside.reason:
        return f"kubectl describe node {pod.node} shows what the node has and lacks"
    if pod.is_killed:
        return f"look for a failing probe with {see}"
    if pod.exit_code is not None:
        return (
            f"kubectl logs {pod.name}; if spec.worker.podTemplate has a command, it must start the"
            " agent"
        )
    if beside.container:
        return f"kubectl logs {pod.name} -c {beside.container}"
    return see


def _last_message(pod: PodView) -> str:
    if pod.beside.is_of_pod:
        return f"agent {pod.name}: {_how_it_ended(pod)}"
    words = pod.trouble or "see its log"
    if pod.exit_reason not in ("", "Error"):  # an OOMKilled container leaves no message
        words = f"{pod.exit_reason}: {words}"
    return f"agent {pod.name} ended with exit code {pod.exit_code}: {words}"
