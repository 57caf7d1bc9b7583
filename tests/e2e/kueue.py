"""The real Kueue beside a development cluster, with its definitions and webhooks from its chart."""

from __future__ import annotations

import base64
import json
import os
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from bamboo_cli.quickstart.programs import Programs
from bamboo_devcluster.programs import kueue

from .jobs import eventually

Object = dict[str, Any]
_NAMESPACE = "kueue-system"
_SERVICE = "kueue-webhook-service"
_CERTIFICATES = "kueue-webhook-server-cert"
_WEBHOOKS = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
_USED = (*_WEBHOOKS, "CustomResourceDefinition", "Secret")
_START_S = 240.0


def files() -> kueue.Files:
    """Kueue's manager and chart. The test is skipped, with the reason, where they are not built."""
    found = kueue.find()
    if found is None:
        pytest.skip(
            f"without Kueue {kueue.VERSION}; `bamboo-devcluster binaries --kueue` builds it"
        )
    return found


@contextmanager
def running(programs: Programs, home: Path, settings: Mapping[str, Any]) -> Iterator[None]:
    """Kueue's manager, as a process. settings: of its Configuration, beside those of its chart.

    The API server asks its webhooks, also for conversion. It runs as administrator, and without
    leader election.
    """
    chart, webhooks, health = files(), _free_port(), _free_port()
    programs.kubectl("create", "namespace", _NAMESPACE)
    found = _rendered(programs, chart.chart)
    objects = [_on_port(body, webhooks) for body in found if body["kind"] in _USED]
    objects.append(_service())
    for body in sorted(objects, key=lambda body: body["kind"] in _WEBHOOKS):  # they are asked last
        programs.kubectl("create", "--filename", "-", stdin=json.dumps(body))
    folder = home / "certificates"
    folder.mkdir()
    (text,) = next(b for b in found if b["kind"] == "ConfigMap")["data"].values()
    path = home / "kueue.yaml"
    path.write_text(
        json.dumps(
            yaml.safe_load(text)
            | {
                "health": {"healthProbeBindAddress": f"127.0.0.1:{health}"},
                "metrics": {"bindAddress": "0"},
                "webhook": {"host": "127.0.0.1", "port": webhooks, "certDir": str(folder)},
                "leaderElection": {"leaderElect": False},
            }
            | settings
        )
    )
    with (home / "kueue.log").open("w") as log:
        process = subprocess.Popen(
            [str(chart.manager), f"--config={path}", "--feature-gates=VisibilityOnDemand=false"],
            env=os.environ | {"KUBECONFIG": str(programs.kubeconfig)}, stdout=log, stderr=log,
        )  # fmt: skip
        try:
            eventually(
                lambda: _mount(programs, folder), timeout_s=_START_S, explain=_tail(log.name)
            )
            eventually(lambda: _is_ready(health), timeout_s=_START_S, explain=_tail(log.name))
            yield
        finally:
            process.terminate()
            process.wait(30)


def _rendered(programs: Programs, chart: Path) -> list[Object]:
    text = programs.helm("template", "kueue", str(chart), "--namespace", _NAMESPACE)
    fast = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # these are 1.7 MB
    return [body for body in yaml.load_all(text, Loader=fast) if body]


def _on_port(body: Object, port: int) -> Object:
    """Its webhooks are asked on the port of the process."""
    conversion = (body.get("spec") or {}).get("conversion") or {}
    for webhook in [*body.get("webhooks", []), conversion.get("webhook")]:
        if webhook is not None:
            webhook["clientConfig"]["service"]["port"] = port
    return body


def _service() -> Object:
    """The webhooks' name leads to this machine; the development cluster has no other Services."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _SERVICE, "namespace": _NAMESPACE},
        "spec": {"type": "ExternalName", "externalName": "localhost"},
    }


def _mount(programs: Programs, folder: Path) -> bool:
    """Write the certificates that the manager has made, as a kubelet does; False: none yet."""
    text = programs.kubectl(
        "get", "secret", _CERTIFICATES, "--namespace", _NAMESPACE, "--output", "json"
    )
    data = json.loads(text).get("data") or {}
    for name, value in data.items():
        (folder / name).write_bytes(base64.b64decode(value))
    return bool(data)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _tail(name: str) -> Any:
    return lambda: Path(name).read_text()[-3000:]
