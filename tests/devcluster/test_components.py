"""Control plane programs, addresses and the control endpoint."""

import asyncio
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from bamboo_devcluster import addresses, components
from bamboo_devcluster.__main__ import main
from bamboo_devcluster.addresses import AddressBlock
from bamboo_devcluster.components import Component, PortInUseError, pick_ports
from bamboo_devcluster.directory import Layout
from bamboo_devcluster.errors import ComponentError


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


def test_an_invalid_port_is_refused(tmp_path) -> None:
    refused = CliRunner().invoke(main, ["up", "--dir", str(tmp_path / "c"), "--port", "99999"])
    assert refused.exit_code == 2
    assert "99999 is not in the range" in refused.output
    assert not (tmp_path / "c").exists()


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


def test_clusters_side_by_side_have_different_addresses() -> None:
    one, two = AddressBlock(), AddressBlock()
    seen = {block.control for block in (one, two)}
    seen |= {block.take_node() for block in (one, two)}
    seen |= {block.take_pod() for block in (one, two) for _ in range(2)}
    assert len(seen) == 8
    one.close()
    two.close()


def test_a_returned_address_is_reused_last() -> None:
    block = AddressBlock()
    first = block.take_pod()
    block.give_back(first)
    others = [block.take_pod() for _ in range(1000)]
    assert first not in others
    node = block.take_node()
    block.give_back(node)
    block.close()


def test_no_free_address_is_an_error() -> None:
    block = AddressBlock()
    for _ in range(4094):
        block.take_node()
    with pytest.raises(ComponentError, match="No address is left for more nodes"):
        block.take_node()
    block.close()


def test_no_free_block_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        monkeypatch.setattr(addresses, "_CLAIM_PORT", taken.getsockname()[1])
        monkeypatch.setattr(addresses, "_FIRST_BLOCK", 0)
        monkeypatch.setattr(addresses, "_LAST_BLOCK", 1)
        with pytest.raises(ComponentError, match="stop a cluster with `bamboo-devcluster down`"):
            AddressBlock()
