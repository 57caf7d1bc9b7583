"""An agent that ends says in its termination message which hooks were not told all steps."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tests.agent.hooks.test_record import SPEC

from bamboo_core.api import texts
from bamboo_core.api.spec import FactorySpec, to_json
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.numerics import BatchShape
from bamboo_core.protocol.exit_codes import ExitCode
from bamboo_core.protocol.messages import (
    AgentReport,
    Directive,
    Progress,
    Ready,
    Release,
    Stop,
)

from .conftest import Start
from .fake_operator import WELCOME, FakeOperator, until

FENCE = Fence(0, 1, 1)


async def test_steps_that_a_hook_was_not_told_are_the_last_words(
    operator: FakeOperator, start: Start, tmp_path: Path
) -> None:
    """Its factory does not return before the agent must end."""
    (tmp_path / "mine.py").write_text("import time\ndef build(): time.sleep(600)\n")
    (tmp_path / "termination").touch()
    spec = replace(SPEC, hooks=(FactorySpec("mine:build"),))
    operator.welcome = replace(WELCOME, job="ns/hooks", spec_json=to_json(spec))
    agent = await start(PYTHONPATH=str(tmp_path))
    stream = await operator.stream()
    await until(lambda: bool(stream.of(Ready)))
    stream.say(Stop(FENCE))
    await until(lambda: bool(stream.of(AgentReport)))
    own, batch = AgentId("job-0-0"), BatchShape(1, 1, 1)
    stream.say(Directive(FENCE, 0, 4, (), ((0, 1),), batch, own, key=b"k"))
    await until(lambda: bool(stream.of(Progress)))
    stream.say(Release(int(ExitCode.FENCED), "the job has failed"))
    assert await agent.exit_code() == ExitCode.FENCED
    assert (tmp_path / "termination").read_text() == (
        f"the job has failed{texts.UNTOLD}mine:build was not told 1 record, from step 0 on, when"
        " the agent ended"
    )
