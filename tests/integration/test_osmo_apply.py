"""`rackgate osmo apply` on a real API server that serves KAI's kinds."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate.kube.errors import BadRequestError
from rackgate_cli.__main__ import main
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply.preconditions import check_served
from rackgate_osmo import KaiVersion, Profile, build_podgroups, read_pool, read_workflow
from rackgate_osmo.render.pods import build_pods
from tests.support.cluster import Cluster, until
from tests.support.objects import Object
from tests.support.osmo_cases import cases, submission
from tests.support.playground import Playground

POOL = {"apiVersion": kinds.OSMO_POOLS.api_version, "kind": "Pool"}
STRICT = {"fieldValidation": "Strict"}
ACCEPTED = sorted(name for name, case in cases().items() if "expected" in case)
AT_ONCE = 8
SELECTOR = {"example.com/pool": "a"}


async def create_strictly(cluster: Cluster, objects: list[tuple[kinds.Resource, Object]]) -> None:
    """Create objects under names of their own; levels of Topologies are left as they are."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, kind: kinds.Resource, item: Object) -> None:
        namespace = cluster.namespace if kind.namespaced else None
        name = f"{cluster.pool}-{number}"
        metadata = {**item["metadata"], "name": name}
        async with gate:
            body = json.dumps({**item, "metadata": metadata}).encode()
            await cluster.client.create(kind.path(namespace), body, STRICT)
        if not kind.namespaced:
            cluster.created.append((kind, None, name))

    await asyncio.gather(*(one(number, *entry) for number, entry in enumerate(objects)))


@pytest.mark.requirement("OSM-13")
async def test_every_expected_object_is_taken_under_strict_validation(cluster: Cluster) -> None:
    objects: list[tuple[kinds.Resource, Object]] = []
    for name in ACCEPTED:
        expected = cases()[name]["expected"]
        if expected["topology"] is not None:
            objects.append((kinds.KAI_TOPOLOGIES, expected["topology"]))
        objects += [(kinds.KAI_POD_GROUPS, group) for group in expected.get("podGroups", ())]
    assert len(objects) > len(ACCEPTED)
    await create_strictly(cluster, objects)
    # And that is what keeps a wrong spelling from being dropped.
    wrong = {**objects[-1][1], "spec": {"subgroups": [{"name": "a"}]}}
    with pytest.raises(BadRequestError, match=r'unknown field "spec\.subgroups"'):
        await create_strictly(cluster, [(kinds.KAI_POD_GROUPS, wrong)])


@pytest.mark.requirement("OSM-17")
async def test_objects_of_both_profiles_and_pods_are_taken(cluster: Cluster) -> None:
    objects: list[tuple[kinds.Resource, Object]] = []
    for name in ("uc3-cliques-in-one-zone", "catch-all-two-levels", "long-names"):
        case = cases()[name]
        pool = read_pool(case["pool"])
        document = copy.deepcopy(submission(case))  # the cases are read once for all tests
        for group in document["workflow"]["groups"]:
            group["tasks"] = [{**task, "image": "trainer:1"} for task in group["tasks"]]
        workflow = read_workflow(document, pool)
        for profile in Profile:
            built = build_podgroups(pool, workflow, profile=profile, kai=KaiVersion.V0_13)
            objects += [(kinds.KAI_POD_GROUPS, group) for group in built.pod_groups]
            objects += [(kinds.PODS, pod) for pod in build_pods(pool, workflow, built, document)]
    await create_strictly(cluster, objects)


class Story:
    """Calls of the command, in the namespace and on the pool of one test."""

    def __init__(
        self,
        cluster: Cluster,
        playground: Playground,
        folder: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        self.cluster, self._playground = cluster, playground
        self._folder, self._capsys = folder, capsys
        self.topology = f"osmo-pool-{cluster.pool}-topology"
        cluster.created.append((kinds.KAI_TOPOLOGIES, None, self.topology))

    async def apply(
        self,
        *keys: str,
        code: int = 0,
        args: tuple[str, ...] = (),
        image: str = "trainer:1",
        variable: str = "AT",
    ) -> Any:
        """Apply the workflow on a pool with these keys; what was printed, as JSON."""
        labels = [{"key": key, "label": f"example.com/{key}"} for key in keys]
        pool = {"name": self.cluster.pool, "topology_keys": labels, "node_selector": SELECTOR}
        tasks = [
            {"name": f"t{at}", "image": image, "environment": {variable: at}} for at in range(2)
        ]
        resources = {"default": {"cpu": 0.1, "gpu": 1, "topology": [{"key": "rack"}]}}
        workflow = {"name": "train", "groups": [{"name": "g", "tasks": tasks}]}
        (self._folder / "pool.yaml").write_text(yaml.safe_dump(pool))
        document = {"workflow": workflow, "resources": resources}
        (self._folder / "workflow.yaml").write_text(yaml.safe_dump(document))
        files = [
            "-f",
            str(self._folder / "workflow.yaml"),
            "--pool",
            str(self._folder / "pool.yaml"),
        ]
        line = ["osmo", "apply", *files, "-n", self.cluster.namespace, "--json", *args]
        return await self.run(*line, code=code)

    async def run(self, *line: str, code: int = 0) -> Any:
        """Run a verb; its JSON, or what it says when it is to fail."""
        state = str(self._playground.state)
        # The command has an event loop of its own.
        found = await asyncio.to_thread(main, [*line, "--state", state])
        said = self._capsys.readouterr()
        assert found == code, said.err
        return json.loads(said.out) if code == 0 else said.err

    async def levels(self) -> list[str] | None:
        found = await self.cluster.find(kinds.KAI_TOPOLOGIES, self.topology)
        if found is None:
            return None
        return [level["nodeLabel"] for level in found["spec"]["levels"]]

    async def pods(self) -> dict[str, str]:
        """Name and uid of each pod."""
        pods = await self.cluster.list_all(kinds.PODS)
        return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


@pytest.fixture
def story(
    cluster: Cluster,
    playground: Playground,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> Story:
    return Story(cluster, playground, tmp_path, capsys)


def results(document: Any) -> list[tuple[str, str]]:
    return [(entry["kind"], entry["result"]) for entry in document["objects"]]


@pytest.mark.requirement("OSM-08", "OSM-17")
async def test_apply_creates_keeps_and_replaces(story: Story) -> None:
    everything = ["Topology", "PodGroup", "Pod", "Pod"]
    tried = await story.apply("rack", args=("--dry-run",))
    assert results(tried) == [(kind, "created") for kind in everything]
    assert (await story.levels(), await story.pods()) == (None, {})

    made = await story.apply("rack")
    assert results(made) == [(kind, "created") for kind in everything]
    # Other tests may have pools of theirs, which is told, too.
    queue = f'queue "osmo-pool-{story.cluster.pool}" does not exist'
    assert [queue in warning for warning in made["warnings"]].count(True) == 1
    pods = await story.pods()
    group = await story.cluster.get(kinds.KAI_POD_GROUPS, "train-g")
    assert group["spec"]["topologyConstraint"]["requiredTopologyLevel"] == "example.com/rack"

    again = await story.apply("rack")
    assert results(again) == [(kind, "unchanged") for kind in everything]

    # Levels cannot change; trying it must not delete them.
    tried = await story.apply("zone", "rack", args=("--dry-run",))
    assert results(tried)[0] == ("Topology", "replaced")
    assert await story.levels() == ["example.com/rack"]
    other = await story.apply("zone", "rack")
    assert results(other) == [("Topology", "replaced")] + [
        (kind, "unchanged") for kind in everything[1:]
    ]
    assert await story.levels() == ["example.com/zone", "example.com/rack"]
    assert await story.pods() == pods


@pytest.mark.requirement("OSM-17")
async def test_a_workflow_that_changed_is_made_again_when_that_is_asked_for(story: Story) -> None:
    await story.apply("rack")
    before = await story.pods()
    for pod in await story.cluster.list_all(kinds.PODS):
        assert pod["spec"]["nodeSelector"] == SELECTOR
        keys = [one["key"] for one in pod["spec"]["tolerations"] if one["operator"] == "Exists"]
        assert "nvidia.com/gpu" in keys
    said = await story.apply("rack", image="trainer:2", code=1)
    assert "nothing is written:" in said
    assert "--replace" in said
    tried = await story.apply("rack", image="trainer:2", args=("--replace", "--dry-run"))
    assert results(tried)[2:] == [("Pod", "replaced")] * 2
    assert await story.pods() == before
    # What the API server refuses is known before anything is deleted.
    said = await story.apply("rack", variable="A=B", code=1, args=("--replace",))
    assert "are rejected" in said
    assert await story.pods() == before
    made = await story.apply("rack", image="trainer:2", args=("--replace",))
    assert results(made)[1:] == [
        ("PodGroup", "unchanged"),
        ("Pod", "replaced"),
        ("Pod", "replaced"),
    ]
    after = await story.pods()
    assert set(after) == set(before)
    assert not set(after.values()) & set(before.values())
    images = {
        pod["spec"]["containers"][0]["image"] for pod in await story.cluster.list_all(kinds.PODS)
    }
    assert images == {"trainer:2"}


async def test_a_group_changes_once_its_pods_are_gone(story: Story) -> None:
    await story.apply("rack", args=("--no-pods",))
    before = await story.cluster.get(kinds.KAI_POD_GROUPS, "train-g")
    await story.cluster.merge(
        kinds.KAI_POD_GROUPS, "train-g", {"spec": {"minMember": 7, "priorityClassName": "train"}}
    )
    changed = await story.apply("rack")
    assert results(changed)[1] == ("PodGroup", "changed")
    after = await story.cluster.get(kinds.KAI_POD_GROUPS, "train-g")
    assert after["spec"] == before["spec"] | {"priorityClassName": "train"}

    await story.cluster.merge(kinds.KAI_POD_GROUPS, "train-g", {"spec": {"minMember": 7}})
    said = await story.apply("rack", code=1)
    assert "nothing is written:" in said
    assert "minMember would change, but the group has pods that have not ended (train-g-t0" in said


@pytest.mark.requirement("OSM-03", "OSM-08")
async def test_a_pool_of_the_cluster_lists_its_keys_and_keeps_its_topology(story: Story) -> None:
    pool = story.cluster.pool
    keys = [{"key": "rack", "label": "example.com/rack"}]
    await story.cluster.create(
        kinds.OSMO_POOLS, {**POOL, "metadata": {"name": pool}, "spec": {"topology_keys": keys}}
    )
    found = await story.run("osmo", "keys", pool, "--json")
    assert found == {"pools": [{"pool": pool, "topology_keys": keys}]}
    assert found["pools"][0] in (await story.run("osmo", "keys", "--json"))["pools"]

    await until("the assigner makes the Topology", story.levels)
    before = await story.cluster.get(kinds.KAI_TOPOLOGIES, story.topology)
    applied = await story.apply("rack", args=("--pool", pool))
    assert results(applied)[0] == ("Topology", "unchanged")
    assert await story.cluster.get(kinds.KAI_TOPOLOGIES, story.topology) == before
    said = await story.apply("zone", "rack", code=1)
    assert f'pool "{pool}" of the cluster has other topology keys (rack)' in said


async def test_what_the_cluster_does_not_serve_or_have_is_named(story: Story) -> None:
    said = await story.apply("rack", code=1, args=("--kai", "0.10"))
    assert "does not serve topologies.kueue.x-k8s.io in version v1alpha1" in said
    assert "v1beta2" in said
    absent = kinds.Resource("absent.example.com", "v1", "things", False, "Thing")
    with pytest.raises(CommandError, match=r'"things\.absent\.example\.com"'):
        await check_served(story.cluster.client, absent)
    said = await story.apply("rack", code=1, args=("-n", "no-such-namespace"))
    assert 'PodGroup "train-g" is rejected: namespaces "no-such-namespace" not found' in said
