"""gRPC channel arguments on which both ends of a session must agree.

The agent pings, so it notices within 15 s that the other end has vanished. The operator must allow
this: by default a server closes the connection of a client that pings more often than every 5
minutes.
"""

from __future__ import annotations

from typing import Final

from bamboo_wire.limits import MOST_BYTES

MAX_MESSAGE_BYTES: Final = 64 << 20
"""Of the operator's messages: directives of large jobs have a few MB."""

AGENT_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", MOST_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
"""For an agent's channel. Each session has its own."""

MOST_CONNECTIONS: Final = 12_000
"""To the operator: ten thousand agents and some more. Each takes about 50 KB."""

OPERATOR_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MOST_BYTES),
    # What a peer can make us hold before anything of it is read, and for how long.
    ("grpc.max_allowed_incoming_connections", MOST_CONNECTIONS),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.http2.bdp_probe", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 30_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
"""For the operator's server."""
