"""Keys and certificates of one playground: its own authorities, nothing shared, nothing reused."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rackgate_cli.controlplane.files import write_private
from rackgate_cli.errors import CommandError

_LIFETIME: Final = datetime.timedelta(days=3650)
_CLOCK_SKEW: Final = datetime.timedelta(minutes=5)

CLIENTS: Final[dict[str, tuple[str, tuple[str, ...]]]] = {
    # file name: (user, groups)
    "admin": ("rackgate-admin", ("system:masters",)),
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    "kube-scheduler": ("system:kube-scheduler", ()),
    "kwok": ("rackgate-kwok", ("system:masters",)),
}
SERVERS: Final = ("kube-apiserver", "kube-controller-manager", "kube-scheduler")
_API_NAMES: Final = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "10.0.0.1")


@dataclass(frozen=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate


def ensure_pki(folder: Path, names: Sequence[str]) -> None:
    """Write every key and certificate of a control plane into `folder`, unless they are there.

    Args:
        folder: made with mode 0700; keys get mode 0600.
        names: DNS names and addresses every serving certificate is valid for.
    """
    finished = folder / "complete"
    if finished.exists():
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
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
    finished.touch()


def ensure_operator(folder: Path, name: str, user: str, names: Sequence[str]) -> Path:
    """Write the certificates of an operator that runs beside the control plane.

    Args:
        folder: written by `ensure_pki`.
        name: of the operator; `write_kubeconfig` takes it as client.
        user: whom the API server sees; it may do everything.
        names: DNS names and addresses under which its webhooks are called; none if it has none.

    Returns:
        Folder of `tls.crt` and `tls.key`, with which it serves its webhooks; there if `names`.
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


def _authority(folder: Path, name: str, common_name: str) -> _Authority:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    usage = _key_usage(signs=True)
    certificate = (
        _builder(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    _write_pair(folder / name, key, certificate)
    return _Authority(key, certificate)


def _load_authority(folder: Path, name: str) -> _Authority:
    key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
    certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise CommandError(f"{folder / name}.key is no key of this playground")
    return _Authority(key, certificate)


def _leaf(
    base: Path, authority: _Authority, user: str, groups: Sequence[str], names: Sequence[str]
) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*attributes, x509.NameAttribute(NameOID.COMMON_NAME, user)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if names:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
    issuer_key = authority.key.public_key()
    builder = (
        _builder(subject, authority.certificate.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False
        )
    )
    if names:
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(name) for name in dict.fromkeys(names)]),
            critical=False,
        )
    _write_pair(base, key, builder.sign(authority.key, hashes.SHA256()))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _service_account_keys(folder: Path) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    write_private(folder / "service-account.key", _private_bytes(key))
    write_private(
        folder / "service-account.pub",
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )


def _write_pair(base: Path, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
    write_private(base.with_name(f"{base.name}.key"), _private_bytes(key))
    write_private(
        base.with_name(f"{base.name}.crt"),
        certificate.public_bytes(serialization.Encoding.PEM),
    )


def _private_bytes(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
