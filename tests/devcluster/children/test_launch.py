"""Programs that cannot outlive their parent, with every kind of isolation."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bamboo_devcluster.children import launch
from bamboo_devcluster.children.launch import Isolation, Mount, Order, StartError

PATH = os.environ["PATH"]


@pytest.fixture(params=list(Isolation), ids=lambda kind: kind.value)
async def isolation(request: pytest.FixtureRequest, tmp_path: Path) -> Isolation:
    kind: Isolation = request.param
    best = await launch.find_isolation(tmp_path)
    if list(Isolation).index(kind) < list(Isolation).index(best):
        pytest.skip(f"this machine allows only {best.value}")
    return kind


def order(tmp_path: Path, *argv: str, isolation: Isolation, mounts: list[Mount] | None = None):
    return Order(
        argv=argv, env={"PATH": PATH}, cwd="/", mounts=mounts or [],
        scratch=str(tmp_path / "scratch"), isolation=isolation,
    )  # fmt: skip


async def run(given: Order, tmp_path: Path) -> tuple[int, str]:
    with (tmp_path / "out").open("w+") as out:
        process = await launch.start(given, out.fileno())
        code = await process.exit_code
        out.seek(0)
        return code, out.read()


async def test_output_and_exit_code(tmp_path: Path, isolation: Isolation) -> None:
    given = order(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7", isolation=isolation)
    assert await run(given, tmp_path) == (7, "out\nerr\n")


async def test_a_signal_gives_128_plus_its_number(tmp_path: Path, isolation: Isolation) -> None:
    process = await launch.start(order(tmp_path, "sleep", "60", isolation=isolation), 2)
    process.kill()
    assert await process.exit_code == 128 + signal.SIGKILL
    process.signal(signal.SIGTERM)  # no error after the end
    assert process.members() == []


async def test_a_missing_program_is_a_start_error(tmp_path: Path, isolation: Isolation) -> None:
    with pytest.raises(StartError, match="no-such"):
        await launch.start(order(tmp_path, "no-such", isolation=isolation), 2)


async def test_all_members_are_killed_and_frozen(tmp_path: Path, isolation: Isolation) -> None:
    reader, writer = os.pipe()
    given = order(tmp_path, "sh", "-c", "sleep 60 & echo; wait", isolation=isolation)
    process = await launch.start(given, writer)
    os.close(writer)
    assert await asyncio.to_thread(os.read, reader, 1) == b"\n"
    members = process.members()
    assert len(members) >= 2
    process.freeze()
    await until(lambda: {state_of(pid) for pid in members} == {"T"})
    process.thaw()
    await until(lambda: "T" not in {state_of(pid) for pid in members})
    process.kill()
    await process.exit_code
    assert await asyncio.to_thread(os.read, reader, 1) == b"", "every writer of the pipe has ended"
    os.close(reader)


async def until(condition: Callable[[], bool]) -> None:
    """A signal takes effect only when its process is next scheduled."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - the kernel has no event for this
            await asyncio.sleep(0.01)


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def existing(*paths: Path) -> list[str]:
    return [path.name for path in paths if path.exists()]


@pytest.mark.parametrize("isolation", [Isolation.NAMESPACES, Isolation.USER_NAMESPACE])
async def test_mounts_appear_and_leave_nothing_behind(tmp_path: Path, isolation: Isolation) -> None:
    best = await launch.find_isolation(tmp_path)
    if list(Isolation).index(isolation) < list(Isolation).index(best):
        pytest.skip(f"this machine allows only {best.value}")
    (tmp_path / "vol").mkdir()
    (tmp_path / "vol" / "a").write_text("A")
    (tmp_path / "inner").mkdir()
    (tmp_path / "file").write_text("F")
    mounts = [
        Mount(str(tmp_path / "inner"), "/devcluster-new/vol/inner"),
        Mount(str(tmp_path / "vol"), "/devcluster-new/vol"),
        Mount(str(tmp_path / "vol"), f"{tmp_path}/seen/ro", read_only=True),
        Mount(str(tmp_path / "file"), "/dev/devcluster-file"),
    ]
    script = (
        f"cat /devcluster-new/vol/a /dev/devcluster-file {tmp_path}/seen/ro/a; echo;"
        "touch /devcluster-new/vol/inner/i; echo x > /dev/null && test -c /dev/null && echo dev;"
        f"touch {tmp_path}/seen/ro/x 2>/dev/null || echo ro; ls /devcluster-new/vol"
    )
    given = order(tmp_path, "sh", "-c", script, isolation=isolation, mounts=mounts)
    assert await run(given, tmp_path) == (0, "AFA\ndev\nro\na\ninner\n")
    assert existing(tmp_path / "inner" / "i", tmp_path / "seen", Path("/devcluster-new")) == ["i"]


async def test_a_mount_that_does_not_fit_is_a_start_error(tmp_path: Path) -> None:
    best = await launch.find_isolation(tmp_path)
    if best is Isolation.NONE:
        pytest.skip("no namespaces here")
    mounts = [Mount(str(tmp_path / "none"), "/x")]
    with pytest.raises(StartError, match="No such file"):
        await launch.start(order(tmp_path, "true", isolation=best, mounts=mounts), 2)


async def test_a_second_program_enters_the_first_ones_view(tmp_path, isolation) -> None:
    mounts = [] if isolation is Isolation.NONE else [Mount(str(tmp_path), "/devcluster-new/x")]
    first = order(tmp_path, "sleep", "60", isolation=isolation, mounts=mounts)
    process = await launch.start(first, 2)
    where = "/" if isolation is Isolation.NONE else "/devcluster-new/x"
    second = order(tmp_path, "test", "-d", where, isolation=isolation)
    inside = await launch.start_inside(process, second, 2)
    assert await inside.exit_code == 0
    process.kill()
    await process.exit_code


@pytest.mark.parametrize("kind", list(Isolation), ids=lambda kind: kind.value)
async def test_nothing_outlives_a_killed_parent(tmp_path: Path, kind: Isolation) -> None:
    best = await launch.find_isolation(tmp_path)
    if list(Isolation).index(kind) < list(Isolation).index(best):
        pytest.skip(f"this machine allows only {best.value}")
    script = f"""
import asyncio, os
from bamboo_devcluster.children.launch import *
async def main():
    order = Order(argv=["sleep", "600"], env={{"PATH": {PATH!r}}}, cwd="/",
                  scratch={str(tmp_path / "s")!r}, isolation=Isolation({kind.value!r}))
    process = await start(order, 2)
    print(process.pid, flush=True)
    await process.exit_code
asyncio.run(main())
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE) as parent:  # noqa: ASYNC220
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(child, ended.set)
        async with asyncio.timeout(10):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(child)
        os.close(child)
