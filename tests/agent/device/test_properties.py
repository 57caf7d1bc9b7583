"""On which device an agent computes, and when it refuses to."""

from __future__ import annotations

import pytest
import torch

from bamboo_agent.device.properties import (
    SIMULATED_VARIABLE,
    GpuMissingError,
    GpuUnsupportedError,
    choose_device,
)
from bamboo_agent.worker.failures import judge
from bamboo_core.api.spec import WorkerSpec
from bamboo_core.protocol.exit_codes import ExitCode

ASKS = {"nvidia.com/gpu": 1}
MIG = {"nvidia.com/mig-1g.10gb": "1"}
NONE = ({}, {"cpu": "4", "memory": "1Gi"}, {"nvidia.com/gpu": 0}, {"nvidia.com/gpu": "0"})


@pytest.fixture
def sees(monkeypatch):
    """Make torch see GPUs or not, and have been built for them or not."""

    def make(*, gpu, cuda=None, hip=None):
        monkeypatch.delenv(SIMULATED_VARIABLE, raising=False)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.version, "hip", hip)

    return make


@pytest.mark.parametrize("asks", [*NONE, ASKS, MIG])
def test_a_gpu_that_is_seen_is_used_whether_it_was_asked_for_or_not(asks, sees):
    sees(gpu=True, cuda="12.8")
    assert choose_device(asks) == torch.device("cuda:0")


@pytest.mark.parametrize("asks", NONE)
@pytest.mark.parametrize("cuda", [None, "12.8"])
def test_who_asks_for_none_gets_the_cpu(asks, cuda, sees):
    sees(gpu=False, cuda=cuda)
    assert choose_device(asks) == torch.device("cpu")


@pytest.mark.parametrize("asks", [ASKS, MIG, {"amd.com/gpu": "2"}, {"nvidia.com/gpu": "odd"}])
def test_a_torch_without_gpus_is_the_users_fault(asks, sees):
    sees(gpu=False)
    with pytest.raises(GpuUnsupportedError) as found:
        choose_device(asks)
    (name,) = asks
    verdict = judge(found.value, ready=False)
    assert (verdict.reason, verdict.code) == ("UserCodeFailed", ExitCode.USER)
    assert f"spec.worker.resources asks for {name}" in verdict.line
    assert "use an image with a torch that can use the GPU" in verdict.line


@pytest.mark.parametrize("built", [{"cuda": "12.8"}, {"hip": "6.4"}])
@pytest.mark.parametrize("asks", [ASKS, MIG, {"amd.com/gpu": 1}])
def test_a_node_without_a_driver_is_at_fault(asks, built, sees):
    sees(gpu=False, **built)
    with pytest.raises(GpuMissingError) as found:
        choose_device(asks)
    verdict = judge(found.value, ready=False)
    assert (verdict.reason, verdict.code) == ("SetUpFailed", ExitCode.FAILED)
    assert "nvidia-smi" in verdict.line
    assert "driver and the device plugin of the node" in verdict.line


@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_a_gpu_is_asked_for_by_limits_or_requests(kind, sees):
    sees(gpu=False, cuda="12.8")
    with pytest.raises(GpuMissingError):
        choose_device(WorkerSpec("image", resources={kind: ASKS}).asks)


def test_a_simulated_gpu_is_none(sees, monkeypatch):
    """As on the development cluster."""
    sees(gpu=False, cuda="12.8")
    monkeypatch.setenv(SIMULATED_VARIABLE, "nvidia.com/gpu")
    assert choose_device(ASKS) == torch.device("cpu")
    with pytest.raises(GpuMissingError, match=r"amd\.com/gpu 1"):
        choose_device({**ASKS, "amd.com/gpu": 1})
