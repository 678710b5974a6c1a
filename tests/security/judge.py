"""The one judge of all attacks: what lived, where it lived, what is left, and who waits.

Both "refused by the API server" and "stopped by the services" are a defence; which one it was is
recorded. An attack of which nothing was refused, queued, gated or bound has shown nothing.
"""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from rackgate.kube.errors import KubeError
from tests.security.catalog import Attack, Phase
from tests.security.world import QUOTA_CPU, World
from tests.support import evidence
from tests.support.cluster import until
from tests.support.deadlines import WaitedTooLongError
from tests.support.playground import Playground

MILLI: Final = 1000
HOLD_S: Final = 3.0  # what an attack set going may come late
STANDING_S: Final = 60.0  # services must have put right by then what they noticed
CHECK_LIMIT_S: Final = 120.0
EVIDENCE_S: Final = 20.0
ZERO_S: Final = 75.0


@dataclass
class Outcome:
    """What came of an attack in one phase.

    Attributes:
        problems: what must not be; empty when the defence held.
        defence: who refused what, or who stopped it.
        peak: most millicores that lived at once.
        seconds: the whole of it took.
        evidence: objects of the namespace, if there are problems.
    """

    attack: Attack
    phase: Phase
    problems: list[str] = field(default_factory=list)
    defence: str = ""
    peak: int = 0
    seconds: float = 0.0
    evidence: str = ""

    @property
    def line(self) -> str:
        """One row of the report."""
        verdict = "RED  " if self.problems else "held "
        row = f"{verdict}{self.phase} {self.attack.id}: {self.peak / MILLI:g} of {QUOTA_CPU} CPU"
        row += f", {self.defence}, {self.seconds:.0f} s"
        return "\n      ".join([row, *self.problems])


class Checker:
    """`rackgate invariants`, run for all attacks that ask at the same time at once."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        self._next: asyncio.Task[list[dict[str, Any]]] | None = None
        self._turn = asyncio.Lock()

    async def breaches(self, *words: str) -> list[str]:
        """Standing breaches whose object or finding holds one of these words."""
        if self._next is None:
            self._next = asyncio.create_task(self._run())
        found = await asyncio.shield(self._next)
        return [
            f"{one['rule']} {one['object']}: {one['found']}"
            for one in found
            if any(word in one["object"] or word in one["found"] for word in words)
        ]

    async def _run(self) -> list[dict[str, Any]]:
        async with self._turn:
            self._next = None  # who asks from now on, asks about a later moment
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "rackgate_cli", "invariants", "--json"),
                *("--kubeconfig", str(self._playground.kubeconfig)),
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
            )
            out, err = await asyncio.wait_for(process.communicate(), CHECK_LIMIT_S)
            if process.returncode not in (0, 1):
                raise AssertionError(f"rackgate invariants: {err.decode()}")
            document: dict[str, Any] = json.loads(out)
            return list(document["breaches"])


async def judged(world: World, checker: Checker) -> Outcome:
    """Let the attack act, and judge it.

    Every finding is gathered; one does not hide the next.
    """
    outcome = Outcome(world.attack, world.phase)
    problems, ledger = outcome.problems, world.ledger
    try:
        async with asyncio.timeout(world.attack.seconds):
            await world.attack.act(world)
    except TimeoutError:
        problems.append(f"the attack did not end within {world.attack.seconds:g} s")
    except WaitedTooLongError as error:
        problems.append(str(error))
    except (AssertionError, KubeError):
        problems.append(traceback.format_exc())
    await asyncio.sleep(HOLD_S)
    problems += await _standing(world, checker, "after the attack")
    if problems or ledger.peak > QUOTA_CPU * MILLI:
        outcome.evidence = await _evidence(world)
    problems += await _given_back(world)
    problems += await _standing(world, checker, "at the end")
    outcome.peak = ledger.peak
    if ledger.peak > QUOTA_CPU * MILLI:
        pods = ", ".join(ledger.peak_pods)
        problems.insert(0, f"{ledger.peak / MILLI:g} CPU lived on {QUOTA_CPU}: {pods}")
    problems += ledger.misplaced()
    problems += _refusals(world)
    outcome.defence = _defence(world)
    return outcome


async def _standing(world: World, checker: Checker, when: str) -> list[str]:
    """Breaches that `rackgate invariants` goes on showing."""
    loop = asyncio.get_running_loop()
    end = loop.time() + STANDING_S
    while True:
        found = await checker.breaches(world.pool)
        if not found or loop.time() > end:
            return [f"invariants {when}: {one}" for one in found]
        await asyncio.sleep(2.0)


async def _given_back(world: World) -> list[str]:
    """Without pods nothing is held, and the other tenant's Job runs."""
    found: list[str] = []
    try:
        await world.clear()
        last: dict[str, str] = {}

        async def nothing() -> bool:
            last.clear()
            last.update(await world.usage())
            return not last

        await until("the queue's usage is 0 without pods", nothing, ZERO_S, lambda: last, 0.5)
    except WaitedTooLongError as error:
        found.append(str(error))
    try:
        await world.tenant_runs("last")
    except WaitedTooLongError as error:
        found.append(str(error))
    return found


def _refusals(world: World) -> list[str]:
    """Refusals that are no defence, and attacks that have shown nothing."""
    refusals = world.attacker.refusals
    found = [
        f"refused for another reason: {one.what}: {one.words[:300]}"
        for one in refusals
        if one.by == "validation" and not any(word in one.words for word in world.attack.words)
    ]
    ledger = world.ledger
    if not (refusals or ledger.ever_bound or ledger.queued or ledger.gated):
        found.append("nothing was refused, queued, gated or bound: the attack shows nothing")
    return found


def _defence(world: World) -> str:
    counted = Counter(one.by for one in world.attacker.refusals)
    words = [f"{count} refused by {who}" for who, count in sorted(counted.items())]
    if not words:
        words = ["stopped by the services" if world.ledger.ever_bound else "queued"]
    return ", ".join(words + world.notes)


async def _evidence(world: World) -> str:
    try:
        async with asyncio.timeout(EVIDENCE_S):
            text = await evidence.shown(world.admin.client, world.admin.namespace)
    except Exception as error:  # noqa: BLE001 - the findings matter more
        text = f"cannot be read: {error!r}"
    refusals = [
        f"  {one.by}: {one.what}: {one.words[:400]}" for one in world.attacker.refusals[:20]
    ]
    return "\n".join([text, "refusals:", *refusals])
