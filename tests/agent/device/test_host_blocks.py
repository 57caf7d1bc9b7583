"""Blocks of host memory: what the system refuses, and what is pinned."""

from __future__ import annotations

import mmap

import torch

from bamboo_agent.device import host_blocks
from bamboo_agent.device.host_blocks import HostBlocks, Tally

PAGE = mmap.PAGESIZE


def test_memory_that_the_system_refuses_stays_on_the_device(monkeypatch, caplog):
    """Pinning has limits of its own, which only show when they are reached."""
    asked, given = [], []

    def cuda(function, *arguments):
        asked.append(function)
        if function == "cudaHostRegister" and len(asked) > 1:
            raise torch.cuda.CudaError(2)

    monkeypatch.setattr(host_blocks, "_cuda", cuda)
    monkeypatch.setattr(torch.cuda, "check_error", lambda code: None)
    blocks, tally = HostBlocks(1000, torch.device("cuda")), Tally()
    given = [blocks.take(200, tally) for _ in range(3)]
    assert [block is not None for block in given] == [True, False, False]
    assert asked == ["cudaHostRegister"] * 2
    assert (tally.used_bytes, blocks.limit_bytes) == (200, 200)
    assert "200 bytes of host memory is all there is" in caplog.text
    given.clear()
    assert blocks.take(200, tally) is not None


def test_each_block_has_pages_of_its_own(monkeypatch):
    """CUDA pins whole pages, and none of them twice."""
    pinned = []

    def cuda(function, address, size=0, flags=0):
        assert (function, flags) == ("cudaHostRegister", 0)
        pages = range(address // PAGE, (address + size - 1) // PAGE + 1)
        assert not set(pages) & {page for found in pinned for page in found}
        pinned.append(pages)

    monkeypatch.setattr(host_blocks, "_cuda", cuda)
    blocks, tally = HostBlocks(1 << 20, torch.device("cuda")), Tally()
    found = [blocks.take(size, tally) for size in (200, 200, PAGE, PAGE + 1, 3, 5000)]
    assert [block.memory.numel() for block in found] == [200, 200, PAGE, PAGE + 1, 3, 5000]
    assert [len(pages) for pages in pinned] == [1, 1, 1, 2, 1, 2]
    assert all(block.memory.data_ptr() % PAGE == 0 for block in found)
