"""The command's synchronous client of the Kubernetes API. It only reads.

Objects are parsed JSON. Every failure raises ClusterError.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from bamboo_cli.errors import ClusterError
from bamboo_cli.job import Manifest

GROUP, VERSION, PLURAL = "bamboo.dev", "v1alpha1", "bamboojobs"
_TIMEOUT_S = 10


class Kube:
    """A connection to one cluster. ``kubeconfig`` None: $KUBECONFIG, else ~/.kube/config."""

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        path = str(kubeconfig) if kubeconfig else None
        name = path or config.KUBE_CONFIG_DEFAULT_LOCATION
        try:
            api = config.new_client_from_config(path, context=context)
            _, active = config.list_kube_config_contexts(path)
            self.namespace = str(active["context"].get("namespace") or "default")
        except config.ConfigException as error:
            text = str(error).rstrip(".").replace(". ", ": ")
            raise ClusterError(
                f"no cluster is configured in {name} ({text}); correct it, set KUBECONFIG to"
                " another file, or give --kubeconfig."
            ) from error
        except Exception as error:  # the client raises many kinds of errors for a malformed file
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise ClusterError(
                f"{name} is not a usable kubeconfig ({text}); correct it, set KUBECONFIG to another"
                " file, or give --kubeconfig."
            ) from error
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    def job(self, namespace: str, name: str) -> Manifest:
        """The BambooJob. ClusterError if it does not exist."""
        if not name or not namespace:  # the API server would return a list
            raise ClusterError(f'"{namespace}/{name}" is not NAMESPACE/JOB; give both names.')
        try:
            found: Manifest = self._ask(
                self._custom.get_namespaced_custom_object,
                GROUP, VERSION, namespace, PLURAL, name,
            )  # fmt: skip
            return found
        except NotFoundError as error:
            raise ClusterError(
                f'there is no BambooJob "{name}" in namespace "{namespace}";'
                " `kubectl get bamboojobs -A` lists all."
            ) from error

    def nodes(self) -> list[Manifest]:
        return list(self._ask(self._core.list_node)["items"])

    def pods(self, namespace: str, owner_uid: str) -> list[Manifest]:
        """The pods that the object with this UID owns."""
        pods = self._ask(self._core.list_namespaced_pod, namespace)["items"]
        return [pod for pod in pods if owner_uid in _owners(pod)]

    def events(self, namespace: str, about_uid: str) -> list[Manifest]:
        """Events about an object, oldest first."""
        found = self._ask(
            self._core.list_namespaced_event, namespace,
            field_selector=f"involvedObject.uid={about_uid}",
        )["items"]  # fmt: skip
        return sorted(found, key=_event_order)

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            answer = call(
                *arguments, **options, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
            found = json.loads(answer.data)
            if not isinstance(found, dict):
                raise ValueError("not an object of the API")
            return found
        except client.ApiException as error:
            if error.status == 404:
                raise NotFoundError("not found") from error
            raise ClusterError(f"the API server refused the request: {_message(error)}") from error
        except (HTTPError, OSError) as error:
            raise ClusterError(
                "the API server does not answer; check that the cluster is up and that KUBECONFIG"
                f" names it ({type(error).__name__})."
            ) from error
        except ValueError as error:
            raise ClusterError(
                "the server at that address is not a Kubernetes API server; check the address in"
                " the kubeconfig."
            ) from error


class NotFoundError(ClusterError):
    """The object, or its whole kind, does not exist."""


def event_time(event: Manifest) -> str:
    """The time of the last occurrence, RFC 3339."""
    return str(
        event.get("lastTimestamp")
        or (event.get("series") or {}).get("lastObservedTime")
        or event.get("eventTime")
        or event["metadata"]["creationTimestamp"]
    )


def _event_order(event: Manifest) -> tuple[str, str]:
    """lastTimestamp has whole seconds; within a second, eventTime decides."""
    return event_time(event)[:19], str(event.get("eventTime") or "")


def _owners(pod: Manifest) -> set[str]:
    return {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []}


def _message(error: client.ApiException) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (TypeError, ValueError, KeyError):
        return f"{error.status} {error.reason}"
