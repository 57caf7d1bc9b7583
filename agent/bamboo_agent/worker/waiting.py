"""What the worker waits for, in the words of its supervisor."""

from __future__ import annotations

from bamboo_agent.ipc.activity import ActivityWriter
from bamboo_agent.worker.feeding import Awaited
from bamboo_core.model.ids import AgentId
from bamboo_core.model.items import Item
from bamboo_core.model.program import Instruction
from bamboo_core.protocol.executor import Executor


def describe_wait(
    activity: ActivityWriter,
    executor: Executor,
    *,
    data: Awaited | None,
    is_writing: bool,
    has_farewell: bool,
) -> None:
    """Tell the supervisor what the worker waits for.

    data: what the next instruction has to wait for, if its samples are not here; is_writing: files
    are being written; has_farewell: only they hold up the last message.
    """
    task = executor.running or executor.current
    if data is not None:
        activity.wait_for_data(data.task, data.sample)
    elif executor.running is not None:
        activity.wait_for_storage(executor.running)
    elif (record := executor.awaited_record) is not None and not is_writing:
        activity.wait_for(record, record.peer)
    elif executor.waits_for_files or (has_farewell and is_writing):
        activity.wait_for_storage(None)
    elif executor.is_over:
        activity.rest()
    elif task is None:
        activity.wait_for_operator()
    else:
        activity.wait_for(task, _sender(task, executor))


def _sender(task: Instruction, executor: Executor) -> AgentId:
    """The agent that the instruction waits for; empty if there is no single one."""
    voters = (a for a in task.agents if not executor.has(Item.vote(task.step, a)))
    return task.peer or next(voters, AgentId(""))
