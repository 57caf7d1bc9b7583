"""Pods on nodes of any kind: logs, tokens, environment, signals."""

import asyncio
import base64
import json
import subprocess
import time

import pytest

from bamboo_devcluster.kube.client import ApiError
from bamboo_devcluster.nodes.kubelet.images import MACHINE_IMAGE
from bamboo_devcluster.programs import binaries
from bamboo_devcluster.testing import wait_for

SLEEP = "import time\nprint('up')\nwhile True: time.sleep(1)"
OBEY = "import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(0))\n"


async def test_a_deployment_becomes_available_across_zones(bench) -> None:
    labels = {"app": "web"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "topology.kubernetes.io/zone",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "main", "image": MACHINE_IMAGE, "command": ["python", "-c", OBEY + SLEEP],
        "resources": {"limits": {"nvidia.com/gpu": "1"}},
    }  # fmt: skip
    template = {
        "metadata": {"labels": labels},
        "spec": {"containers": [container], "topologySpreadConstraints": [spread]},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    await bench.create("deployments", "web", spec=spec)
    path = bench.path("deployments", "web")
    await wait_for(bench.api, path, lambda d: d["status"].get("availableReplicas") == 3)
    pods = (await bench.api.get(bench.path("pods")))["items"]
    nodes = {pod["spec"]["nodeName"] for pod in pods}
    zones = set()
    for name in nodes:
        node = await bench.api.get(f"/api/v1/nodes/{name}")
        zones.add(node["metadata"]["labels"]["topology.kubernetes.io/zone"])
    assert zones == {"zone-a", "zone-b", "zone-c"}
    assert len({pod["status"]["podIP"] for pod in pods}) == 3


async def test_a_job_completes(bench) -> None:
    template = {
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": MACHINE_IMAGE,
                    "command": ["python", "-c", "print('done')"],
                }
            ],
        }
    }
    await bench.create("jobs", "sum", spec={"completions": 2, "template": template})
    await wait_for(
        bench.api, bench.path("jobs", "sum"), lambda j: j["status"].get("succeeded") == 2
    )


async def test_the_scheduler_counts_gpus(bench) -> None:
    container = {"resources": {"limits": {"nvidia.com/gpu": "5"}}}
    await bench.run_pod(SLEEP, container=container)

    def is_unschedulable(pod):
        conditions = pod["status"].get("conditions") or []
        return any(c["reason"] == "Unschedulable" for c in conditions if "reason" in c)

    await bench.wait_pod(is_unschedulable)


async def test_logs_follow_tail_and_time(bench) -> None:
    script = OBEY + "for n in range(5): print('line', n)\nprint('last')\nwhile True: time.sleep(1)"
    await bench.run_pod(script)
    await bench.wait_log("last")
    assert await bench.log() == "line 0\nline 1\nline 2\nline 3\nline 4\nlast\n"
    assert await bench.log(tailLines="2") == "line 4\nlast\n"
    assert await bench.log(limitBytes="4") == "line"
    assert (await bench.log(timestamps="true", tailLines="1")).startswith("20")
    assert await bench.log(sinceSeconds="3600") == await bench.log()
    kubectl = [str(binaries.ensure(print)["kubectl"]), f"--kubeconfig={bench.cluster.kubeconfig}"]
    command = [*kubectl, f"--namespace={bench.namespace}", "logs", "-f", "pod"]
    follower = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert follower.stdout is not None
    assert await follower.stdout.readline() == b"line 0\n"
    await bench.api.delete(bench.path("pods", "pod"))
    assert b"last" in await follower.stdout.read()  # `logs -f` ends with the container
    assert await follower.wait() == 0


async def test_logs_of_the_previous_run(bench) -> None:
    script = (
        "import os,sys,time\nf='/kept/mark'\nfirst=not os.path.exists(f)\nopen(f,'w').close()\n"
    )
    script += "print('first' if first else 'second')\nsys.exit(3) if first else time.sleep(600)"
    await bench.run_pod(
        script, restartPolicy="OnFailure", volumes=[{"name": "v", "emptyDir": {}}],
        container={"volumeMounts": [{"name": "v", "mountPath": "/kept"}]},
    )  # fmt: skip
    pod = await bench.wait_pod(
        lambda p: (p["status"].get("containerStatuses") or [{}])[0].get("restartCount") == 1
    )
    assert await bench.wait_log("second") == "second\n"
    assert await bench.log(previous="true") == "first\n"
    last = pod["status"]["containerStatuses"][0]["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")


async def test_a_missing_log_is_an_error(bench) -> None:
    await bench.run_pod(SLEEP)
    await bench.wait_ready()
    with pytest.raises(ApiError, match="previous terminated container"):
        await bench.log(previous="true")


async def test_a_projected_token_has_audience_and_is_bound_to_the_pod(bench) -> None:
    token = {"path": "token", "audience": "trainer", "expirationSeconds": 600}
    volume = {"name": "t", "projected": {"sources": [{"serviceAccountToken": token}]}}
    mount = {"name": "t", "mountPath": "/var/run/secrets/trainer"}
    text = await bench.output(
        "print(open('/var/run/secrets/trainer/token').read())",
        volumes=[volume],
        container={"volumeMounts": [mount]},
    )
    review = {"spec": {"token": text.strip(), "audiences": ["trainer"]}}
    answer = await bench.api.post("/apis/authentication.k8s.io/v1/tokenreviews", review)
    assert answer["status"]["authenticated"], answer
    assert answer["status"]["user"]["extra"]["authentication.kubernetes.io/pod-name"] == ["pod"]
    claims = json.loads(base64.urlsafe_b64decode(text.split(".")[1] + "=="))
    assert claims["exp"] - time.time() < 601


async def test_a_pod_talks_to_the_api_server_as_its_service_account(bench) -> None:
    role = {"rules": [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]}
    group = "rbac.authorization.k8s.io"
    base = f"/apis/{group}/v1/namespaces/{bench.namespace}"
    await bench.api.post(f"{base}/roles", {"metadata": {"name": "look"}, **role})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": bench.namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": "look"}
    binding = {"metadata": {"name": "look"}, "subjects": [subject], "roleRef": reference}
    await bench.api.post(f"{base}/rolebindings", binding)
    script = """
import json, os, ssl, urllib.request, urllib.error
d = '/var/run/secrets/kubernetes.io/serviceaccount/'
context = ssl.create_default_context(cafile=d + 'ca.crt')
host, port = os.environ['KUBERNETES_SERVICE_HOST'], os.environ['KUBERNETES_SERVICE_PORT']
namespace, token = open(d + 'namespace').read(), open(d + 'token').read()
def get(what):
    url = f'https://{host}:{port}/api/v1/namespaces/{namespace}/{what}'
    request = urllib.request.Request(url, headers={'Authorization': 'Bearer ' + token})
    try:
        with urllib.request.urlopen(request, context=context) as answer:
            return json.load(answer)['metadata']['name']
    except urllib.error.HTTPError as error:
        return error.code
print(get('pods/pod'), get('secrets/x'))
"""
    assert await bench.output(script) == "pod 403\n"


async def test_environment_command_and_directory(bench) -> None:
    await bench.create("configmaps", "conf", data={"COLOR": "green", "other": "x"})
    await bench.create("secrets", "key", stringData={"password": "hush"})
    env = [
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "TEAM", "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['team']"}}},
        {"name": "CPUS", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}},
        {"name": "PASS", "valueFrom": {"secretKeyRef": {"name": "key", "key": "password"}}},
        {"name": "X", "valueFrom": {"configMapKeyRef": {"name": "conf", "key": "other"}}},
        {"name": "MADE", "value": "$(TEAM)-$(CM_COLOR)-$(NOBODY)-$$(TEAM)"},
    ]
    container = {
        "env": env,
        "envFrom": [{"prefix": "CM_", "configMapRef": {"name": "conf"}}],
        "resources": {"limits": {"cpu": "1500m"}},
        "args": ["$(TEAM)"],
        "workingDir": "/etc",  # of kubelet nodes, /usr is a link
    }
    script = "import json,os,sys\nprint(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd()]))"
    text = await bench.output(script, container=container, labels={"team": "blue"})
    seen, args, directory = json.loads(text)
    pod = await bench.wait_pod(lambda p: True)
    assert seen["IP"] == pod["status"]["podIP"]
    assert seen["NODE"] == pod["spec"]["nodeName"]
    assert (seen["TEAM"], seen["CPUS"], seen["PASS"], seen["X"]) == ("blue", "2", "hush", "x")
    assert seen["MADE"] == "blue-green-$(NOBODY)-$(TEAM)"
    assert (args, directory, seen["HOSTNAME"]) == (["blue"], "/etc", "pod")


async def test_pods_listen_on_their_own_addresses(bench) -> None:
    serve = """
import os, http.server
handler = http.server.SimpleHTTPRequestHandler
http.server.ThreadingHTTPServer((os.environ['IP'], 8080), handler).serve_forever()
"""
    ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    probe = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    for name in ("one", "two"):
        container = {"env": [ip], "readinessProbe": probe}
        await bench.run_pod(serve, name=name, container=container)
    for name in ("one", "two"):
        await bench.wait_ready(name=name)


async def test_sigterm_with_a_slow_handler(bench) -> None:
    script = "import signal,sys,time\ndef bye(*_):\n  print('bye'); time.sleep(1); sys.exit(5)\n"
    script += "signal.signal(15, bye)\nprint('up')\nwhile True: time.sleep(0.1)"
    await bench.run_pod(script, terminationGracePeriodSeconds=20)
    await bench.wait_log("up")
    # A finalizer keeps the object so that its last status can be read.
    finalizer = {"metadata": {"finalizers": ["test/keep"]}}
    await bench.api.patch(bench.path("pods", "pod"), finalizer)
    began = time.monotonic()
    await bench.api.delete(bench.path("pods", "pod"))
    pod = await bench.wait_phase("Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 5
    assert 1 <= time.monotonic() - began < 15
    await bench.api.patch(bench.path("pods", "pod"), {"metadata": {"finalizers": None}})
    await bench.wait_gone()


async def test_sigkill_after_the_grace_period(bench) -> None:
    script = "import signal,time\nsignal.signal(15, lambda *_: print('no'))\nprint('up')\n"
    script += "while True: time.sleep(0.1)"
    await bench.run_pod(script, terminationGracePeriodSeconds=2)
    await bench.wait_log("up")
    began = time.monotonic()
    await bench.api.delete(bench.path("pods", "pod"))
    await bench.wait_gone()
    assert 1.9 <= time.monotonic() - began < 10


async def test_a_killed_pod_fails_with_137(bench) -> None:
    await bench.run_pod(SLEEP)
    await bench.wait_log("up")
    bench.cluster.kill_pod(bench.namespace, "pod")
    pod = await bench.wait_phase("Failed")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["exitCode"], ended["reason"]) == (137, "Error")


async def test_a_killed_container_restarts_with_back_off(bench) -> None:
    await bench.run_pod("raise SystemExit(1)", restartPolicy="Always")

    def is_backing_off(pod):
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        waiting = status.get("state", {}).get("waiting", {})
        return waiting.get("reason") == "CrashLoopBackOff"

    pod = await bench.wait_pod(is_backing_off)
    assert pod["status"]["phase"] == "Running"
    assert pod["status"]["containerStatuses"][0]["restartCount"] == 1


async def test_an_image_is_mapped_to_a_local_program(bench) -> None:
    image = {"image": "example.org/shout:v1", "command": None}
    await bench.run_pod("", container=image)
    await bench.run_pod("", name="loud", container={**image, "args": ["loudly"]})
    for name, expected in (("pod", "hello quietly\n"), ("loud", "hello loudly\n")):
        await bench.wait_phase("Succeeded", name=name)
        assert await bench.log(name=name) == expected


async def test_an_unknown_image_without_command_is_an_image_error(bench) -> None:
    container = {"command": None, "image": "127.0.0.1:1/nobody:1"}
    await bench.run_pod("", container=container)

    def reason(pod):
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        return status.get("state", {}).get("waiting", {}).get("reason")

    await bench.wait_pod(lambda p: reason(p) == "ErrImagePull")
    await bench.wait_pod(lambda p: reason(p) == "ImagePullBackOff")


async def test_a_program_that_does_not_exist_is_a_start_error(bench) -> None:
    await bench.run_pod("", container={"command": ["no-such-program"]})
    pod = await bench.wait_phase("Failed")
    ended = pod["status"]["containerStatuses"][0]["state"]["terminated"]
    assert (ended["reason"], ended["exitCode"]) == ("StartError", 128)
    assert "no-such-program" in ended["message"]


async def test_a_container_waits_for_a_missing_config_map(bench) -> None:
    source = {"configMapKeyRef": {"name": "late", "key": "k"}}
    env = [{"name": "K", "valueFrom": source}]
    await bench.run_pod("import os; print(os.environ['K'])", container={"env": env})

    def is_waiting(pod):
        status = (pod["status"].get("containerStatuses") or [{}])[0]
        waiting = status.get("state", {}).get("waiting", {})
        return (
            waiting.get("reason") == "CreateContainerConfigError" and "late" in waiting["message"]
        )

    await bench.wait_pod(is_waiting)
    await bench.create("configmaps", "late", data={"k": "here"})
    await bench.wait_phase("Succeeded")
    assert await bench.log() == "here\n"


async def test_termination_messages(bench) -> None:
    script = "import sys\nopen('/dev/termination-log','w').write('why')\nsys.exit(2)"
    await bench.run_pod(script)
    pod = await bench.wait_phase("Failed")
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"] == "why"
    policy = {"terminationMessagePolicy": "FallbackToLogsOnError"}
    await bench.run_pod("raise SystemExit('words')", name="two", container=policy)
    pod = await bench.wait_phase("Failed", name="two")
    assert "words" in pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]


async def test_init_containers_and_sidecars_run_first(bench) -> None:
    from_init = {"name": "v", "mountPath": "/shared"}
    init = {
        "name": "init", "image": MACHINE_IMAGE, "volumeMounts": [from_init],
        "command": ["python", "-c", "open('/shared/a','w').write('from init')"],
    }  # fmt: skip
    side = {
        "name": "side", "image": MACHINE_IMAGE, "restartPolicy": "Always",
        "command": ["python", "-c", OBEY + SLEEP],
    }  # fmt: skip
    text = await bench.output(
        "print(open('/shared/a').read())",
        initContainers=[init, side],
        volumes=[{"name": "v", "emptyDir": {}}],
        container={"volumeMounts": [from_init]},
    )
    assert text == "from init\n"


async def test_a_failed_init_container_fails_the_pod(bench) -> None:
    init = {
        "name": "init",
        "image": MACHINE_IMAGE,
        "command": ["python", "-c", "raise SystemExit(4)"],
    }
    await bench.run_pod("print('never')", initContainers=[init])
    pod = await bench.wait_phase("Failed")
    assert pod["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 4


async def test_probes(bench) -> None:
    liveness = {
        "exec": {"command": ["sh", "-c", "test ! -e /shared/sick"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    readiness = {"tcpSocket": {"port": "web"}, "periodSeconds": 1}
    script = """
import os, socket, time
ok = os.path.exists('/shared/sick')
os.path.exists('/shared/sick') and os.remove('/shared/sick')
s = socket.create_server((os.environ['IP'], 9000))
print('ready')
time.sleep(3)
None if ok else open('/shared/sick', 'w').close()
time.sleep(600)
"""
    ip = {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    container = {
        "livenessProbe": liveness, "readinessProbe": readiness, "env": [ip],
        "ports": [{"name": "web", "containerPort": 9000}],
        "volumeMounts": [{"name": "v", "mountPath": "/shared"}],
    }  # fmt: skip
    volumes = [{"name": "v", "emptyDir": {}}]
    await bench.run_pod(
        script, restartPolicy="Always", container=container, volumes=volumes,
        terminationGracePeriodSeconds=1,
    )  # fmt: skip
    await bench.wait_ready()
    await bench.wait_pod(lambda p: p["status"]["containerStatuses"][0]["restartCount"] == 1)
    await bench.wait_ready()


async def test_a_pre_stop_hook_runs_before_sigterm(bench) -> None:
    script = OBEY + "print('up')\nwhile True: time.sleep(0.1)"
    hook = {"exec": {"command": ["sh", "-c", "echo hooked > /shared/mark"]}}
    container = {
        "lifecycle": {"preStop": hook},
        "volumeMounts": [{"name": "v", "mountPath": "/shared"}],
    }
    directory = bench.cluster.directory / f"hook-{bench.namespace}"
    volumes = [{"name": "v", "hostPath": {"path": str(directory), "type": "DirectoryOrCreate"}}]
    await bench.run_pod(script, container=container, volumes=volumes)
    await bench.wait_log("up")
    await bench.api.delete(bench.path("pods", "pod"))
    await bench.wait_gone()
    assert (directory / "mark").read_text() == "hooked\n"


async def test_a_pod_past_its_deadline_fails(bench) -> None:
    await bench.run_pod(OBEY + SLEEP, activeDeadlineSeconds=1)
    pod = await bench.wait_phase("Failed")
    assert pod["status"]["reason"] == "DeadlineExceeded"
