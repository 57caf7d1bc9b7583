"""A cluster's options, and the requests of its object to the daemon."""

import socket

import pytest
from click.testing import CliRunner

from bamboo_devcluster.__main__ import main
from bamboo_devcluster.cluster import Cluster, Options
from bamboo_devcluster.errors import DevclusterError, SpecError
from bamboo_devcluster.kube import pki
from bamboo_devcluster.spec import NodeSpec


def test_options_are_checked_before_anything_starts(tmp_path) -> None:
    wrong = {
        "node_kind: 'vm' is no kind of node; give process or kubelet": Options(node_kind="vm"),
        "image_archives: .*none.tar is not a file": Options(
            node_kind="kubelet", image_archives=[tmp_path / "none.tar"]
        ),
        "image_archives: process nodes have no images": Options(image_archives=[tmp_path]),
    }
    for message, options in wrong.items():
        with pytest.raises(SpecError, match=message):
            Cluster.up(tmp_path / "c", options=options)
    result = CliRunner().invoke(main, ["up", "--node-kind", "vm", "--dir", str(tmp_path)])
    assert "'vm' is not one of 'process', 'kubelet'" in result.output


def test_an_invalid_port_is_refused(tmp_path) -> None:
    refused = CliRunner().invoke(main, ["up", "--dir", str(tmp_path / "c"), "--port", "99999"])
    assert refused.exit_code == 2
    assert "99999 is not in the range" in refused.output
    assert not (tmp_path / "c").exists()


def test_the_client_waits_as_long_as_the_daemon_may_take(tmp_path) -> None:
    authority = pki.Authority(tmp_path / "pki")
    authority.issue("admin", common_name="devcluster-admin")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        cluster = Cluster(tmp_path, {"control": url, "answers_within_s": 0.05})
        with pytest.raises(DevclusterError, match=r"does not answer \(.*timed out\)"):
            cluster.add_node(NodeSpec("late"))
