"""Runs attacks side by side on one playground, each in a world of its own."""

from __future__ import annotations

import asyncio
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.security.catalog import Attack, Phase
from tests.security.judge import Checker, Outcome, judged
from tests.security.ledger import Observer
from tests.security.world import Gate, furnish
from tests.support.playground import Playground

AT_ONCE: Final = 24


def say(text: str) -> None:
    """Tell how far it is; pytest shows it with -s, and after a failure."""
    print(text, file=sys.stderr, flush=True)


async def run(
    playground: Playground,
    attacks: Sequence[Attack],
    phase: Phase,
    *,
    at_once: int = AT_ONCE,
    evidence: Path | None = None,
) -> dict[str, Outcome]:
    """Try attacks in one phase.

    Args:
        playground: in the state of that phase.
        attacks: those that fit it.
        phase: its name.
        at_once: so many side by side.
        evidence: folder for what an attack that went through leaves.

    Returns:
        Outcomes by id.
    """
    outcomes: dict[str, Outcome] = {}
    turn = asyncio.Semaphore(at_once)
    async with playground.client() as client:
        await furnish(client)
        observer, checker = Observer(client), Checker(playground)
        gate = Gate(playground, client, observer)

        async def one(attack: Attack) -> None:
            async with turn:
                outcome = await _one(gate, checker, attack, phase)
            outcomes[attack.id] = outcome
            say(outcome.line)
            if outcome.evidence and evidence is not None:
                await asyncio.to_thread(_keep, evidence, outcome)

        async with observer.running(), checker.running():
            # The longest first: none is left alone at the end.
            ordered = sorted(attacks, key=lambda it: -it.seconds)
            await asyncio.gather(*(one(attack) for attack in ordered))
    return outcomes


def _keep(folder: Path, outcome: Outcome) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    text = f"{outcome.line}\n{outcome.evidence}\n"
    (folder / f"{outcome.phase}.{outcome.attack.id}.txt").write_text(text)


async def _one(gate: Gate, checker: Checker, attack: Attack, phase: Phase) -> Outcome:
    begun = time.monotonic()
    try:
        async with gate.entered(attack, phase) as world:
            outcome = await judged(world, checker)
    except Exception:  # noqa: BLE001 - one attack's harness must not end the others
        outcome = Outcome(attack, phase, [traceback.format_exc()])
    outcome.seconds = time.monotonic() - begun
    return outcome
