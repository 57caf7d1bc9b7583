"""The command's synchronous client of the Kubernetes API. It reads, `preempt` deletes pods, and
`restore` changes a job.

Objects are parsed JSON, without control characters: terminals show their texts. Every failure
raises ClusterError.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config
from urllib3.exceptions import HTTPError

from bamboo_cli.cluster import impersonation
from bamboo_cli.cluster.plain_text import make_plain, plain
from bamboo_cli.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    NodeSilentError,
    NotFoundError,
    NotReadyError,
)
from bamboo_cli.job.news import event_time
from bamboo_cli.job.state import Manifest
from bamboo_core.api.limits import RECURSION_LIMIT
from bamboo_core.api.spec import AGENT_CONTAINER

GROUP, VERSION, PLURAL = "bamboo.dev", "v1alpha1", "bamboojobs"
_TIMEOUT_S = 10
_MOST_NAMES = 10
_PIECE = 16 << 10
_QUIET_S = 30 * 86_400  # a followed log may say nothing for long


class Kube:
    """A connection to one cluster. ``kubeconfig`` None: $KUBECONFIG, else ~/.kube/config."""

    def __init__(self, kubeconfig: Path | None = None, context: str | None = None) -> None:
        path = str(kubeconfig) if kubeconfig else None
        name = path or config.KUBE_CONFIG_DEFAULT_LOCATION
        try:
            contexts, active = config.list_kube_config_contexts(path)
            known = {str(each["name"]): each["context"] for each in contexts}
            chosen = str(active["name"]) if context is None else context
            api = config.new_client_from_config(path, context=chosen) if chosen in known else None
            self.namespace = str(known.get(chosen, {}).get("namespace") or "default")
            who = str(known.get(chosen, {}).get("user"))
            user = _user(name, who)
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
        if api is None:
            raise ClusterError(
                f'--context "{chosen}": {name} has no such context; it has {_listed(known)}. Give'
                " one of them, or another file with --kubeconfig."
            )
        try:
            more = impersonation.headers(user)
        except ValueError as error:
            raise ClusterError(f'{name}: user "{who}": {error}.') from error
        if more:
            api.rest_client = impersonation.AsSomebody(api.rest_client, more)
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    def job(self, namespace: str, name: str) -> Manifest:
        """The BambooJob. ClusterError if it does not exist."""
        if not name:  # the API server would return a list
            raise ClusterError("JOB is empty; give the name of a BambooJob, such as my-model.")
        if not namespace:
            raise ClusterError("-n is empty; give the name of a namespace, such as default.")
        try:
            found: Manifest = self._ask(
                self._custom.get_namespaced_custom_object,
                GROUP, VERSION, namespace, PLURAL, name,
            )  # fmt: skip
            return found
        except NotFoundError as error:
            problem = f'there is no BambooJob "{name}" in namespace "{namespace}"'
            raise ClusterError(f"{problem}; {self._there(namespace)}") from error

    def patch_job(self, namespace: str, name: str, changes: Manifest) -> None:
        """Merge the changes into the BambooJob. ConflictError if their UID is not the job's."""
        self._ask(
            self._custom.patch_namespaced_custom_object,
            GROUP, VERSION, namespace, PLURAL, name, changes,
            _content_type="application/merge-patch+json",
        )  # fmt: skip

    def jobs(self, namespace: str | None = None) -> list[Manifest]:
        """All BambooJobs of a namespace, or of all namespaces, by name."""
        try:
            if namespace is None:
                found = self._ask(
                    self._custom.list_cluster_custom_object, GROUP, VERSION, PLURAL
                )["items"]  # fmt: skip
            else:
                found = self._ask(
                    self._custom.list_namespaced_custom_object, GROUP, VERSION, namespace, PLURAL
                )["items"]  # fmt: skip
        except NotFoundError as error:
            raise ClusterError(
                "the cluster does not know BambooJobs; install Bamboo's chart with helm first."
            ) from error
        return sorted(found, key=lambda x: (x["metadata"]["namespace"], x["metadata"]["name"]))

    def _there(self, namespace: str) -> str:
        """The jobs that the user may have meant."""
        try:
            names = [each["metadata"]["name"] for each in self.jobs(namespace)]
        except ForbiddenError:
            names = []
        except ClusterError as error:
            return str(error)
        if not names:
            return "it has none that you can see; `kubectl get bamboojobs -A` lists all."
        return f"it has {_listed(names)}; give one of them, or another namespace with -n."

    def nodes(self) -> list[Manifest]:
        return list(self._ask(self._core.list_node)["items"])

    def pods(self, namespace: str, owner_uid: str) -> list[Manifest]:
        """The pods that the object with this UID owns."""
        pods = self._ask(self._core.list_namespaced_pod, namespace)["items"]
        return [pod for pod in pods if owner_uid in _owners(pod)]

    def delete_pod(self, namespace: str, name: str, uid: str, grace_s: int | None) -> bool:
        """Delete the pod with this UID; False if it is gone already.

        grace_s: seconds between SIGTERM and SIGKILL; None: the pod's; 0: about a second, in which
        the API server does not know the pod any more.
        """
        conditions = client.V1Preconditions(uid=uid)
        options = client.V1DeleteOptions(preconditions=conditions, grace_period_seconds=grace_s)
        try:
            self._ask(self._core.delete_namespaced_pod, name, namespace, body=options)
        except (NotFoundError, ConflictError):
            return False
        return True

    def log(
        self, namespace: str, pod: str, *, tail: int | None, is_followed: bool = False
    ) -> Iterator[bytes]:
        """The log of a pod's agent in pieces; each of its lines begins with its time.

        tail: number of newest lines; None: all. NotReadyError if no container runs yet, or the
        node does not answer.
        """
        more: dict[str, Any] = {} if tail is None else {"tail_lines": tail}
        patience = (_TIMEOUT_S, _QUIET_S if is_followed else _TIMEOUT_S)
        try:
            answer = self._core.read_namespaced_pod_log(
                pod, namespace, container=AGENT_CONTAINER, timestamps=True, follow=is_followed,
                _preload_content=False, _request_timeout=patience, **more,
            )  # fmt: skip
            try:
                yield from answer.stream(_PIECE)
            finally:
                answer.close()
        except client.ApiException as error:
            if error.status in (400, 404):  # waiting to start, or gone
                raise NotReadyError(_message(error)) from error
            if error.status >= 500:  # the API server asks the kubelet, and only it may be silent
                raise NodeSilentError(_message(error)) from error
            raise _refused(error) from error
        except (HTTPError, OSError) as error:
            raise _silent(error) from error

    def events(self, namespace: str, about_uid: str) -> list[Manifest]:
        """Events about an object, oldest first."""
        found = self._ask(
            self._core.list_namespaced_event, namespace,
            field_selector=f"involvedObject.uid={about_uid}",
        )["items"]  # fmt: skip
        return sorted(found, key=_event_order)

    def job_events(self, namespace: str | None) -> list[Manifest]:
        """Events about BambooJobs of a namespace, or of all namespaces, oldest first."""
        about = "involvedObject.kind=BambooJob"
        if namespace is None:
            found = self._ask(self._core.list_event_for_all_namespaces, field_selector=about)
        else:
            found = self._ask(self._core.list_namespaced_event, namespace, field_selector=about)
        return sorted(found["items"], key=_event_order)

    def pod_events(self, namespace: str, reason: str) -> list[Manifest]:
        """Events about pods with this reason, oldest first."""
        about = f"involvedObject.kind=Pod,reason={reason}"
        found = self._ask(self._core.list_namespaced_event, namespace, field_selector=about)
        return sorted(found["items"], key=_event_order)

    def _ask(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        try:
            answer = call(
                *arguments, **options, _preload_content=False, _request_timeout=_TIMEOUT_S
            )
            with _deep_reading():
                found = make_plain(json.loads(answer.data))
            if not isinstance(found, dict):
                raise ValueError("not an object of the API")
            return found
        except client.ApiException as error:
            if error.status == 404:
                raise NotFoundError("not found") from error
            if error.status == 409:
                raise ConflictError("not as it was") from error
            raise _refused(error) from error
        except (HTTPError, OSError) as error:
            raise _silent(error) from error
        except ValueError as error:
            raise ClusterError(
                "the server at that address is not a Kubernetes API server; check the address in"
                " the kubeconfig."
            ) from error


def _user(files: str, name: str) -> Manifest:
    """The fields of the user with this name in the kubeconfig; empty if there is none."""
    users = config.kube_config.KubeConfigMerger(files).config["users"]
    found = users.get_with_name(name, safe=True)
    return {} if found is None else dict(found["user"].value)


@contextmanager
def _deep_reading() -> Iterator[None]:
    """For this reader only. Others refuse what is so deep, such as the reader of job files."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(RECURSION_LIMIT)
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _listed(names: Collection[str]) -> str:
    return ", ".join(list(names)[:_MOST_NAMES]) + (", ..." if len(names) > _MOST_NAMES else "")


def _refused(error: client.ApiException) -> ClusterError:
    kind = ForbiddenError if error.status == 403 else ClusterError
    return kind(f"the API server refused the request: {_message(error)}")


def _silent(error: Exception) -> ClusterError:
    return ClusterError(
        "the API server does not answer; check that the cluster is up and that KUBECONFIG"
        f" names it ({type(error).__name__})."
    )


def _event_order(event: Manifest) -> tuple[str, str]:
    """lastTimestamp has whole seconds; within a second, eventTime decides."""
    return event_time(event)[:19], str(event.get("eventTime") or "")


def _owners(pod: Manifest) -> set[str]:
    return {owner["uid"] for owner in pod["metadata"].get("ownerReferences") or []}


def _message(error: client.ApiException) -> str:
    try:
        return plain(str(json.loads(error.body)["message"]))
    except (TypeError, ValueError, KeyError):
        return plain(f"{error.status} {error.reason}")
