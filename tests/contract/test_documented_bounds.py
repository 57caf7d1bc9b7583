"""The bounds that docs/security.md names are those of the code."""

from __future__ import annotations

from pathlib import Path

import pytest

from bamboo_agent import strangers
from bamboo_agent.supervisor import liveness
from bamboo_agent.transport import tcp, wire
from bamboo_agent.transport.process_group import control, groups, maker, rendezvous
from bamboo_operator.admission.held_tasks import TaskLimits
from bamboo_operator.agents import refused_tokens, servicer, stream_limits
from bamboo_operator.monitoring import bounded_http, shared_text
from bamboo_wire import options

PAGE = Path(__file__).resolve().parents[2] / "docs/security.md"
OPTIONS = dict(options.OPERATOR_OPTIONS)
HANDSHAKE_S = OPTIONS["grpc.server_handshake_timeout_ms"] / 1000
IDLE_S = OPTIONS["grpc.max_connection_idle_ms"] / 1000


@pytest.mark.parametrize(
    "words",
    [
        f"| streams of a pod | {stream_limits.STREAMS_OF_A_POD}:",
        f"| connections to the operator's port for agents | {options.MOST_CONNECTIONS:,};",
        f"| {stream_limits.MOST_OF_AN_ADDRESS} of an address, {stream_limits.MOST_WAITING} in all;",
        f"Token reviews: {stream_limits.REVIEWS_OF_AN_ADDRESS} of an address at a time, "
        f"{servicer._REVIEWS_AT_ONCE} in all",
        f"{servicer._IDENTIFY_S:g} s each, then {servicer._HELLO_S:g} s for the Hello |",
        f"| {refused_tokens.OF_ADDRESS.burst} at once, then {refused_tokens.OF_ADDRESS.rate:g} in "
        "each second;",
        f"address and pod has {refused_tokens.OF_POD.burst} at once, then "
        f"{refused_tokens.OF_POD.rate:g} in each second",
        f"after {refused_tokens.PAUSE_S:g} s, of which {refused_tokens.MOST_HELD_UP} wait at a",
        f"A refused token is refused again for {refused_tokens.KEPT_S:g} s without",
        "| streams of a connection; handshake of TLS; connection without a stream | "
        f"{OPTIONS['grpc.max_concurrent_streams']}; {HANDSHAKE_S:g} s; {IDLE_S:g} s |",
        f"| {strangers.MOST_OF_AN_ADDRESS} of an address, {strangers.MOST} in all; "
        f"{tcp.HANDSHAKE_S:g} s and {liveness.HANDSHAKE_S:g} s.",
        f"| {TaskLimits.namespace:,} tasks for the jobs of a namespace, {TaskLimits.all_jobs:,} ",
        f"{TaskLimits().floor:,} for a namespace in any case;",
        f"| header of a frame | {wire.MAX_HEADER_BYTES >> 20} MiB |",
        f"| {control.MAX_CONTROL_BYTES >> 10} KiB for a message, {rendezvous.MAX_KEYS} keys.",
        f"Of groups that hang, {maker.MAX_ABANDONED} are abandoned",
        f"until one ends, after {groups.OPERATION_S:g} s at most",
        f"| {bounded_http.MOST_OF_ADDRESS} of an address, {bounded_http.MOST} in all;",
        f"{bounded_http.REQUEST_S:g} s in all. When",
        f"no more threads than {bounded_http.MOST}, and {bounded_http.SEND_BYTES >> 10} KiB of",
        f"for all who ask within {shared_text.KEPT_S:g} s; if it takes long",
    ],
)
def test_a_bound_is_that_of_the_code(words: str) -> None:
    assert words in PAGE.read_text()
