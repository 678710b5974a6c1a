"""Takes the last gate off pods as fast as one process can: the baseline of `bench.ungate`.

Reads JSON from its input: `state`, the playground's folder, `concurrency`, and `patches`, pairs of
a path and a body. Prints one line of JSON when all were answered.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from rackgate.kube.client import PatchType
from rackgate.kube.errors import ConflictError
from rackgate_cli.playground.playground import open_client

CONFLICT_TRIES = 5


async def run(order: dict[str, Any]) -> dict[str, float]:
    """Send all patches; returns seconds from the first sent to the last answered."""
    left = iter(order["patches"])
    async with open_client(order["state"]) as client:

        async def work() -> None:
            for path, body in left:
                for attempt in range(CONFLICT_TRIES):
                    try:
                        await client.patch(path, body.encode(), PatchType.STRATEGIC)
                    except ConflictError:
                        if attempt == CONFLICT_TRIES - 1:
                            raise
                    else:
                        break

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(order["concurrency"]):
                group.create_task(work())
        return {"took_s": time.perf_counter() - began, "cpu_s": time.process_time()}


def main() -> int:
    order = json.loads(sys.stdin.read())
    sys.stdout.write(json.dumps(asyncio.run(run(order))) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
