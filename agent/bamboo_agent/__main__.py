"""``bamboo-agent``: the main process of an agent's pod.

Exit codes: see bamboo_core.protocol.exit_codes.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

from bamboo_agent import logs
from bamboo_agent.supervisor.config import Config, ConfigError, from_env
from bamboo_agent.supervisor.shell import SupervisorShell
from bamboo_core.protocol.exit_codes import ExitCode


def main() -> None:
    """Entry point; ends the process with the agent's exit code."""
    try:
        config = from_env(os.environ)
        code = asyncio.run(_serve(config))
    except ConfigError as error:
        print(f"bamboo-agent: {error}", file=sys.stderr)
        code = ExitCode.USER
    sys.exit(code)


async def _serve(config: Config) -> int:
    try:
        shell = SupervisorShell(config)
    except OSError as error:
        raise ConfigError(f"BAMBOO_POD_IP: cannot listen on {config.pod_ip}: {error}.") from error
    logs.configure(
        job=config.job,
        agent=config.agent,
        level=config.log_level,
        fence=lambda: shell.supervisor.fence,
    )
    code = await shell.run()
    _ignore_signals()
    return code


def _ignore_signals() -> None:
    """Keep the exit code even if the pod is deleted while the process exits by itself."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    main()
