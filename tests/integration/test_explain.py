"""`rackgate explain` on real refusals; docs/tasks/debug-a-pending-workload.md shows these."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate_assigner.explain.explanation import Explanation
from rackgate_cli.__main__ import main
from rackgate_cli.explain.view import blocks
from rackgate_cli.tables import plain
from tests.support.cluster import Cluster, until
from tests.support.objects import RACK, Object, job, node
from tests.support.playground import Playground

pytestmark = pytest.mark.integration


Explain = Callable[..., Awaitable[dict[str, Any]]]


@pytest.fixture
def explain(
    playground: Playground, cluster: Cluster, capsys: pytest.CaptureFixture[str]
) -> Explain:
    """Runs the command about this test's namespace; the plain form goes to the test's output."""

    async def explain(*words: str) -> dict[str, Any]:
        line = ["explain", *words, "--state", str(playground.state), "-n", cluster.namespace]
        code = await asyncio.to_thread(main, [*line, "--json"])
        text = capsys.readouterr().out
        assert code == 0
        shown = plain(blocks(msgspec.json.decode(text, type=Explanation)))
        with capsys.disabled():
            if os.environ.get("SHOW_EXPLANATIONS"):
                print(f"$ rackgate explain {' '.join(words)}\n{shown}")
        return dict(json.loads(text))

    return explain


def changes(found: dict[str, Any]) -> dict[str, str]:
    return {change["kind"]: change["when"] for change in found["changes"]}


def best(found: dict[str, Any], level: str) -> dict[str, Any]:
    levels = {room["level"]: room for room in found["flavors"][0]["levels"]}
    first: dict[str, Any] = levels[level]["best"][0]
    return first


def written(workload: Object) -> str:
    """The message that the assigner wrote."""
    conditions = {entry["type"]: entry for entry in workload["status"]["conditions"]}
    return str(conditions["QuotaReserved"]["message"])


@pytest.mark.requirement("TAS-20")
async def test_a_rack_that_is_too_small_is_reported_with_what_it_lacks(
    cluster: Cluster, explain: Explain
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 5, required=RACK)
    words = "allows to fit only 4 out of 5 pod(s)"
    workload = await cluster.condition(
        "train", "QuotaReserved", "False", "TopologyPlacementFailed", words
    )
    found = await explain("train")
    assert found["message"] == written(workload) == found["told"]
    rack = best(found, RACK)
    assert (rack["pods"], rack["podsWhenEmpty"], rack["tightest"]) == (4, 4, "cpu")
    assert [r["missing"] for r in rack["resources"] if r["resource"] == "cpu"] == ["4"]
    assert changes(found)["coarserLevel"] == "now"
    assert found["flavors"][0]["fitsWhenEmpty"] is False


async def test_room_in_pieces_is_reported_with_who_holds_it(
    cluster: Cluster, explain: Explain
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    for number in range(4):
        await cluster.submit(f"part-{number}", 3, required=RACK)
    for number in range(4):
        await cluster.bound(f"part-{number}", 3)
    await cluster.submit("train", 4, required=RACK)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    found = await explain("train")
    asked = next(level for level in found["flavors"][0]["levels"] if level["asked"])
    assert (asked["pods"], asked["fragmented"], asked["best"][0]["pods"]) == (4, True, 1)
    holders = asked["best"][0]["holders"]
    assert [holder["pods"] for holder in holders] == [3]
    assert next(c for c in found["changes"] if c["kind"] == "wait")["value"] == holders[0]["name"]


async def test_taints_and_selectors_that_exclude_nodes_are_named(
    cluster: Cluster, explain: Explain
) -> None:
    fast = {"disk": "ssd"}
    pool = cluster.pool
    nodes = [
        node(pool, "block-1", "rack-1", "11-1", labels=fast),
        node(pool, "block-1", "rack-1", "11-2", labels=fast),
        node(pool, "block-1", "rack-2", "12-1"),
        node(pool, "block-1", "rack-2", "12-2"),
    ]
    nodes[0]["spec"] = {"taints": [{"key": "maintenance", "value": "disk", "effect": "NoSchedule"}]}
    await cluster.add_nodes(nodes)
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK, pod={"nodeSelector": fast})
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    found = await explain("train")
    rules = {(e["rule"], e["detail"]): e["nodes"] for e in found["flavors"][0]["excluded"]}
    assert rules["taint", "maintenance=disk:NoSchedule"] == 1
    assert rules["nodeSelector", "disk=ssd"] == 2
    assert (best(found, RACK)["usableNodes"], best(found, RACK)["nodes"]) == (1, 2)
    assert changes(found)["toleration"] == "now"
    assert changes(found)["nodeSelector"] == "now"


@pytest.mark.requirement("TAS-20")
async def test_quota_that_is_missing_is_reported_with_who_holds_it(
    cluster: Cluster, explain: Explain
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})
    await cluster.submit("first", 3, required=RACK)
    await cluster.bound("first", 3)
    await cluster.submit("train", 2, required=RACK)
    workload = await cluster.condition("train", "QuotaReserved", "False", "WaitingForQuota")
    found = await explain("train")
    assert (found["reason"], found["message"]) == ("WaitingForQuota", written(workload))
    (line,) = found["quota"]
    assert (line["used"], line["nominal"], line["missing"]) == ("12", "16", "4")
    assert [holder["amounts"] for holder in line["holders"]] == [{"cpu": "12"}]
    assert found["flavors"][0]["fits"] is True
    running = await explain("first")
    assert (running["state"], running["podsets"][0]["granted"]) == ("admitted", 3)


@pytest.mark.requirement("TAS-04")
@pytest.mark.field_note("C18")
async def test_nodes_without_level_labels_are_named_with_what_they_lack(
    cluster: Cluster, explain: Explain
) -> None:
    bare = [node(cluster.pool, "block-1", "rack-1", f"bare-{n}") for n in (1, 2)]
    for found_node in bare:
        del found_node["metadata"]["labels"][RACK]
    await cluster.add_nodes([*bare, node(cluster.pool, "block-1", "rack-1", "good")])
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.condition("train", "QuotaReserved", "False", "TopologyPlacementFailed")
    found = await explain("train")
    lacking = next(e for e in found["flavors"][0]["excluded"] if e["rule"] == "missingLevel")
    assert (lacking["detail"], lacking["nodes"]) == (RACK, 2)
    assert lacking["names"] == [f"{cluster.pool}-bare-1", f"{cluster.pool}-bare-2"]
    assert changes(found)["nodeLabels"] == "perhaps"

    async def warned() -> list[str]:
        notes = []
        async for page in cluster.client.list_pages(kinds.EVENTS.path()):
            for event in json.loads(page)["items"]:
                regarding = event.get("regarding") or {}
                if regarding.get("name") == f"{cluster.pool}-queue":
                    notes += [event["note"]] * (event["reason"] == "NodesWithoutLevels")
        return notes

    (note,) = await until("a Warning on the flavor", warned)
    assert f'{cluster.pool}-bare-2: no label "{RACK}"' in note


async def test_a_manifest_is_explained_before_it_is_submitted(
    playground: Playground,
    cluster: Cluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    file = tmp_path / "job.yaml"
    options = ["-f", str(file), "-n", cluster.namespace, "--state", str(playground.state)]

    async def about(manifest: Object) -> tuple[int, str]:
        file.write_text(yaml.safe_dump(manifest))
        code = await asyncio.to_thread(main, ["explain", *options])
        return code, capsys.readouterr().out

    code, text = await about(job("train", 4, required=RACK))
    assert code == 0
    assert "It would be admitted at once." in text
    assert f"{cluster.pool}-11-1" in text
    code, text = await about(job("train", 4, required="cloud.provider.com/topology-rak"))
    assert code == 0
    assert f'use "{RACK}" instead of "cloud.provider.com/topology-rak"' in text
    code, text = await about(job("train", 4, required="no level!"))
    assert code == 2
    assert "spec.template.metadata.annotations[" in text
    code, text = await about(job("train", 4, queue=None))
    assert code == 0
    assert "Rackgate does not manage it" in text
    code, text = await about(job("train", 4, required=RACK, pod={"restartPolicy": "Always"}))
    assert code == 2
    assert "spec.template.spec.restartPolicy" in text
    code, text = await about(job("train", 4, required=RACK, spec={"parallel": 4}))
    assert code == 0
    assert "spec.parallel is an unknown field" in " ".join(text.split())
    code, text = await about(job("train", 1, spec={"completions": 0}))
    assert code == 0
    assert "Kubernetes completes it at once" in text


async def test_a_job_of_no_completions_is_completed_by_kubernetes_without_a_workload(
    cluster: Cluster, explain: Explain
) -> None:
    """What the explanation of such a manifest says."""
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("none", 1, spec={"completions": 0})

    async def finished() -> bool:
        return bool((await explain("none"))["state"] == "finished")

    await until("the Job is completed", finished)
    assert await cluster.list_all(kinds.WORKLOADS) == []
