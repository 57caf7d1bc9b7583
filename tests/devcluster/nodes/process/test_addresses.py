"""Addresses of clusters, nodes and pods."""

import socket

import pytest

from bamboo_devcluster.errors import ComponentError
from bamboo_devcluster.nodes.process import addresses
from bamboo_devcluster.nodes.process.addresses import AddressBlock


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
