"""The attacks, grouped by what is attacked. To add one, write a function with `@attack`."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every group, in alphabetical order."""
    for module in sorted(one.name for one in pkgutil.iter_modules(__path__)):
        importlib.import_module(f"{__name__}.{module}")
