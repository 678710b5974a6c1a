"""What a Workload of gangs requests, in the Workload of its job."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from rackgate.api import names
from rackgate.jobframework.registry import JOB, JOBSET, RAYCLUSTER
from rackgate.wire.kueue import PodSetTopologyRequest, Workload
from rackgate_assigner.gangs.run_spec import JobGang
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.patches import spec_ops, workload_body
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.state import Priority, podsets_of, read_job_state
from tests.support import composite_jobs as composite
from tests.unit.assigner_io.builders import job, workload

LINK = {"main": "gangs"}
NESTING = '[{"podSet":"main","within":[{"group":"spec","required":"block"}]}]'
PATH = "/metadata/annotations/scheduling.rackgate.dev~1nested-topology"
ASKED = JobGang(LINK, "{}", topology={"main": {"required": "rack"}}, nesting=NESTING)
INDEX = {"podIndexLabel": names.COMPLETION_INDEX_LABEL}
SUBGROUPS = {**INDEX, "subGroupIndexLabel": names.JOB_INDEX_LABEL, "subGroupCount": 3}


def ops(own: Workload, gang: JobGang) -> list[dict[str, Any]]:
    state = read_job_state(job(), own, Priority(), gang=gang)
    return [dict(op) for op in spec_ops(job(), own, state) if "annotations" in str(op["path"])]


def annotated(**annotations: str) -> dict[str, Any]:
    return {"meta": {"annotations": {"a": "b", **annotations}}}


@pytest.mark.requirement("GNG-38")
def test_the_workload_gets_requests_and_shared_domains() -> None:
    body = workload_body(job(), "w", Priority(), gang=ASKED)
    assert body["metadata"]["annotations"] == {names.GANG_NESTING_ANNOTATION: NESTING}
    (podset,) = body["spec"]["podSets"]
    assert podset["topologyRequest"] == {"required": "rack"}
    assert "annotations" not in workload_body(job(), "w", Priority())["metadata"]
    both = workload_body(job(), "w", Priority(), gang=ASKED, elastic=True)
    assert len(both["metadata"]["annotations"]) == 2


@pytest.mark.requirement("GNG-38")
def test_a_pending_workload_follows_and_that_of_a_started_job_does_not() -> None:
    add = {"op": "add", "path": PATH, "value": NESTING}
    assert ops(workload(job(), **annotated()), ASKED) == [add]
    entry = {names.GANG_NESTING_ANNOTATION: NESTING}
    whole = {"op": "add", "path": "/metadata/annotations", "value": entry}
    assert ops(workload(job()), ASKED) == [whole]
    known = workload(job(), **annotated(**entry))
    assert ops(known, ASKED) == []
    assert ops(known, JobGang(LINK, "{}")) == [{"op": "remove", "path": PATH}]
    assert ops(known, JobGang(LINK, "{}", started=True)) == []


@pytest.mark.requirement("GNG-38")
def test_an_admission_for_other_shared_domains_is_given_back_before_the_start() -> None:
    gang = JobGang(LINK, "{}", nesting=NESTING)
    own = workload(job(), admitted=True)
    state = read_job_state(job(), own, Priority(), gang=gang)
    found = plan_job(job(), [own], state)
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == "JobChanged"
    own = workload(job(), admitted=True, **annotated(**{names.GANG_NESTING_ANNOTATION: NESTING}))
    assert plan_job(job(), [own], state) == actions.StartJob(own, gang)


def test_each_kind_says_how_its_pods_are_ranked() -> None:
    indexed = job(completionMode="Indexed")
    assert JOB.rank_fields(JOB.manifest(indexed)) == {"main": INDEX}
    assert JOB.rank_fields(JOB.manifest(job())) == {"main": {}}
    parts = [
        composite.replicated_job("ranked", 2, replicas=3),
        composite.replicated_job("bag", 2, spec={"completionMode": "NonIndexed"}),
    ]
    assert JOBSET.rank_fields(composite.jobset("s", parts)) == {"ranked": SUBGROUPS, "bag": {}}
    cluster = composite.raycluster("c", [composite.worker_group("workers", 2)])
    found = RAYCLUSTER.rank_fields(cluster)
    assert found["workers"] == {"podIndexLabel": names.RAY_REPLICA_INDEX_LABEL}


def test_ranks_of_the_kind_are_merged_unless_the_gang_names_others() -> None:
    jobset = composite.jobset("s", [composite.replicated_job("main", 2, replicas=3)])

    def request(**asked: Any) -> Any:
        gang = JobGang(LINK, "{}", topology={"main": {"required": "rack", **asked}})
        (podset,) = podsets_of(JOBSET, jobset, gang, None)
        return podset["topologyRequest"]

    assert request() == {"required": "rack", **SUBGROUPS}
    assert request(**INDEX) == {"required": "rack", **SUBGROUPS}
    other = {"podIndexLabel": "example.com/rank"}
    assert request(**other) == {"required": "rack", **other}


def test_a_started_job_keeps_the_ranks_that_it_was_placed_by() -> None:
    ranks = {"podIndexLabel": "example.com/rank"}
    template = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: "rack"}}, "spec": {}}
    running = job(suspend=False, started=True, pod=template, completionMode="Indexed")
    asked = PodSetTopologyRequest(required="rack", pod_index_label="example.com/rank")
    own = workload(job(), admitted=True, pod=template)
    (only,) = own.spec.pod_sets
    podset_of = structs.replace(only, topology_request=asked)
    own = structs.replace(own, spec=structs.replace(own.spec, pod_sets=(podset_of,)))
    gang = JobGang(LINK, "{}", started=True)
    (podset,) = podsets_of(JOB, JOB.manifest(running), gang, own)
    assert podset["topologyRequest"] == {"required": "rack", **ranks}
    # A user who requests something else is seen.
    moved = {"metadata": {"annotations": {names.REQUIRED_TOPOLOGY: "block"}}, "spec": {}}
    (podset,) = podsets_of(JOB, JOB.manifest(job(pod=moved)), gang, own)
    assert podset["topologyRequest"]["required"] == "block"
