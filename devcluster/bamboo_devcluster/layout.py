"""The paths in a cluster's directory."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths in a cluster directory."""

    root: Path

    @property
    def pki(self) -> Path:
        """Certificates and keys."""
        return self.root / "pki"

    @property
    def logs(self) -> Path:
        """Logs of the components and of the daemon."""
        return self.root / "logs"

    @property
    def audit_log(self) -> Path:
        """The requests of service accounts to the API server, if the cluster writes them down."""
        return self.logs / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig."""
        return self.root / "kubeconfig"

    @property
    def nodes(self) -> Path:
        """Files of the process nodes: one folder per node."""
        return self.root / "nodes"

    def client_config(self, name: str) -> Path:
        """Return the kubeconfig of one component."""
        return self.root / f"{name}.kubeconfig"
