"""The fingerprint: what must be equal on all agents of a job. It goes into the Ready message."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import sys
from pathlib import Path
from types import ModuleType

import torch

from bamboo_agent.compute.state import TrainingSetup
from bamboo_agent.data.batches import SampleError
from bamboo_agent.device import properties
from bamboo_agent.model import FactoryError
from bamboo_agent.setup.channel import choose_route
from bamboo_agent.setup.probe.layers import Profile
from bamboo_agent.setup.products import products
from bamboo_agent.transport.process_group import groups
from bamboo_core.api.identity import identity_hash
from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.channels import torch_text
from bamboo_core.protocol.messages import Fingerprint, Ready, Tie

_MOST_FILES, _MOST_BYTES = 500, 4 * 2**20
_KNOWN_BY_VERSION = ("torch", "bamboo_agent")


def make_ready(spec: JobSpec, setup: TrainingSetup, profile: Profile) -> Ready:
    """The message that tells the operator what the worker has built, and with which software.

    FactoryError if a sample cannot be read.
    """
    return Ready(
        fingerprint=fingerprint(spec, setup, profile),
        layers=len(profile.outlines),
        training_samples=setup.data.training_samples,
        validation_samples=setup.data.validation_samples,
        costs=profile.costs,
        nccl=groups.nccl_version(),
        # layers with several parameters in common say so once
        ties=tuple(dict.fromkeys(Tie(tuple(use.layer for use in tie)) for tie in profile.ties)),
    )


def fingerprint(spec: JobSpec, setup: TrainingSetup, profile: Profile) -> Fingerprint:
    """The facts that must be equal on all agents. FactoryError if a sample cannot be read."""
    setup.computed.begin(f"spec.data.factory {spec.data.factory}, which reads samples all over it")
    try:
        data, samples = setup.data.fingerprint(), setup.data.wide_fingerprint()
    except SampleError as error:
        raise FactoryError(str(error)) from error
    setup.computed.end()
    uses_nccl = choose_route(spec, setup.device).backend == "nccl"
    nccl = groups.nccl_version() if uses_nccl else ""
    return Fingerprint(
        code=code_hash(*_factories(spec)),
        data=data,
        torch=torch_text(torch.__version__, nccl),
        device=properties.device_kind(setup.device),
        threads=torch.get_num_threads(),
        spec=identity_hash(spec),
        weights=profile.weights,
        outputs=profile.outputs,
        products=products(setup.device),
        samples=samples,
    )


def code_by_factory(spec: JobSpec) -> dict[str, str]:
    """Hash of the user's code of each factory: says where it differs."""
    return {factory: code_hash(factory) for factory in _factories(spec)}


def _factories(spec: JobSpec) -> list[str]:
    found = [spec.model.factory, spec.data.factory, spec.training.optimizer.factory]
    more = (spec.data.validation, spec.training.optimizer.schedule)
    return found + [other.factory for other in more if other is not None]


def code_hash(*factories: str) -> str:
    """Hash of the user's code.

    It covers all ``*.py`` files of a factory's top-level package, up to 500 files and 4 MiB. It
    covers only the factory's own module if the package is larger, if there is no package, and for
    torch (whose version is in the fingerprint) and Bamboo itself.
    """
    digest = hashlib.sha256()
    for name in sorted(set(factories)):
        module = importlib.import_module(name.partition(":")[0])
        sources = _package_sources(module) or {"": _source(module)}
        digest.update(f"{name}\0{len(sources)}\0".encode())
        for path, source in sorted(sources.items()):
            head = f"{path}\0{len(source)}\0".encode(errors="surrogateescape")
            digest.update(head + source)
    return digest.hexdigest()


def _package_sources(module: ModuleType) -> dict[str, bytes]:
    """Path -> content of the package's files; empty if only the module counts."""
    top = module.__name__.partition(".")[0]
    if top in _KNOWN_BY_VERSION:
        return {}
    found: dict[str, bytes] = {}
    left = _MOST_BYTES
    for folder in getattr(sys.modules.get(top), "__path__", ()):
        for path in Path(folder).rglob("*.py"):
            if not path.is_file():  # an editor's lock file is a dangling link
                continue
            found[path.relative_to(folder).as_posix()] = source = path.read_bytes()
            left -= len(source)
            if len(found) > _MOST_FILES or left < 0:
                return {}
    return found


def _source(module: ModuleType) -> bytes:
    try:
        return inspect.getsource(module).encode()
    except (OSError, TypeError):
        return str(getattr(module, "__version__", "")).encode()
