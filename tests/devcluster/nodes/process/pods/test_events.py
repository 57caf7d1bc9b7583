"""Events of the kubelet, as the API server takes them."""

import asyncio
from typing import Any

import pytest

from bamboo_devcluster.nodes.process.pods.events import EventRecorder

POD = {"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": {"nodeName": "n"}}


class FakeApi:
    """Keeps what is posted."""

    def __init__(self) -> None:
        self.posted: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def post(self, path: str, body: dict[str, Any]) -> None:
        self.posted.put_nowait(body)


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("x" * 2000, "x" * 1024),
        ("层" * 700, "层" * 341),
        ("caf\udce9", "caf\\udce9"),
    ],
    ids=["too long", "too many bytes", "not UTF-8"],
)
async def test_a_message_is_cut_by_bytes(message: str, expected: str) -> None:
    api = FakeApi()
    recorder = EventRecorder(api)
    recorder.record(POD, kind="Warning", reason="Failed", message=message)
    task = asyncio.create_task(recorder.run())
    event = await api.posted.get()
    task.cancel()
    assert event["message"] == expected
