"""`python -m rackgate_assigner --config FILE`."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence

from rackgate.kube.config import connect
from rackgate.kube.installation import Installation
from rackgate.kube.lease import LeaseHolder
from rackgate.runtime.health import HealthServer
from rackgate.runtime.service import run_service, user_agent
from rackgate.runtime.state_file import open_state
from rackgate.runtime.tasks import spawn
from rackgate_assigner.reconciler import Assigner
from rackgate_assigner.settings import AssignerSettings

LEASE = "rackgate-assigner"
DESCRIPTION = (
    "Queues governed jobs: turns each into a Workload, admits Workloads by quota and topology, "
    "starts and stops the jobs. One replica acts, the others stand by with warm caches."
)


async def serve(settings: AssignerSettings, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set."""
    client = await connect(settings.connection, user_agent=user_agent("assigner"))
    state = open_state(settings.leader_election.state_dir, "assigner", settings.identity)
    if state is not None:
        settings.identity = state.identity
    client.keep(state)
    try:
        assigner = Assigner(settings, client)
        lease = LeaseHolder(
            # A budget of its own: no other traffic may delay a renewal.
            client.budget(0, 0),
            settings.leader_election.namespace,
            LEASE,
            settings.identity,
            duration_s=settings.leader_election.lease_duration,
            state=state,
        )
        installation = Installation(client, "assigner", settings.leader_election.namespace)
        health = HealthServer(
            settings.health.port,
            lambda: client.versions.missing() + installation.missing() + assigner.missing(),
            host=settings.health.host,
        )
        async with health, asyncio.TaskGroup() as group:
            background = [
                spawn(group, client.versions.rewound(), "versions"),
                spawn(group, installation.run(), "installation"),
                spawn(group, assigner.follow(), "follow"),
            ]
            leading = spawn(group, _lead(assigner, lease, installation), "lead")
            await stop.wait()
            # The Lease goes first, while the watches still show what was written.
            leading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await leading
            await assigner.recorder.drain()
            for task in background:
                task.cancel()
    finally:
        await client.close()


async def _lead(assigner: Assigner, lease: LeaseHolder, installation: Installation) -> None:
    await installation.sole()
    await assigner.synced()
    await lease.run(assigner.act)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `rackgate-assigner`."""
    return run_service(
        "assigner", serve, settings=AssignerSettings, description=DESCRIPTION, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
