"""Addresses in 127.0.0.0/8: one for each node and one for each pod.

All of 127/8 is local on Linux, so no interface has to be set up. Each cluster claims one
127.N.0.0/16 by listening on 127.N.0.1, so clusters on one machine never share addresses. A claim
ends with its process.
"""

import ipaddress
import socket
from collections import deque

from bamboo_devcluster.errors import ComponentError

_CLAIM_PORT = 10249
_FIRST_BLOCK, _LAST_BLOCK = 64, 254
_NODE_BITS = 12  # the first 4096 addresses are for nodes, the others for pods


class AddressBlock:
    """The 127.N.0.0/16 of one cluster."""

    def __init__(self) -> None:
        self._claim, self._base = _claim_block()
        node_end = self._base + (1 << _NODE_BITS)
        self._nodes = deque(range(self._base + 2, node_end))
        self._pods = deque(range(node_end, self._base + 0xFFFF))

    @property
    def control(self) -> str:
        """The address of the cluster's own control endpoint."""
        return _text(self._base + 1)

    def take_node(self) -> str:
        return self._take(self._nodes, "nodes")

    def take_pod(self) -> str:
        return self._take(self._pods, "pods")

    def give_back(self, address: str) -> None:
        """Return an address to the pool; it is reused only after all others."""
        number = int(ipaddress.IPv4Address(address))
        is_node = number < self._base + (1 << _NODE_BITS)
        (self._nodes if is_node else self._pods).append(number)

    def close(self) -> None:
        """Release the block."""
        self._claim.close()

    @staticmethod
    def _take(pool: deque[int], what: str) -> str:
        if not pool:
            raise ComponentError(f"No address is left for more {what}; remove some first.")
        return _text(pool.popleft())


def _claim_block() -> tuple[socket.socket, int]:
    for second in range(_FIRST_BLOCK, _LAST_BLOCK):
        claim = socket.socket()
        try:
            claim.bind((f"127.{second}.0.1", _CLAIM_PORT))
            claim.listen(1)
        except OSError:
            claim.close()
            continue
        return claim, int(ipaddress.IPv4Address(f"127.{second}.0.0"))
    raise ComponentError(
        f"Port {_CLAIM_PORT} is in use on every address 127.{_FIRST_BLOCK}-{_LAST_BLOCK}.0.1; "
        "stop a cluster with `bamboo-devcluster down` first."
    )


def _text(number: int) -> str:
    return str(ipaddress.IPv4Address(number))
