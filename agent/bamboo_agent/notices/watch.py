"""Asks the metadata server until the process ends, and announces each notice once.

Whatever the server does, it costs only notices: a source that gets no answer goes on asking, more
rarely, and nothing here ends the supervisor.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable

from bamboo_agent.notices import sources
from bamboo_agent.notices.client import ADDRESS, MetadataClient, NoAnswerError, Reply, is_there
from bamboo_agent.notices.sources import News, Source
from bamboo_core.api.spec import NoticeSource

log = logging.getLogger(__name__)

Announce = Callable[[NoticeSource, News], None]

LONGEST_PAUSE_S = 10.0
"""Between two questions to a server that does not answer as it should."""
DETECT_AFTER_S = (2.0, 10.0, 60.0, 600.0)
"""Pauses while no cloud is found, the last one for ever: a metadata proxy may start late."""
MOST_NEWS = 64
"""Of one source; more come only from a broken server."""


async def run(
    names: Iterable[NoticeSource],
    announce: Announce,
    *,
    address: str = ADDRESS,
    detect_after_s: tuple[float, ...] = DETECT_AFTER_S,
) -> None:
    """Watch these sources for ever; return at once if there is none."""
    wanted: list[NoticeSource] = [name for name in names if name is not NoticeSource.NONE]
    if not wanted:
        return
    try:
        if NoticeSource.AUTO in wanted:
            client, wanted = await _find(address, detect_after_s)
        else:
            client = await MetadataClient.open(address)
    except Exception:
        log.exception("notices: nobody can be asked; SIGTERM remains")
        return
    log.info("notices: asking %s", ", ".join(wanted))
    try:
        async with asyncio.TaskGroup() as tasks:
            for name in wanted:
                for source in sources.make(name, client):
                    tasks.create_task(watch(name, source, announce))
    finally:
        await client.close()


async def watch(name: NoticeSource, source: Source, announce: Announce) -> None:
    """Ask for ever; announce what is new."""
    told: set[str] = set()
    pause_s, trouble = source.pause_s, ""
    while True:
        try:
            found, now_wrong = await source.ask(), ""
        except NoAnswerError as error:
            found, now_wrong = [], str(error)
        except Exception as error:
            found, now_wrong = [], f"{type(error).__name__}: {error}"
        if now_wrong != trouble:
            log.info("notices: %s: %s", name, now_wrong or "there are answers again")
        trouble = now_wrong
        pause_s = min(LONGEST_PAUSE_S, 2 * pause_s) if trouble else source.pause_s
        for news in found:
            if news.key not in told and len(told) < MOST_NEWS:
                told.add(news.key)
                log.warning("notice: %s", news.reason)
                announce(name, news)
        await asyncio.sleep(pause_s)


# ---------------------------------------------------------------- which cloud


async def _find(
    address: str, detect_after_s: tuple[float, ...]
) -> tuple[MetadataClient, list[NoticeSource]]:
    """Once the metadata server of a known cloud answers."""
    pauses = list(detect_after_s)
    is_first = True
    while True:
        if await is_there(address):
            client, found = await MetadataClient.open(address), list[NoticeSource]()
            try:
                found = await detect(client)
            finally:
                if not found:
                    await client.close()
            if found:
                return client, found
        if is_first:
            log.info("notices: no metadata server of a known cloud answers at %s", address)
            is_first = False
        await asyncio.sleep(pauses.pop(0) if len(pauses) > 1 else pauses[0])


async def detect(client: MetadataClient) -> list[NoticeSource]:
    """The sources of the cloud whose metadata server this is; empty: of none that is known."""
    is_gce, is_aws, is_azure = await asyncio.gather(
        _answers(_is_gce, client.ask("GET", "/", sources.GCE_HEADERS)),
        _answers(_is_aws, client.ask("PUT", sources.TOKEN_TARGET, sources.TOKEN_HEADERS)),
        _answers(_is_azure, client.ask("GET", "/metadata/versions", sources.AZURE_HEADERS)),
    )
    if is_gce:
        return [NoticeSource.GCE]
    if is_azure:
        return [NoticeSource.AZURE]
    return [NoticeSource.AWS_SPOT, NoticeSource.AWS_REBALANCE] if is_aws else []


async def _answers(is_right: Callable[[Reply], bool], request: Awaitable[Reply]) -> bool:
    try:
        return is_right(await request)
    except (NoAnswerError, ValueError, RecursionError):
        return False


def _is_gce(reply: Reply) -> bool:
    return reply.status == 200 and reply.headers.get("metadata-flavor") == "Google"


def _is_aws(reply: Reply) -> bool:
    return bool(sources.aws_token(reply))


def _is_azure(reply: Reply) -> bool:
    document = json.loads(reply.text())
    return isinstance(document, dict) and isinstance(document.get("apiVersions"), list)
