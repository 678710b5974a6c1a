"""Deployments: replicas come and go one by one, so they are never a gang."""

from __future__ import annotations

from collections.abc import Iterator

from rackgate.api.resources import DEPLOYMENTS
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind, Manifest, count_at


class DeploymentKind(LinkedKind):
    """`apps` Deployment."""

    resource = DEPLOYMENTS
    built_in = True
    rank_path = ""

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """Its one template."""
        yield "spec", "template"

    def gang(self, manifest: Manifest) -> LinkedGang:
        """None."""
        return LinkedGang(alone="replicas of a Deployment serve on their own")

    def has_pods(self, manifest: Manifest) -> bool:
        """Whether `status.replicas` is not 0."""
        return count_at(manifest, "status", "replicas") > 0
