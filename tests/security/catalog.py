"""The attacks by name: what each needs, and in which state of the control plane it is tried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tests.security.world import World

Act = Callable[..., Awaitable[None]]


class Phase(StrEnum):
    """States of the control plane."""

    UP = "webhooks-up"
    DOWN = "webhooks-down"
    BARE = "without-operators"
    GANGS = "with-gangs"
    GANGS_DOWN = "with-gangs-webhooks-down"

    @property
    def webhooks_down(self) -> bool:
        """Whether no webhook answers."""
        return self in (Phase.DOWN, Phase.GANGS_DOWN)

    @property
    def with_gangs(self) -> bool:
        """Whether gangs and plain pods are enabled."""
        return self in (Phase.GANGS, Phase.GANGS_DOWN)


@dataclass(frozen=True)
class Attack:
    """One attack.

    Attributes:
        group: what is attacked; its module.
        name: of the function, with the case in brackets.
        act: what the attacker does.
        topology: whether the queue has a topology.
        needs: operators without which there is nothing to attack.
        ci: part of every landing.
        words: of refusals by the API's own validation that are expected.
        queue: fields of the ClusterQueue's spec.
        seconds: it may take, to the end of the act.
        bare: also tried where neither operator is installed.
        gangs: tried where gangs and plain pods are enabled, and only there.
    """

    group: str
    name: str
    act: Callable[[World], Awaitable[None]]
    topology: bool = False
    needs: frozenset[str] = frozenset()
    ci: bool = False
    words: tuple[str, ...] = ()
    queue: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 120.0
    bare: bool = False
    gangs: bool = False

    @property
    def id(self) -> str:
        """Unique, and readable in a report."""
        return f"{self.group}.{self.name}"

    def fits(self, phase: Phase) -> bool:
        """Whether it can be tried in a phase."""
        if phase.with_gangs or self.gangs:
            return phase.with_gangs and self.gangs
        return phase is not Phase.BARE or (self.bare and not self.needs)


ATTACKS: Final[list[Attack]] = []


def attack(
    *,
    cases: Mapping[str, Mapping[str, Any]] | None = None,
    topology: bool | None = False,
    needs: Iterable[str] = (),
    ci: bool | Iterable[str] = False,
    words: Iterable[str] = (),
    queue: Mapping[str, Any] | None = None,
    seconds: float = 120.0,
    bare: bool = False,
    gangs: bool = False,
) -> Callable[[Act], Act]:
    """Register a function as an attack, or as one for each case.

    Args:
        cases: keyword arguments of the function, by name of the case; "topology" and "needs" in
            them are the attack's own.
        topology: None stands for two attacks, with and without.
        needs: as for `Attack`.
        ci: whether every landing tries it, or which cases.
        words: as for `Attack`.
        queue: as for `Attack`.
        seconds: as for `Attack`.
        bare: as for `Attack`.
        gangs: as for `Attack`.
    """

    def register(act: Act) -> Act:
        group = act.__module__.rpartition(".")[2]
        for case, arguments in (cases or {"": {}}).items():
            own = dict(arguments)
            needed = frozenset((*needs, *own.pop("needs", ())))
            placed = own.pop("topology", topology)
            for flag in (False, True) if placed is None else (placed,):
                parts = [case] if case else []
                parts += ["topology"] if flag and placed is None else []
                name = act.__name__ + (f"[{'-'.join(parts)}]" if parts else "")
                chosen = ci if isinstance(ci, bool) else "-".join(parts) in tuple(ci)
                ATTACKS.append(
                    Attack(
                        group,
                        name,
                        partial(act, **own) if own else act,
                        flag,
                        needed,
                        chosen,
                        tuple(words),
                        dict(queue or {}),
                        seconds,
                        bare,
                        gangs,
                    )
                )
        return act

    return register


def load() -> list[Attack]:
    """All attacks of the package."""
    from tests.security import attacks

    attacks.load()
    return ATTACKS
