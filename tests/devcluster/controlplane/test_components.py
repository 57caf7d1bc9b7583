"""Programs of the control plane: ports, restarts, and messages about exits."""

import asyncio
from pathlib import Path

import pytest

from bamboo_devcluster.controlplane import components
from bamboo_devcluster.controlplane.components import Component, PortInUseError, pick_ports
from bamboo_devcluster.errors import ComponentError
from bamboo_devcluster.layout import Layout


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    (tmp_path / "logs").mkdir()
    return Layout(tmp_path)


def shell(layout: Layout, script: str) -> Component:
    return Component("prog", ["sh", "-c", script], layout)


@pytest.mark.parametrize(
    ("script", "kind", "message"),
    [
        ("echo 'listen: address already in use'; exit 1", PortInUseError, "A port that prog needs"),
        (
            "echo 'listen tcp 127.0.0.1:8443: bind: address already in use'; exit 1",
            PortInUseError,
            "Port 8443 that prog needs is in use",
        ),
        ("echo 'write: no space left on device'; exit 1", ComponentError, "The disk that holds"),
        ("echo first; echo last line; exit 3", ComponentError, "exited with code 3: last line"),
        ("exit 4", ComponentError, "exited with code 4: nothing was logged"),
    ],
)
async def test_an_exit_is_explained_by_the_log(layout, script, kind, message) -> None:
    component = shell(layout, script)
    await component.start()
    with pytest.raises(kind, match=message):
        await component.fail_at_end()
    assert component.pid is None


async def test_a_component_is_restarted_but_not_forever(layout, monkeypatch) -> None:
    monkeypatch.setattr(components, "_RESTART_DELAY_S", 0)
    component = shell(layout, "echo x >> count; exit 1")
    said: list[str] = []
    await component.start()
    with pytest.raises(ComponentError, match="prog exited with code 1"):
        await component.keep_running(said.append)
    assert said == ["prog exited with code 1; restarting it"] * 5
    assert len((layout.root / "count").read_text()) == 12


async def test_a_component_that_ignores_sigterm_is_killed(layout, monkeypatch) -> None:
    monkeypatch.setattr(components, "_STOP_TIMEOUT_S", 0.2)
    component = shell(layout, "trap '' TERM; echo up; while true; do sleep 0.1; done")
    await component.start()
    # There is no event for a change of a file.
    while "up" not in component.log.read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await component.stop()
    assert component.pid is None


def test_ports_are_free_and_the_given_one_is_kept() -> None:
    ports = pick_ports()
    assert len({ports.api, ports.etcd_client, ports.etcd_peer}) == 3
    assert pick_ports(api=6443).api == 6443
