"""Which samples a micro-batch holds: a permutation per pass, a pure function of its arguments."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bamboo_agent.data.order import permuted, sample_indices


@given(
    samples=st.integers(1, 200),
    size=st.integers(1, 7),
    microbatches=st.integers(1, 9),
    seed=st.integers(0, 2**40),
)
def test_every_pass_holds_every_sample_once(samples, size, microbatches, seed):
    stream = []
    step = 0
    while len(stream) < 3 * samples:
        for m in range(microbatches):
            stream += sample_indices(
                seed=seed,
                step=step,
                microbatch=m,
                microbatches=microbatches,
                size=size,
                samples=samples,
            )
        step += 1
    passes = [stream[i * samples : (i + 1) * samples] for i in range(3)]
    assert [sorted(p) for p in passes] == [list(range(samples))] * 3


def indices(**changes):
    given = {"seed": 1, "step": 0, "microbatch": 0, "microbatches": 4, "size": 50, "samples": 200}
    return sample_indices(**given | changes)


def test_passes_and_seeds_differ():
    orders = [indices(), indices(step=1), indices(seed=2)]
    assert len({tuple(order) for order in orders}) == 3
    assert indices() == indices()


@given(st.integers(1, 5000), st.tuples(*[st.integers(0, 2**64 - 1)] * 4))
def test_a_permutation_stays_within_its_range(samples, keys):
    assert all(0 <= permuted(at, samples, keys) < samples for at in range(0, samples, 97))
