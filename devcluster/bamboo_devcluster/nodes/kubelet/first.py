"""Process 1 of a kubelet node: starts containerd, imports the images, starts the kubelet.

Run as `python -I -S first.py ORDER`, in namespaces of its own (shim.py). Uses only the standard
library. It restarts programs that exit, and reaps what the containers leave. When it dies, the
kernel kills all processes of the node. The order is a JSON object; see machine.Machine.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Order = dict[str, Any]

START_S = 30.0
POLL_S = 0.05
RESTART_S = 1.0
RUN = "/run/devcluster"


def main() -> None:
    """Set the node up, then watch its programs."""
    with open(sys.argv[1]) as file:
        order = json.load(file)
    for door in order["cgroups"]:
        with open(door, "w") as file:
            file.write("0")
    set_up_files(order)
    with open(order["gate"], "rb") as gate:
        gate.read(1)  # the network is ready
    programs = {program["name"]: program for program in order["programs"]}
    running = start(programs.pop("containerd"), {})
    wait_for_containerd(order, running)
    for archive in order["archives"]:
        run([*order["ctr"], "--namespace", "k8s.io", "images", "import", archive], order)
    for program in programs.values():
        running = start(program, running)
    watch(running)


def set_up_files(order: Order) -> None:
    """Give the node a /run, /var/lib and /var/log of its own, and its name."""
    run(["mount", "-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"], order)
    for source, target in order["binds"]:
        run(["mount", "--bind", source, target], order)
    os.mkdir(RUN)
    socket.sethostname(order["name"])
    # Every container gets containerd's own default specification, and the machine's folders.
    text = run([order["ctr"][0], "oci", "spec"], order)
    specification = json.loads(text)
    specification["mounts"] += order["mounts"]
    specification["process"].pop("rlimits", None)  # the kubelet's, not 1024 open files
    with open(f"{RUN}/spec.json", "w") as file:
        json.dump(specification, file)


def wait_for_containerd(order: Order, running: dict[int, Order]) -> None:
    """Return once containerd answers; exit if it has ended."""
    deadline = time.monotonic() + START_S
    while subprocess.run(
        [*order["ctr"], "version"], env=order["env"], capture_output=True, check=False
    ).returncode:
        if any(os.waitpid(pid, os.WNOHANG)[0] for pid in running):
            fail("containerd ended; see containerd.log")
        if time.monotonic() > deadline:
            fail(f"containerd did not answer within {START_S:g} s; see containerd.log")
        time.sleep(POLL_S)


def start(program: Order, running: dict[int, Order]) -> dict[int, Order]:
    """Start a program; return the running ones with it, by process id."""
    with open(program["log"], "ab") as log:
        child = subprocess.Popen(
            program["argv"],
            env=program["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    child.returncode = 0  # `watch` reaps it
    return {**running, child.pid: program}


def watch(running: dict[int, Order]) -> None:
    """Reap all processes of the node; restart a program that has ended."""
    while True:
        pid, status = os.wait()
        if program := running.pop(pid, None):
            code = os.waitstatus_to_exitcode(status)
            print(f"{program['name']} exited with code {code}; restarting it", flush=True)
            time.sleep(RESTART_S)
            running = start(program, running)


def run(command: list[str], order: Order) -> str:
    """Run a command to its end; return its output, or exit with its message."""
    done = subprocess.run(
        command,
        env=order["env"],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        fail(f"{' '.join(command)}: {' '.join(done.stderr.split())}")
    return done.stdout


def fail(text: str) -> None:
    """End the node."""
    print(text, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main()
