"""gRPC channel arguments on which both ends of a session must agree.

The agent pings, so it notices within 15 s that the other end has vanished. The operator must allow
this: by default a server closes the connection of a client that pings more often than every 5
minutes.
"""

from __future__ import annotations

from typing import Final

MAX_MESSAGE_BYTES: Final = 64 << 20
"""Directives and reports of large jobs have a few MB."""

_COMMON: Final = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

AGENT_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_COMMON,
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
)
"""For an agent's channel. Each session has its own."""

OPERATOR_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    *_COMMON,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.so_reuseport", 0),
)
"""For the operator's server."""
