"""Keys and certificates of one playground; every playground has its own authority."""

from __future__ import annotations

import base64
import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from rackgate.runtime.pki import (
    CLIENT,
    SERVER,
    CertifiedKey,
    issue_certificate,
    key_pem,
    make_authority,
)
from rackgate_cli.controlplane.files import write_private
from rackgate_cli.controlplane.flags import FRONT_PROXY
from rackgate_cli.errors import CommandError

_LIFETIME: Final = datetime.timedelta(days=3650)

CLIENTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # file name: (user, groups)
    "admin": ("rackgate-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kwok": ("rackgate-kwok", ("system:masters",)),
}
SERVERS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_API_NAMES: Final = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")


def ensure_pki(folder: Path, names: Sequence[str]) -> None:
    """Write every key and certificate of a control plane into `folder`, unless they are there.

    Args:
        folder: made with mode 0700; keys get mode 0600.
        names: DNS names and addresses every serving certificate is valid for.
    """
    if not (folder / "complete").exists():
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        _write_all(folder, names)
        (folder / "complete").touch()
    # Folders of older versions have none.
    if not (folder / f"{FRONT_PROXY}.crt").exists():
        proxy = _authority(folder, "front-proxy-ca", "rackgate-playground-front-proxy")
        _leaf(folder / FRONT_PROXY, proxy, FRONT_PROXY, (), ())


def _write_all(folder: Path, names: Sequence[str]) -> None:
    cluster = _authority(folder, "ca", "rackgate-playground")
    etcd = _authority(folder, "etcd-ca", "rackgate-playground-etcd")
    for server in SERVERS:
        alternative = (*names, server, *(_API_NAMES if server == "kube-apiserver" else ()))
        _leaf(folder / server, cluster, server, (), alternative)
    for client, (user, groups) in CLIENTS.items():
        _leaf(folder / f"{client}-client", cluster, user, groups, ())
    # etcd uses one certificate as server and as peer, so it must be valid for both directions.
    _leaf(folder / "etcd-server", etcd, "etcd", (), (*names, "etcd"))
    _leaf(folder / "etcd-client", etcd, "kube-apiserver", (), ())
    _service_account_keys(folder)


def ensure_operator(folder: Path, name: str, user: str, names: Sequence[str]) -> Path:
    """Write the certificates of an operator that runs next to the control plane.

    Args:
        folder: written by `ensure_pki`.
        name: of the operator; `write_kubeconfig` accepts it as client.
        user: name that the API server authenticates; it is a cluster administrator.
        names: DNS names and addresses of its webhooks; none if it has none.

    Returns:
        Folder of `tls.crt` and `tls.key` for its webhooks; it exists if there are `names`.
    """
    serving = folder / f"{name}-webhook"
    cluster = _load_authority(folder, "ca")
    if not (folder / f"{name}-client.crt").exists():
        _leaf(folder / f"{name}-client", cluster, user, ("system:masters",), ())
    if names and not (serving / "tls.crt").exists():
        serving.mkdir(exist_ok=True, mode=0o700)
        _leaf(serving / "tls", cluster, name, (), names)
    return serving


def write_kubeconfig(path: Path, *, server: str, pki: Path, client: str) -> None:
    """Write a kubeconfig that carries its authority and credentials as data.

    Args:
        path: the file, mode 0600, replaced atomically.
        server: URL of the API server.
        pki: folder written by `ensure_pki`.
        client: one of `CLIENTS`, or an operator with certificates.
    """
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "rackgate",
                "cluster": {
                    "server": server,
                    "certificate-authority-data": _base64(pki / "ca.crt"),
                },
            }
        ],
        "users": [
            {
                "name": client,
                "user": {
                    "client-certificate-data": _base64(pki / f"{client}-client.crt"),
                    "client-key-data": _base64(pki / f"{client}-client.key"),
                },
            }
        ],
        "contexts": [
            {
                "name": "rackgate",
                "context": {"cluster": "rackgate", "user": client, "namespace": "default"},
            }
        ],
        "current-context": "rackgate",
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _authority(folder: Path, name: str, common_name: str) -> CertifiedKey:
    made = make_authority(common_name, validity=_LIFETIME, now=_now())
    _write_pair(folder / name, made)
    return made


def _load_authority(folder: Path, name: str) -> CertifiedKey:
    key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
    certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CommandError(f"{folder / name}.key is no key of this playground")
    return CertifiedKey(key, certificate)


def _leaf(
    base: Path, authority: CertifiedKey, user: str, groups: Sequence[str], names: Sequence[str]
) -> None:
    made = issue_certificate(
        authority,
        user,
        purposes=(CLIENT, SERVER) if names else (CLIENT,),
        names=list(dict.fromkeys(names)),
        organizations=groups,
        validity=_LIFETIME,
        now=_now(),
    )
    _write_pair(base, made)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def _service_account_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    write_private(folder / "service-account.key", key_pem(key))
    write_private(
        folder / "service-account.pub",
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def _write_pair(base: Path, made: CertifiedKey) -> None:
    write_private(base.with_name(f"{base.name}.key"), made.key_pem)
    write_private(base.with_name(f"{base.name}.crt"), made.certificate_pem)
