"""Answers that are not the API server's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from bamboo_operator.api import ApiError
from bamboo_operator.kube import Kube


@pytest.mark.parametrize("text", ["<html>login</html>", "", "[]", '"ok"'])
async def test_the_answer_of_a_proxy_is_an_error_like_any_other(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(*_: Any) -> tuple[int, str]:
        return 200, text

    kube = Kube(None)
    monkeypatch.setattr(kube, "_send", answer)
    with pytest.raises(
        ApiError, match=r"0 Unreachable: the answer is not the API server's"
    ) as found:
        await kube.create("/api/v1/namespaces/x/events", {})
    assert found.value.code == 0


class _Stream:
    """An answer that comes in pieces."""

    def __init__(self, status: int, *pieces: bytes | Exception) -> None:
        self.status, self.pieces, self.is_closed = status, pieces, False
        self.response = self.content = self

    async def iter_any(self) -> AsyncIterator[bytes]:
        for piece in self.pieces:
            if isinstance(piece, Exception):
                raise piece
            yield piece

    async def read(self) -> bytes:
        return b"".join(piece for piece in self.pieces if isinstance(piece, bytes))

    def close(self) -> None:
        self.is_closed = True


async def watched(stream: _Stream, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    async def answer(verb: str, path: str, query: dict[str, str], *_: Any) -> _Stream:
        assert (query["fieldSelector"], query["resourceVersion"]) == ("a=b", "7")
        return stream

    kube = Kube(None)
    monkeypatch.setattr(kube, "_open", answer)
    try:
        return [event async for event in kube.watch("/api/v1/pods", fields="a=b", since="7")]
    finally:
        assert stream.is_closed


async def test_events_of_a_watch_come_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = _Stream(200, b'{"type": "ADD', b'ED"}\n{"type": "DELETED"}\n{"ty', b'pe": "X"}\n')
    assert [event["type"] for event in await watched(stream, monkeypatch)] == [
        "ADDED", "DELETED", "X",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("stream", "code"),
    [
        (_Stream(403, b'{"reason": "Forbidden", "message": "no"}'), 403),
        (_Stream(200, b'{"type": "ADDED"}\n', aiohttp.ClientPayloadError("cut")), 0),
        (_Stream(200, b"<html>\n"), 0),
    ],
)
async def test_a_watch_that_breaks_is_an_error_like_any_other(
    stream: _Stream, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ApiError) as found:
        await watched(stream, monkeypatch)
    assert found.value.code == code
