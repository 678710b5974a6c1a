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
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
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
NOTICED_S: Final = 5.0  # a breach stays for 3 s before it counts
PATIENCE_S: Final = 30.0  # of rules about what takes its time
START_LIMIT_S: Final = 120.0
LINE_BYTES: Final = 1 << 20
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
    """`rackgate invariants --watch`, for as long as a campaign lasts."""

    def __init__(self, playground: Playground) -> None:
        self._playground = playground
        self._active_breaches: dict[tuple[str, str], str] = {}
        self._error = "it has not begun"

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch from here to the end of the block."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "rackgate_cli", "invariants", "--watch", "--json"),
            *("--patience", f"{PATIENCE_S:g}s"),
            *("--kubeconfig", str(self._playground.kubeconfig)),
            stdout=asyncio.subprocess.PIPE,
            limit=LINE_BYTES,
        )
        started = asyncio.Event()
        task = asyncio.create_task(self._read(process, started))
        try:
            await asyncio.wait_for(started.wait(), START_LIMIT_S)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            if process.returncode is None:
                process.kill()
            await process.wait()

    def standing(self, word: str) -> list[str]:
        """Breaches that stand now and whose object or finding holds a word."""
        assert not self._error, f"rackgate invariants: {self._error}"
        return [
            f"{rule} {name}: {found}"
            for (rule, name), found in self._active_breaches.items()
            if word in name or word in found
        ]

    async def _read(self, process: asyncio.subprocess.Process, started: asyncio.Event) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            event: dict[str, Any] = json.loads(line)
            match event["event"]:
                case "watching":
                    self._error = ""
                    started.set()
                case "breach":
                    self._active_breaches[event["rule"], event["object"]] = event["found"]
                case "ended":
                    self._active_breaches.pop((event["rule"], event["object"]), None)
        self._error = f"ended with {await process.wait()}"
        started.set()


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
    problems += await _active_breaches(world, checker, "after the attack")
    if problems or ledger.peak > QUOTA_CPU * MILLI:
        outcome.evidence = await _evidence(world)
    problems += await _quota_released(world)
    problems += await _active_breaches(world, checker, "at the end")
    outcome.peak = ledger.peak
    if ledger.peak > QUOTA_CPU * MILLI:
        pods = ", ".join(ledger.peak_pods)
        problems.insert(0, f"{ledger.peak / MILLI:g} CPU lived on {QUOTA_CPU}: {pods}")
    problems += ledger.misplaced()
    problems += _rejection_problems(world)
    outcome.defence = _defense(world)
    return outcome


async def _active_breaches(world: World, checker: Checker, when: str) -> list[str]:
    """Breaches that `rackgate invariants` goes on showing."""
    await asyncio.sleep(NOTICED_S)
    loop = asyncio.get_running_loop()
    end = loop.time() + STANDING_S
    while (found := checker.standing(world.pool)) and loop.time() < end:
        await asyncio.sleep(1.0)
    return [f"invariants {when}: {one}" for one in found]


async def _quota_released(world: World) -> list[str]:
    """Without pods nothing is held, and the other tenant's Job runs."""
    found: list[str] = []
    try:
        await world.clear()
        last: dict[str, str] = {}

        async def nothing() -> bool:
            last.clear()
            last.update(await world.usage())
            return not last

        await until("the queue's usage is 0 without pods", nothing, ZERO_S, lambda: last, 1.0)
    except WaitedTooLongError as error:
        found.append(str(error))
    try:
        await world.tenant_runs("last")
    except WaitedTooLongError as error:
        found.append(str(error))
    return found


def _rejection_problems(world: World) -> list[str]:
    """Refusals that are no defence, and attacks that have shown nothing."""
    rejections = world.attacker.rejections
    found = [
        f"refused for another reason: {one.what}: {one.words[:300]}"
        for one in rejections
        if one.by == "validation" and not any(word in one.words for word in world.attack.words)
    ]
    ledger = world.ledger
    if not (rejections or ledger.ever_bound or ledger.queued or ledger.gated):
        found.append("nothing was refused, queued, gated or bound: the attack shows nothing")
    return found


def _defense(world: World) -> str:
    counted = Counter(one.by for one in world.attacker.rejections)
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
    rejections = [
        f"  {one.by}: {one.what}: {one.words[:400]}" for one in world.attacker.rejections[:20]
    ]
    return "\n".join([text, "refusals:", *rejections])
