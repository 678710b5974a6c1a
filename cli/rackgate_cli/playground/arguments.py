"""Values of the playground verbs' arguments, read and refused."""

from __future__ import annotations

import argparse
from typing import Final

from rackgate.features import Features, UnknownGateError
from rackgate_cli.controlplane.binaries.versions import KINDS, OPERATORS, SERVICES

# What the services take (`leaderElection.leaseDuration`).
LEAST_LEASE_S: Final = 1
MOST_LEASE_S: Final = 3600


def count(text: str) -> int:
    """A whole number that is not negative."""
    try:
        number = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a whole number') from None
    if number < 0:
        raise argparse.ArgumentTypeError(f'"{text}" is negative')
    return number


def lease_duration(text: str) -> float:
    """Seconds that a Lease of the services may last."""
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f'"{text}" is not a number of seconds') from None
    if not LEAST_LEASE_S <= seconds <= MOST_LEASE_S:
        raise argparse.ArgumentTypeError(f'"{text}" is not {LEAST_LEASE_S} to {MOST_LEASE_S}')
    return seconds


def services(text: str) -> tuple[str, ...]:
    """Names of services, in their own order; "none" for none."""
    return _subset(text, SERVICES, "service")


def operators(text: str) -> tuple[str, ...]:
    """Names of operators and of sets of kinds, in their own order; "none" for none."""
    return _subset(text, (*OPERATORS, *KINDS), "operator")


def _subset(text: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    if text == "none":
        return ()
    chosen = [name.strip() for name in text.split(",")]
    unknown = sorted(set(chosen) - set(known))
    if unknown:
        raise argparse.ArgumentTypeError(
            f'unknown {what} "{unknown[0]}" (known: {", ".join(known)}, none)'
        )
    return tuple(name for name in known if name in chosen)


def gates(text: str) -> dict[str, bool]:
    """Feature gates by name; a name that no service knows is refused."""
    found = {}
    for entry in filter(None, (part.strip() for part in text.split(","))):
        name, _, value = entry.partition("=")
        if value not in ("true", "false"):
            raise argparse.ArgumentTypeError(f'"{entry}" is not NAME=true or NAME=false')
        found[name] = value == "true"
    try:
        Features.of(found)
    except UnknownGateError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return found
