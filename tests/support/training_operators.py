"""The real controllers of MPIJobs and TrainJobs on a playground, without webhooks and leaders.

Each is built once from its Go module, as the control plane is, with a main function of ours in
tests/integration: their own ones listen on ports and in folders that a machine has only once.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from rackgate_cli.controlplane import install
from rackgate_cli.controlplane.binaries.versions import Binary
from tests.support.go_programs import built
from tests.support.playground import Playground

FOLDER: Final = Path(__file__).resolve().parents[1] / "integration"
MPI: Final = Binary(
    "mpi-operator",
    "v0.6.0",
    "mpi_operator",
    ".",
    source="github.com/kubeflow/mpi-operator",
    files=("manifests/base/kubeflow.org_mpijobs.yaml",),
)
TRAINER: Final = Binary(
    "trainer",
    "v2.0.0",
    "trainer",
    ".",
    source="github.com/kubeflow/trainer/v2",
    files=("manifests/base/crds/trainer.kubeflow.org_*.yaml",),
)


def _built(binary: Binary) -> Path:
    return built(FOLDER / binary.module, binary, binary.source)


async def install_crds(playground: Playground) -> None:
    """Install the CRDs of both, and wait until they are served."""
    async with playground.client() as client:
        for binary in (MPI, TRAINER):
            path = _built(binary).with_name(str(binary.manifests))
            found: list[dict[str, Any]] = json.loads(path.read_bytes())
            await install.put_operator(client, found)


@contextlib.contextmanager
def running(playground: Playground, logs: Path) -> Iterator[None]:
    """Run both controllers as administrators, as long as the block runs."""
    with contextlib.ExitStack() as stack:
        for binary in (MPI, TRAINER):
            log = stack.enter_context((logs / f"{binary.name}.log").open("wb"))
            process = subprocess.Popen(
                [_built(binary), f"--kubeconfig={playground.kubeconfig}"],
                stdout=log,
                stderr=subprocess.STDOUT,
            )
            stack.callback(process.wait)
            stack.callback(process.terminate)
        yield
