"""The parts of kubelet nodes that need neither root nor containerd."""

import json
import os
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from bamboo_devcluster.errors import ComponentError, DevclusterError, NodeError, SpecError
from bamboo_devcluster.nodes.kubelet import cgroups, configs, images, network, prerequisites
from bamboo_devcluster.nodes.kubelet.cgroups import Group
from bamboo_devcluster.nodes.kubelet.images import Program
from bamboo_devcluster.nodes.kubelet.leftovers import remove_bridge
from bamboo_devcluster.nodes.kubelet.network import Network, Place
from bamboo_devcluster.nodes.kubelet.preparation import import_s
from bamboo_devcluster.spec import ImageMap


def make_program(folder: Path, name: str, script: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_all_that_is_missing_is_named_with_its_remedy(tmp_path, monkeypatch) -> None:
    make_program(tmp_path / "bin", "runc")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("CNI_PATH", str(tmp_path / "nothing"))
    monkeypatch.setattr(prerequisites, "_PLUGIN_FOLDERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(DevclusterError) as caught:
        prerequisites.find_tools(tmp_path)
    text = str(caught.value)
    assert "need root (run the command with sudo), containerd, " in text
    assert "the CNI plugins bridge, host-local, loopback" in text
    assert "apt-get install containerd iproute2 nftables util-linux containernetworking" in text
    assert "runc," not in text
    assert "CNI_PATH names a folder" in text


def test_tools_are_found_and_a_hidden_directory_is_refused(tmp_path, monkeypatch) -> None:
    for name in prerequisites._PROGRAMS:
        make_program(tmp_path / "usr/bin", name)
    for name in prerequisites._PLUGINS:
        make_program(tmp_path / "usr/lib/cni", name)  # beside containerd's folder
    monkeypatch.setenv("PATH", str(tmp_path / "usr/bin"))
    monkeypatch.delenv("CNI_PATH", raising=False)
    monkeypatch.setattr(prerequisites, "_PLUGIN_FOLDERS", ())
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    found = prerequisites.find_tools(tmp_path)
    assert (found["runc"], found.plugins) == (
        str(tmp_path / "usr/bin/runc"),
        tmp_path / "usr/lib/cni",
    )
    with pytest.raises(DevclusterError, match=r"/var/lib/x is hidden .* choose another --dir"):
        prerequisites.find_tools(Path("/var/lib/x"))


def test_a_pattern_of_images_is_refused() -> None:
    images_map = ImageMap.parse({"images": [{"image": "a:1"}, {"image": "*agent*"}]})
    with pytest.raises(SpecError, match=r"images\[1\].image: '\*agent\*' is a pattern"):
        images.programs_of(images_map)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("a", "docker.io/library/a:latest"),
        ("a:1", "docker.io/library/a:1"),
        ("team/a", "docker.io/team/a:latest"),
        ("localhost/a:1", "localhost/a:1"),
        ("example.org/team/a:1", "example.org/team/a:1"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000/a:latest"),
        ("example.org/a@sha256:00", "example.org/a@sha256:00"),
    ],
)
def test_names_of_images_are_completed(name: str, full: str) -> None:
    assert images.full_name(name) == full


def read_archive(path: Path) -> tuple[dict[str, bytes], list[dict]]:
    with tarfile.open(path) as archive:
        files = {m.name: archive.extractfile(m).read() for m in archive.getmembers()}
    return files, json.loads(files["index.json"])["manifests"]


def blob(files: dict[str, bytes], entry: dict) -> bytes:
    data = files["blobs/" + entry["digest"].replace(":", "/")]
    assert len(data) == entry["size"]
    return data


def test_an_archive_holds_images_that_link_to_the_machine(tmp_path, monkeypatch) -> None:
    tree = tmp_path / "deep/tree"
    python = make_program(tree / "bin", "python")
    monkeypatch.setenv("PATH", f"{tree}/bin:/nowhere")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}/deep/tree")
    program = Program("team/web:1", [str(python)], ["-v"], {"A": "b"}, "/work", "7:8")
    images.write_archive(tmp_path / "i.tar", [program], [str(tree)])
    files, (entry,) = read_archive(tmp_path / "i.tar")
    assert entry["annotations"] == {"io.containerd.image.name": "docker.io/team/web:1"}
    manifest = json.loads(blob(files, entry))
    settings = json.loads(blob(files, manifest["config"]))["config"]
    assert settings["Entrypoint"] == [f"/machine{python}"]
    assert (settings["Cmd"], settings["WorkingDir"]) == (["-v"], "/work")
    assert settings["User"] == "7:8"
    search = next(line for line in settings["Env"] if line.startswith("PATH="))
    assert search.endswith(f":/machine{tree}/bin:/nowhere")
    assert f"PYTHONPATH=/machine{tree}" in settings["Env"]
    assert "A=b" in settings["Env"]
    (layer,) = manifest["layers"]
    (tmp_path / "layer.tar").write_bytes(blob(files, layer))
    with tarfile.open(tmp_path / "layer.tar") as archive:
        assert archive.getmember(str(tree)[1:]).linkname == f"/machine{tree}"
        assert archive.getmember("tmp").mode == 0o1777
        users = archive.extractfile("etc/passwd")
        assert users is not None
        assert "nonroot:x:65532:65532:" in users.read().decode()


def test_pods_see_this_python_and_the_system_but_not_everything() -> None:
    paths = images.environment()
    assert os.path.realpath(sys.prefix) in paths or any(
        sys.prefix.startswith(path + "/") for path in paths
    )
    assert "/usr" in paths
    assert not {"/", "/etc", "/root", "/home"} & set(paths)
    assert all(
        mount["destination"] == "/machine" + mount["source"] for mount in images.mounts(paths)
    )


def fake_hierarchy(root: Path, *names: str) -> None:
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "cgroup.procs").write_text("")


def test_groups_of_version_1_get_processors_and_freeze(tmp_path) -> None:
    fake_hierarchy(tmp_path, "cpuset", "freezer", "pids")
    (tmp_path / "cpu").symlink_to(tmp_path / "pids")
    for name in ("cpuset.cpus", "cpuset.mems"):
        (tmp_path / "cpuset" / name).write_text("0-1")
        for folder in ("bdc1", "bdc1/a", "bdc1/a/machine"):  # the kernel makes them
            (tmp_path / "cpuset" / folder).mkdir(parents=True, exist_ok=True)
            (tmp_path / "cpuset" / folder / name).write_text("")
    group = Group("bdc1/a", tmp_path)
    group.create()
    assert (tmp_path / "cpuset/bdc1/a/machine/cpuset.cpus").read_text() == "0-1"
    doors = [f"{tmp_path}/{name}/bdc1/a/machine/cgroup.procs" for name in
             ("cpuset", "freezer", "pids")]  # fmt: skip
    assert group.doors() == doors
    state = tmp_path / "freezer/bdc1/a/freezer.state"
    state.write_text("THAWED")
    group.freeze(True)
    assert (state.read_text(), group.is_frozen) == ("FROZEN", True)
    with subprocess.Popen(["sleep", "60"]) as process:
        (tmp_path / "pids/bdc1/a/cgroup.procs").write_text(f"{process.pid}\n")
        assert group.members() == {process.pid}
        group.end()
        assert process.wait(10) == -signal.SIGKILL
    assert state.read_text() == "THAWED"
    group.end()  # that process has ended
    cgroups.kill(set())


def test_groups_of_version_2_delegate_and_freeze(tmp_path) -> None:
    (tmp_path / "bdc1/a").mkdir(parents=True)
    for folder in ("", "bdc1", "bdc1/a"):
        (tmp_path / folder / "cgroup.controllers").write_text("cpu hugetlb memory\n")
    group = Group("bdc1/a", tmp_path)
    group.create()
    for folder in ("", "bdc1", "bdc1/a"):
        assert (tmp_path / folder / "cgroup.subtree_control").read_text() == "+cpu +memory"
    (tmp_path / "bdc1/a/cgroup.freeze").write_text("0")
    (tmp_path / "bdc1/a/cgroup.events").write_text("populated 1\nfrozen 0\n")
    group.freeze(True)
    assert (tmp_path / "bdc1/a/cgroup.freeze").read_text() == "1"
    assert not group.is_frozen  # until the kernel says so


def test_groups_are_removed_when_they_are_empty(tmp_path) -> None:
    (tmp_path / "pids/bdc1/a/machine").mkdir(parents=True)
    (tmp_path / "pids/cgroup.procs").write_text("")
    busy = tmp_path / "pids/bdc1/a/machine/pod"
    busy.write_text("stands for a process")
    group = Group("bdc1/a", tmp_path)
    assert not group.remove()
    busy.unlink()
    assert group.remove()
    assert (tmp_path / "pids/bdc1").exists()


def test_control_groups_that_stay_are_an_error(tmp_path) -> None:
    (tmp_path / "freezer/bdc0/a").mkdir(parents=True)
    (tmp_path / "freezer/cgroup.procs").write_text("")
    state = tmp_path / "freezer/bdc0/a/freezer.state"  # a file, so that the folder stays
    state.write_text("FROZEN")
    with pytest.raises(DevclusterError, match=r"\*/bdc0 cannot be removed; end the processes"):
        remove_bridge("bdc0", tmp_path, timeout_s=0.05)
    assert state.read_text() == "THAWED"
    state.unlink()
    remove_bridge("bdc0", tmp_path)
    assert not (tmp_path / "freezer/bdc0").exists()


def fake_tools(tmp_path: Path, script: str) -> prerequisites.Tools:
    path = str(make_program(tmp_path / "bin", "any", script))
    return prerequisites.Tools(dict.fromkeys(prerequisites._PROGRAMS, path), tmp_path)


def test_no_free_network_is_an_error(tmp_path) -> None:
    found = fake_tools(tmp_path, "echo 10.0.0.0/8 dev eth9; echo default via 10.0.0.1")
    with pytest.raises(ComponentError, match=r"Every network from 10.200.0.0/16 .* is in use"):
        Network.claim(found, tmp_path)


async def test_a_refused_change_of_the_network_is_an_error(tmp_path) -> None:
    found = fake_tools(tmp_path, "echo not possible >&2; exit 1")
    with pytest.raises(NodeError, match="the network could not be changed: not possible"):
        await Network(found, 200).cut(1, [Place(200, 1)])


async def test_a_cut_names_the_node_and_its_pods(tmp_path) -> None:
    found = fake_tools(tmp_path, f"cat > {tmp_path}/rules")
    await Network(found, 200).cut(1, [Place(200, 3)])
    assert "ip daddr { 10.200.0.13, 10.200.3.0/24 } drop" in (tmp_path / "rules").read_text()


def test_addresses_are_given_once_and_end(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(network, "MAX_NODES", 2)
    bridge = Network(fake_tools(tmp_path, "true"), 200)
    assert [bridge.take().address, bridge.take().address] == ["10.200.0.11", "10.200.0.12"]
    with pytest.raises(NodeError, match="no address is left for more than 2 nodes"):
        bridge.take()


def test_pods_get_the_addresses_of_their_node() -> None:
    assert configs.cni(Place(200, 3))["plugins"][0]["ipam"]["ranges"] == [
        [{"subnet": "10.200.3.0/24"}]
    ]
    assert configs.kube_proxy("a", Path("/c"), 200)["clusterCIDR"] == "10.200.0.0/16"


def test_large_archives_give_a_node_more_time(tmp_path) -> None:
    for name, size in (("a.tar", 4_000_000_000), ("b.tar", 1_000_000_000)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    assert import_s([tmp_path / "a.tar", tmp_path / "b.tar"]) == 500
    assert import_s([]) == 0
