"""The folders of manifests, of binaries and of playgrounds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from rackgate_cli.errors import CommandError

CACHE_VARIABLE: Final = "RACKGATE_CACHE"
STATE_VARIABLE: Final = "RACKGATE_STATE"


def deploy_dir() -> Path:
    """Return the folder of manifests: `deploy/` of a checkout, else the wheel's own copy.

    Raises:
        CommandError: neither exists.
    """
    package = Path(__file__).resolve().parent
    for folder in (package.parents[1] / "deploy", package / "_deploy"):
        if (folder / "controlplane").is_dir():
            return folder
    raise CommandError(
        f'the manifests are missing: looked for "deploy" beside {package.parent} and '
        f'"_deploy" in {package}; reinstall rackgate'
    )


def cache_dir() -> Path:
    """Return the folder of built binaries: RACKGATE_CACHE, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser().absolute()
    return _xdg("XDG_CACHE_HOME", ".cache") / "rackgate"


def state_dir(chosen: str | None) -> Path:
    """Return the playground's folder: `chosen`, else RACKGATE_STATE, else the user's default.

    The default does not depend on the current folder, so `rackgate status` finds the playground
    from anywhere.
    """
    named = chosen or os.environ.get(STATE_VARIABLE)
    if named:
        return Path(named).expanduser().absolute()
    return _xdg("XDG_STATE_HOME", ".local/state") / "rackgate" / "default"


def _xdg(variable: str, fallback: str) -> Path:
    value = os.environ.get(variable, "")
    # The XDG specification says to ignore relative values.
    return Path(value) if value.startswith("/") else Path.home() / fallback
