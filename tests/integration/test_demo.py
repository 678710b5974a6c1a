"""`make demo` and the other stories: the real commands to their ends, and what they left.

All three run on one playground, one after the other, as a user would who tries them in turn.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate_cli.demo.job import SECOND, THIRD
from rackgate_cli.demo.jobset import EVAL, JOBS, NEXT, PODS_PER_JOB, TRAIN, rank_of
from rackgate_cli.demo.raycluster import LAST
from rackgate_cli.demo.story import RAY_NAME, completion_index
from rackgate_cli.locations import STATE_VARIABLE, deploy_dir
from rackgate_cli.playground.playground import feature_gates, open_client
from tests.support.objects import BLOCK, RACK
from tests.support.playground import DOWN_LIMIT_S, UP_LIMIT_S, rackgate

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = deploy_dir().parent
BIN = Path(sys.executable).parent
KEPT = "all placements are correct by the objects of the API server"
Object = dict[str, Any]
# Block, rack, and what the picture shows on each host of it.
Row = tuple[str, str, list[str]]


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of the playground that the demos start."""
    folder = tmp_path_factory.mktemp("demo") / "state"
    yield folder
    rackgate("down", "--state", str(folder), "--purge", limit_s=DOWN_LIMIT_S)


def told(state: Path, *command: str) -> list[str]:
    """Run a demo to its end; the lines that it printed, without their times."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, STATE_VARIABLE: str(state)},
        capture_output=True,
        text=True,
        timeout=UP_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [re.sub(r"^ *[\d.]+ s  ", "", line.rstrip()) for line in done.stdout.splitlines()]
    assert KEPT in lines
    (link,) = (line for line in lines if line.startswith("look at it in a browser: "))
    address, _, code = link.partition(": ")[2].partition("#")
    with urllib.request.urlopen(address) as page:  # noqa: S310 - http on 127.0.0.1
        assert b"<title>Rackgate</title>" in page.read()
    assert code.startswith("code=")
    assert lines[-2:] == [
        f"another link to the console: rackgate console --state {state}",
        f"playground and console keep running; stop them with: rackgate down --state {state}",
    ]
    return lines


def last_picture(lines: list[str]) -> list[Row]:
    """The table of racks that a demo printed last."""
    begin = max(at for at, line in enumerate(lines) if line.startswith("pods by rack"))
    rows: list[Row] = []
    for line in lines[begin + 1 :]:
        if line.startswith("│"):
            block, rack, hosts = (cell.strip() for cell in line.strip("│").split("│"))
            rows.append((block or rows[-1][0], rack, [in_order(host) for host in hosts.split()]))
    return rows


def in_order(host: str) -> str:
    """What a picture shows on a host, in an order of its own."""
    return "".join(sorted(re.findall(r"[A-Z]\d+", host))) or "·"


async def listed(client: Client, kind: kinds.Resource) -> list[Object]:
    path = kind.path("default" if kind.namespaced else None)
    items: list[Object] = json.loads(await client.get(path))["items"]
    return items


async def real_picture(client: Client, cell: Callable[[Object], str]) -> list[Row]:
    """The same table from the pods and nodes that the API server has."""
    on_host: dict[str, list[str]] = {}
    for pod in await listed(client, kinds.PODS):
        if pod["status"]["phase"] in ("Succeeded", "Failed"):
            continue
        if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]:
            on_host.setdefault(pod["spec"]["nodeName"], []).append(cell(pod))
    racks: dict[tuple[str, str], list[str]] = {}
    for node in sorted(await listed(client, kinds.NODES), key=lambda it: it["metadata"]["name"]):
        labels = node["metadata"]["labels"]
        hosts = racks.setdefault((labels[BLOCK], labels[RACK]), [])
        hosts.append(in_order("".join(on_host.get(node["metadata"]["name"], []))))
    return [(block, rack, hosts) for (block, rack), hosts in sorted(racks.items())]


def on(picture: list[Row], letter: str) -> list[tuple[str, str]]:
    """Block and rack of each pod of a letter, by rank."""
    found = [
        (int(number), (block, rack))
        for block, rack, hosts in picture
        for host in hosts
        for number in re.findall(rf"{letter}(\d+)", host)
    ]
    return [place for _, place in sorted(found)]


async def test_make_demo_tells_its_story_to_the_end(state: Path) -> None:
    # The environment that runs the tests is the one that `make setup` makes.
    make = ("make", "--no-print-directory", "--assume-old=.venv/.ready", "demo", f"BIN={BIN}")
    lines = told(state, *make)
    assert [line.split(":")[0] for line in lines if line.startswith("submit ")] == [
        "submit train-a",
        "submit train-b",
        "submit train-c",
    ]
    assert any(line.startswith("train-c pending (TopologyPlacementFailed): ") for line in lines)
    assert not any("inactive" in line for line in lines)
    letters = {SECOND.name: SECOND.letter, THIRD.name: THIRD.letter}

    def cell(pod: Object) -> str:
        job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        return f"{letters[job]}{completion_index(pod)}"

    async with open_client(state) as client:
        picture = await real_picture(client, cell)
    assert last_picture(lines) == picture
    second, third = on(picture, SECOND.letter), on(picture, THIRD.letter)
    assert (len(second), len(third)) == (SECOND.count, THIRD.count)
    assert len({block for block, _ in second}) == len({block for block, _ in third}) == 1
    assert second[0][0] != third[0][0]


@pytest.mark.requirement("USR-06", "USR-07")
async def test_the_demo_of_jobsets_tells_its_story_to_the_end(state: Path) -> None:
    lines = told(state, str(BIN / "rackgate"), "demo", "--kind", "jobset")
    assert any(line.startswith(f"{NEXT} is pending: ") for line in lines)
    letters = {EVAL: "B", NEXT: "C"}

    def cell(pod: Object) -> str:
        jobset = pod["metadata"]["labels"][names.JOBSET_NAME_LABEL]
        assert jobset != TRAIN, "it has ended"
        return f"{letters[jobset]}{rank_of(pod)}"

    async with open_client(state) as client:
        picture = await real_picture(client, cell)
    assert last_picture(lines) == picture
    for name, letter in letters.items():
        places = on(picture, letter)
        jobs = [
            set(places[first : first + PODS_PER_JOB])
            for first in range(0, len(places), PODS_PER_JOB)
        ]
        assert [len(racks) for racks in jobs] == [1] * JOBS[name]
        assert len({block for block, _ in places}) == 1


@pytest.mark.requirement("USR-09")
async def test_the_demo_of_rayclusters_tells_its_story_to_the_end(state: Path) -> None:
    lines = told(state, str(BIN / "rackgate"), "demo", "--kind", "raycluster")
    assert any(line.startswith(f"{RAY_NAME} resizes: ") for line in lines)
    assert "the feature gates of the playground are as before" in lines
    assert feature_gates(state) == {}
    assert lines.index(f"{RAY_NAME} runs on 32 workers") < lines.index(
        f"{RAY_NAME} runs on 1 workers"
    )

    def cell(pod: Object) -> str:
        head = pod["metadata"]["labels"][names.RAY_NODE_TYPE_LABEL] == "head"
        return "H0" if head else "B0"

    async with open_client(state) as client:
        assert last_picture(lines) == await real_picture(client, cell)
        (workload,) = await listed(client, kinds.WORKLOADS)
        counts = {podset["name"]: podset["count"] for podset in workload["spec"]["podSets"]}
        assert counts == {"head": 1, "workers": LAST}
        (ray,) = await listed(client, kinds.RAY_CLUSTERS)
        assert not ray["spec"].get("suspend")
        assert [pod["metadata"]["name"] for pod in await listed(client, kinds.PODS)] != []
