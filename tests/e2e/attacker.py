"""A tenant of another namespace who attacks a job and everything that listens in the cluster."""

from __future__ import annotations

import base64
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc

from bamboo_agent.transport import handshake
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.protocol.messages import Hello
from bamboo_operator.trust.bundle import ADDRESS_KEY, CA_CONFIG_MAP, CA_KEY
from bamboo_operator.trust.identity import AUDIENCE, SERVER_NAME
from bamboo_sim.attack import inputs
from bamboo_wire import encode

from .jobs import Object, User
from .operators import Operator

_LISTENS = "0A"  # in /proc/net/tcp
_FINALIZER = "evil.example/stay"
_NO_FINALIZERS = '{"metadata": {"finalizers": null}}'
_SESSION = "/bamboo.v1.AgentService/Session"


@dataclass
class Attacker:
    """own: the attacker's namespace. victim: the user of the job."""

    own: User
    victim: User
    operator: Operator

    def forge(self, pod: Object) -> str:
        """A pod here that copies what makes the other one an agent of its job. Its token.

        Its owner is in another namespace, so the garbage collector deletes it at once; the
        finalizer keeps it.
        """
        meta = {
            key: pod["metadata"][key]
            for key in ("name", "labels", "annotations", "ownerReferences")
        }
        owners = [owner | {"blockOwnerDeletion": False} for owner in meta["ownerReferences"]]
        containers = [{"name": "agent", "image": "none"}]
        self.own.apply(
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": meta | {"ownerReferences": owners, "finalizers": [_FINALIZER]},
                "spec": {"schedulerName": "nobody", "containers": containers},
            }
        )
        return self.own.kubectl(
            "create", "token", "default", "--audience", AUDIENCE,
            "--bound-object-kind", "Pod", "--bound-object-name", str(meta["name"]),
        ).strip()  # fmt: skip

    def forget(self, pod: Object) -> None:
        """Let the copy go."""
        name = str(pod["metadata"]["name"])
        self.own.kubectl("patch", "pod", name, "--type=merge", "--patch", _NO_FINALIZERS)

    def depose(self, pod: Object, token: str) -> str:
        """Say Hello as that agent, with a term far above the leader's. What the operator answers
        when it ends the stream."""
        said = Hello(
            AgentId(pod["metadata"]["name"]), pod["metadata"]["uid"], "node", "zone", "machine",
            "127.0.0.1:1", "127.0.0.1:2", Fence(0, 1 << 40, 1), has_state=True,
        )  # fmt: skip
        data = encode.agent_message(said).SerializeToString()
        trust = self.victim.get("configmap", CA_CONFIG_MAP)["data"]
        credentials = grpc.ssl_channel_credentials(trust[CA_KEY].encode())
        options = [("grpc.ssl_target_name_override", SERVER_NAME)]
        with grpc.secure_channel(trust[ADDRESS_KEY], credentials, options) as channel:
            open_stream = channel.stream_stream(_SESSION)
            call = open_stream(
                iter([data]), timeout=60, metadata=(("authorization", f"Bearer {token}"),)
            )
            assert call.code() is grpc.StatusCode.UNAUTHENTICATED  # once the stream has ended
            return str(call.details())

    def strike(self, pods: list[Object], rng: random.Random, cases: int) -> int:
        """Send made-up bytes to every port of these pods and of the operator's. Number of ports."""
        ports = [
            (pod["status"]["podIP"], port)
            for pod in (*pods, *self.operator.pods())
            for port in listening(pod["status"]["podIP"])
        ]
        greeting = {
            "bamboo": handshake.VERSION,
            "from": pods[0]["metadata"]["name"],
            "to": pods[-1]["metadata"]["name"],
            "fence": [9, 9, 9],
            "nonce": base64.b16encode(rng.randbytes(16)).decode(),
        }
        for number in range(cases):
            with socket.create_connection(ports[number % len(ports)], timeout=60) as sock:
                try:
                    sock.sendall(inputs.first_bytes(rng, greeting))
                    sock.shutdown(socket.SHUT_WR)
                except OSError:
                    continue  # closed by the other end before all was sent
        return len(ports)


def listening(ip: str) -> Iterator[int]:
    """The TCP ports of this address of the machine on which somebody listens."""
    wanted = "".join(f"{int(part):02X}" for part in reversed(ip.split(".")))
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, state, *_ = line.split()
        address, port = local.split(":")
        if address == wanted and state == _LISTENS:
            yield int(port, 16)
