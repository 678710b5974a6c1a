"""Warnings about jobs with keys of Kueue that are not queued, by the API server alone."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import resources as kinds
from tests.support.cluster import Cluster, until
from tests.support.objects import job
from tests.support.playground import Playground
from tests.support.whole_answers import Server

pytestmark = pytest.mark.integration
DRY_RUN = "?dryRun=All"
TOPOLOGY = "kueue.x-k8s.io/podset-requird-topology"


def unlabelled(part: str = "", key: str = "", *, template: bool = False) -> dict[str, Any]:
    """A Job that has no queue label, and one label or annotation."""
    # A Job without labels gets those of its template.
    found = job("train", 2, queue=None, labels={"app": "train"})
    if key:
        target = found["spec"]["template"] if template else found
        metadata = dict(target.get("metadata") or {})
        metadata[f"{part}s"] = {**(metadata.get(f"{part}s") or {}), key: "lq"}
        target["metadata"] = metadata
    return found


async def test_keys_of_kueue_on_a_job_without_the_queue_label_are_warned_about(
    playground: Playground, cluster: Cluster
) -> None:
    server, path = Server(playground), kinds.JOBS.path(cluster.namespace)

    async def warned(found: dict[str, Any]) -> str:
        status, _, warnings = await server.send("POST", path + DRY_RUN, found)
        assert status == 201
        return warnings

    misspelled = unlabelled("label", "kueue.x-k8s.io/queuename")
    # A policy is in effect some time after it was created.
    await until("the policy is in effect", lambda: warned(misspelled))
    for found, place in (
        (misspelled, "metadata.labels[kueue.x-k8s.io/queuename]"),
        (unlabelled("annotation", "kueue.x-k8s.io/queue-name"), "metadata.annotations[kueue.x-"),
        (unlabelled("label", "rackgate.dev/queue"), "metadata.labels[rackgate.dev/queue]"),
        (
            unlabelled("label", "kueue.x-k8s.io/queue-name", template=True),
            "spec.template.metadata.labels[kueue.x-k8s.io/queue-name]",
        ),
    ):
        text = await warned(found)
        assert place in text
        assert "did you mean that label?" in text
    text = await warned(unlabelled("annotation", TOPOLOGY, template=True))
    assert f"spec.template.metadata.annotations[{TOPOLOGY}] has no effect" in text
    assert await warned(unlabelled()) == ""
    assert await warned(unlabelled("annotation", "kueue.x-k8s.io/stopping")) == ""
    assert await warned(unlabelled("label", "example.com/queue-name")) == ""
