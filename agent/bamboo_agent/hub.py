"""Names of HuggingFace's hub. Whether it can be reached is found out first.

Its library tries each request again for a minute or two, and agents would be silent for as long.
The library is optional: whoever calls this has imported one that needs it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

from bamboo_agent.factory_names import told

log = logging.getLogger(__name__)

LIMIT_S = 10.0
_REMEDY = (
    "name a folder in the image or on a volume that all agents mount (spec.worker.podTemplate), or"
    ' let agents reach the hub; with HF_HUB_OFFLINE: "1" in spec.worker.env they take a copy in the'
    " folder of HF_HOME and do not ask"
)


class HubError(OSError):
    """There is neither a hub nor a copy. The text has the remedy."""


def looks_like_path(name: str) -> bool:
    """Whether it can be no name of the hub, which has one slash at most."""
    return name.startswith(("/", ".", "~")) or name.endswith("/") or name.count("/") > 1


@contextmanager
def asked(argument: str, name: str) -> Iterator[None]:
    """Let the library load what the argument names. A hub that cannot be reached is not asked: what
    an earlier download has left is taken. HubError if there is nothing."""
    if looks_like_path(name) or Path(name).exists():
        yield
        return
    from huggingface_hub import constants

    was_offline = constants.HF_HUB_OFFLINE
    why = "HF_HUB_OFFLINE is set" if was_offline else _unreachable(constants.ENDPOINT)
    if not why:
        log.info(
            "%s %s: from the hub %s, which may take a while; it is kept in %s",
            *(argument, name, constants.ENDPOINT, constants.HF_HOME),
        )
        yield
        return
    log.warning("%s %s: %s; taking a copy in %s", argument, name, why, constants.HF_HOME)
    constants.HF_HUB_OFFLINE = True  # as long as the library loads
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # of this machine's files
            raise
        raise HubError(
            f"{argument} {name!r} cannot be loaded: {why}, and {constants.HF_HOME} has no whole"
            f" copy of it: {_REMEDY}"
        ) from error
    finally:
        constants.HF_HUB_OFFLINE = was_offline


def _unreachable(address: str) -> str:
    """Why the hub does not answer; empty: it does. A look-up of its name has no limit of its own,
    so a thread waits for it."""
    from huggingface_hub import get_session

    found: list[str] = []

    def ask() -> None:
        try:
            get_session().head(address, timeout=LIMIT_S)
        except Exception as error:
            found.append(f"the hub {address} cannot be reached ({told(error)})")
        else:
            found.append("")

    thread = Thread(target=ask, name="bamboo-hub", daemon=True)
    thread.start()
    thread.join(LIMIT_S)
    return found[0] if found else f"the hub {address} has not answered within {LIMIT_S:g} s"
