"""A real S3 server for end-to-end tests, and how their jobs get keys for it."""

from __future__ import annotations

from collections.abc import Mapping

from .jobs import Object, User

SECRET = "bamboo-job-s3"
KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")


def give_keys(user: User, variables: Mapping[str, str]) -> Object:
    """Make the Secret in the user's namespace. Returns what a job's worker needs."""
    keys = {name: variables[name] for name in KEYS}
    metadata = {"name": SECRET}
    user.apply({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": keys})
    agent = {"name": "agent", "envFrom": [{"secretRef": {"name": SECRET}}]}
    env = [{"name": n, "value": value} for n, value in variables.items() if n not in KEYS]
    return {"env": env, "podTemplate": {"spec": {"containers": [agent]}}}
