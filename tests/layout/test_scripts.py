"""The commands in scripts/: what they say when something is missing."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from bamboo_core import __version__

SCRIPTS = [
    *("check", "explore", "gen-docs", "gen-proto", "gpu-check", "images"),
    *("lock", "mutate", "quickstart", "setup", "test"),
]  # fmt: skip


def shell(root: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a line of bash with the functions of scripts/lib.sh."""
    return subprocess.run(
        ["/bin/bash", "-ceu", f"source scripts/lib.sh; {command}"],
        cwd=root, env={**os.environ, **environment}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_can_be_run(root: Path, name: str) -> None:
    assert os.access(root / "scripts" / name, os.X_OK)
    subprocess.run(["bash", "-n", root / "scripts" / name], check=True)


def test_ci_runs_the_readmes_test_command(root: Path) -> None:
    assert os.access(root / ".ci/run", os.X_OK)
    assert (root / ".ci/run").read_text().splitlines()[-1] == "exec scripts/test"
    assert "\nscripts/test\n" in (root / "README.md").read_text()


def test_every_test_is_run(root: Path) -> None:
    lists = re.findall(r"run_pytest ([a-z0-9/_ ]+)", (root / "scripts/test").read_text())
    run = {name for names in lists for name in names.split()}
    tests = [path.relative_to(root / "tests") for path in root.glob("tests/**/test_*.py")]
    left = [path for path in tests if run.isdisjoint(map(str, path.parents))]
    assert not left


@pytest.mark.parametrize("name", ["check", "quickstart", "setup", "test"])
def test_another_kind_of_machine_is_told_in_one_sentence(root: Path, name: str) -> None:
    done = subprocess.run(
        [root / "scripts" / name], env={**os.environ, "OSTYPE": "darwin22"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "bamboo: this machine runs darwin22 and Linux is needed; use one" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "unknown", "usage"),
    [
        (["setup", "--help"], "--help", "scripts/setup (without arguments)"),
        (["setup", ""], "", "scripts/setup (without arguments)"),
        (["check", "--fix", "--fast"], "--fast", "scripts/check [--fix]"),
        (["check", "fix"], "fix", "scripts/check [--fix]"),
        (["check", "--fix --fix"], "--fix --fix", "scripts/check [--fix]"),
        (["gen-docs", "docs/recovery.md"], "docs/recovery.md", "scripts/gen-docs [--check]"),
        (["gen-proto", "--help"], "--help", "scripts/gen-proto [DIRECTORY], of one that exists"),
        (["gen-proto", "core", "agent"], "agent", "scripts/gen-proto [DIRECTORY]"),
        (["images", "a", "b"], "b", "scripts/images DIRECTORY"),
        (["lock", "--upgrade", "torch"], "torch", "scripts/lock [--upgrade]"),
    ],
)
def test_arguments_that_a_command_does_not_know_start_nothing(
    root: Path, command: list[str], unknown: str, usage: str
) -> None:
    name, *arguments = command
    done = subprocess.run(
        [root / "scripts" / name, *arguments], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith(f"bamboo: the argument '{unknown}' is not known; usage: {usage}")


def test_no_python(root: Path, tmp_path: Path) -> None:
    result = shell(root, "find_python", PATH=str(tmp_path), BAMBOO_PYTHON="")
    assert result.returncode == 1
    assert result.stderr.startswith("bamboo: no Python 3.11 or newer was found; install one")
    assert result.stderr.count("\n") == 1


def test_old_python_is_passed_over(root: Path, tmp_path: Path) -> None:
    old = tmp_path / "python3"
    old.write_text("#!/bin/sh\nexit 1\n")
    old.chmod(0o755)
    assert shell(root, "find_python", PATH=str(tmp_path), BAMBOO_PYTHON="").returncode == 1


def test_full_disk_before_the_start(root: Path, tmp_path: Path) -> None:
    result = shell(root, f"need_space {tmp_path} 9000000")
    assert result.returncode == 1
    assert "GiB free and 9000000 GiB are needed; free some space" in result.stderr


def test_directory_that_cannot_be_made(root: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = shell(root, f"need_space {tmp_path}/file/below 1")
    assert "cannot be made" in result.stderr


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("error: No space left on device (os error 28)", "because the disk is full"),
        ("cause: dns error: failed to lookup", "because the package index did not answer"),
        (
            "cause: tcp connect error: Connection refused",
            "because the package index did not answer",
        ),
        ("hash mismatch", "its own message is above"),
    ],
)
def test_failures_end_in_one_sentence(root: Path, said: str, sentence: str) -> None:
    result = shell(root, f"run_or_explain 'fetching' bash -c 'echo \"{said}\" >&2; exit 3'")
    assert result.returncode == 1
    first, last = result.stderr.strip().splitlines()
    assert first == said
    assert last.startswith("bamboo: fetching failed")
    assert sentence in last


def test_success_is_silent(root: Path) -> None:
    result = shell(root, "run_or_explain 'fetching' true")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_settings_of_pip_reach_uv(root: Path, tmp_path: Path) -> None:
    result = shell(
        root, 'export_uv_settings; echo "$UV_DEFAULT_INDEX $UV_FIND_LINKS"',
        PIP_INDEX_URL="http://index.example/simple", PIP_FIND_LINKS=str(tmp_path),
    )  # fmt: skip
    assert result.stdout.split() == ["http://index.example/simple", str(tmp_path)]


def images(root: Path, folder: Path, **engines: str) -> subprocess.CompletedProcess[str]:
    """Run scripts/images where only these engines answer; each is the body of a program."""
    (folder / "bin").mkdir()
    for name in ("docker", "podman", "buildah"):
        program = folder / "bin" / name
        program.write_text(f"#!/bin/bash\n{engines.get(name, 'exit 1')}\n")
        program.chmod(0o755)
    settings = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "BASE_IMAGE": "own:1"}
    return subprocess.run(
        [root / "scripts/images", folder / "out"], env={**os.environ, **settings},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("engine", "save", "saved"),
    [
        ("docker", 'touch "$3"', "save -o {out}.new {image}"),
        ("buildah", 'f=${3#*:}; touch "${f%%:*}"', "push {image} docker-archive:{out}.new:{image}"),
    ],
    ids=["docker", "buildah"],
)
def test_archives_of_both_images_are_written(
    root: Path, tmp_path: Path, engine: str, save: str, saved: str
) -> None:
    body = f'echo "$@" >>{tmp_path}/said\ncase $1 in save | push) {save} ;; esac'
    done = images(root, tmp_path, **{engine: body})
    assert done.returncode == 0, done.stderr
    said = (tmp_path / "said").read_text()
    for part in ("operator", "agent"):
        out = tmp_path / f"out/bamboo-{part}.tar"
        image = f"docker.io/library/bamboo-{part}:{__version__}"  # podman adds localhost/ otherwise
        assert out.is_file()
        assert saved.format(out=out, image=image) in said
        assert f"--build-arg BASE_IMAGE=own:1 -t {image} -f Dockerfile.{part} ." in said
    assert f"VERSION={__version__}" in said
    assert "PIP_INDEX_URL" not in said or "PIP_INDEX_URL" in os.environ


def test_a_failed_build_leaves_no_archive(root: Path, tmp_path: Path) -> None:
    done = images(root, tmp_path, docker="[ $1 != build ]")
    assert done.returncode != 0
    assert not list((tmp_path / "out").iterdir())


def test_without_a_container_engine_one_sentence_says_so(root: Path, tmp_path: Path) -> None:
    done = images(root, tmp_path)
    assert done.returncode == 1
    assert "bamboo: none of docker, podman and buildah answers; install one" in done.stderr
    assert done.stderr.count("\n") == 1


def test_archives_need_a_directory(root: Path) -> None:
    done = subprocess.run([root / "scripts/images"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "DIRECTORY is missing; usage: scripts/images DIRECTORY" in done.stderr
