"""Network addresses as text: host:port, or [v6]:port."""

from __future__ import annotations


def split_address(address: str) -> tuple[str, int]:
    """("host", port) of "host:port" or "[v6]:port". ValueError if malformed."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isdecimal() and 0 < int(port) < 65536):
        raise ValueError(f"{address!r} is not host:port")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Inverse of :func:`split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
