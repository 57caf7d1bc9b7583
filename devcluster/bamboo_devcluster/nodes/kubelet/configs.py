"""The configuration of a kubelet node's programs: containerd, CNI, kubelet, kube-proxy."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bamboo_devcluster.kube.pki import Pair
from bamboo_devcluster.nodes.kubelet.images import PAUSE_IMAGE
from bamboo_devcluster.nodes.kubelet.network import Place

SOCKET = "/run/containerd/containerd.sock"
SPECIFICATION = "/run/devcluster/spec.json"
LEASE_DURATION_S = 8
_STATUS_S = 2

Object = dict[str, Any]


@dataclass(frozen=True)
class Identity:
    """Who a node is: its name, its addresses, its certificate, the cluster's authority."""

    name: str
    place: Place
    pair: Pair
    authority: Path
    cgroup: str


def containerd(plugins: Path, cni: Path, runc: str) -> str:
    """containerd's configuration, in TOML. Newer versions convert it."""
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[{cri}]
  disable_apparmor = true
  # A process without CAP_SYS_RESOURCE may not lower its OOM score.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  sandbox_image = "{PAUSE_IMAGE}"
  [{cri}.cni]
    bin_dir = "{plugins}"
    conf_dir = "{cni}"
  [{cri}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    base_runtime_spec = "{SPECIFICATION}"
    [{cri}.containerd.runtimes.runc.options]
      BinaryName = "{runc}"
"""


def cni(place: Place) -> Object:
    """The pods' network: a bridge inside the node; packets to other nodes are routed."""
    ipam = {
        "type": "host-local",
        "dataDir": "/var/lib/cni/networks",
        "ranges": [[{"subnet": place.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": "cni0", "isGateway": True, "ipMasq": False,
              "hairpinMode": True, "ipam": ipam}  # fmt: skip
    return {"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge]}


def kubelet(identity: Identity) -> Object:
    """The KubeletConfiguration. Heartbeats are as frequent as a process node's."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{identity.cgroup}",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(identity.authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(identity.pair.cert),
        "tlsPrivateKeyFile": str(identity.pair.key),
        "address": identity.place.address,
        "healthzBindAddress": "127.0.0.1",
        "clusterDomain": "cluster.local",
        "resolvConf": "",
        "failSwapOn": False,
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "imagefs.available": "1%",
        },
        "nodeStatusUpdateFrequency": f"{_STATUS_S}s",
        "nodeLeaseDurationSeconds": LEASE_DURATION_S,
        "syncFrequency": "5s",
    }


def kube_proxy(name: str, kubeconfig: Path, block: int) -> Object:
    """The KubeProxyConfiguration; it must not change the machine's limits of connections."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "mode": "nftables",
        "hostnameOverride": name,
        "clusterCIDR": f"10.{block}.0.0/16",
        "metricsBindAddress": "127.0.0.1:10249",
        "conntrack": {
            "maxPerCore": 0,
            "min": 0,
            "tcpEstablishedTimeout": "0s",
            "tcpCloseWaitTimeout": "0s",
        },
    }
