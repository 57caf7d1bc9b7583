"""The mark by which the operator knows the pods that it has made.

Owner references, labels and names can be forged by whoever may create pods anywhere. The seal is an
annotation with an HMAC over namespace, job and pod: a pod in another namespace, of another job or
with another name never has it. The key is in the operator's Secret and survives restarts.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Any

from bamboo_operator.kube import api
from bamboo_operator.kube.api import Api, Object
from bamboo_operator.kube.labels import JOB_LABEL, JOB_UID_ANNOTATION
from bamboo_operator.kube.owners import owner_of

ANNOTATION = "bamboo.dev/seal"
KEY_NAME = "seal.key"
"""In the Secret of :mod:`bamboo_operator.trust.tls`."""
_KEY_BYTES = 32


class Seals:
    """Makes and checks seals. key: 32 random bytes that only operators know."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, *, namespace: str, job: str, job_uid: str, pod: str) -> str:
        """The seal of a pod that is about to be made."""
        words = ("bamboo-pod", namespace, job, job_uid, pod)
        return hmac.digest(self._key, "\0".join(words).encode(), "sha256").hex()

    def is_ours(self, pod: Object) -> bool:
        """Whether an operator has made this pod for the job that it names."""
        owner = owner_of(pod)
        return owner is not None and self._is_sealed(pod, owner.job, owner.uid)

    def is_orphan(self, pod: Object) -> bool:
        """Whether an operator has made this pod, and no job controls it any more, as after
        ``kubectl delete --cascade=orphan``."""
        meta = pod["metadata"]
        if any(reference.get("controller") for reference in meta.get("ownerReferences") or []):
            return False
        job = (meta.get("labels") or {}).get(JOB_LABEL, "")
        return self._is_sealed(pod, job, (meta.get("annotations") or {}).get(JOB_UID_ANNOTATION))

    def _is_sealed(self, pod: Object, job: str, job_uid: Any) -> bool:
        meta = pod["metadata"]
        said = (meta.get("annotations") or {}).get(ANNOTATION, "")
        if not isinstance(job_uid, str) or not isinstance(said, str) or not said.isascii():
            return False
        expected = self.seal(
            namespace=meta["namespace"], job=job, job_uid=job_uid, pod=meta["name"]
        )
        return hmac.compare_digest(said, expected)


async def load(kube: Api, namespace: str, secret: str) -> Seals:
    """With the key in the operator's Secret, which must exist; a new key if it has none."""
    path = api.secret(namespace, secret)
    found = await kube.get(path) or {}
    data = dict(found.get("data") or {})
    key = base64.b64decode(data.get(KEY_NAME, ""))
    if len(key) != _KEY_BYTES:
        key = os.urandom(_KEY_BYTES)
        data[KEY_NAME] = base64.b64encode(key).decode()
        await kube.replace(path, found | {"data": data})
    return Seals(key)
