"""A bucket that cannot be used: the address, the operation, the server's words and the remedy."""

from __future__ import annotations

import json
import threading
import uuid
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import fsspec
import pytest
import s3fs
from botocore.exceptions import ClientError, NoCredentialsError
from s3fs.errors import translate_boto_error
from tests.agent.conftest import use
from tests.agent.storage.test_checkpoint import FIRST, RECORD, start_in, write

from bamboo_agent.setup.tries import try_storage
from bamboo_agent.storage import objects
from bamboo_agent.storage.checkpoint import CheckpointError, Checkpoints, Facts, UnreachableError
from bamboo_agent.weight_files.outlines import WeightsError
from bamboo_agent.weight_files.source import Source
from bamboo_agent.weights.finding import Wanted, find
from bamboo_core.model.ids import AgentId
from bamboo_core.protocol.messages import BadCheckpoint

RIGHTS = "to list, read, write and delete there"
IDENTITY = "give the agents' pods an identity of the cloud"
SECRET = "the Secret team-keys of the job's namespace"
AT_START = "; agents take keys when they start, so delete the pods that run, one after the other"
BOTH = "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
MUTE = "; if the keys are wrong, correct them: this answer does not tell"
ALLOW = f"is refused: allow the user of the keys in {SECRET} {RIGHTS}"


@pytest.fixture(autouse=True)
def _in_a_pod(monkeypatch):
    """The operator tells from which Secret the pod takes keys."""
    monkeypatch.setenv("BAMBOO_KEYS_FROM", "team-keys")


def said(uri):
    return try_storage(AgentId("a"), Checkpoints(uri, "uid")).removeprefix("agent a: ")


def test_a_bucket_that_does_not_exist(bucket):
    assert said("s3://no-such-bucket/p") == (
        "writing below s3://no-such-bucket/p/uid failed: NoSuchBucket: The specified bucket does"
        " not exist: create the bucket, or a new job with the right spec.checkpoint.uri"
    )
    assert "create the bucket" in said("s3://b.")


def test_names_that_are_too_long_are_found_before_training(bucket, monkeypatch):
    words = said(f"{bucket}/{'n' * 300}")
    assert words.startswith(f"writing below {bucket}/nnn")
    assert words.endswith(
        "KeyTooLongError: Your key is too long: the names of its files are too long: use a shorter"
        " spec.checkpoint.uri"
    )
    checkpoints, names = Checkpoints(bucket, "uid"), []
    monkeypatch.setattr(objects, "upload", lambda _, path, *__, **___: names.append(path))
    checkpoints.probe()
    assert len(names[0]) == len(f"{checkpoints.folder(0, 0)}/layer-0000.safetensors")


@pytest.fixture
def guest(store, bucket, monkeypatch):
    """An identity without rights in the bucket; returns what gives it some."""
    key = f"guest-{uuid.uuid4().hex[:12]}"
    store.add_user(key, "a-secret-of-a-guest")

    def allow(*actions):
        use(monkeypatch, store.environment)
        name = bucket.removeprefix("s3://")
        everything = [f"arn:aws:s3:::{name}", f"arn:aws:s3:::{name}/*"]
        rule = {"Effect": "Allow", "Principal": {"AWS": [key]}, "Resource": everything}
        policy = {"Version": "2012-10-17", "Statement": [{**rule, "Action": list(actions)}]}
        s3 = fsspec.filesystem("s3")
        s3.call_s3("put_bucket_policy", Bucket=name, Policy=json.dumps(policy))
        use(monkeypatch, store.environment_of(key, "a-secret-of-a-guest"))

    use(monkeypatch, store.environment_of(key, "a-secret-of-a-guest"))
    return allow


def test_keys_without_rights(bucket, guest):
    """The keys are right. What is refused is named, one right after the other."""
    refused = "AccessDenied: Access Denied: s3:"
    assert said(bucket) == (
        f"writing below {bucket}/uid failed: {refused}PutObject on {bucket}/uid/* {ALLOW}"
    )
    guest("s3:PutObject")
    assert said(bucket) == (f"listing {bucket}/uid failed: {refused}ListBucket on {bucket} {ALLOW}")
    guest("s3:PutObject", "s3:ListBucket")
    for missing in ("s3:GetObject", "s3:DeleteObject"):
        words = said(bucket)
        assert words.startswith(f"removing {bucket}/uid/probe-")
        end = MUTE if missing == "s3:GetObject" else ""
        assert words.endswith(f"{missing} on {bucket}/uid/* {ALLOW}{end}")
        guest("s3:PutObject", "s3:ListBucket", missing)
    guest("s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject")
    assert said(bucket) == ""


def test_keys_that_may_read_nothing(bucket, guest):
    guest("s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject")
    manifest, _ = write(Checkpoints(bucket, "uid"))
    guest("s3:ListBucket")
    found = Checkpoints(bucket, "uid").scan()
    assert found.unreachable.startswith(f"reading {manifest.path} failed: ")
    assert found.unreachable.endswith(f"s3:GetObject on {bucket}/uid/* {ALLOW}{MUTE}")


@pytest.fixture
def keeping(bucket, monkeypatch):
    """A server that deletes nothing; returns a dict with the code that it gives as the reason."""
    reason, call = {}, s3fs.S3FileSystem.call_s3

    def answer(self, method, *rest, **arguments):
        if method != "delete_objects":
            return call(self, method, *rest, **arguments)
        keys = [x["Key"] for x in arguments["Delete"]["Objects"]]
        return {"Errors": [{"Key": x, "Message": "Kept.", **reason} for x in keys]}

    monkeypatch.setattr(s3fs.S3FileSystem, "call_s3", answer)
    return reason


def test_an_object_that_the_server_keeps_is_an_error(bucket, keeping):
    """S3 answers a request to delete several objects with 200 and an error for each that stays."""
    keeping["Code"] = "AccessDenied"
    words = said(bucket)
    assert words.startswith(f"removing {bucket}/uid/probe-")
    assert "AccessDenied: Kept. (uid/probe-" in words
    assert words.endswith(f": s3:DeleteObject on {bucket}/uid/* {ALLOW}")


def test_no_layer_is_removed_of_a_checkpoint_whose_manifest_stays(bucket, keeping):
    checkpoints = Checkpoints(bucket, "uid")
    checkpoints._write(f"{bucket}/uid/made", b"")
    (older, _), (newest, _) = (write(checkpoints, step=step) for step in (3, 6))
    keeping["Code"] = "InternalError"
    with pytest.raises(CheckpointError, match=r"manifest.json failed: InternalError: Kept"):
        checkpoints.prune(keep=1, newest=newest, facts=Facts())
    assert checkpoints.scan().good == [older, newest]


def test_rights_that_are_lost_say_nothing_about_a_checkpoint(bucket, guest):
    guest("s3:PutObject", "s3:GetObject", "s3:ListBucket", "s3:DeleteObject")
    checkpoints = Checkpoints(bucket, "uid")
    checkpoints.probe()
    manifest, _ = write(checkpoints)
    guest("s3:ListBucket")
    checkpoints = Checkpoints(bucket, "uid")
    found = checkpoints.scan()
    assert (found.good, found.bad) == ([], [])
    assert found.unreachable.startswith(f"reading {manifest.path} failed: ")
    with pytest.raises(UnreachableError, match=RIGHTS):
        checkpoints.read_layer(manifest, 0)
    guest("s3:GetObject")
    with pytest.raises(UnreachableError, match=f"listing {bucket}/uid failed: AccessDenied"):
        Checkpoints(bucket, "uid").scan()


def test_wrong_keys_and_none(store, bucket, monkeypatch):
    use(monkeypatch, store.environment_of("root", "wrong"))
    words = said(bucket)
    assert f"writing below {bucket}/uid failed: SignatureDoesNotMatch: " in words
    assert words.endswith(
        "AWS_SECRET_ACCESS_KEY does not belong to AWS_ACCESS_KEY_ID, or has a line break at its"
        f" end: correct both in {SECRET}{AT_START}"
    )
    use(monkeypatch, store.environment_of("nobody", "wrong"))
    words = said(bucket)
    assert f"writing below {bucket}/uid failed: InvalidAccessKeyId: " in words
    unknown = ": the server does not know AWS_ACCESS_KEY_ID: correct it in "
    assert words.endswith(f"{unknown}{SECRET}{AT_START}")
    monkeypatch.setenv("BAMBOO_KEYS_FROM", "one,two")
    assert f"{unknown}the Secrets one or two of the job's namespace" in said(bucket)
    monkeypatch.setenv("BAMBOO_KEYS_FROM", "")
    assert said(bucket).endswith(f"{unknown}spec.worker.env")
    monkeypatch.delenv("BAMBOO_KEYS_FROM")
    assert said(bucket).endswith(f"{unknown}the shell ({BOTH})")


def test_no_keys(store, bucket, monkeypatch):
    forget_keys(monkeypatch)
    words = said(bucket)
    assert words.endswith(
        "NoCredentialsError: Unable to locate credentials: the server of AWS_ENDPOINT_URL takes"
        f" keys: put {BOTH} into {SECRET}"
    )
    monkeypatch.setenv("BAMBOO_KEYS_FROM", "")
    assert said(bucket).endswith(
        "the server of AWS_ENDPOINT_URL takes keys, and the job's template names no Secret: make"
        f" one with {BOTH}, and name it in spec.worker.podTemplate.spec.containers:"
        " [{name: agent, envFrom: [{secretRef: {name: bamboo-job-s3}}]}]"
    )
    monkeypatch.delenv("BAMBOO_KEYS_FROM")
    assert said(bucket).endswith(
        f"the server of AWS_ENDPOINT_URL takes keys: set {BOTH} in the shell"
    )
    monkeypatch.setenv("BAMBOO_KEYS_FROM", "team-keys")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "root")
    use(monkeypatch, {})
    words = said(bucket)
    assert "PartialCredentialsError" in words
    assert f"put {BOTH} into {SECRET}" in words


def test_weights_that_may_not_be_read_have_the_same_remedies(store, bucket, guest, monkeypatch):
    """They are those of spec.model.initialFrom, and of bamboo export."""
    with pytest.raises(WeightsError) as refused:
        Source(f"{bucket}/first")
    allow = f" is refused: allow the user of the keys in {SECRET} to list and read there"
    assert str(refused.value).endswith(f"{allow}{MUTE}")
    use(monkeypatch, store.environment_of("root", "wrong"))
    with pytest.raises(WeightsError) as refused:
        Source(f"{bucket}/first")
    assert str(refused.value).endswith(f"{allow}{MUTE}")  # the server says no more
    with pytest.raises(WeightsError) as refused:
        find(f"{bucket}/first", Wanted())
    assert f"correct both in {SECRET}" in str(refused.value)


def forget_keys(monkeypatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    use(monkeypatch, {"AWS_SHARED_CREDENTIALS_FILE": "/nowhere", "AWS_CONFIG_FILE": "/nowhere"})


def test_a_role_without_rights(bucket, monkeypatch):
    """Without keys and without a server of its own, the identity is that of the pods."""
    forget_keys(monkeypatch)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    refused = ClientError({"Error": {"Code": "AccessDenied", "Message": "No."}}, "UploadPart")
    assert objects.why(translate_boto_error(refused), "s3://b/p/uid") == (
        "AccessDenied: No: s3:PutObject on s3://b/p/uid/* is refused: allow the identity of the"
        f" agents' pods (spec.worker.podTemplate.spec.serviceAccountName) {RIGHTS}"
    )
    assert objects.why(NoCredentialsError(), "s3://b/p/uid").endswith(
        IDENTITY + " (a service account in spec.worker.podTemplate.spec.serviceAccountName)"
    )
    monkeypatch.delenv("BAMBOO_KEYS_FROM")
    assert objects.why(translate_boto_error(refused), "s3://b/p/uid").endswith(
        f" is refused: allow the login of the shell {RIGHTS}"
    )


def test_a_shell_without_a_login_is_told_how_to_get_one(bucket, monkeypatch):
    """Outside of pods, as in bamboo export, no identity of a pod counts."""
    forget_keys(monkeypatch)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("BAMBOO_KEYS_FROM")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")  # or a virtual machine is asked
    with pytest.raises(WeightsError) as refused:
        find("s3://nobucket/x", Wanted())
    assert str(refused.value).endswith(
        f"Unable to locate credentials: set {BOTH} in the shell, or the AWS_PROFILE of a login, and"
        " AWS_ENDPOINT_URL for a server that is not of AWS"
    )
    for scheme, remedy in {
        "gcs": "run `gcloud auth application-default login`",
        "abfs": "set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY in the shell",
        "oss": "log in to the cloud in the shell",
    }.items():
        assert f"credentials: {remedy}" in objects.why(NoCredentialsError(), f"{scheme}://c/p")


def test_a_server_that_cannot_be_reached(bucket, monkeypatch):
    use(monkeypatch, {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "1"})
    words = said(bucket)
    assert "EndpointConnectionError: Could not connect to the endpoint URL" in words
    assert words.endswith("and its address (AWS_ENDPOINT_URL in spec.worker.env)")
    monkeypatch.delenv("BAMBOO_KEYS_FROM")
    assert said(bucket).endswith(
        ": check that this machine can reach the server, and its address (AWS_ENDPOINT_URL in the"
        " shell)"
    )


class Failing(BaseHTTPRequestHandler):
    """A server that is out of order."""

    protocol_version = "HTTP/1.1"  # the driver waits for "100 Continue"

    def do_PUT(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        text = b"<Error><Code>InternalError</Code><Message>We met an error.</Message></Error>"
        self.send_response(500)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        """Tests print nothing."""


@pytest.fixture
def failing(bucket, monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Failing)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    use(monkeypatch, {"AWS_ENDPOINT_URL": url, "AWS_MAX_ATTEMPTS": "1"})
    yield bucket
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_server_that_fails(failing):
    assert said(failing) == (
        f"writing below {failing}/uid failed: InternalError: We met an error: the server fails or"
        " is overloaded; the next checkpoint tries again"
    )


def test_training_goes_on_when_the_server_fails(failing):
    fleet = start_in(failing, (1, 2))
    fleet.run_to_end(FIRST)
    fleet.close()
    complaints = [m for _, m in fleet.messages if isinstance(m, BadCheckpoint)]
    assert complaints
    assert all("training goes on" in m.message for m in complaints)
    assert f"writing below {failing}/uid failed: InternalError: We met" in complaints[0].cause


def test_a_driver_that_is_missing_or_refuses_is_one_sentence(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "adlfs", None)
    with pytest.raises(CheckpointError, match=r"'az://c/p' cannot be used: .*adlfs"):
        Checkpoints("az://c/p", "uid")


def test_uploads_that_cannot_be_listed_stop_nothing(bucket, monkeypatch, caplog):
    checkpoints = Checkpoints(bucket, "uid")
    checkpoints.probe()
    newest, _ = write(checkpoints)

    def refuse(*_):
        raise PermissionError("Access Denied.")

    monkeypatch.setattr(objects, "sweep", refuse)
    checkpoints._sweep(newest.attempt)
    (line,) = [r.getMessage() for r in caplog.records if "uploads" in r.getMessage()]
    assert line.startswith(f"uploads that were begun stay in {bucket}/uid: Access Denied: allow")
    assert checkpoints.read_layer(newest, 0).extra == RECORD.extra


def test_each_cloud_s_errors_have_a_remedy():
    """The names of the errors of google-auth, azure-core and aiohttp."""
    for name, remedy in {
        "DefaultCredentialsError": IDENTITY,
        "ClientAuthenticationError": IDENTITY,
        "ClientConnectorError": "check that pods can reach the server",
        "ServerTimeoutError": "check that pods can reach the server",
    }.items():
        error = type(name, (Exception,), {})("words.")
        assert objects.why(error, "az://c/p").startswith(f"{name}: words: {remedy}")
    assert objects.why(ValueError("other"), "az://c/p") == "ValueError: other"


def test_a_clock_that_is_wrong_is_no_matter_of_rights():
    code = "RequestTimeTooSkewed"
    words = {"Error": {"Code": code, "Message": "The difference is too large."}}
    error = translate_boto_error(ClientError(words, "PutObject"))
    assert isinstance(error, PermissionError)
    assert objects.why(error, "s3://b/p").endswith(
        "set the clock of the node: the server refuses requests that are minutes early or late"
    )
