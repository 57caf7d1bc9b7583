"""``bamboo-operator``: reads the environment and runs until it is stopped."""

from __future__ import annotations

import logging
import os
import sys

from bamboo_core.api.limits import RECURSION_LIMIT
from bamboo_operator.app import App
from bamboo_operator.config import Config, ConfigError, from_env
from bamboo_operator.kube.client import connect
from bamboo_operator.process import event_loop, logs
from bamboo_operator.process.event_loop import LoopHearing

log = logging.getLogger(__name__)


def main() -> None:
    """Exit codes: 0 stopped, 1 a part failed, 2 the configuration is wrong."""
    try:
        config = from_env(os.environ)
    except ConfigError as error:
        sys.exit(f"bamboo-operator: {error}")
    sys.setrecursionlimit(RECURSION_LIMIT)
    logs.configure(config.log_level)
    of_loop = LoopHearing()
    sys.exit(event_loop.run(_run(config, of_loop), of_loop))


async def _run(config: Config, of_loop: LoopHearing) -> int:
    client = await connect()
    try:
        app = App(config, client, of_loop)
        client.observe_with(app.metrics.observe_request)
        return await app.run()
    except OSError as error:
        log.error("cannot start", extra={"error": str(error)})
        return 1
    finally:
        await client.close()


if __name__ == "__main__":
    main()
