"""`python -m rackgate_ungater`: watches, the shards, health, and a clean stop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from rackgate.installation.marker import Installation
from rackgate.installation.uninstall import Uninstall
from rackgate.kube.config import connect
from rackgate.kube.events import EventRecorder
from rackgate.runtime.service import run_service, user_agent
from rackgate.runtime.serving.health import HealthServer
from rackgate.runtime.state_file import open_state
from rackgate.runtime.tasks import first_of, spawn
from rackgate_ungater.reporter import Reporter
from rackgate_ungater.settings import UngaterConfiguration
from rackgate_ungater.shards.elector import ShardElector
from rackgate_ungater.ungater import Ungater
from rackgate_ungater.uninstall import log_release_result, release_pods
from rackgate_ungater.writer import Writer

SERVICE = "ungater"
# Time limit for requests under way after the installation was deleted.
UNINSTALL_GRACE_S = 5.0
DESCRIPTION = (
    "Releases the pods of admitted Workloads: removes their topology gate and sends each "
    "to its assigned domain, in one write, never more pods than a domain was assigned. "
    "Any number of replicas share the Workloads."
)


async def serve(settings: UngaterConfiguration, stop: asyncio.Event) -> None:
    """Run one replica until `stop` is set."""
    client = await connect(settings.connection, user_agent=user_agent(SERVICE))
    state = open_state(settings.leader_election.state_dir, SERVICE, settings.identity)
    if state is not None:
        settings.identity = state.identity
    client.record_writes_in(state)
    budget = settings.ungating
    writer = Writer(
        client.budget(budget.qps, budget.burst, budget.concurrency),
        concurrency=budget.concurrency,
        gangs=settings.features.gang_scheduling,
    )
    recorder = EventRecorder(client, SERVICE, instance=settings.identity)
    ungater = Ungater(settings, client, writer, Reporter(recorder))
    # A separate rate limit, so that other traffic does not delay renewals.
    leases = client.budget(qps=0, burst=1)
    ends = asyncio.Event()
    elector = ShardElector(leases, settings, ungater, ends, state=state)
    namespace = settings.leader_election.namespace
    installation = Installation(client, namespace)
    uninstall = Uninstall(client.budget(qps=0, burst=1), SERVICE, namespace)
    health = HealthServer(
        settings.health.port,
        lambda: (
            client.versions.missing()
            + installation.missing()
            + ungater.missing()
            + elector.missing()
        ),
        host=settings.health.host,
        kueue_metrics=settings.metrics.kueue_names,
    )
    try:
        async with health, asyncio.TaskGroup() as group:
            background = [
                spawn(group, client.versions.wait_rewound(), "versions"),
                spawn(group, installation.run(), "installation"),
                spawn(group, uninstall.run(), "uninstall"),
                spawn(group, ungater.watch(), "watch"),
                spawn(group, recorder.run(), "events"),
            ]
            leading = spawn(group, _lead(elector, installation, uninstall), "shards")
            await first_of(stop, uninstall.begun)
            ends.set()
            # Enough time for the last requests and then for releasing the Leases.
            limit_s = 2 * settings.connection.request_timeout + 1.0 if installation.known else 0.0
            if uninstall.begun.is_set():
                limit_s = min(limit_s, UNINSTALL_GRACE_S)  # its Leases are gone already
            await asyncio.wait((leading,), timeout=limit_s)
            if await uninstall.is_uninstalling_at_stop():
                stop.set()
                leading.cancel()

                async def clean_up() -> None:
                    log_release_result(await release_pods(client.budget(qps=0, burst=1)))

                await uninstall.clean_up(clean_up)
            for task in (leading, *background):
                task.cancel()
        await recorder.drain()
    finally:
        await client.close()


async def _lead(elector: ShardElector, installation: Installation, uninstall: Uninstall) -> None:
    await installation.wait_until_sole()
    await uninstall.add_finalizers()
    await elector.run()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the service; returns its exit code."""
    return run_service(
        SERVICE, serve, settings=UngaterConfiguration, description=DESCRIPTION, argv=argv
    )


if __name__ == "__main__":
    sys.exit(main())
