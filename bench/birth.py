"""What it costs Kubernetes that a pod gets its place: by a patch, or when it is created.

None of our services run and nothing is decided: this is what the control plane charges for each
way. docs/design/adr/0015-placed-at-birth.md draws the conclusion.

- plain: created without a gate, its selector there already.
- patch: created gated; one patch takes the gate off and adds the selector.
- called: created gated; a mutating webhook takes the gate off, adds selector and name, and looks
  nothing up.
- policy: created gated; a MutatingAdmissionPolicy does the same inside the API server, from a
  list of places that came with the pod.

Webhook and policy are chosen by a label, the cheapest way there is. The pods are nobody's to
schedule. All take turns in small batches, with a pause of the same kind in each turn: what the
processes use in it is taken off, second for second.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from bench.measuring.processes import cpu_seconds
from bench.measuring.world import NAMESPACE, create, playground, quiet, say
from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from tests.support.objects import HOST, POOL_LABEL

MODES: Final = ("plain", "patch", "called", "policy")
GATE: Final = "bench.rackgate.dev/hold"
BIRTH_LABEL: Final = "bench.rackgate.dev/birth"
RANKS: Final = "bench.rackgate.dev/ranks"
RANK_COUNT: Final = 32
PLACE: Final = {HOST: "bench-n00007"}
PAUSE_S: Final = 2.0
WORKERS: Final = 8
GROUP: Final = "admissionregistration.k8s.io"
POLICIES: Final = Resource(
    GROUP, "v1", "mutatingadmissionpolicies", False, "MutatingAdmissionPolicy"
)
BINDINGS: Final = Resource(
    GROUP, "v1", "mutatingadmissionpolicybindings", False, "MutatingAdmissionPolicyBinding"
)

Costs = dict[str, float]


def bench_pod(mode: str, number: int) -> dict[str, Any]:
    """A pod like those of an Indexed Job, that no scheduler takes."""
    labels = {names.COMPLETION_INDEX_LABEL: str(number % RANK_COUNT), POOL_LABEL: "bench"}
    annotations = {names.REQUIRED_TOPOLOGY: "rack"}
    spec: dict[str, Any] = {
        "schedulerName": "nobody",
        "containers": [{"name": "main", "image": "registry.example/train:1"}],
    }
    if mode == "plain":
        spec["nodeSelector"] = PLACE
    else:
        spec["schedulingGates"] = [{"name": GATE}]
    if mode in ("called", "policy"):
        labels[BIRTH_LABEL] = mode
    if mode == "policy":
        annotations[RANKS] = ",".join(f"bench-n{rank:05}" for rank in range(RANK_COUNT))
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{mode}-{number:05}-",
            "labels": labels,
            "annotations": annotations,
        },
        "spec": spec,
    }


def _rule() -> dict[str, Any]:
    kind = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}
    return {**kind, "operations": ["CREATE"]}


def _named(kind: Resource, **content: Any) -> dict[str, Any]:
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": "bench-birth"},
        **content,
    }


def webhook(port: int, authority: bytes) -> dict[str, Any]:
    """Registration of the handler."""
    hook = {
        "name": "birth.bench.rackgate.dev",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/mutate",
            "caBundle": base64.b64encode(authority).decode(),
        },
        "rules": [_rule()],
        "objectSelector": {"matchLabels": {BIRTH_LABEL: "called"}},
        "sideEffects": "None",
    }
    return _named(kinds.MUTATING_CONFIGS, webhooks=[hook])


_PATCH: Final = f"""[
  JSONPatch{{op: "remove", path: "/spec/schedulingGates"}},
  JSONPatch{{op: "remove", path: "/metadata/annotations/{RANKS.replace("/", "~1")}"}},
  JSONPatch{{op: "add", path: "/spec/nodeSelector", value: Object.spec.nodeSelector{{}}}},
  JSONPatch{{op: "add", path: "/spec/nodeSelector/{HOST.replace("/", "~1")}",
    value: object.metadata.annotations['{RANKS}'].split(',')[
      int(object.metadata.labels['{names.COMPLETION_INDEX_LABEL}'])]}},
  JSONPatch{{op: "add", path: "/metadata/name", value: object.metadata.generateName + "birth"}}
]"""


def policy() -> dict[str, Any]:
    """The same inside the API server."""
    spec = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [_rule()],
            "objectSelector": {"matchLabels": {BIRTH_LABEL: "policy"}},
        },
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": _PATCH}}],
    }
    return _named(POLICIES, spec=spec)


@contextlib.contextmanager
def handler() -> Iterator[tuple[int, int, bytes]]:
    """Another process that answers; its pid, port and authority."""
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.birth_handler"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        said = json.loads(child.stdout.readline())
        yield child.pid, said["port"], said["authority"].encode()
    finally:
        child.stdin.close()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        child.stdout.close()


async def register(client: Client, port: int, authority: bytes) -> None:
    """Put webhook and policy into force; returns when they are."""
    await create(client, kinds.MUTATING_CONFIGS, webhook(port, authority))
    await create(client, POLICIES, policy())
    await create(client, BINDINGS, _named(BINDINGS, spec={"policyName": "bench-birth"}))
    async with asyncio.timeout(60):
        for mode in ("called", "policy"):
            while (await _create(client, mode, 0, {"dryRun": "All"}))["spec"].get(
                "schedulingGates"
            ):
                await asyncio.sleep(0.2)


async def _create(
    client: Client, mode: str, number: int, params: dict[str, str] | None = None
) -> dict[str, Any]:
    body = json.dumps(bench_pod(mode, number)).encode()
    path = kinds.PODS.path(NAMESPACE)
    pod: dict[str, Any] = json.loads(await client.create(path, body, params))
    return pod


_RELEASE: Final = json.dumps(
    {
        "spec": {
            "schedulingGates": [{"$patch": "delete", "name": GATE}],
            "nodeSelector": PLACE,
        }
    }
).encode()


async def batch(client: Client, mode: str, pods: int) -> None:
    """Create pods and have each placed by the mode's way.

    Raises:
        AssertionError: a pod kept its gate, or has no selector.
    """
    numbers = iter(range(pods))

    async def work() -> None:
        for number in numbers:
            pod = await _create(client, mode, number)
            if mode == "patch":
                path = kinds.PODS.path(NAMESPACE, pod["metadata"]["name"])
                pod = json.loads(await client.patch(path, _RELEASE, PatchType.STRATEGIC))
            assert not pod["spec"].get("schedulingGates"), pod["metadata"]
            assert pod["spec"].get("nodeSelector"), pod["metadata"]

    async with asyncio.TaskGroup() as group:
        for _ in range(WORKERS):
            group.create_task(work())


async def turn(client: Client, pids: dict[str, int], mode: str, pods: int) -> Costs:
    """CPU milliseconds per pod and component of one batch, the background's share taken off."""
    before, began = cpu_seconds(pids), time.perf_counter()
    await batch(client, mode, pods)
    await asyncio.sleep(0.5)  # what watchers still have to read belongs to it
    after, ended = cpu_seconds(pids), time.perf_counter()
    await client.delete(
        kinds.PODS.path(NAMESPACE), b'{"gracePeriodSeconds": 0}', {"labelSelector": POOL_LABEL}
    )
    await asyncio.sleep(PAUSE_S)
    idle, paused = cpu_seconds(pids), time.perf_counter()
    await asyncio.sleep(PAUSE_S)
    later, resumed = cpu_seconds(pids), time.perf_counter()
    share = (ended - began) / (resumed - paused)
    return {
        name: (after[name] - before[name] - share * (later[name] - idle[name])) / pods * 1e3
        for name in after
    }


async def measure(arguments: argparse.Namespace) -> dict[str, list[Costs]]:
    """All turns of all modes."""
    found: dict[str, list[Costs]] = {mode: [] for mode in MODES}
    with playground(()) as started, handler() as (pid, port, authority):
        pids = {name: seen["pid"] for name, seen in started.components().items()}
        pids["handler"] = pid
        async with started.client() as client:
            await register(client, port, authority)
            for mode in MODES:
                await turn(client, pids, mode, arguments.pods)
            for number in range(arguments.turns):
                for place in range(len(MODES)):
                    mode = MODES[(number + place) % len(MODES)]
                    found[mode].append(await turn(client, pids, mode, arguments.pods))
                totals = "".join(f"  {mode} {sum(found[mode][-1].values()):.2f}" for mode in MODES)
                say(f"  turn {number + 1}, CPU ms per pod:{totals}")
    return found


def table(found: dict[str, list[Costs]]) -> list[str]:
    """Medians over all turns, by component, and what each way adds to a plain pod."""

    def row(name: str, cells: list[float]) -> str:
        return f"  {name:26}" + "".join(f"{cell:10.2f}" for cell in cells)

    lines = ["CPU ms per pod, median     " + "".join(f"{mode:>10}" for mode in MODES)]
    for name in found["plain"][0]:
        medians = [statistics.median(cost[name] for cost in found[mode]) for mode in MODES]
        lines.append(row(name, medians))
    totals = {mode: [sum(cost.values()) for cost in costs] for mode, costs in found.items()}
    lines.append(row("all", [statistics.median(totals[mode]) for mode in MODES]))
    added = {
        mode: [one - plain for one, plain in zip(totals[mode], totals["plain"], strict=True)]
        for mode in MODES
    }
    for quarter, name in enumerate(("lower quartile", "median", "upper quartile")):
        cells = [statistics.quantiles(added[mode], n=4)[quarter] for mode in MODES]
        lines.append(row(f"added, {name}", cells))
    return lines


def main() -> int:
    """Run the bench; it compares, and never fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=80, help="pods of a batch")
    parser.add_argument("--turns", type=int, default=12)
    arguments = parser.parse_args()
    quiet()
    say("\n".join(table(asyncio.run(measure(arguments)))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
