"""One tensor of the same part of many samples: equal to what torch makes, or refused by name."""

from __future__ import annotations

import array
import collections
import re

import numpy as np
import pytest
import torch
from tests.agent.data.sets import Samples

from bamboo_agent.data.batches import SampleError
from bamboo_agent.data.collate import collate
from bamboo_agent.data.forms import MisfitError

ROWS = np.arange(6.0).reshape(2, 3)


def same(found, expected):
    assert found.dtype == expected.dtype
    assert found.stride() == expected.stride()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    "value",
    [
        True,
        3,
        0.1,
        1j,
        *(np.dtype(kind).type(1) for kind in ("?", "i1", "u1", "i4", "i8", "f2", "f4", "f8", "c8")),
        range(3),
        array.array("f", [1, 2]),
        bytearray(b"ab"),
        collections.deque([1, 2]),
    ],
)
def test_numbers_and_sequences_of_them_are_as_torch_takes_them(value):
    same(collate([value, value], [0, 1], "input"), torch.tensor([value, value]))


@pytest.mark.parametrize(
    "value",
    [
        ROWS,
        ROWS.astype(np.float16),
        ROWS.astype(np.int32),
        ROWS.astype(np.uint16),
        ROWS.astype(bool),
        ROWS.astype(">f4"),
        ROWS[::-1, ::2],
        np.asfortranarray(ROWS),
    ],
)
@pytest.mark.filterwarnings("ignore:Creating a tensor from a list of numpy.ndarrays")
def test_arrays_give_what_torch_made_of_a_list_of_them(value):
    same(collate([value, value], [0, 1], "input"), torch.tensor([value, value]))


def test_arrays_without_dimensions_give_a_vector():
    same(collate([np.array(1.5), np.array(2.5)], [0, 1], "x"), torch.tensor([1.5, 2.5]).double())
    assert collate([np.zeros((0, 3))] * 2, [0, 1], "x").shape == (2, 0, 3)


def test_arrays_are_copied(tmp_path):
    values = ROWS.copy()
    values.flags.writeable = False
    found = collate([values], [0], "input")
    found.zero_()
    assert values[1, 2] == 5.0
    np.save(tmp_path / "x.npy", ROWS)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    same(collate([mapped[0], mapped[1]], [0, 1], "input"), torch.tensor(ROWS))


def test_tensors_that_view_a_memory_mapped_file_work(tmp_path, data_of):
    np.arange(400.0).tofile(tmp_path / "x")
    whole = torch.from_file(str(tmp_path / "x"), size=400, dtype=torch.float64)
    data = data_of(Samples(lambda i: (whole[4 * i : 4 * i + 3], whole[4 * i + 3])))
    inputs, targets = data.training(0, 0)
    for index, row, target in zip(data.indices(0, 0), inputs, targets, strict=True):
        assert row.tolist() == [4 * index, 4 * index + 1, 4 * index + 2]
        assert target == 4 * index + 3
    assert inputs.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()
    assert data.fingerprint() == data.fingerprint()
    assert data.wide_fingerprint()


def test_tuples_and_lists_are_several_parts():
    values = [((torch.ones(2), 1), [1.0, 2.0]), [[torch.zeros(2), 2], (3.0, 4.0)]]
    (one, two), (three, four) = collate(values, [0, 1], "input")
    same(one, torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    same(two, torch.tensor([1, 2]))
    same(three, torch.tensor([1.0, 3.0]))
    same(four, torch.tensor([2.0, 4.0]))
    assert collate([(), ()], [0, 1], "input") == ()


def test_sparse_tensors_are_stacked():
    found = collate([torch.eye(2).to_sparse()] * 2, [0, 1], "input")
    assert torch.equal(found.to_dense(), torch.stack([torch.eye(2)] * 2))


def requiring():
    return torch.ones(1, requires_grad=True)


class Image:
    """As PIL's: no length, no buffer."""


NESTED = "ignore:The PyTorch API of nested tensors"
CSR = "ignore:Sparse CSR tensor support"


@pytest.mark.filterwarnings(NESTED, CSR)
@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        (
            torch.zeros(2, 4),
            lambda: torch.zeros(2, 5),
            "samples 7 and 9: the input is a tensor of shape (2, 4) and dtype float32 and a tensor"
            " of shape (2, 5) and dtype float32; pad or crop them to one shape in __getitem__,"
            " or give the data set a collate(samples)",
        ),
        (ROWS, lambda: ROWS[:1], "an array of shape (1, 3) and dtype float64; pad or crop them"),
        (range(2), lambda: range(3), "is of length 2 and of length 3; pad or crop them"),
        (
            torch.zeros(1),
            lambda: torch.zeros(1).double(),
            "is of torch.float32 and of torch.float64; return one dtype for every sample",
        ),
        (ROWS, lambda: ROWS.astype("f4"), "of dtype float64 and of dtype float32; return one"),
        (1, lambda: 2.5, "is of type int and of type float; return one dtype for every sample"),
        (1, lambda: True, "is of type int and of type bool; return one dtype"),
        (1.0, lambda: np.float64(1), "is of type float and of type float64; return one dtype"),
        (
            1,
            lambda: torch.tensor(1),
            "is of type int and a tensor of shape () and dtype int64; return",
        ),
        (
            torch.zeros(1),
            lambda: 1,
            "shape (1,) and dtype float32 and of type int; return the same",
        ),
        (
            torch.zeros(2),
            lambda: ROWS[0],
            "shape (2,) and dtype float32 and an array of shape (3,)",
        ),
        (torch.zeros(2), lambda: None, "shape (2,) and dtype float32 and None; return the same"),
        ((1, 2), lambda: 1, "is a tuple of 2 parts and of type int; return the same kind"),
        (
            [1, 2],
            lambda: [1, 2, 3],
            "is a list of 2 parts and a list of 3 parts; a tuple or list is several parts; for a"
            " vector return torch.tensor(x)",
        ),
        (
            (1, (2, 3)),
            lambda: (1, (2, None)),
            "the input[1][1] is of type int and None; return the same kind",
        ),
        (
            {"x": 1},
            lambda: {"y": 1},
            'the input is a dict with the keys "x" and a dict with the keys "y"; give all samples',
        ),
        ({"x": [1]}, lambda: {"x": [b"a"]}, "the input['x'][0] is of type bytes; turn text"),
        ("ab", lambda: "ab", "sample 7: the input is of type str; turn text into numbers"),
        (b"ab", lambda: b"ab", "sample 7: the input is of type bytes; turn text into numbers"),
        (Image(), Image, "sample 7: the input is of type Image; return a tensor or an array, such"),
        ({1}, lambda: {1}, "sample 7: the input is of type set; return a tensor or an array"),
        (1, lambda: 2**63, "sample 9: the input is of type int: Overflow when unpacking long"),
        (
            np.array(["a"]),
            lambda: np.array(["a"]),
            "is an array of shape (1,) and dtype <U1, which torch does not have; return numbers",
        ),
        (np.array([None]), lambda: np.array([None]), "dtype object, which torch does not have"),
        (np.datetime64(1, "s"), lambda: np.datetime64(1, "s"), "is of type datetime64; return a"),
        (
            ROWS,
            lambda: np.ma.masked_less(ROWS, 1),
            "sample 9: the input is a masked array; return x.filled(number)",
        ),
        (
            torch.ones(1),
            requiring,
            "sample 9: the input requires grad, but only layers are trained; return x.detach()",
        ),
        (requiring(), lambda: torch.ones(1), "sample 7: the input requires grad"),
        (torch.ones(1), lambda: torch.ones(1, device="meta"), "sample 9: the input is on the devi"),
        (torch.eye(2), lambda: torch.eye(2).to_sparse_csr(), "layout torch.sparse_csr; return a d"),
        (
            torch.ones(1),
            lambda: torch.nested.nested_tensor([torch.ones(2)]),
            "sample 9: the input is a tensor of layout torch.strided, nested; return a dense one",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused_by_name(one, other, words):
    with pytest.raises(MisfitError, match=re.escape(words)):
        collate([one, one, other()], [7, 8, 9], "input")


def test_a_refusal_names_factory_sample_and_part(data_of):
    dataset = Samples(lambda i: (torch.zeros(2), (1, torch.zeros(2 + i % 2))))
    words = re.escape(
        "validation micro-batch 0: users_data:held_out, samples 0 and 1: the target[1] is a tensor"
        " of shape (2,) and dtype float32 and a tensor of shape (3,) and dtype float32; pad or crop"
    )
    with pytest.raises(SampleError, match=words):
        data_of([(1, 1)] * 100, dataset).validation(0)


def test_an_error_of_torch_names_the_samples(data_of, monkeypatch):
    def fails(values):
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "stack", fails)
    words = r"users_data:held_out, samples 0, 1: RuntimeError: no memory"
    with pytest.raises(SampleError, match=words):
        data_of([(1, 1)] * 100, Samples(lambda i: (torch.zeros(2), 1))).validation(0)


def test_other_errors_of_sequences_keep_torch_s_words():
    values = [collections.deque([[1]]), collections.deque([[1, 2]])]
    words = "samples 7, 8: the input: ValueError: expected sequence of length 1"
    with pytest.raises(MisfitError, match=re.escape(words)):
        collate(values, [7, 8], "input")


def test_an_error_about_many_samples_ends_with_what_is_wrong(data_of, monkeypatch):
    """The line is cut: of 4000 numbers it had only those."""

    def fails(values):
        raise RuntimeError("no memory")

    monkeypatch.setattr(torch, "stack", fails)
    data = data_of([(1, 1)] * 96_000, Samples(lambda i: (torch.zeros(2), 1), 4000), size=4000)
    with pytest.raises(SampleError) as caught:
        data.validation(0)
    assert str(caught.value) == (
        "validation micro-batch 0: users_data:held_out, samples 0, 1, 2, 3, 4, 5, 6, 7, ... (4000):"
        " RuntimeError: no memory"
    )
