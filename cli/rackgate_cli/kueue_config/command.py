"""`rackgate kueue-config`: prints a configuration of Kueue as settings of Rackgate."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any, Final

from rackgate_cli.errors import UsageError
from rackgate_cli.verbs import add_verb

if TYPE_CHECKING:
    from rackgate_cli.verbs import Subparsers

MAX_BYTES: Final = 1 << 20
NOT_TRANSLATED: Final = 3


def add_parser(subparsers: Subparsers) -> None:
    """Add the verb `kueue-config`."""
    parser = add_verb(
        subparsers,
        "kueue-config",
        run,
        summary="translate the configuration of Kueue into settings of Rackgate",
        description="Reads the Configuration of Kueue, config.kueue.x-k8s.io/v1beta2, or the "
        "ConfigMap with it. Prints a configuration file for each service of Rackgate. Says on "
        "standard error what is not translated, with what happens instead. Reads no cluster.",
        examples=(
            "rackgate kueue-config controller_manager_config.yaml",
            "kubectl get configmap -n kueue-system kueue-manager-config -o yaml | rackgate "
            "kueue-config -",
        ),
        exit_codes={
            0: "all that has an effect is translated",
            2: "the command line or the file is wrong",
            NOT_TRANSLATED: "Rackgate lacks a setting, or rejects a value; the lines say which",
        },
    )
    parser.add_argument("file", metavar="FILE", help="YAML or JSON; - for standard input")


def run(arguments: argparse.Namespace) -> int:
    """Print the settings; return 0 or 3.

    Raises:
        UsageError: the file cannot be read, or has no Configuration of Kueue.
    """
    import yaml

    from rackgate_cli.kueue_config.translate import document_of, translate
    from rackgate_cli.plain_yaml import read_plain_yaml

    documents = read_plain_yaml(arguments.file, MAX_BYTES)
    unwrapped = [inner for one in documents for inner in _unwrapped(one, arguments.file)]
    found = translate(_configuration(unwrapped, arguments.file))
    for line in found.notes:
        print(f"note: {line}", file=sys.stderr)
    for line in found.missing:
        print(f"not translated: {line}", file=sys.stderr)
    files = [document_of(service, settings) for service, settings in found.documents.items()]
    sys.stdout.write(yaml.safe_dump_all(files, sort_keys=False) if files else "")
    return NOT_TRANSLATED if found.missing else 0


def _unwrapped(document: Any, name: str) -> list[Any]:
    """The documents in a ConfigMap; anything else as it is."""
    from rackgate_cli.plain_yaml import decode_plain_yaml

    if not isinstance(document, dict) or document.get("kind") != "ConfigMap":
        return [document]
    files = [text for text in (document.get("data") or {}).values() if isinstance(text, str)]
    return [inner for text in files for inner in decode_plain_yaml(text.encode(), name)]


def _configuration(documents: list[Any], name: str) -> dict[str, Any]:
    from rackgate_cli.kueue_config.translate import KUEUE_API_VERSION

    found = [one for one in documents if isinstance(one, dict)]
    for one in found:
        if (one.get("apiVersion"), one.get("kind")) == (KUEUE_API_VERSION, "Configuration"):
            return one
    kinds = ", ".join(f"{one.get('apiVersion')} {one.get('kind')}"[:100] for one in found[:3])
    raise UsageError(
        f'"{name[:200]}" has no {KUEUE_API_VERSION} Configuration'
        + (f"; it has {kinds}" if kinds else "")
    )
