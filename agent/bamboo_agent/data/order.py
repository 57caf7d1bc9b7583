"""Which samples a micro-batch holds: a pure function of (seed, step, micro-batch).

Each pass over the data uses another permutation, computed index by index (a Feistel network with
cycle walking). So no list of N indices is stored, and any agent can compute any micro-batch. A
micro-batch may contain the end of one pass and the start of the next.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

_ROUNDS = 4
_MASK = (1 << 64) - 1


def sample_indices(
    *, seed: int, step: int, microbatch: int, microbatches: int, size: int, samples: int
) -> list[int]:
    """Indices into the data set of one micro-batch of a step.

    microbatches: G, in the global batch; size: samples in a micro-batch; samples: N, in the data
    set. Every index occurs exactly once in each pass of N samples.
    """
    first = (step * microbatches + microbatch) * size
    return [_nth(seed, position, samples) for position in range(first, first + size)]


def _nth(seed: int, position: int, samples: int) -> int:
    data_pass, at = divmod(position, samples)
    return permuted(at, samples, _round_keys(seed, data_pass))


@lru_cache(maxsize=4)
def _round_keys(seed: int, data_pass: int) -> tuple[int, ...]:
    digest = hashlib.blake2b(f"order/{seed}/{data_pass}".encode(), digest_size=8 * _ROUNDS)
    raw = digest.digest()
    return tuple(int.from_bytes(raw[8 * i : 8 * i + 8], "little") for i in range(_ROUNDS))


def permuted(at: int, samples: int, keys: tuple[int, ...]) -> int:
    """The image of ``at`` under a keyed permutation of 0..samples-1."""
    half = max(1, (max(samples - 1, 1).bit_length() + 1) // 2)
    low = (1 << half) - 1
    while True:  # at most 4 rounds on average: the Feistel domain is below 4 x samples
        left, right = at >> half, at & low
        for k in keys:
            left, right = right, left ^ (_scramble(right, k) & low)
        at = left << half | right
        if at < samples:
            return at


def _scramble(value: int, k: int) -> int:
    """splitmix64's finalizer: every bit of the input reaches every bit of the output."""
    z = (value + k) & _MASK
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    z = (z ^ z >> 27) * 0x94D049BB133111EB & _MASK
    return z ^ z >> 31
