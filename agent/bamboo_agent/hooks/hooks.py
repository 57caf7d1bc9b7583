"""The hooks of a job on one agent. Its supervisor tells it plans and committed steps."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import replace

from bamboo_agent.hooks.hook import Hook
from bamboo_agent.hooks.process import HookProcess, Running
from bamboo_agent.hooks.record import record_of
from bamboo_agent.hooks.telling import Telling
from bamboo_core.api.spec import JobSpec
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import Directive, HookWarning, Progress

log = logging.getLogger(__name__)

TURN_S = 0.1
BEGIN_S = 90.0
"""More time at the end for a hook that has not begun: on a busy machine its imports take long."""


class Hooks:
    """Nothing here raises or waits, whatever users' code does. Without hooks it does nothing."""

    def __init__(
        self,
        agent: AgentId,
        job: str,
        spec: JobSpec,
        *,
        start: Callable[[], Running] = HookProcess,
    ) -> None:
        """job: namespace/name. start: makes a hook's process."""
        self._job, self._spec = job, spec
        self._telling = Telling(agent)
        self._hooks = [Hook(hook, start) for hook in spec.hooks]
        self._agents = 0  # of the plan

    def install(self, directive: Directive) -> None:
        """A plan begins."""
        told_before = self._telling.tells
        self._agents = len(directive.voters)
        steps = self._telling.install(directive)
        for hook in self._hooks:
            if self._telling.tells:
                hook.begin()
            elif told_before:
                hook.finish()
        self._tell(steps)

    def committed(self, progress: Progress) -> Progress:
        """The worker has reported a step; returns what the operator gets."""
        self._tell(self._telling.committed(progress))
        found = [HookWarning(i, x.warning) for i, x in enumerate(self._hooks) if x.warning]
        return replace(progress, warnings=tuple(found)) if found else progress

    async def run(self) -> None:
        """Serve until it is cancelled."""
        while self._hooks:
            self._turn()
            await asyncio.sleep(TURN_S)

    async def close(self, wait_s: float) -> str:
        """Tell what is left and close the trackers, for ``wait_s`` at most, or for so long after
        all have begun; then kill them. Says what they were not told; empty: nothing."""
        for hook in self._hooks:
            hook.finish()
        clock = asyncio.get_running_loop().time
        begin_by, ends_at = clock() + BEGIN_S, clock() + wait_s
        while any(not hook.is_idle for hook in self._hooks):
            now = clock()
            if wait_s and now < begin_by and any(hook.is_starting for hook in self._hooks):
                ends_at = now + wait_s
            if now >= ends_at:
                break
            self._turn()
            await asyncio.sleep(TURN_S)
        for hook in self._hooks:
            hook.abandon()
        return "; ".join(hook.untold for hook in self._hooks if hook.untold)

    def _tell(self, steps: list[Progress]) -> None:
        for progress in steps:
            record = record_of(self._job, self._spec, progress, self._agents)
            for hook in self._hooks:
                hook.add(record)

    def _turn(self) -> None:
        now = asyncio.get_running_loop().time()
        for hook in self._hooks:
            try:
                hook.turn(now)
            except Exception as error:  # a mistake here must not end the agent
                log.exception("a hook is given up")
                hook.give_up(f"is given up: {error!r}")
