from __future__ import annotations

import base64
import ipaddress
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from rackgate_cli.controlplane.pki import CLIENTS, SERVERS, ensure_pki, write_kubeconfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pki")
    ensure_pki(path, ("127.0.0.1", "localhost"))
    return path


def load(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_every_private_key_is_readable_by_its_owner_alone(folder: Path) -> None:
    keys = list(folder.glob("*.key"))
    assert len(keys) > 8
    assert {path.stat().st_mode & 0o777 for path in keys} == {0o600}


@pytest.mark.parametrize("server", [*SERVERS, "etcd-server"])
def test_serving_certificates_name_the_loopback_address(folder: Path, server: str) -> None:
    names = load(folder / f"{server}.crt").extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    address = ipaddress.ip_address("127.0.0.1")
    assert address in names.value.get_values_for_type(x509.IPAddress)


def test_etcd_trusts_an_authority_of_its_own(folder: Path) -> None:
    etcd = load(folder / "etcd-ca.crt")
    load(folder / "etcd-client.crt").verify_directly_issued_by(etcd)
    with pytest.raises(ValueError, match="does not match"):
        load(folder / "admin-client.crt").verify_directly_issued_by(etcd)


@pytest.mark.parametrize("client", CLIENTS)
def test_client_certificates_cannot_serve(folder: Path, client: str) -> None:
    certificate = load(folder / f"{client}-client.crt")
    usage = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    (name,) = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    assert name.value == CLIENTS[client][0]


def test_two_playgrounds_share_no_authority(folder: Path, tmp_path: Path) -> None:
    ensure_pki(tmp_path / "other", ("127.0.0.1",))
    for name in ("ca.crt", "etcd-ca.crt", "service-account.key"):
        assert (tmp_path / "other" / name).read_bytes() != (folder / name).read_bytes()


def test_a_second_call_changes_nothing(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    ensure_pki(folder, ("127.0.0.1", "localhost"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_folder_of_an_older_version_gets_a_front_proxy(tmp_path: Path) -> None:
    older = tmp_path / "older"
    ensure_pki(older, ("127.0.0.1",))
    for path in older.glob("front-proxy-*"):
        path.unlink()
    before = {path.name: path.read_bytes() for path in older.iterdir()}
    ensure_pki(older, ("127.0.0.1",))
    after = {path.name: path.read_bytes() for path in older.iterdir()}
    assert before.items() < after.items()
    # It is no authority of users: its certificates name whom they like.
    proxy = load(older / "front-proxy-client.crt")
    proxy.verify_directly_issued_by(load(older / "front-proxy-ca.crt"))
    with pytest.raises(ValueError, match="does not match"):
        proxy.verify_directly_issued_by(load(older / "ca.crt"))


def test_a_kubeconfig_carries_its_authority_and_never_skips_checks(
    folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "kubeconfig"
    write_kubeconfig(path, server="https://127.0.0.1:1", pki=folder, client="admin")
    cluster = yaml.safe_load(path.read_text())["clusters"][0]["cluster"]
    assert cluster["server"] == "https://127.0.0.1:1"
    carried = base64.b64decode(cluster["certificate-authority-data"])
    assert carried == (folder / "ca.crt").read_bytes()
    assert "insecure" not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
