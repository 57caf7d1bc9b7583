"""Where a command looks: a cluster and a namespace."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from bamboo_cli.errors import ForbiddenError
from bamboo_cli.job.state import Manifest

if TYPE_CHECKING:
    from bamboo_cli.cluster.kube import Kube


class Place:
    """The cluster and namespace that the options of a command name."""

    kube: Kube
    namespace: str

    def __init__(
        self,
        namespace: str | None = None,
        kubeconfig: Path | None = None,
        context: str | None = None,
    ) -> None:
        from bamboo_cli.cluster.kube import Kube  # the client takes a second to import

        self.kube = Kube(kubeconfig, context)
        self.namespace = namespace or self.kube.namespace

    def nodes(self, console: Console) -> list[Manifest]:
        """All nodes; none if the user may not list them, which the console then says."""
        return allowed(self.kube.nodes, console, "Zones come from the pods only")


def allowed(ask: Callable[[], list[Manifest]], console: Console, otherwise: str) -> list[Manifest]:
    """The API server's answer. If the user may not ask, the answer is empty, and the console says
    what that means and why."""
    try:
        return ask()
    except ForbiddenError as error:
        console.print(f"{otherwise}: {error}", style="dim", markup=False)
        return []
