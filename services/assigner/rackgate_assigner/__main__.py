"""`python -m rackgate_assigner --config FILE`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rackgate.installation.marker import Installation
from rackgate.installation.uninstall import Uninstall
from rackgate.kube.config import connect
from rackgate.kube.lease.holder import LeaseHolder
from rackgate.runtime.service import run_service, user_agent
from rackgate.runtime.serving.health import HealthServer
from rackgate.runtime.state_file import open_state
from rackgate.runtime.tasks import cancel, first_of, spawn
from rackgate_assigner.assigner import Assigner
from rackgate_assigner.settings import AssignerSettings
from rackgate_assigner.uninstall.controller import log_report, uninstall_all
from rackgate_assigner.visibility.controller import VisibilityController

LEASE = "rackgate-assigner"
DESCRIPTION = (
    "Queues managed jobs: creates a Workload for each job, admits Workloads by quota and topology, "
    "starts and stops the jobs. One replica acts, the others are standbys with warm caches."
)


async def serve(settings: AssignerSettings, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set."""
    client = await connect(settings.connection, user_agent=user_agent("assigner"))
    state = open_state(settings.leader_election.state_dir, "assigner", settings.identity)
    if state is not None:
        settings.identity = state.identity
    client.record_writes_in(state)
    try:
        assigner = Assigner(settings, client)
        lease = LeaseHolder(
            # A separate budget: other requests must not delay a renewal.
            client.budget(0, 0),
            settings.leader_election.namespace,
            LEASE,
            settings.identity,
            duration_s=settings.leader_election.lease_duration,
            state=state,
        )
        namespace = settings.leader_election.namespace
        installation = Installation(client, namespace)
        uninstall = Uninstall(client.budget(0, 0), "assigner", namespace)
        health = HealthServer(
            settings.health.port,
            lambda: client.versions.missing() + installation.missing() + assigner.missing(),
            host=settings.health.host,
            kueue_metrics=settings.metrics.kueue_names,
        )
        async with health, asyncio.TaskGroup() as group:
            background = [
                spawn(group, client.versions.wait_rewound(), "versions"),
                spawn(group, installation.run(), "installation"),
                spawn(group, uninstall.run(), "uninstall"),
                spawn(group, assigner.follow(), "follow"),
            ]
            if settings.serves_visibility:
                visibility = assigner.visibility(settings.visibility, client.budget(0, 0))
                serving = _serve_visibility(visibility, installation)
                background.append(spawn(group, serving, "visibility"))
            leading = spawn(group, _lead(assigner, lease, installation, uninstall), "lead")
            await first_of(stop, uninstall.begun)
            # The Lease is released first, while the watches still show what was written.
            await cancel(leading)
            await assigner.recorder.drain()
            if await uninstall.is_uninstalling_at_stop():
                stop.set()

                async def give_back() -> None:
                    report = await uninstall_all(client.budget(0, 0), system_namespace=namespace)
                    log_report(report)

                await uninstall.clean_up(give_back)
            for task in background:
                task.cancel()
    finally:
        await client.close()


async def _serve_visibility(visibility: VisibilityController, installation: Installation) -> None:
    # All installations have the same APIServices: another one must not write its authority there.
    await installation.wait_until_sole()
    await visibility.run()


async def _lead(
    assigner: Assigner, lease: LeaseHolder, installation: Installation, uninstall: Uninstall
) -> None:
    await installation.wait_until_sole()
    await uninstall.add_finalizers()
    await assigner.synced()
    await lease.run(assigner.act)


def main(argv: Sequence[str] | None = None) -> int:
    """The command `rackgate-assigner`."""
    return run_service(
        "assigner", serve, settings=AssignerSettings, description=DESCRIPTION, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
