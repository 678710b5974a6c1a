"""The cluster that pages of docs/tasks are written for: 32 nodes, one queue, on any playground."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

from rackgate_cli.controlplane.defaults import node_documents, queue_documents
from rackgate_cli.controlplane.state import StateFolder
from tests.support.objects import Object
from tests.support.playground import Playground
from tests.support.task_pages import Runner, programs

NODES = 32
JOBS = "jobs,jobsets,rayclusters,rayjobs"
NOT_PARTS = "ray.io/originated-from-crd!=RayJob,!jobset.sigs.k8s.io/jobset-name"


def kubectl(playground: Playground, *arguments: str, text: str | None = None) -> str:
    """Run kubectl of the playground as its administrator."""
    known = StateFolder(playground.state).load()
    assert known is not None
    done = subprocess.run(
        [known.binaries["kubectl"], "--kubeconfig", str(playground.kubeconfig), *arguments],
        input=text,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"kubectl {arguments}: {done.stdout}{done.stderr}"
    return done.stdout


def _all(objects: list[Object]) -> str:
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


@contextlib.contextmanager
def nodes_and_queue(playground: Playground) -> Iterator[None]:
    """What `rackgate up --nodes 32` makes, as long as the block runs."""
    queues = [one for one in queue_documents(NODES) if one["kind"] != "LocalQueue"]
    made = [*node_documents(NODES), *queues]
    kubectl(playground, "apply", "--server-side", "-f", "-", text=_all(made))
    try:
        yield
    finally:
        # By manifest: KAI has a kind Topology, too, and kubectl takes a bare name for that one.
        leaving = _all(made[::-1])
        kubectl(playground, "delete", "--ignore-not-found", "--timeout=2m", "-f", "-", text=leaving)


def own_namespace(playground: Playground, name: str) -> str:
    """A new namespace with LocalQueue `default`."""
    space = f"task-{name}-{uuid.uuid4().hex[:6]}"
    queue = next(one for one in queue_documents(NODES) if one["kind"] == "LocalQueue")
    queue["metadata"]["namespace"] = space
    found = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
    kubectl(playground, "apply", "--server-side", "-f", "-", text=_all([found, queue]))
    wait = "--for=condition=Active"
    kubectl(playground, "-n", space, "wait", wait, "localqueue/default", "--timeout=60s")
    return space


@contextlib.contextmanager
def runner(
    playground: Playground, folder: Path, page: Path, *, jobs: str = JOBS
) -> Iterator[Runner]:
    """What runs a page: in a folder and namespace of its own, which has no pods afterwards.

    Args:
        playground: where it runs.
        folder: for its files.
        page: of docs/tasks.
        jobs: kinds whose objects are deleted in the end.
    """
    space = own_namespace(playground, page.stem)
    known = StateFolder(playground.state).load()
    assert known is not None
    own = folder / "kubeconfig"
    own.write_text(playground.kubeconfig.read_text())
    own.chmod(0o600)
    scripts = Path(sys.executable).parent
    environment = {
        "KUBECONFIG": str(own),
        "PATH": f"{scripts}{os.pathsep}{programs(folder / 'programs', known.binaries['kubectl'])}",
        "NO_COLOR": "1",
    }
    set_context = [known.binaries["kubectl"], "config", "set-context", "--current"]
    subprocess.run(
        [*set_context, f"--namespace={space}"],
        env={**os.environ, **environment},
        check=True,
        capture_output=True,
    )
    work = folder / "work"
    work.mkdir()
    try:
        # What other tests did to this cluster is not the page's.
        here = {"rackgate invariants": f"rackgate invariants -n {space}"}
        yield Runner(work, environment, space, here)
    finally:
        at = ("-n", space)
        # What a RayJob or JobSet creates goes with it, and a policy denies its deletion.
        kubectl(playground, *at, "delete", jobs, f"-l{NOT_PARTS}", "--timeout=2m")
        kubectl(playground, *at, "delete", "pods", "--all", "--grace-period=0", "--timeout=2m")
        kubectl(playground, *at, "delete", "localqueue/default", "--timeout=1m")
