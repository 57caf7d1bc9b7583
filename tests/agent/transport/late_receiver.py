"""An agent's transport in a process of its own: it takes frames, one after each pause, and tells in
the end what it has measured. Test data: see test_goodput_between_processes.py.

Arguments: address and key of the sender, number of frames, pause in seconds, bytes of the window,
and "encrypted" or "plain".
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time
from dataclasses import asdict

from bamboo_agent.transport import links, tcp
from bamboo_agent.transport.stream import make_identity
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Peer

KEY, FENCE = b"key of b", Fence(0, 1, 1)


def main(sender: str, key: str, frames: int, pause_s: float, window: int, *, secret: bool) -> None:
    links.WINDOW_BYTES = window
    listening = socket.create_server(("127.0.0.1", 0))
    transport = tcp.TcpTransport(
        job="job",
        agent=AgentId("b"),
        listening=listening,
        identity=make_identity() if secret else None,
    )
    peer = Peer(AgentId("a"), sender, "", key.encode())
    transport.adopt(FENCE)
    transport.introduce(fence=FENCE, key=KEY, peers={peer.agent: peer})
    sys.stdout.write(f"127.0.0.1:{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    with selectors.DefaultSelector() as selector:
        selector.register(transport, selectors.EVENT_READ)
        while frames > 0:
            selector.select()
            frames -= len(transport.poll())
            time.sleep(pause_s)  # it computes
    found = transport.goodput
    sys.stdout.write(json.dumps(None if found is None else asdict(found)) + "\n")
    sys.stdout.flush()
    sys.stdin.readline()
    transport.close()


if __name__ == "__main__":
    _, address, secret_key, count, wait_s, size, way = sys.argv
    main(address, secret_key, int(count), float(wait_s), int(size), secret=way == "encrypted")
