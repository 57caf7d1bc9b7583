"""What kubelet nodes need before their control plane: tools, programs, network, images."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo_devcluster.kube import pki
from bamboo_devcluster.kube.client import KubeApi
from bamboo_devcluster.layout import Layout
from bamboo_devcluster.nodes.kubelet import images
from bamboo_devcluster.nodes.kubelet.kind import KubeletNodes
from bamboo_devcluster.nodes.kubelet.machine import Site
from bamboo_devcluster.nodes.kubelet.network import Network
from bamboo_devcluster.nodes.kubelet.prerequisites import Tools, find_tools
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.spec import ImageMap

_ARCHIVE = "images.tar"
_IMPORT_BYTES_PER_S = 10e6  # a lower bound, where several nodes import at the same time


@dataclass(frozen=True)
class Kubelets:
    """All that the nodes of one cluster share, except its certificates."""

    tools: Tools
    binaries: binaries.BinDir
    network: Network
    layout: Layout
    archives: Sequence[Path]
    mounts: Sequence[str]
    import_s: float

    @classmethod
    def prepare(
        cls,
        layout: Layout,
        image_map: ImageMap,
        archives: Sequence[Path],
        report: Callable[[str], None],
    ) -> "Kubelets":
        """Find the tools and programs, write the images, claim a network.

        Raises DevclusterError if something is missing, SpecError for an unusable image map.
        """
        tools = find_tools(layout.root)
        own = images.programs_of(image_map)
        programs = binaries.ensure(report, binaries.KUBELET)
        mounts = images.environment()
        written = layout.root / _ARCHIVE
        images.write_archive(written, [*images.standard(), *own], mounts)
        network = Network.claim(tools, layout.root)
        found = [written, *archives]
        return cls(tools, programs, network, layout, found, mounts, import_s(found))

    def nodes(self, api: KubeApi, authority: pki.Authority, server: str) -> KubeletNodes:
        """The node kind, once the control plane runs."""
        site = Site(
            tools=self.tools,
            binaries=self.binaries,
            network=self.network,
            authority=authority,
            server=server,
            directory=self.layout.nodes,
            logs=self.layout.logs,
            archives=self.archives,
            mounts=self.mounts,
            import_s=self.import_s,
        )
        return KubeletNodes(api, site)


def import_s(archives: Sequence[Path]) -> float:
    """How long a node may take to import these archives, in seconds."""
    return sum(path.stat().st_size for path in archives) / _IMPORT_BYTES_PER_S
