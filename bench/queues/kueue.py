"""Kueue itself on the control plane of a bench: its CRDs, its scheduler and its core controllers.

`minimalkueue` is the program with which Kueue's repository measures this load. It is built once
from Kueue's Go module; the folder with its go.mod pins it. It makes 50 requests a second at most,
which is Kueue's default.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from rackgate.api import resources as kinds
from rackgate.kube.client import Client
from rackgate_cli.controlplane.binaries.versions import Binary
from rackgate_cli.controlplane.install import put_operator
from tests.support.go_programs import built
from tests.support.playground import Playground

VERSION: Final = "v0.19.2"
_MODULE: Final = Path(__file__).parent / "minimal_kueue"
_PROGRAM: Final = Binary(
    "minimalkueue",
    VERSION,
    _MODULE.name,
    "sigs.k8s.io/kueue/test/performance/scheduler/minimalkueue",
    source="sigs.k8s.io/kueue",
    files=("config/components/crd/bases/*.yaml",),
)
_POLICIES: Final = (
    kinds.ADMISSION_POLICY_BINDINGS,
    kinds.ADMISSION_POLICIES,
    kinds.MUTATING_POLICY_BINDINGS,
    kinds.MUTATING_POLICIES,
)


def minimalkueue() -> Path:
    """The program; it is built if the cache has none.

    Raises:
        CommandError: Go is missing, or the build failed.
    """
    return built(_MODULE, _PROGRAM, _PROGRAM.source)


async def install(client: Client, program: Path) -> None:
    """Put Kueue's CRDs in the place of Rackgate's, and remove Rackgate's admission policies.

    Raises:
        CommandError: the API server rejected one; names it.
    """
    found = json.loads(program.with_name(str(_PROGRAM.manifests)).read_bytes())
    await put_operator(client, found)
    for kind in _POLICIES:
        await client.delete(kind.path())


@asynccontextmanager
async def running(started: Playground, program: Path, *, topology: bool) -> AsyncIterator[int]:
    """Kueue as administrator of a playground; gives its process id, and ends it."""
    options = ["--enableTAS"] if topology else []
    with (started.state / "logs" / "minimalkueue.log").open("wb") as log:
        child = await asyncio.create_subprocess_exec(
            program,
            f"--kubeconfig={started.kubeconfig}",
            *options,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        try:
            yield child.pid
        finally:
            if child.returncode is None:
                child.terminate()
            await child.wait()
