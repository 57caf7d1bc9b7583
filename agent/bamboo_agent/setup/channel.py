"""How items travel between this agent and the others: over tcp, or by process groups."""

from __future__ import annotations

import logging
import os

import torch

from bamboo_agent.device import properties
from bamboo_agent.transport.process_group import groups
from bamboo_agent.transport.process_group.maker import MIN_BYTES, Limits, Maker
from bamboo_core.api.spec import JobSpec
from bamboo_core.protocol.channels import Route, choose

log = logging.getLogger(__name__)

GROUP_FLOOR_VARIABLE = "BAMBOO_GROUP_FLOOR_BYTES"
"""Smaller tensors do not go by process groups. Tests lower it: their tensors are small."""


def choose_route(spec: JobSpec, device: torch.device) -> Route:
    """How items travel between this agent and the others."""
    return choose(spec.transport, properties.device_kind(device), groups.nccl_version())


def make_groups(route: Route, device: torch.device) -> Maker | None:
    """The maker of process groups; None if all items go over tcp."""
    encrypted = "encrypted" if route.is_encrypted else "not encrypted"
    log.info("channel %s, %s: %s", route.channel, encrypted, route.reason)
    if not route.backend:
        return None
    floor = int(os.environ.get(GROUP_FLOOR_VARIABLE, str(MIN_BYTES)))
    limits = Limits(min_bytes=floor)
    return Maker(route.backend, device=device, gpu=groups.gpu_id(device), limits=limits)
