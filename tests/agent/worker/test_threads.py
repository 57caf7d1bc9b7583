"""A thread that dies ends the worker."""

from __future__ import annotations

import subprocess
import sys
import textwrap

from bamboo_core.protocol.exit_codes import ExitCode


def run(body: str) -> subprocess.CompletedProcess[str]:
    code = f"""
import threading, time
from bamboo_agent.worker.threads import end_with_any_thread

end_with_any_thread()
{textwrap.dedent(body)}
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


def test_a_thread_that_dies_ends_the_process_with_its_own_exit_code() -> None:
    done = run("threading.Thread(target=lambda: [].pop(), name='saver').start()\ntime.sleep(60)")
    assert done.returncode == ExitCode.THREAD_DIED
    assert "thread saver has died" in done.stderr
    assert "IndexError" in done.stderr


def test_a_thread_may_end_by_itself() -> None:
    done = run(
        """
        import sys
        threading.Thread(target=sys.exit).start()
        print("on")
        """
    )
    assert (done.returncode, done.stdout) == (0, "on\n")
