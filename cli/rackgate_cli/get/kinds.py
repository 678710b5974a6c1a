"""The kinds that `rackgate get` shows, as users write them. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rackgate.jobframework.registry import KINDS
from rackgate_cli.errors import UsageError
from rackgate_cli.spellings import CLUSTER_QUEUE, LOCAL_QUEUE, SPELLINGS, WORKLOAD
from rackgate_cli.verbs import did_you_mean

QUEUES: Final = "queues"
WORKLOADS: Final = "workloads"
TOPOLOGY: Final = "topology"


@dataclass(frozen=True, slots=True)
class Shown:
    """What to show.

    Attributes:
        report: `QUEUES`, `WORKLOADS` or `TOPOLOGY`.
        only: of queues, the kind; of Workloads, the kind of their jobs; "" for all.
    """

    report: str
    only: str = ""


def _shown(kind: str) -> Shown:
    if kind in (CLUSTER_QUEUE, LOCAL_QUEUE):
        return Shown(QUEUES, kind)
    if kind in KINDS:
        return Shown(WORKLOADS, kind)
    return Shown(WORKLOADS if kind == WORKLOAD else TOPOLOGY)


WORDS: Final = {word: Shown(QUEUES) for word in ("queue", "queues")} | {
    word: _shown(kind) for word, kind in SPELLINGS.items()
}


def parse(kind: str, names: list[str]) -> tuple[Shown, list[str]]:
    """Read `KIND NAME...` or `KIND/NAME...`.

    Returns:
        What to show, and the names, as KIND/NAME if the kind matters.

    Raises:
        UsageError: a kind is unknown, or there are several.
    """
    first, slash, _ = kind.partition("/")
    shown = _known(first)
    listed = [kind, *names] if slash else list(names)
    found = []
    for text in listed:
        before, divided, name = text.rpartition("/")
        if slash and not divided:
            raise UsageError(f'"{text}" has no kind: write {first}/{text}')
        if divided and not name:
            raise UsageError(f'"{text}" has no name')
        of = _known(before) if divided else shown
        if of.report != shown.report:
            raise UsageError(f'"{text}" and {shown.report} cannot be shown together')
        # A name that is written with a kind means only objects of this kind.
        its_kind = SPELLINGS.get(before.lower(), "") if divided else of.only
        is_named = its_kind and of.report != TOPOLOGY
        found.append(f"{its_kind.lower()}/{name}" if is_named else name)
    if slash:
        shown = Shown(shown.report)
    return shown, found


def _known(word: str) -> Shown:
    found = WORDS.get(word.lower())
    if found is None:
        hint = did_you_mean(word, WORDS) or f" (known: {QUEUES}, {WORKLOADS}, {TOPOLOGY})"
        raise UsageError(f'unknown kind "{word}"{hint}')
    return found
