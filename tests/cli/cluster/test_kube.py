"""The client of the API server, against a small fake server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from tests.cli.fake_api import EVENTS_PATH, JOB_PATH, JOBS_PATH, PODS_PATH, Server, write_kubeconfig

from bamboo_cli.cluster.kube import Kube
from bamboo_cli.cluster.watch import follow, look
from bamboo_cli.errors import ClusterError, CommandError
from bamboo_cli.main import cli, main


def test_look_reads_job_pods_nodes_and_events(kubeconfig: Path) -> None:
    kube = Kube(kubeconfig)
    snapshot = look(kube, kube.namespace, "gpt")
    assert snapshot.job.step == 20
    assert snapshot.nodes == {"zone-a": (1, 1)}
    assert [seat.zone for seat in snapshot.seats.values()] == ["zone-a"]
    assert snapshot.news == ["08:00:01 First: a", "08:00:02 Second: b"]


@pytest.mark.parametrize("is_readable", [True, False])
def test_look_reads_the_plan_in_force(
    kubeconfig: Path, server: Server, training: dict[str, Any], is_readable: bool
) -> None:
    """A status of another version shows no seats of the plan."""
    if not is_readable:
        training["status"]["arbiter"]["agents"] = 5
    training["metadata"] = server.answers[JOB_PATH][1]["metadata"]
    server.answers[JOB_PATH] = (200, training)
    snapshot = look(Kube(kubeconfig), "team", "gpt")
    assert [len(pipeline) for pipeline in snapshot.plan] == ([4, 4] if is_readable else [])
    assert snapshot.pods.keys() == {seat.pod for seat in snapshot.seats.values()}


def test_without_the_right_to_list_nodes_zones_come_from_the_pods(
    kubeconfig: Path, server: Server
) -> None:
    server.answers["/api/v1/nodes"] = (403, {"message": "nodes is forbidden"})
    pods = server.answers[PODS_PATH][1]["items"]
    pods[0]["spec"]["nodeSelector"] = {"topology.kubernetes.io/zone": "zone-b"}
    snapshot = look(Kube(kubeconfig), "team", "gpt")
    assert snapshot.nodes == {}
    assert [seat.zone for seat in snapshot.seats.values()] == ["zone-b"]


def test_events_within_one_second_are_in_order(kubeconfig: Path, server: Server) -> None:
    def event(reason: str, last: str, first: str | None) -> dict[str, str | None]:
        return {"reason": reason, "lastTimestamp": last, "eventTime": first}

    stopped = event("Stopped", "2026-01-01T08:00:02Z", "2026-01-01T08:00:02.100000Z")
    planned = event("Planned", "2026-01-01T08:00:02Z", "2026-01-01T08:00:02.200000Z")
    again = event("AgentLost", "2026-01-01T08:00:03Z", "2026-01-01T08:00:01.500000Z")
    server.answers["/api/v1/namespaces/team/events"] = (200, {"items": [again, planned, stopped]})
    assert Kube(kubeconfig).events("team", "uid") == [stopped, planned, again]


def test_a_missing_job_is_named(kubeconfig: Path) -> None:
    with pytest.raises(ClusterError, match='no BambooJob "other" in namespace "team"; it has gpt;'):
        Kube(kubeconfig).job("team", "other")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ((200, {"items": []}), "it has none that you can see; `kubectl get bamboojobs -A`"),
        ((403, {"message": "no"}), "it has none that you can see"),
        ((404, {"message": "no such kind"}), "does not know BambooJobs; install Bamboo's chart"),
        ((500, {"message": "broken"}), "the API server refused the request: broken"),
        (
            (
                200,
                {"items": [{"metadata": {"namespace": "t", "name": f"j{n}"}} for n in range(12)]},
            ),
            "it has j0, j1, .*, ...; give one of them",
        ),
    ],
)
def test_the_jobs_that_the_user_may_have_meant(
    kubeconfig: Path, server: Server, answer: tuple[int, Any], words: str
) -> None:
    server.answers[JOBS_PATH] = answer
    with pytest.raises(ClusterError, match=words):
        Kube(kubeconfig).job("team", "other")


def test_no_text_of_the_cluster_tells_the_terminal_what_to_do(
    kubeconfig: Path, server: Server
) -> None:
    """Tenants write into events, statuses and pods what an administrator reads."""
    event = {"\x1bkey": ["a\x1b[2J\r\nb\tc", {"deep": "\x9b2J\x7f"}], "count": 1}
    server.answers[EVENTS_PATH] = (200, {"items": [{**event, "lastTimestamp": "2026"}]})
    assert Kube(kubeconfig).events("team", "uid") == [
        {"key": ["a[2J\nb\tc", {"deep": "2J"}], "count": 1, "lastTimestamp": "2026"}
    ]
    server.answers["/api/v1/nodes"] = (403, {"message": "no \x1b]0;x\x07"})
    with pytest.raises(ClusterError, match=r"refused the request: no \]0;x$"):
        Kube(kubeconfig).nodes()


def test_an_empty_name_is_refused(kubeconfig: Path, server: Server) -> None:
    server.answers[f"{JOBS_PATH}/"] = (200, {"kind": "BambooJobList", "items": []})
    with pytest.raises(ClusterError, match=r"^JOB is empty; .* BambooJob, such as my-model[.]$"):
        Kube(kubeconfig).job("team", "")
    with pytest.raises(ClusterError, match=r"^-n is empty; .* namespace, such as default[.]$"):
        Kube(kubeconfig).job("", "gpt")
    told = CliRunner().invoke(cli, ["explain", "", "--kubeconfig", str(kubeconfig)])
    assert "JOB is empty" in str(told.exception)


def test_a_refusal_is_quoted(kubeconfig: Path, server: Server) -> None:
    server.answers["/api/v1/nodes"] = (403, {"kind": "Status", "message": "nodes is forbidden"})
    with pytest.raises(
        ClusterError, match="the API server refused the request: nodes is forbidden"
    ):
        Kube(kubeconfig).nodes()


def test_an_error_without_a_status_object_shows_its_code(kubeconfig: Path, server: Server) -> None:
    server.answers["/api/v1/nodes"] = (500, "oops")
    with pytest.raises(ClusterError, match="500"):
        Kube(kubeconfig).nodes()


def test_no_server(tmp_path: Path) -> None:
    closed = Server()
    port = closed.server_address[1]
    closed.server_close()
    with pytest.raises(ClusterError, match="the API server does not answer"):
        Kube(write_kubeconfig(tmp_path / "config", port)).nodes()


def test_no_kubeconfig(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(ClusterError, match=f"no cluster is configured in {missing} "):
        Kube(missing)


@pytest.mark.parametrize("name", ["nope", ""])
def test_a_context_that_does_not_exist(kubeconfig: Path, name: str) -> None:
    with pytest.raises(ClusterError) as refused:
        Kube(kubeconfig, name)
    assert str(refused.value) == (
        f'--context "{name}": {kubeconfig} has no such context; it has here. Give one of them, or'
        " another file with --kubeconfig."
    )


def test_the_namespace_is_that_of_the_named_context(kubeconfig: Path) -> None:
    body = yaml.safe_load(kubeconfig.read_text())
    more = [("other", {"namespace": "theirs"}), ("bare", {})]
    body["contexts"] += [
        {"name": name, "context": {"cluster": "here", "user": "me", **words}}
        for name, words in more
    ]
    kubeconfig.write_text(yaml.safe_dump(body))
    assert Kube(kubeconfig).namespace == "team"
    assert Kube(kubeconfig, "other").namespace == "theirs"
    assert Kube(kubeconfig, "bare").namespace == "default"


EXTRA = {"scopes/all": ["view", "é"]}


def test_requests_are_made_in_the_name_of_another_user(
    kubeconfig: Path, server: Server, manifest: dict[str, Any]
) -> None:
    """kubectl with the same file deletes no pod that this user may not delete."""
    server.answers[f"{PODS_PATH}/p/log"] = (200, b"a line")
    kube = Kube(kubeconfig)
    kube.nodes()
    assert server.names.pop() == []
    port = server.server_address[1]
    fields = {"as": "jane", "as-uid": "u1", "as-groups": ["a", "b"], "as-user-extra": EXTRA}
    kube = Kube(write_kubeconfig(kubeconfig, port, **fields))
    kube.nodes()
    kube.job("team", "gpt")
    assert kube.delete_pod("team", "p", "uid", 0)
    assert list(kube.log("team", "p", tail=None, is_followed=True)) == [b"a line"]
    wanted = [
        ("impersonate-user", "jane"),
        ("impersonate-uid", "u1"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-extra-scopes%2fall", "view"),
        ("impersonate-extra-scopes%2fall", "é".encode().decode("latin-1")),
    ]
    assert server.names == [wanted] * 4


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"as-groups": ["a"]}, "as-groups is set without as; set as, too, or remove it"),
        ({"as": 5}, "as has 5; it must be a string"),
        ({"as": "a\nb"}, r"as has 'a\\nb'; it must be a string without line breaks"),
        ({"as": "a", "as-groups": "b"}, "as-groups is 'b'; it must be a list of strings"),
        ({"as": "a", "as-groups": [None]}, "as-groups has None; it must be a string"),
        ({"as": "a", "as-user-extra": ["b"]}, "as-user-extra is .* an object of lists of strings"),
        ({"as": "a", "as-user-extra": {"k": "v"}}, "as-user-extra.k is 'v'; it must be a list"),
    ],
)
def test_a_user_in_whose_name_nobody_can_ask_is_refused(
    kubeconfig: Path, server: Server, fields: dict[str, Any], words: str
) -> None:
    path = write_kubeconfig(kubeconfig, server.server_address[1], **fields)
    with pytest.raises(ClusterError, match=f'{path}: user "me": {words}'):
        Kube(path)


_CLUSTER = b"""
current-context: h
clusters: [{name: h, cluster: {server: 5}}]
users: [{name: h, user: {}}]
contexts: [{name: h, context: {cluster: h, user: h}}]
"""


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a: [", "ParserError"),
        (b"hello", "TypeError"),
        (b"[1]", "TypeError"),
        (b"\xff\xfe\xfa", "UnicodeDecodeError"),
        (_CLUSTER, "AttributeError"),
        (None, "IsADirectoryError"),
    ],
)
def test_a_malformed_kubeconfig_is_reported(
    tmp_path: Path, content: bytes | None, words: str
) -> None:
    path = tmp_path
    if content is not None:
        path = tmp_path / "config"
        path.write_bytes(content)
    with pytest.raises(ClusterError, match=f"is not a usable kubeconfig .{words}") as refused:
        Kube(path)
    assert str(refused.value).startswith(str(path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("answer", ["a web page", [1]])
def test_a_server_that_is_not_an_api_server(kubeconfig: Path, server: Server, answer: Any) -> None:
    server.answers["/api/v1/nodes"] = (200, answer)
    with pytest.raises(ClusterError, match="not a Kubernetes API server; check the address"):
        Kube(kubeconfig).nodes()


def test_follow_ends_with_the_job(
    kubeconfig: Path, server: Server, manifest: dict[str, Any]
) -> None:
    def finish(_: float) -> None:
        manifest["status"]["conditions"][1]["status"] = "True"

    snapshots = list(follow(Kube(kubeconfig), "team", "gpt", timeout_s=60, pause=finish))
    assert [snapshot.job.ended for snapshot in snapshots] == [None, "Complete"]


def test_follow_gives_up(kubeconfig: Path) -> None:
    times = iter([0.0, 100.0])
    followed = follow(
        Kube(kubeconfig), "team", "gpt", timeout_s=60, now=lambda: next(times), pause=lambda _: None
    )
    with pytest.raises(CommandError, match="Running at step 20 after 60 s"):
        list(followed)


def test_follow_reports_what_the_job_waits_for(
    kubeconfig: Path, server: Server, manifest: dict[str, Any]
) -> None:
    waits = {
        "type": "CapacityAvailable",
        "status": "False",
        "message": "no node yet for 5 of 6 agents",
    }
    manifest["status"]["conditions"].append(waits)
    times = iter([0.0, 100.0])
    followed = follow(
        Kube(kubeconfig), "team", "gpt", timeout_s=60, now=lambda: next(times), pause=lambda _: None
    )
    with pytest.raises(CommandError, match="CapacityAvailable is False: no node yet for 5"):
        list(followed)


def test_the_path_of_the_checkpoint_is_printed_once(
    kubeconfig: Path, server: Server, manifest: dict[str, Any]
) -> None:
    path = "file:///tmp/x/10"
    sealed = {"type": "Checkpointed", "status": "True", "reason": "Sealed"}
    manifest["status"]["conditions"].append(sealed | {"message": f"step 10 in {path}"})
    at = "2026-01-01T08:00:02Z"
    events = [
        {"reason": "CheckpointSealed", "message": f"step {n} in {path}", "lastTimestamp": at}
        for n in range(5)
    ]
    server.answers["/api/v1/namespaces/team/events"] = (200, {"items": events})
    arguments = ["status", "gpt", "--kubeconfig", str(kubeconfig)]
    said = CliRunner(env={"COLUMNS": "200"}).invoke(cli, arguments).output
    assert said.count(path) == 1
    assert "newest checkpoint: step 10" in said
    assert "5 checkpoints" in said


def test_status_command(kubeconfig: Path) -> None:
    result = CliRunner().invoke(cli, ["status", "gpt", "--kubeconfig", str(kubeconfig)])
    assert result.exit_code == 0
    assert "step 20/80" in result.output
    assert "TrainingStep" in result.output


def test_a_deep_job_of_somebody_does_not_end_the_command(
    kubeconfig: Path,
    server: Server,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The API server accepts args 10000 levels deep from whoever may create a job."""
    deep = '{"a":' * 9900 + "1" + "}" * 9900
    jobs = f'{{"items": [{{"metadata": {{"namespace": "team", "name": "deep"}}, "spec": {deep}}}]}}'
    server.answers[JOBS_PATH] = (200, jobs.encode())
    monkeypatch.setattr("sys.argv", ["bamboo", "status", "other", "--kubeconfig", str(kubeconfig)])
    limit = sys.getrecursionlimit()
    with pytest.raises(SystemExit) as stopped:
        main()
    assert sys.getrecursionlimit() == limit
    assert stopped.value.code == 1
    assert "it has deep; give one of them" in capsys.readouterr().err


def test_errors_are_one_sentence(
    kubeconfig: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["bamboo", "status", "other", "--kubeconfig", str(kubeconfig)]
    monkeypatch.setattr("sys.argv", arguments)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith('bamboo: there is no BambooJob "other"')
    assert said.count("\n") == 1
