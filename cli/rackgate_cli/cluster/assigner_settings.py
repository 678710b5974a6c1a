"""The settings of the assigner that a command computes with."""

from __future__ import annotations

from pathlib import Path

from rackgate.runtime.settings import SettingsError, load_settings
from rackgate_assigner.settings import AssignerSettings
from rackgate_cli.errors import UsageError


def assigner_settings(config: Path | None) -> AssignerSettings:
    """Settings of a configuration file; the defaults without one.

    Raises:
        UsageError: the file is wrong.
    """
    try:
        return load_settings(AssignerSettings, service="assigner", config=config)
    except (SettingsError, OSError) as error:
        raise UsageError(f"{config}: {error}") from error
