"""JobSets: podsets, ranks, marks at creation, what a Workload cannot carry."""

from __future__ import annotations

from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.workload import MAX_PODSETS as CARRIED
from rackgate.jobframework.errors import MalformedError
from rackgate.jobframework.podsets import MAX_PODSETS
from rackgate.jobframework.registry import JOBSET
from rackgate.jobframework.templates import gates_of, labels_of
from tests.support.composite_jobs import jobset, marks, replicated_job
from tests.support.kinds import inject_jobset, remove_jobset_injection
from tests.support.objects import RACK
from tests.unit.govern.patching import apply_patch

ASKS = marks(required=RACK)
GROUP = {**ASKS, names.PODSET_GROUP: "one"}


def seed() -> dict[str, Any]:
    """A leader and four workers, each within a rack."""
    return jobset(
        "train",
        [
            replicated_job("Leader", 1, annotations=ASKS),
            replicated_job("workers", 4, replicas=3, annotations=ASKS),
        ],
    )


def governed(asked: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = apply_patch(asked, inject_jobset(asked))
    return result


@pytest.mark.requirement("TAS-28", "HOOK-03")
def test_each_replicated_job_is_a_podset_of_all_its_pods() -> None:
    leader, workers = JOBSET.podsets(seed())
    assert (leader["name"], leader["count"]) == ("leader", 1)
    assert (workers["name"], workers["count"]) == ("workers", 12)


@pytest.mark.requirement("TAS-10", "RNK-02")
def test_ranks_run_over_the_jobs_and_the_pods_of_each() -> None:
    request = JOBSET.podsets(seed())[1]["topologyRequest"]
    assert request == {
        "required": RACK,
        "podIndexLabel": "batch.kubernetes.io/job-completion-index",
        "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
        "subGroupCount": 3,
    }


def test_jobs_without_indices_have_no_ranks() -> None:
    part = replicated_job("w", 4, annotations=ASKS, spec={"completionMode": "NonIndexed"})
    assert JOBSET.podsets(jobset("train", [part]))[0]["topologyRequest"] == {"required": RACK}


def test_more_pods_than_completions_are_never_made() -> None:
    part = replicated_job("w", 4, replicas=2, spec={"completions": 3})
    assert JOBSET.podsets(jobset("train", [part]))[0]["count"] == 6


@pytest.mark.requirement("HOOK-04", "HOOK-10")
def test_a_managed_jobset_is_suspended_and_each_asking_template_marked() -> None:
    asked = seed()
    del asked["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]
    result = governed(asked)
    assert result["spec"]["suspend"] is True
    leader, workers = JOBSET.templates(result)
    assert leader.template == JOBSET.templates(asked)[0].template, "it asks for nothing"
    assert labels_of(workers.template) == {names.PODSET_LABEL: "workers"}
    assert gates_of(workers.template) == [names.TOPOLOGY_GATE]
    assert inject_jobset(result) == []


@pytest.mark.requirement("HOOK-05")
def test_a_jobset_that_is_not_managed_is_left_alone() -> None:
    asked = seed()
    asked["metadata"]["labels"] = {}
    assert inject_jobset(asked) == []
    asked = seed()
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "controller": True}
    asked["metadata"]["ownerReferences"] = [owner]
    assert inject_jobset(asked) == [], "its owner is queued"


def test_a_released_jobset_is_its_users_again() -> None:
    result = governed(seed())
    released = apply_patch(result, remove_jobset_injection(result))
    assert [part.template for part in JOBSET.templates(released)] == [
        part.template for part in JOBSET.templates(seed())
    ]


def errors(*parts: dict[str, Any]) -> list[str]:
    return [str(error) for error in JOBSET.shape_errors(jobset("train", parts))]


def test_a_workload_carries_as_many_podsets_as_its_schema_says() -> None:
    assert MAX_PODSETS == CARRIED
    assert errors(*(replicated_job(f"w{i}", 1) for i in range(18))) == []
    (error,) = errors(*(replicated_job(f"w{i}", 1) for i in range(19)))
    assert error.startswith("spec.replicatedJobs: 19 replicatedJobs, a Workload has 1 to 18")
    assert len(errors()) == 1, "nor none"


def test_names_that_differ_in_case_alone_are_rejected() -> None:
    (error,) = errors(replicated_job("w", 1), replicated_job("W", 1))
    assert error.startswith('spec.replicatedJobs[1].name: "W" is the same podset as "w"')


@pytest.mark.parametrize("name", ["", "a_b", "-a", "a.b", "x" * 64, "ä"])
def test_a_name_that_no_podset_can_have_is_rejected(name: str) -> None:
    (error,) = errors(replicated_job(name, 1))
    assert error.startswith("spec.replicatedJobs[0].name: ")


def test_a_group_is_a_leader_and_its_workers() -> None:
    leader = replicated_job("leader", 1, annotations=GROUP)
    workers = replicated_job("workers", 4, annotations=GROUP)
    assert errors(leader, workers) == []
    (error,) = errors(leader)
    assert "has exactly 2 podsets, found 1" in error
    assert error.startswith(
        "spec.replicatedJobs[0].template.spec.template.metadata.annotations"
        f"[{names.PODSET_GROUP}]: "
    )
    (error,) = errors(replicated_job("leader", 2, annotations=GROUP), workers)
    assert "must be a single pod, the smaller one has 2" in error
    other = {**marks(preferred=RACK), names.PODSET_GROUP: "one"}
    (error,) = errors(leader, replicated_job("workers", 4, annotations=other))
    assert "different levels" in error


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("replicatedJobs",), {}),
        (("replicatedJobs", 0), 3),
        (("replicatedJobs", 0, "template"), []),
        (("replicatedJobs", 0, "template", "spec"), "x"),
        (("replicatedJobs", 0, "template", "spec", "template"), 1),
        (("replicatedJobs", 0, "template", "spec", "template", "metadata"), []),
        (("replicatedJobs", 0, "template", "spec", "template", "metadata", "annotations"), []),
        (("replicatedJobs", 0, "template", "spec", "template", "spec", "schedulingGates"), [3]),
        (("replicatedJobs", 0, "template", "spec", "template", "spec", "nodeSelector"), "x"),
        (("replicatedJobs", 0, "template", "spec", "template", "spec", "tolerations"), {}),
    ],
)
@pytest.mark.field_note("W8")
def test_a_shape_that_no_api_server_sends_is_named_by_its_path(
    path: tuple[str | int, ...], value: Any
) -> None:
    asked = seed()
    holder: Any = asked["spec"]
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    with pytest.raises(MalformedError) as caught:
        inject_jobset(asked)
    named = "spec" + "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in path)
    assert caught.value.path in (named, f"{named}[0]")
