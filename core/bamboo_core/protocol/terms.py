"""Which leader an agent's message speaks of.

Terms come from the Lease alone. A message of a later term than the leader's own is a lie or comes
to the wrong operator; it deposes nobody.
"""

from __future__ import annotations

from bamboo_core.protocol.messages import (
    AgentMessage,
    AgentReport,
    Disputed,
    Finished,
    Heartbeat,
    Hello,
    Left,
    Progress,
    Suspicion,
)


def newest_term(message: AgentMessage) -> int:
    """The highest term in the message's fences; 0: it has none."""
    match message:
        case Heartbeat():
            return max(message.fence.term, *(s.fence.term for s in message.suspicions), 0)
        case AgentReport():
            return max(message.fence.term, message.installed.term)
        case Hello() | Progress() | Left() | Finished() | Disputed() | Suspicion():
            return message.fence.term
        case _:
            return 0
