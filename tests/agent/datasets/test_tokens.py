"""Token files: exact samples from one file or many, and errors that name the file."""

from __future__ import annotations

import multiprocessing
import pickle
import re
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bamboo_agent.datasets import tokens
from bamboo_agent.datasets.tokens import build
from bamboo_agent.model import FactoryError
from bamboo_agent.user_code import call_factory
from bamboo_core.api.spec import FactorySpec


def write(path: Path, tokens: Any, dtype: str = "<u2") -> str:
    values = np.asarray(tokens, dtype)
    np.save(path, values) if path.suffix == ".npy" else values.tofile(path)
    return str(path)


@pytest.fixture
def file(tmp_path: Path) -> str:
    """Tokens 0 to 100."""
    return write(tmp_path / "train.bin", range(101))


def as_lists(sample: Any) -> tuple[list[int], list[int]]:
    return sample[0].tolist(), sample[1].tolist()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("end", [".bin", ".npy"])
def test_targets_are_the_tokens_shifted_by_one(tmp_path: Path, dtype: str, end: str) -> None:
    path = write(tmp_path / f"x{end}", range(101), np.dtype(dtype).newbyteorder("<").str)
    data = build(path, 10, dtype)
    assert len(data) == 10
    for i in (0, 3, 9):
        inputs, targets = data[i]
        assert as_lists((inputs, targets)) == (
            list(range(10 * i, 10 * i + 10)),
            list(range(10 * i + 1, 10 * i + 11)),
        )
        assert inputs.dtype == targets.dtype == torch.int64


def test_a_bin_file_has_16_bits_unless_named_and_an_array_says_its_own(tmp_path: Path) -> None:
    path = write(tmp_path / "x.npy", [70_000, 1, 2], ">i4")
    assert as_lists(build(path, 2)[0]) == ([70_000, 1], [1, 2])
    assert as_lists(build(write(tmp_path / "x.bin", [7, 8, 9]), 2)[0]) == ([7, 8], [8, 9])


def test_a_header_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"\0" * 1024 + np.arange(5, dtype="<u2").tobytes())
    assert as_lists(build(str(path), 4, header=1024)[0]) == ([0, 1, 2, 3], [1, 2, 3, 4])


def test_files_follow_one_another_and_no_sample_crosses_an_end(tmp_path: Path) -> None:
    for n, count in enumerate((7, 4, 9)):
        write(tmp_path / f"part-{n}.bin", range(100 * n, 100 * n + count))
    data = build(str(tmp_path / "part-*.bin"), 3)
    starts = [0, 3, 100, 200, 203]
    assert [as_lists(data[i])[0] for i in range(len(data))] == [[s, s + 1, s + 2] for s in starts]
    names = [str(tmp_path / f"part-{n}.bin") for n in (2, 0)]
    assert [data[0].item() for data, _ in iter_all(build(names, 3))] == [200, 203, 0, 3]


def iter_all(data: Any) -> list[Any]:
    return [data[i] for i in range(len(data))]


def test_a_part_of_the_samples(file: str) -> None:
    data = build(file, 10, first=7, count=2)
    assert len(data) == 2
    assert [as_lists(x)[0][0] for x in iter_all(data)] == [70, 80]
    assert len(build(file, 10, first=7)) == 3
    for index in (2, 10):
        with pytest.raises(IndexError):
            data[index]


def test_positions_begin_again_after_the_end_of_a_document(tmp_path: Path) -> None:
    data = build(write(tmp_path / "x.bin", [5, 6, 0, 7, 0, 0, 8, 9, 1, 1, 0]), 5, eos=0)
    inputs, targets = data[0]
    assert inputs["input_ids"].tolist() == [5, 6, 0, 7, 0]
    assert inputs["position_ids"].tolist() == [0, 1, 2, 0, 1]
    assert targets.tolist() == [6, 0, 7, 0, 0]
    assert data[1][0]["position_ids"].tolist() == [0, 0, 1, 2, 3]


def own_bytes() -> int:
    """Memory that belongs to this process alone, without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(x.split()[1]) for x in lines if x.startswith("RssAnon")) * 1024


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "large.bin"
    with path.open("wb") as opened:
        opened.truncate(2**30)  # a hole: no bytes are written
    data = build(str(path), 2**20)
    data[0]
    before = own_bytes()
    tracemalloc.start()
    for index in range(0, len(data), 32):
        data[index]
    data.content_fingerprint()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2**26  # one sample
    assert own_bytes() - before < 2**26
    assert len(data) == 2**9 - 1


def test_tokens_are_a_read_only_part_of_the_mapped_file(file: str) -> None:
    data = build(file, 10)
    (found,), mappings = data._files, data._mappings
    piece = found.read(mappings, 30, 11)
    assert (piece.tolist(), piece.flags.writeable) == (list(range(30, 41)), False)
    assert piece.base.obj is mappings.of(found.path)
    assert f" {file}\n" in Path("/proc/self/maps").read_text()


def test_a_sample_may_be_written_to_and_the_file_stays(file: str) -> None:
    data, before = build(file, 10), Path(file).read_bytes()
    for part in data[0]:
        part.zero_()
    assert as_lists(data[0]) == (list(range(10)), list(range(1, 11)))
    assert Path(file).read_bytes() == before


def test_only_some_of_many_files_are_mapped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "_MOST_MAPPED", 3)
    names = [write(tmp_path / f"{n}.bin", range(n, n + 5)) for n in range(8)]
    data = build(names, 4)
    kept = data._files[0].read(data._mappings, 0, 5)
    for _ in range(2):
        assert [as_lists(x)[0][0] for x in iter_all(data)] == list(range(8))
    mapped = [n for n in names if f" {n}\n" in Path("/proc/self/maps").read_text()]
    assert mapped == [names[0], *names[5:]]
    assert kept.tolist() == list(range(5))


def test_another_process_reads_the_same(file: str) -> None:
    data = build(file, 10)
    samples = [as_lists(x) for x in iter_all(data)]
    other = pickle.loads(pickle.dumps(data))
    assert [as_lists(x) for x in iter_all(other)] == samples
    assert other.content_fingerprint() == data.content_fingerprint()
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.apply(lists_of, (data,)) == samples
    assert len(pickle.dumps(data)) < 1000


def lists_of(data: Any) -> list[tuple[list[int], list[int]]]:
    return [as_lists(x) for x in iter_all(data)]


# ------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (b"", {}, "x.bin is empty; write it again, or leave it out"),
        (b"12", {"header": 2}, "x.bin has 2 bytes, no more than header 2"),
        (
            b"123",
            {},
            "x.bin: 3 bytes of tokens are no multiple of 2, the bytes of one uint16; name",
        ),
        (b"12" * 3, {"dtype": "int32"}, "6 bytes of tokens are no multiple of 4, the bytes of one"),
        (b"12" * 4, {}, "x.bin has 4 tokens, too few for one sample of sequence 4 and its last"),
        (b"12" * 9, {"first": 2}, "first 2 lie beyond the 2 samples of "),
        (b"12" * 9, {"first": 1, "count": 2}, "first 1 and count 2 lie beyond the 2 samples of "),
        (b"12" * 9, {"dtype": "float32"}, "dtype 'float32' must be one of uint8, int8, uint16"),
        (b"12" * 9, {"sequence": 0}, "sequence 0 must be a whole number of at least 1"),
        (b"12" * 9, {"sequence": 2.0}, "sequence 2.0 must be a whole number of at least 1"),
        (b"12" * 9, {"first": -1}, "first -1 must be a whole number of at least 0"),
        (b"12" * 9, {"count": 0}, "count 0 must be a whole number of at least 1"),
        (b"12" * 9, {"vocabulary": True}, "vocabulary True must be a whole number of at least 1"),
    ],
)
def test_a_file_that_does_not_do_is_refused_by_name(
    tmp_path: Path, content: bytes, arguments: dict[str, Any], words: str
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(words)):
        build(str(path), **{"sequence": 4, **arguments})


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "missing.bin",
            "missing.bin: no such file; name a file that is in the image or on a volume",
        ),
        ("missing-*.bin", "missing-*.bin: no such file"),
        (["train.bin", "second.bin"], "second.bin: no such file"),
        (".", "is a folder; name its files: "),
        ([], "path [] must be a file, a pattern of files, or a list of those"),
        ([3], "path [3] must be a file"),
    ],
)
def test_a_path_without_files_is_refused(
    file: str, monkeypatch: pytest.MonkeyPatch, path: Any, words: str
) -> None:
    monkeypatch.chdir(Path(file).parent)
    with pytest.raises((ValueError, FileNotFoundError), match=re.escape(words)):
        build(path, 4)


def test_a_file_that_must_not_be_read_is_named(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refused)
    monkeypatch.setattr(Path, "exists", lambda self: True)
    monkeypatch.setattr(Path, "is_dir", lambda self: False)
    with pytest.raises(OSError, match=r"train.bin cannot be read: Permission denied"):
        build(file, 4)


@pytest.mark.parametrize(
    ("values", "dtype", "arguments", "words"),
    [
        ([[1, 2]], "i4", {}, "is an array of shape (1, 2) and dtype int32; save one dimension of"),
        ([1.0] * 9, "f4", {}, "is an array of shape (9,) and dtype float32; save one dimension of"),
        (
            [1] * 9,
            "i4",
            {"dtype": "uint16"},
            "x.npy is of dtype int32, not uint16; leave dtype out",
        ),
    ],
)
def test_an_array_that_does_not_do_is_refused(
    tmp_path: Path, values: Any, dtype: str, arguments: dict[str, Any], words: str
) -> None:
    path = write(tmp_path / "x.npy", values, dtype)
    with pytest.raises(ValueError, match=re.escape(words)):
        build(path, 4, **arguments)


def test_an_array_that_is_none_or_is_torn_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(b"no array")
    with pytest.raises(ValueError, match=r"x.npy is no array of numpy"):
        build(str(path), 4)
    write(path, range(100), "i4")
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"x.npy ends before its 100 tokens; copy the file again"):
        build(str(path), 4)


@pytest.mark.parametrize(
    ("dtype", "vocabulary", "words"),
    [
        ("uint16", 13, "token 13 is 13, which is not at least 0 and below vocabulary 13"),
        ("int16", None, "token 9 is -2, which is not at least 0; is the file of dtype int16"),
    ],
)
def test_a_token_out_of_range_is_named_when_it_is_read(
    tmp_path: Path, dtype: str, vocabulary: int | None, words: str
) -> None:
    tokens = list(range(21))
    if vocabulary is None:
        tokens[9] = -2
    data = build(write(tmp_path / "x.bin", tokens, dtype), 5, dtype, vocabulary=vocabulary)
    data[0]
    with pytest.raises(ValueError, match=re.escape(f"x.bin: {words}")):
        iter_all(data)


@pytest.mark.parametrize("is_mapped", [True, False])
def test_a_file_that_becomes_shorter_is_told_and_kills_nobody(file: str, is_mapped: bool) -> None:
    data = build(file, 10)
    if is_mapped:
        data[0]
    Path(file).write_bytes(Path(file).read_bytes()[:50])
    data[0]
    with pytest.raises(ValueError, match=r"train.bin has become shorter .* token 30 is not there"):
        data[2]
    Path(file).write_bytes(b"")
    with pytest.raises(ValueError, match=r"train.bin has become shorter .* token 10 is not there"):
        data[0]
    Path(file).unlink()
    with pytest.raises(FileNotFoundError, match=re.escape("train.bin")):
        pickle.loads(pickle.dumps(data))[0]


def test_a_refusal_names_the_factory(tmp_path: Path) -> None:
    spec = FactorySpec("bamboo_agent.datasets.tokens:build", {"path": "/no.bin", "sequence": 4})
    words = "bamboo_agent.datasets.tokens:build raised FileNotFoundError: /no.bin: no such file"
    with pytest.raises(FactoryError, match=words):
        call_factory(spec, seed=1)


# ------------------------------------------------------------ what other agents see


def test_another_size_or_content_has_another_fingerprint(tmp_path: Path) -> None:
    def of(tokens: Any) -> str:
        return build(write(tmp_path / "x.bin", tokens), 8, count=4).content_fingerprint()

    tokens = np.zeros(200_000, np.uint16)
    changed, longer = tokens.copy(), np.zeros(200_001, np.uint16)
    changed[123_456] = 1
    assert of(tokens) == of(tokens)
    assert len({of(tokens), of(changed), of(longer)}) == 3
