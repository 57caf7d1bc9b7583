"""Object stores: what they do otherwise than a file system. Buckets have no folders and no rename.

An object appears when its upload is complete, and then whole: nothing is written under another name
and moved. The drivers (s3fs, gcsfs, adlfs) are imported when an address needs one.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from bamboo_agent.factory_names import told

log = logging.getLogger(__name__)

READING = {"cache_type": "none"}
"""How objects are opened: they are read from their beginning, in large pieces."""
SAFE_AGE = timedelta(days=1)
"""No upload of a live agent is as old."""

_RETRIED = "the server fails or is overloaded; the next checkpoint tries again"
_REMEDIES = {
    errno.ENAMETOOLONG: "the names of its files are too long: use a shorter spec.checkpoint.uri",
    errno.EREMOTEIO: _RETRIED,
    errno.EBUSY: _RETRIED,
}
_RIGHTS = "to list, read, write and delete there"
_IDENTITY = (
    "give the agents' pods an identity of the cloud (a service account in"
    " spec.worker.podTemplate.spec.serviceAccountName)"
)
_KEYS = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"
_BOTH = " and ".join(_KEYS)
_SECRETS = "BAMBOO_KEYS_FROM"
"""The operator's list of the Secrets from which a pod takes keys. Outside pods there is none."""
_NAME_ONE = (
    "the job's template names no Secret: make one with"
    f" {_BOTH}, and name it in spec.worker.podTemplate.spec.containers:"
    " [{name: agent, envFrom: [{secretRef: {name: bamboo-job-s3}}]}]"
)
_KEY_REMEDIES = {
    "InvalidAccessKeyId": f"the server does not know {_KEYS[0]}: correct it in ",
    "SignatureDoesNotMatch": (
        f"{_KEYS[1]} does not belong to {_KEYS[0]}, or has a line break at its end: correct both in"
        " "
    ),
}
_MUTE = "403"
"""The code of an answer without a body, as to a request for an object's size."""
_AT_START = "; agents take keys when they start, so delete the pods that run, one after the other"
_PERMISSIONS = {
    "ListBucket": ("ListObjects", "ListObjectsV2", "HeadBucket", "ListObjectVersions"),
    "ListBucketMultipartUploads": ("ListMultipartUploads",),
    "GetObject": ("GetObject", "HeadObject"),
    "PutObject": ("PutObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload"),
    "DeleteObject": ("DeleteObject", "DeleteObjects"),
    "AbortMultipartUpload": ("AbortMultipartUpload",),
}
"""What S3 must allow -> operations, by their names in botocore."""
_OF_BUCKET = ("ListBucket", "ListBucketMultipartUploads")
_LOGINS = {
    "s3": (
        f"set {_BOTH} in the shell, or the AWS_PROFILE of a login, and AWS_ENDPOINT_URL for a"
        " server that is not of AWS"
    ),
    "gs": (
        "run `gcloud auth application-default login`, or set GOOGLE_APPLICATION_CREDENTIALS in the"
        " shell"
    ),
    "az": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the shell",
}
"""Scheme -> how a shell gets rights. Pods have an identity instead."""
_ALIASES = {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az", "adl": "az"}
_BUCKET = "create the bucket, or a new job with the right spec.checkpoint.uri"
_CLOCK = "set the clock of the node: the server refuses requests that are minutes early or late"
_REMEDIES_BY_CODE = {"InvalidBucketName": _BUCKET, "RequestTimeTooSkewed": _CLOCK}
_RETRIED_STATUS = 500
_MOST_AT_ONCE = 1000  # objects that S3 deletes in one request


def options(scheme: str) -> dict[str, Any]:
    """Arguments of a driver. Listings are not cached: other agents write to the same bucket."""
    region = os.environ.get("AWS_REGION")
    if scheme != "s3" or not region or os.environ.get("AWS_DEFAULT_REGION"):
        return {"use_listings_cache": False}
    return {"use_listings_cache": False, "client_kwargs": {"region_name": region}}


def upload(fs: Any, path: str, data: bytes, *, piece: int, on_traffic: Callable[[], None]) -> None:
    """Write an object. It is not there, or as it was, unless this returns. piece: bytes of a part;
    on_traffic: called after each."""
    if len(data) <= piece:
        fs.pipe_file(path, data)
        on_traffic()
        return
    if "s3" in fs.protocol:
        _upload_parts(fs, path, data, piece, on_traffic)
        return
    file = fs.open(path, "wb", block_size=piece)
    try:
        view = memoryview(data)
        for at in range(0, len(data), piece):
            file.write(view[at : at + piece])
            on_traffic()
        file.close()
    except BaseException:
        file.closed = True  # or it would complete what it has when it is collected
        with contextlib.suppress(Exception):
            file.discard()
        raise


def _upload_parts(
    fs: Any, path: str, data: bytes, piece: int, on_traffic: Callable[[], None]
) -> None:
    """Part by part: the driver's file would copy each of them three times more."""
    bucket, key, _ = fs.split_path(path)
    where = {"Bucket": bucket, "Key": key}
    where["UploadId"] = fs.call_s3("create_multipart_upload", **where)["UploadId"]
    parts = []
    try:
        for number, at in enumerate(range(0, len(data), piece), start=1):
            part = {"PartNumber": number, "Body": data[at : at + piece]}
            answer = fs.call_s3("upload_part", **where, **part)
            parts.append({"PartNumber": number, "ETag": answer["ETag"]})
            on_traffic()
        fs.call_s3("complete_multipart_upload", **where, MultipartUpload={"Parts": parts})
    except BaseException:
        with contextlib.suppress(Exception):
            fs.abort_mpu(bucket, key, where["UploadId"])
        raise


def create(fs: Any, path: str, data: bytes) -> bool:
    """Write an object of one part if there is none. False: there is one."""
    try:
        fs.pipe_file(path, data, mode="create")
    except FileExistsError:
        return False
    return True


def remove(fs: Any, path: str) -> None:
    """Remove an object, or all below a prefix. FileNotFoundError if nothing is there, OSError if
    the server keeps one: S3 says so of each object in an answer that succeeds, and the driver drops
    that."""
    if "s3" not in fs.protocol:
        fs.rm(path, recursive=True)
        return
    keys = [fs.split_path(name)[1] for name in fs.find(path)]
    if not keys:
        raise FileNotFoundError(path)
    for at in range(0, len(keys), _MOST_AT_ONCE):
        named = [{"Key": key} for key in keys[at : at + _MOST_AT_ONCE]]
        wanted = {"Objects": named, "Quiet": True}
        answer = fs.call_s3("delete_objects", Bucket=fs.split_path(path)[0], Delete=wanted)
        for kept in answer.get("Errors", ()):
            words = f"{kept.get('Code')}: {kept.get('Message')} ({kept.get('Key')})"
            if kept.get("Code") == "AccessDenied":
                raise PermissionError(errno.EACCES, words) from _KeptError({"Error": kept})
            raise OSError(errno.EREMOTEIO, words)


class _KeptError(Exception):
    """An object that is to be removed stays. As errors of botocore are."""

    operation_name = "DeleteObject"

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(str(response))
        self.response = response


def sweep(fs: Any, root: str, attempt: int) -> int:
    """Abort uploads below the root that no live agent goes on with: those of older attempts, and
    those older than ``SAFE_AGE``. Returns how many there were.

    Only S3 keeps the parts of such an upload for ever, and bills them: Google and Azure delete
    them after a week.
    """
    if "s3" not in fs.protocol:
        return 0
    bucket, key, _ = fs.split_path(root)
    count = 0
    for upload_ in _uploads(fs, bucket, f"{key}/"):
        found = re.match(r"attempt-(\d+)/", upload_["Key"].removeprefix(f"{key}/"))
        is_old = datetime.now(UTC) - upload_["Initiated"] > SAFE_AGE
        if not is_old and not (found and int(found[1]) < attempt):
            continue
        with contextlib.suppress(FileNotFoundError):  # another agent was faster
            fs.abort_mpu(bucket, upload_["Key"], upload_["UploadId"])
            count += 1
    return count


def _uploads(fs: Any, bucket: str, prefix: str) -> Iterator[dict[str, Any]]:
    marker: dict[str, str] = {}
    while True:
        page = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix, **marker)
        yield from page.get("Uploads", [])
        if not page.get("IsTruncated"):
            return
        marker = {
            "KeyMarker": page["NextKeyMarker"],
            "UploadIdMarker": page["NextUploadIdMarker"],
        }


def why(error: Exception, where: str, needs: str = _RIGHTS) -> str:
    """Say what the server or the driver says, and what to do about it. where: address of the prefix
    that is used; needs: for what."""
    words = told(error)
    found = getattr(error.__cause__, "response", None)  # of botocore
    response = found if isinstance(found, dict) else {}
    code = response.get("Error", {}).get("Code", "")
    if isinstance(error, OSError):
        words = error.strerror or str(error) or words
        words = f"{code}: {words}" if code and code not in words else words
    remedy = _REMEDIES_BY_CODE.get(code) or _remedy(error, response, where, needs)
    return f"{words.rstrip('.')}{remedy and ': '}{remedy}"


def _remedy(error: Exception, response: dict[str, Any], where: str, needs: str) -> str:
    name = type(error).__name__
    if isinstance(error, PermissionError):
        return _rights(error, response.get("Error", {}).get("Code", ""), where, needs)
    if isinstance(error, FileNotFoundError):
        return _BUCKET
    if isinstance(error, OSError) and error.errno in _REMEDIES:
        return _REMEDIES[error.errno]
    if response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) >= _RETRIED_STATUS:
        return _RETRIED
    if re.search("Credential|Authentication|RefreshError", name):
        return _no_keys() if _has_own_server() else _no_identity(where)
    if isinstance(error, ConnectionError | TimeoutError) or re.search("Connect|Timeout", name):
        return _reach()
    return ""


def _rights(error: Exception, code: str, where: str, needs: str) -> str:
    """Whose rights are missing, and which."""
    has_keys = _has_own_server() or any(os.environ.get(name) for name in _KEYS)
    if has_keys and code in _KEY_REMEDIES:
        return f"{_KEY_REMEDIES[code]}{_keys_place()}{_AT_START if _secrets() else ''}"
    who = "the login of the shell"
    if _is_pod():
        who = "the identity of the agents' pods (spec.worker.podTemplate.spec.serviceAccountName)"
    if has_keys:
        who = f"the user of the keys in {_keys_place()}"
    operation = getattr(error.__cause__, "operation_name", "")
    missing = next((name for name, of in _PERMISSIONS.items() if operation in of), "")
    text = ""
    if missing:
        bucket = "/".join(where.split("/")[:3])
        text = f"s3:{missing} on {bucket if missing in _OF_BUCKET else f'{where}/*'} is refused: "
    mute = "; if the keys are wrong, correct them: this answer does not tell"
    return f"{text}allow {who} {needs}{mute if has_keys and code == _MUTE else ''}"


def _is_pod() -> bool:
    """Whether this process is an agent of a job in a cluster. Else the rights of the shell count,
    as for ``bamboo export`` and ``bamboo train --local``."""
    return _SECRETS in os.environ


def _no_identity(where: str) -> str:
    if _is_pod():
        return _IDENTITY
    scheme = where.partition("://")[0]
    return _LOGINS.get(_ALIASES.get(scheme, scheme), "log in to the cloud in the shell")


def _reach() -> str:
    who, place = ("pods", "spec.worker.env") if _is_pod() else ("this machine", "the shell")
    return f"check that {who} can reach the server, and its address (AWS_ENDPOINT_URL in {place})"


def _secrets() -> str:
    """The Secrets from which this pod takes its keys, in words; empty: none, or no pod."""
    names = [name for name in os.environ.get(_SECRETS, "").split(",") if name]
    if not names:
        return ""
    what = "Secret" if len(names) == 1 else "Secrets"
    return f"the {what} {' or '.join(names)} of the job's namespace"


def _keys_place() -> str:
    """Where this process has its keys from."""
    if not _is_pod():
        return f"the shell ({_BOTH})"
    return _secrets() or "spec.worker.env"


def _no_keys() -> str:
    text = "the server of AWS_ENDPOINT_URL takes keys"
    if not _is_pod():
        return f"{text}: set {_BOTH} in the shell"
    found = _secrets()
    return f"{text}: put {_BOTH} into {found}" if found else f"{text}, and {_NAME_ONE}"


def _has_own_server() -> bool:
    """Whether the server is none of a cloud, whose identities it would know."""
    return any(os.environ.get(name) for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"))
