"""An Indexed Job whose parallelism changes while it runs: the same core, with slices of one pod."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import ELASTIC_INDEXED_JOBS, ELASTIC_JOBS
from tests.support.apiserver import Object
from tests.wire.assigner_world import assigner, eventually, settings
from tests.wire.elastic_world import ElasticWorld, furnish

BOTH = {"featureGates": {ELASTIC_JOBS: True, ELASTIC_INDEXED_JOBS: True}}
ONE = {"featureGates": {ELASTIC_JOBS: True}}


def elastic_job(world: ElasticWorld, parallelism: int, **options: Any) -> None:
    """A Job of ten indexes, suspended, as the webhook leaves it."""
    world.submit("train", parallelism, queue="plain", **options)

    def edit(job: Object) -> None:
        job["metadata"].setdefault("annotations", {})[names.ELASTIC_ANNOTATION] = "true"
        job["spec"].update(completionMode="Indexed", completions=10)

    world.change(kinds.JOBS, "train", edit)


def scale(world: ElasticWorld, parallelism: int) -> None:
    world.change(kinds.JOBS, "train", lambda o: o["spec"].update(parallelism=parallelism))


def counts(world: ElasticWorld) -> tuple[int, int]:
    """Pods that the Job's Workload asks for, and pods granted."""
    workload = world.workload("train")
    parts = workload.get("status", {}).get("admission", {}).get("podSetAssignments", [])
    return workload["spec"]["podSets"][0]["count"], sum(part["count"] for part in parts)


def is_at(world: ElasticWorld, parallelism: int) -> bool:
    return counts(world) == (parallelism, parallelism) and not world.slices()


@pytest.mark.requirement("STR-11")
async def test_an_indexed_job_grows_and_shrinks_while_it_runs() -> None:
    async with ElasticWorld() as world, assigner(world, configured=settings(**BOTH)):
        furnish(world)
        elastic_job(world, 2)
        await eventually(lambda: world.runs("train") and is_at(world, 2))
        uid = world.workload("train")["metadata"]["uid"]
        scale(world, 5)
        await eventually(lambda: is_at(world, 5))
        scale(world, 1)
        await eventually(lambda: is_at(world, 1))
        assert world.runs("train")
        assert world.workload("train")["metadata"]["uid"] == uid
        assert world.condition("train", "Evicted") == ("", "")
        assert world.broken_rules == []


@pytest.mark.requirement("STR-11")
@pytest.mark.field_note("E9")
async def test_no_more_slices_are_made_than_indexes_are_left_to_run() -> None:
    async with ElasticWorld() as world, assigner(world, configured=settings(**BOTH)):
        furnish(world)
        elastic_job(world, 2)
        await eventually(lambda: world.runs("train") and is_at(world, 2))
        scale(world, 40)
        await eventually(lambda: is_at(world, 10))


@pytest.mark.requirement("SLC-02", "STR-11")
async def test_without_its_own_gate_a_job_is_not_resized() -> None:
    async with ElasticWorld() as world, assigner(world, configured=settings(**ONE)):
        furnish(world)
        elastic_job(world, 2)
        await eventually(lambda: world.runs("train") and is_at(world, 2))
        scale(world, 5)
        await eventually(lambda: world.runs("train") and is_at(world, 5))
        assert world.condition("train", "Evicted")[0] == "False"
        assert not [r for r in world.writes() if "-main-" in r.path]
