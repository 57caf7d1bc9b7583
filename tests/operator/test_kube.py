"""Answers that are not the API server's."""

from __future__ import annotations

from typing import Any

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
