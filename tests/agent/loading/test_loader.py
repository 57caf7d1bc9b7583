"""What a loader hands over has the bits of what its worker would read, whatever was asked for."""

from __future__ import annotations

import itertools
import os
import random
import select
import signal
import time
from pathlib import Path

import pytest
import torch
from tests.agent.loading.conftest import LIMITS

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.content import content_hash
from bamboo_agent.data.needs import BOTH, Need, Part
from bamboo_agent.data.targets import Counted, TargetWatch, UnevenTargetsError
from bamboo_agent.loading import server
from bamboo_agent.loading.errors import LoadingError
from bamboo_agent.loading.loader import LEAST, LONG_S, MOST, Limits
from bamboo_agent.worker import failures

DEADLINE_S = 60.0


def same(bench, need, found):
    inputs, targets = bench.data.made(need.step, need.microbatch)
    both = {Part.INPUT: inputs, Part.TARGET: targets}
    for part in need.parts:
        assert content_hash(found[part], 0) == content_hash(both[part], 0), need
    if Part.INPUT in need.parts:
        assert found[Part.INPUT]["x"].stride() == inputs["x"].stride()
    return True


def wait_until(loader, condition):
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        select.select([loader], [], [], 0.1)
        loader.poll()


def pids(loader):
    """Those of the process that forks, and of those that read."""
    forks = loader._server._pid
    children = Path(f"/proc/{forks}/task/{forks}/children").read_text().split()
    return forks, [int(pid) for pid in children]


def end(pid):
    """Kill it, and wait until it has ended."""
    process = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    assert select.select([process], [], [], DEADLINE_S)[0]
    os.close(process)


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("seed", range(4))
def test_any_order_of_needs_gives_the_same_bits(bench, workers, seed):
    """Needs come in random order, some twice, some are dropped, and others are needed at once."""
    chance, loader = random.Random(seed), bench.loader(workers=workers)
    known = []
    for _ in range(60):
        step = chance.choice([None, *range(5)])
        need = Need(step, chance.randrange(8), chance.choice([Part.INPUT, Part.TARGET, BOTH]))
        match chance.choice(["want", "want", "first", "take", "take_new", "replan", "begin"]):
            case "want" if loader.has_room:
                loader.want(need)
                known.append(need)
            case "first":
                loader.want(need, first=True)
                known.append(need)
            case "take" if known:
                need = known.pop(chance.randrange(len(known)))
                assert same(bench, need, loader.take(need))
            case "take_new":
                assert same(bench, need, loader.take(need))
            case "replan":
                loader.keep_only(chance.sample(known, len(known) // 2))
            case "begin":
                loader.forget_before(chance.randrange(3))
    for need in known:
        assert same(bench, need, loader.take(need))


def test_what_is_ahead_is_bounded(bench):
    loader = bench.loader()
    asked = []
    while loader.has_room:
        asked.append(Need(0, len(asked)))
        loader.want(asked[-1])
    assert len(asked) == LEAST  # nobody knows yet how large they are
    wait_until(loader, lambda: loader.is_here(asked[0]))
    while loader.has_room:
        asked.append(Need(1, len(asked)))
        loader.want(asked[-1])
    assert len(asked) == MOST
    loader._largest = 1 << 40
    for need in asked[: MOST - LEAST + 1]:
        assert not loader.has_room
        loader.take(need)
    assert loader.has_room


def test_what_is_needed_at_once_comes_before_what_is_read_ahead(bench):
    loader = bench.loader()
    for m in range(8):
        bench.plant(0, m, do="hang")
    for m in range(1, 8):
        bench.repair(bench.data.indices(0, m)[1])
    ahead = [Need(1, m) for m in range(8)]
    for need in ahead:
        loader.want(need)
    needed = Need(2, 5)
    assert same(bench, needed, loader.take(needed))


def test_an_error_is_told_when_its_turn_comes_as_this_process_tells_it(bench):
    sample = bench.plant(1, 2, do="raise")
    with pytest.raises(SampleError) as own:
        bench.data.made(1, 2)
    loader = bench.loader()
    for m in range(4):
        loader.want(Need(1, m))
    wait_until(loader, lambda: loader.is_here(Need(1, 3)))
    for m in (0, 1, 3):
        assert same(bench, Need(1, m), loader.take(Need(1, m)))
    with pytest.raises(SampleError) as error:
        loader.take(Need(1, 2))
    assert str(error.value) == str(own.value)
    assert f"sample {sample}: ValueError: no such text" in str(error.value)
    assert 'raise ValueError("no such text")' in error.value.__notes__[0]
    assert failures.in_mid_job(error.value) == failures.in_mid_job(own.value) == str(own.value)
    bench.repair(sample)
    assert same(bench, Need(1, 2), loader.take(Need(1, 2)))


def test_an_error_of_the_node_is_one(bench):
    bench.plant(1, 2, do="break")
    with pytest.raises(SampleError) as own:
        bench.data.made(1, 2)
    with pytest.raises(SampleError) as error:
        bench.loader().take(Need(1, 2))
    assert failures.in_mid_job(error.value) == ""
    verdicts = [failures.judge(x.value, ready=True) for x in (own, error)]
    assert verdicts[0] == verdicts[1]


HOW = {
    "exit": "ended with exit code 3",
    "kill": "was killed by SIGKILL",
    "crash": "was killed by SIGSEGV",
}


@pytest.mark.parametrize("do", HOW)
def test_a_loader_that_dies_over_a_sample_reads_it_once_more(bench, do):
    bench.plant(1, 1, do=do, once=True)
    loader = bench.loader()
    needs = [Need(1, m) for m in range(4)]
    for need in needs:
        loader.want(need)
    assert all(same(bench, need, loader.take(need)) for need in needs)


@pytest.mark.parametrize("do", HOW)
def test_a_sample_over_which_it_dies_again_is_named_when_its_turn_comes(bench, do):
    sample = bench.plant(1, 1, do=do)
    loader = bench.loader()
    for m in range(4):
        loader.want(Need(1, m))
    wait_until(loader, lambda: loader.is_here(Need(1, 3)))
    for m in (0, 2, 3):
        assert same(bench, Need(1, m), loader.take(Need(1, m)))
    with pytest.raises(SampleError) as error:
        loader.take(Need(1, 1))
    assert str(error.value) == (
        f"step 1, micro-batch 1: {bench.spec.data.factory}, sample {sample}: the data loader"
        f" {HOW[do]} while it read this sample, and did so again when it was started anew"
    )
    assert failures.in_mid_job(error.value) == str(error.value)
    bench.repair(sample)
    assert same(bench, Need(1, 1), loader.take(Need(1, 1)))


def test_a_hang_is_ended_and_named(bench):
    sample = bench.plant(2, 0, do="hang")
    loader = bench.loader(limits=Limits(60.0, 0.3))
    with pytest.raises(SampleError) as error:
        loader.take(Need(2, 0))
    assert (
        f"sample {sample}: the data loader was killed, since it had not gone on for 0.3 s"
        in str(error.value)
    )
    assert same(bench, Need(2, 1), loader.take(Need(2, 1)))


def test_a_sample_that_takes_long_is_told_while_it_is_read(bench):
    """Only of what is asked for, and only once it takes long: a batch of quick ones has no name."""
    clock = Clock()
    sample = bench.plant(2, 0, do="hang")
    loader = bench.loader(clock=clock)
    for need in (Need(2, 0), Need(2, 1)):
        loader.want(need)
    (reader,) = loader._readers.values()
    wait_until(loader, lambda: reader.progress.read().sample == sample)
    assert loader.slow_sample(Need(2, 0)) is None
    clock.ahead_s = LONG_S
    assert loader.slow_sample(Need(2, 0)) == sample
    assert loader.slow_sample(Need(2, 1)) is None
    assert loader.slow_sample(Need(3, 0)) is None
    bench.repair(sample)
    end(pids(loader)[1][0])
    assert same(bench, Need(2, 0), loader.take(Need(2, 0)))
    assert loader.slow_sample(Need(2, 0)) is None


class Clock:
    """The time, and so much more."""

    ahead_s = 0.0

    def __call__(self):
        return time.monotonic() + self.ahead_s


def test_a_hang_that_passes_costs_nothing(bench):
    bench.plant(2, 0, do="hang", once=True)
    loader = bench.loader(limits=Limits(60.0, 0.3))
    assert same(bench, Need(2, 0), loader.take(Need(2, 0)))


@pytest.mark.parametrize("who", ["reader", "server", "both"])
def test_loaders_are_killed_at_any_time(bench, who):
    chance = random.Random(5)
    spawned = []

    def make_server():
        if not spawned and not bench.loaders:
            spawned.append("first")
            return server.fork()
        spawned.append("again")
        return server.spawn("bamboo_agent.worker.reader_server")

    loader = bench.loader(workers=2, make_server=make_server)
    for step in range(2 if who != "reader" else 12):
        victim = chance.randrange(8)
        needs = [Need(step, m) for m in range(8)]
        for need in needs:
            loader.want(need)
        for at, need in enumerate(needs):
            if at == victim:
                forks, readers = pids(loader)
                chosen = {"reader": readers, "server": [forks], "both": [*readers, forks]}
                for pid in chosen[who]:
                    end(pid)
            assert same(bench, need, loader.take(need))
    assert spawned[1:2] == ([] if who == "reader" else ["again"])


def test_a_data_set_that_cannot_be_built_any_more_is_an_error_of_what_is_needed(bench):
    loader = bench.loader()
    assert same(bench, Need(0, 0), loader.take(Need(0, 0)))
    (bench.folder / "factory").write_text("the disk is gone")
    _, (reader,) = pids(loader)
    os.kill(reader, signal.SIGKILL)
    with pytest.raises(SampleError, match=r"micro-batch 1: the data loader cannot start: .*disk"):
        loader.take(Need(0, 1))
    (bench.folder / "factory").unlink()
    assert same(bench, Need(0, 1), loader.take(Need(0, 1)))


def test_a_loader_that_never_comes_up_is_no_error_of_a_sample(bench):
    """Its machine kills it before it has read anything."""
    loader = bench.loader()
    assert same(bench, Need(0, 0), loader.take(Need(0, 0)))
    loader.want(Need(0, 1))
    wait_until(loader, lambda: loader.is_here(Need(0, 1)))
    loader._limits = Limits(start_s=0.0, read_s=60.0)  # each is killed while it starts
    _, (reader,) = pids(loader)
    end(reader)
    with pytest.raises(LoadingError, match=r"while it started, and so did 2 before it"):
        loader.take(Need(0, 2))
    assert same(bench, Need(0, 1), loader.take(Need(0, 1)))
    loader._limits = LIMITS
    assert same(bench, Need(0, 2), loader.take(Need(0, 2)))


def test_targets_are_compared_there(bench):
    loader = bench.loader()
    bench.data.watches.append(TargetWatch(None, Counted(0, 3, 3), Counted(0, 3, 3)))
    loader.watch(bench.data.watches)
    assert same(bench, Need(0, 0), loader.take(Need(0, 0)))
    bench.data.watches[:] = [TargetWatch(None, Counted(0, 4, 3), None)]
    with pytest.raises(UnevenTargetsError) as own:
        bench.data.made(0, 1)
    loader.watch(bench.data.watches)
    with pytest.raises(UnevenTargetsError) as error:
        loader.take(Need(0, 1))
    assert str(error.value) == str(own.value)


def test_nothing_stays_behind(bench):
    loader = bench.loader(workers=2)
    step = itertools.count()
    while len(pids(loader)[1]) < 2:  # the second one may be forked later
        loader.take(Need(next(step), 0))
    forks, readers = pids(loader)
    ends = [os.pidfd_open(pid) for pid in (forks, *readers)]
    loader.close()
    bench.loaders.clear()
    for end in ends:
        assert select.select([end], [], [], DEADLINE_S)[0]
        os.close(end)


def test_descriptors_do_not_grow(bench):
    loader = bench.loader(limits=LIMITS)
    loader.take(Need(0, 0))
    before = len(os.listdir("/proc/self/fd"))
    for step in range(1, 4):
        for m in range(8):
            loader.want(Need(step, m))
        kept = [loader.take(Need(step, m)) for m in range(4)]
        loader.keep_only([])
        assert kept
    loader.take(Need(5, 0))
    assert len(os.listdir("/proc/self/fd")) == before
    assert torch.is_tensor(kept[0][Part.TARGET])
