"""The state folder of a playground, where later commands find it."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from rackgate_cli.controlplane.files import write_private
from rackgate_cli.controlplane.processes import ProcessRecord
from rackgate_cli.errors import CommandError

_FORMAT: Final = 1
# As deployed. Holders of shorter Leases exit if their machine stalls for a few seconds.
LEASE_DURATION_S: Final = 15.0


class Playground(msgspec.Struct, kw_only=True):
    """The record of a playground between two commands.

    Attributes:
        format: version of this file.
        server: URL of the API server.
        audit: whether the API server writes an audit log.
        ports: by purpose, for instance "etcd" or "webhook".
        replicas: set count per service; a stopped service keeps it.
        operators: which of `versions.OPERATORS` it has; they stay, like their CRDs.
        kinds: which of `versions.KINDS` it has.
        features: which of `versions.FEATURES` its control plane has.
        feature_gates: of the services; other gates have their defaults.
        lease_duration: of the services' Leases, in seconds.
        binaries: path of every program of the control plane.
        processes: started processes by component name.
    """

    format: int = _FORMAT
    server: str = ""
    audit: bool = False
    ports: dict[str, int] = {}
    replicas: dict[str, int] = {}
    operators: list[str] = []
    kinds: list[str] = []
    features: list[str] = []
    feature_gates: dict[str, bool] = {}
    lease_duration: float = LEASE_DURATION_S
    binaries: dict[str, str] = {}
    processes: dict[str, ProcessRecord] = {}


class StateFolder:
    """The paths in a state folder, its record and its lock."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.pki = path / "pki"
        self.kubeconfigs = path / "kubeconfigs"
        self.kubeconfig = path / "kubeconfig"
        self.data = path / "etcd"
        self.logs = path / "logs"
        self.services = path / "services"
        self.operators = path / "operators"
        self.audit_log = path / "audit.log"
        self.record = path / "playground.json"
        self.lock = path / "lock"

    def load(self) -> Playground | None:
        """Return the playground of this folder, None if it has none.

        Raises:
            CommandError: the record is unreadable or of another version.
        """
        try:
            playground = msgspec.json.decode(self.record.read_bytes(), type=Playground)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise CommandError(f"{self.record} cannot be decoded: {error}") from error
        if playground.format != _FORMAT:
            raise CommandError(
                f"{self.record} has format {playground.format}, and this version of rackgate "
                f"supports {_FORMAT}"
            )
        return playground

    def save(self, playground: Playground) -> None:
        """Replace the record atomically."""
        encoded = msgspec.json.format(msgspec.json.encode(playground), indent=2)
        write_private(self.record, encoded)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Let one command at a time change this playground.

        The lock is released when its process ends, also after a crash.

        Raises:
            CommandError: another command holds it.
        """
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with self.lock.open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise CommandError(
                    f"another rackgate command is changing the playground in {self.path}; "
                    "wait for it, or name another folder with --state"
                ) from error
            yield
