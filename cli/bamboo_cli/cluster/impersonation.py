"""Requests in the name of another user, as a kubeconfig's `as:` wants; kubectl sends the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from urllib3 import HTTPHeaderDict

_FIELDS = ("as", "as-uid", "as-groups", "as-user-extra")
_IN_NAMES = "!#$&'*+-.^_`|~"  # besides letters and digits, in the name of a header


def headers(user: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The headers that every request of this user of a kubeconfig carries.

    ValueError names the field that is wrong.
    """
    given = {x: user[x] for x in _FIELDS if user.get(x) not in (None, "", [], {})}
    if given and "as" not in given:
        raise ValueError(f"{next(iter(given))} is set without as; set as, too, or remove it")
    found = list(_read(given))
    for field, _, value in found:
        if not (isinstance(value, str) and value.isprintable()):
            raise ValueError(f"{field} has {value!r}; it must be a string without line breaks")
    # UTF-8, as kubectl sends it; the client of HTTP would make Latin-1 of it.
    return [(name, value.encode().decode("latin-1")) for _, name, value in found]


def _read(given: Mapping[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Field, header and value, each as often as the header is sent."""
    for field, name in (("as", "Impersonate-User"), ("as-uid", "Impersonate-Uid")):
        if field in given:
            yield field, name, given[field]
    for group in _listed("as-groups", given.get("as-groups", [])):
        yield "as-groups", "Impersonate-Group", group
    extra = given.get("as-user-extra", {})
    if not isinstance(extra, dict):
        raise ValueError(f"as-user-extra is {extra!r}; it must be an object of lists of strings")
    for key, values in extra.items():
        field = f"as-user-extra.{key}"
        for value in _listed(field, values):
            yield field, f"Impersonate-Extra-{quote(str(key), safe=_IN_NAMES)}", value


def _listed(field: str, given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ValueError(f"{field} is {given!r}; it must be a list of strings")
    return given


@dataclass(frozen=True)
class AsSomebody:
    """In the place of the Kubernetes client's ``rest_client``, which sends all its requests.

    The client's default headers are a dict, and a group needs a header of its own.
    """

    inner: Any
    headers: list[tuple[str, str]]

    def request(self, method: str, url: str, headers: Any = None, **more: Any) -> Any:
        every = HTTPHeaderDict(headers or {})
        for name, value in self.headers:
            every.add(name, value)
        return self.inner.request(method, url, headers=every, **more)

    def close(self) -> None:
        self.inner.close()
