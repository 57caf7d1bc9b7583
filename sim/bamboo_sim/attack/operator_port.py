"""The attack on the operator's gRPC port.

The production service, actors, authentication and seals run in a process of their own, over TLS.
The API server is a stub that knows tokens and pods. One job is the victim's: its agent must get
through, and nothing else may change it. Another job is the attacker's, with genuine agents.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import json
import multiprocessing
import random
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import grpc
import grpc.aio

from bamboo_core.api.spec import JobSpec
from bamboo_core.arbiter_state.durable import Durable
from bamboo_core.arbiter_state.events import DesiredState, Timing
from bamboo_core.controller.view import JobView
from bamboo_core.evidence.liveness import Patience
from bamboo_core.job.training_view import LastReported
from bamboo_core.model.ids import AgentId, Fence
from bamboo_core.model.items import parse_item
from bamboo_core.protocol.messages import AgentReport, Fingerprint, Hello, Ready, Stop, Welcome
from bamboo_core.validation.reading import from_manifest
from bamboo_operator.agents.servicer import AgentService, make_server
from bamboo_operator.arbiters import ports as job_ports
from bamboo_operator.arbiters.led_jobs import Jobs
from bamboo_operator.kube import api
from bamboo_operator.status import durable_facts
from bamboo_operator.trust import authentication, tls
from bamboo_operator.trust.identity import AUDIENCE, SERVER_NAME
from bamboo_operator.trust.seals import ANNOTATION, Seals
from bamboo_proto.v1 import agent_pb2 as pb
from bamboo_sim.attack import floods, inputs
from bamboo_sim.attack.tally import Defects, Tally
from bamboo_wire import decode, encode
from bamboo_wire.options import AGENT_OPTIONS

TERM = 3
VICTIM = JobView("default", "digits", "uid-of-digits", generation=1, created_at=0.0)
ATTACKER = JobView("evil", "mine", "uid-of-mine", generation=1, created_at=0.0)
AGENTS = ("mine-p0-s0-i0", "mine-p0-s1-i0")
HONEST = "digits-p0-s0-i0"
FORGED = "forged"
PATIENCE_S = 60.0
_SECRET = Seals(b"the operator's own secret key...")
_FAR = 4_000_000_000
_EVERY = 100
_ENDLESS = 1e9
_SESSION = "/bamboo.v1.AgentService/Session"


def _pod(name: str, job: JobView, namespace: str, seal: str) -> api.Object:
    owner = {"apiVersion": api.API_VERSION, "kind": "BambooJob", "controller": True}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "annotations": {ANNOTATION: seal},
            "ownerReferences": [owner | {"name": job.name, "uid": job.uid}],
        },
        "spec": {},
    }


def _pods() -> dict[str, api.Object]:
    """By token. The forged one is in the attacker's namespace and claims to be the victim's."""

    def made(name: str, job: JobView) -> api.Object:
        seal = _SECRET.seal(namespace=job.namespace, job=job.name, job_uid=job.uid, pod=name)
        return _pod(name, job, job.namespace, seal)

    pods = {name: made(name, ATTACKER) for name in AGENTS}
    pods[HONEST] = made(HONEST, VICTIM)
    seal = pods[HONEST]["metadata"]["annotations"][ANNOTATION]
    pods[FORGED] = _pod(HONEST, VICTIM, ATTACKER.namespace, seal)
    return {token(name): pod for name, pod in pods.items()}


def token(name: str) -> str:
    """As the API server would issue it, but for the signature."""
    pod = {"name": name, "uid": f"uid-{name}"}
    said = {"exp": _FAR, "aud": [AUDIENCE], "kubernetes.io": {"pod": pod}}
    claims = base64.urlsafe_b64encode(json.dumps(said).encode())
    return f"head.{claims.decode().rstrip('=')}.sign"


class _Stub:
    """The API server: token reviews and pods."""

    def __init__(self) -> None:
        self._pods = _pods()

    async def create(self, path: str, body: api.Object) -> api.Object:
        """A token review."""
        pod = self._pods.get(body["spec"]["token"])
        if pod is None:
            return {"status": {"authenticated": False}}
        meta = pod["metadata"]
        bound = "authentication.kubernetes.io/pod-"
        user = {
            "username": f"system:serviceaccount:{meta['namespace']}:default",
            "extra": {f"{bound}name": [meta["name"]], f"{bound}uid": [meta["uid"]]},
        }
        return {"status": {"authenticated": True, "audiences": [AUDIENCE], "user": user}}

    async def get(self, path: str) -> api.Object | None:
        """A pod."""
        for pod in self._pods.values():
            meta = pod["metadata"]
            if path == api.pod(meta["namespace"], meta["name"]):
                return pod
        return None


def _spec(name: str) -> JobSpec:
    worker = {"image": "image", "resources": {"limits": {"cpu": 1}}}
    found = from_manifest(
        {
            "apiVersion": api.API_VERSION,
            "kind": "BambooJob",
            "metadata": {"name": name},
            "spec": {
                "model": {"factory": "m:f"},
                "data": {"factory": "d:f", "validation": {"factory": "d:v"}},
                "training": {
                    "steps": 10,
                    "validateEvery": 1,
                    "globalBatchSize": 8,
                    "microBatchSize": 1,
                    "optimizer": {"factory": "torch.optim:SGD"},
                },
                "pipelines": {"count": 1, "stages": 2},
                "placement": {"adjacency": "Cluster"},
                "worker": worker,
            },
        }
    )
    assert isinstance(found, JobSpec), found
    return found


class _Served:
    """The victim's process."""

    def __init__(self) -> None:
        self.writes = {VICTIM.uid: 0, ATTACKER.uid: 0}
        self.jobs = Jobs(term=TERM, ports=self._ports())
        for job in (VICTIM, ATTACKER):
            actor = self.jobs.lead(job, _spec(job.name), Durable(), LastReported())
            actor.tell(DesiredState(pipelines=1))

    def _ports(self) -> job_ports.Ports:
        async def persist(
            job: JobView, durable: Durable, leader_facts: durable_facts.LeaderFacts
        ) -> None:
            self.writes[job.uid] += 1

        async def dismiss(job: JobView, agent: AgentId, reason: str) -> None:
            self.writes[job.uid] += 1

        patience = Patience(silence_s=_ENDLESS, unreachable_s=_ENDLESS)
        return job_ports.Ports(
            persist=persist,
            dismiss=dismiss,
            record=lambda job, record: None,
            wake=lambda job: None,
            wake_later=lambda job: None,
            is_leading=lambda: True,
            heard_at=lambda now: now,
            idle_s=time.monotonic,
            timing=Timing(patience=patience),
        )

    def state(self) -> dict[str, Any]:
        """Return what must not change of the victim."""
        actor = self.jobs.find(VICTIM.uid)
        assert actor is not None
        seen = f"{actor.view()} {actor.term} {self.writes[VICTIM.uid]}"
        return {"victim": seen}


def serve(pipe: Connection) -> None:
    """The victim's process: tells its port and certificate, then its state when asked."""
    asyncio.run(_serve(pipe))


async def _serve(pipe: Connection) -> None:
    defects = Defects.of_process()
    served, stub = _Served(), _Stub()
    authority = tls.make_authority()
    made = {f"uid-{name}" for name in (*AGENTS, HONEST)}
    service = AgentService(
        served.jobs,
        lambda text: authentication.authenticate(stub, _SECRET, text),  # type: ignore[arg-type]
        is_pod=made.__contains__,
    )
    identity = tls.issue(authority)
    server, port = make_server(service, lambda: identity, "127.0.0.1:0")
    await server.start()
    ticks = asyncio.create_task(served.jobs.tick_for_ever())
    pipe.send((port, authority.certificate))
    asked: asyncio.Queue[None] = asyncio.Queue()
    asyncio.get_running_loop().add_reader(pipe.fileno(), lambda: asked.put_nowait(pipe.recv()))
    while not ticks.done():
        await asked.get()
        pipe.send(served.state() | defects.state())


class Attack:
    """One run. ``tally``: what came of it. victim: what runs in the victim's process."""

    def __init__(self, seed: int, victim: Callable[[Connection], None] = serve) -> None:
        self.tally = Tally()
        self._rng = random.Random(seed)
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=victim, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._port, certificate = self._pipe.recv()
        self._credentials = grpc.ssl_channel_credentials(certificate)
        self._before: dict[str, Any] = {}
        self._fences: dict[str, Fence] = {}
        self._last = b""
        self._honest_call: Any = None  # else it would end with its last reference

    async def run(self, cases: int) -> Tally:
        """So many cases, then the end of the process."""
        try:
            async with self._channel() as channel, self._channel() as honest:
                if await self._look(honest, "the beginning"):
                    usual_s = await floods.usual(lambda after: self._look(honest, after))
                    done = looked = 0
                    while done < cases:
                        await self._strike(channel)
                        done = self.tally.cases.total()
                        if done - looked >= _EVERY:
                            looked = done
                            if not await self._look(honest, repr(self._last)):
                                break
                    if not self.tally.breaches:
                        await self._flood(honest, usual_s)
                    await self._look(honest, "the end")
        finally:
            self._pipe.close()
            self._process.kill()
            self._process.join()
        return self.tally

    def _channel(self) -> Any:
        options = [option for option in AGENT_OPTIONS if "max_send" not in option[0]]
        options.append(("grpc.ssl_target_name_override", SERVER_NAME))  # type: ignore[arg-type]
        address = f"127.0.0.1:{self._port}"
        return grpc.aio.secure_channel(address, self._credentials, options=options)

    @staticmethod
    def _open(channel: Any, name: str) -> Any:
        metadata = (("authorization", f"Bearer {token(name)}"),)
        return channel.stream_stream(_SESSION)(metadata=metadata)

    async def _strike(self, channel: Any) -> None:
        """Some cases."""
        chance = self._rng.random()
        if chance < 0.05:
            await self._raw()
        elif chance < 0.15:
            await self._converse(channel, "nobody" + str(self._rng.random()), "bad token")
        elif chance < 0.30:
            await self._converse(channel, FORGED, "forged pod")
        elif chance < 0.40:
            await self._plan(channel)
        else:
            await self._converse(channel, self._rng.choice(AGENTS), "agent")

    async def _flood(self, honest: Any, usual_s: float) -> None:
        """By one pod: streams that come again and again, then the longest messages."""
        name = AGENTS[0]

        async def reconnect() -> None:
            async with self._channel() as channel:
                call = self._open(channel, name)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(hello(name))
                call.cancel()

        large = self._report(name, items=30_000)
        async with self._channel() as channel:

            async def send() -> None:
                call = self._open(channel, name)
                with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    await call.write(hello(name))
                    await call.write(large)
                call.cancel()

            for kind, strike in {"reconnects": reconnect, "long reports": send}.items():
                look = functools.partial(self._look, honest)
                await floods.attack(self.tally, kind, strike, look, usual_s)

    async def _plan(self, channel: Any) -> None:
        """Both agents report what no agent can hold, so that the operator would plan with it."""
        calls = {name: self._open(channel, name) for name in AGENTS}
        built = Ready(Fingerprint(), 4, 8, inputs.samples(self._rng))
        listening = []
        try:
            async with asyncio.timeout(PATIENCE_S):
                for name, call in calls.items():
                    welcome = asyncio.Event()
                    await call.write(hello(name))
                    listening.append(asyncio.create_task(self._listen(call, name, welcome)))
                    await welcome.wait()
                    ready: bytes = encode.agent_message(built).SerializeToString()
                    await call.write(ready)
                for name, call in calls.items():
                    self.tally.cases["planner"] += 1
                    self._last = self._report(name)
                    await call.write(self._last)
                    await call.done_writing()
                await asyncio.gather(*listening, return_exceptions=True)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except TimeoutError:
            self.tally.breach("hang", f"the operator does not answer after {self._last!r}")
        finally:
            for call in calls.values():
                call.cancel()
            await asyncio.gather(*listening, return_exceptions=True)

    def _report(self, name: str, items: int = 1) -> bytes:
        """A valid answer to the newest Stop, but for its items."""
        fence = self._fences.get(name, Fence(0, TERM, 1))
        named = {inputs.item(self._rng)} if items == 1 else {f"out[1] m{n}" for n in range(items)}
        held = frozenset(parse_item(text) for text in named)
        said = AgentReport(fence, fence, dict.fromkeys(range(4), 0), held)
        data: bytes = encode.agent_message(said).SerializeToString()
        return data

    async def _raw(self) -> None:
        """Bytes that are not even TLS."""
        self._last = inputs.noise(self._rng)
        self.tally.cases["no TLS"] += 1
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(self._last)
        writer.close()

    async def _converse(self, channel: Any, name: str, kind: str) -> None:
        """One stream: perhaps a valid Hello, then messages until it is refused."""
        call = self._open(channel, name)
        welcome = asyncio.Event()
        listening = asyncio.create_task(self._listen(call, name, welcome))
        try:
            async with asyncio.timeout(PATIENCE_S):
                if self._rng.random() < 0.6:
                    await call.write(hello(name))
                    await welcome.wait()
                for _ in range(self._rng.randrange(1, 9)):
                    self.tally.cases[kind] += 1
                    self._last = self._message(name)
                    await call.write(self._last)
                await call.done_writing()
                await asyncio.gather(listening, return_exceptions=True)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        except TimeoutError:
            self.tally.breach("hang", f"the operator does not answer after {self._last!r}")
        finally:
            call.cancel()
            await asyncio.gather(listening, return_exceptions=True)

    async def _listen(self, call: Any, name: str, welcome: asyncio.Event) -> None:
        """Remember what a Stop asks for, so that some reports answer it."""
        try:
            while (data := await call.read()) is not grpc.aio.EOF:
                message = decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data))
                welcome.set()
                if isinstance(message, Stop):
                    self._fences[name] = message.fence
        finally:
            welcome.set()

    def _message(self, name: str) -> bytes:
        """Sometimes with what the operator knows, so that it goes further than the first check."""
        fence = self._fences.get(name, Fence(0, TERM, 1))
        known: dict[str, object] = {
            "term": fence.term,
            "epoch": fence.epoch,
            "attempt": fence.attempt,
        }
        known |= self._rng.choice((_names(name), _names(HONEST))) | {"layers": 4}
        if self._rng.random() < 0.1:
            return inputs.noise(self._rng, 100_000)
        return inputs.message(self._rng, known.get)

    async def _look(self, honest: Any, after: str) -> bool:
        """Whether the victim's agent still gets through, and its job is as it was."""
        call = self._honest_call = self._open(honest, HONEST)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await call.write(hello(HONEST))
                data = await call.read()
            message = decode.operator_message(decode.parse_bytes(pb.OperatorMessage, data))
            if not isinstance(message, Welcome):
                raise ValueError(str(message))
        except (TimeoutError, grpc.aio.AioRpcError, ValueError, TypeError) as error:
            kind = "hang" if self._process.is_alive() else "crash"
            self.tally.breach(kind, f"the victim's agent gets {error!r} after {after}")
            return False
        return await self._compare(after)

    async def _compare(self, after: str) -> bool:
        self._pipe.send(None)
        if not await asyncio.to_thread(self._pipe.poll, PATIENCE_S):
            self.tally.breach("hang", f"no state after {after}")
            return False
        state = self._pipe.recv()
        self._before = self._before or state
        if state["victim"] != self._before["victim"]:
            changed = f"{self._before['victim']} is now {state['victim']}"
            self.tally.breach("touched", f"{changed} after {after}")
            return False
        return self.tally.judge(state, after)


def _names(name: str) -> dict[str, object]:
    """By which an agent, or the victim's, is known."""
    namespace = VICTIM.namespace if name == HONEST else ATTACKER.namespace
    return {"agent": name, "peer": name, "pod_uid": f"uid-{namespace}-{name}"}


def hello(name: str) -> bytes:
    """Return what an agent of that pod says first."""
    agent = HONEST if name == FORGED else name
    namespace = VICTIM.namespace if name == HONEST else ATTACKER.namespace
    said = Hello(
        agent=AgentId(agent),
        pod_uid=f"uid-{namespace}-{agent}",
        node="node",
        zone="zone",
        machine="machine",
        data_address="127.0.0.1:1",
        liveness_address="127.0.0.1:2",
    )
    data: bytes = encode.agent_message(said).SerializeToString()
    return data


def run(cases: int, seed: int) -> dict[str, Any]:
    """The figures of one attack."""
    return asyncio.run(Attack(seed).run(cases)).figures()
