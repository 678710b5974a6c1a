from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from rackgate.api.resources import PODS
from rackgate.kube.config import ConfigError, ConnectionSettings, connect
from rackgate.kube.errors import TransportError, UnauthorizedError
from tests.support.apiserver import FakeApiServer


class Certificate:
    """A self-signed certificate for loopback: a CA of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        certificate = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(hours=1))
            .add_extension(x509.SubjectAlternativeName([address]), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.cert = folder / f"{name}.crt"
        self.key = folder / f"{name}.key"
        self.cert.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )


@pytest.fixture
def server_cert(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path, "server")


@pytest.fixture
def user_cert(tmp_path: Path) -> Certificate:
    return Certificate(tmp_path, "user")


@pytest_asyncio.fixture
async def server(server_cert: Certificate, user_cert: Certificate) -> AsyncIterator[FakeApiServer]:
    """Over TLS; client certificates are asked for, and checked when given."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_cert.cert, server_cert.key)
    context.load_verify_locations(user_cert.cert)
    context.verify_mode = ssl.CERT_OPTIONAL
    async with FakeApiServer(context) as running:
        running.put(PODS, {"metadata": {"name": "p", "namespace": "ns"}})
        yield running


def demand_certificates(server: FakeApiServer, demanded: bool = True) -> None:
    assert server._ssl is not None
    server._ssl.verify_mode = ssl.CERT_REQUIRED if demanded else ssl.CERT_OPTIONAL


async def read_pod(settings: ConnectionSettings) -> None:
    client = await connect(settings, user_agent="rackgate-test/1")
    try:
        await client.get(PODS.path("ns", "p"))
    finally:
        await client.close()


async def test_server_ca_and_token_files(
    server: FakeApiServer, server_cert: Certificate, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    token.write_text("secret")
    server.tokens = {"secret"}
    await read_pod(
        ConnectionSettings(server=server.url, ca_file=server_cert.cert, token_file=token)
    )
    assert server.requests[0].headers["User-Agent"] == "rackgate-test/1"


async def test_client_certificates_are_shown(
    server: FakeApiServer, server_cert: Certificate, user_cert: Certificate
) -> None:
    demand_certificates(server)
    settings = ConnectionSettings(
        server=server.url,
        ca_file=server_cert.cert,
        client_certificate_file=user_cert.cert,
        client_key_file=user_cert.key,
    )
    await read_pod(settings)


async def test_a_server_of_another_ca_is_not_talked_to(
    server: FakeApiServer, user_cert: Certificate
) -> None:
    with pytest.raises(TransportError, match="certificate verify failed"):
        await read_pod(ConnectionSettings(server=server.url, ca_file=user_cert.cert))
    assert not server.requests


async def test_a_kubeconfig_with_embedded_certificates(
    server: FakeApiServer, server_cert: Certificate, user_cert: Certificate, tmp_path: Path
) -> None:
    def embedded(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [
            {
                "name": "k",
                "cluster": {
                    "server": server.url,
                    "certificate-authority-data": embedded(server_cert.cert),
                },
            }
        ],
        "users": [
            {
                "name": "u",
                "user": {
                    "client-certificate-data": embedded(user_cert.cert),
                    "client-key-data": embedded(user_cert.key),
                },
            }
        ],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(yaml.safe_dump(document))
    demand_certificates(server)
    await read_pod(ConnectionSettings(kubeconfig=kubeconfig))
    demand_certificates(server, False)
    document["users"] = [{"name": "u", "user": {"token": "from-kubeconfig"}}]
    kubeconfig.write_text(yaml.safe_dump(document))
    server.tokens = {"from-kubeconfig"}
    await read_pod(ConnectionSettings(kubeconfig=kubeconfig))


async def test_files_that_are_not_there_are_said_at_once(tmp_path: Path) -> None:
    for key in ("ca_file", "token_file"):
        given = {"server": "https://127.0.0.1:1", key: tmp_path / "none"}
        settings = ConnectionSettings.model_validate(given)
        with pytest.raises(ConfigError, match="No such file"):
            await connect(settings, user_agent="x")
    with pytest.raises(ConfigError, match=r"connection\.kubeconfig"):
        await connect(ConnectionSettings(kubeconfig=tmp_path / "none"), user_agent="x")


@pytest.mark.parametrize("text", ["{{", "", "[]", "clusters: [5]", "\xff"])
async def test_a_file_that_is_no_kubeconfig_is_rejected_by_its_name(
    text: str, tmp_path: Path
) -> None:
    path = tmp_path / "odd"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=r"connection\.kubeconfig: .*odd"):
        await connect(ConnectionSettings(kubeconfig=path), user_agent="x")


async def test_outside_of_a_pod_empty_settings_are_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ConfigError, match="does not run in a Pod"):
        await connect(ConnectionSettings(), user_agent="x")


def test_the_big_client_library_is_imported_only_for_kubeconfigs() -> None:
    code = (
        "import sys, rackgate.kube.config, rackgate.kube.client, rackgate.kube.informer,"
        "rackgate.kube.lease.holder, rackgate.kube.events, rackgate.runtime.service\n"
        "loaded = [name for name in sys.modules if name.startswith('kubernetes_asyncio')]\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.requirement("OPS-11")
@pytest.mark.parametrize(
    ("key", "field"),
    [
        ("kubeconfig", "kubeconfig"),
        ("caFile", "ca_file"),
        ("tokenFile", "token_file"),
        ("clientCertificateFile", "client_certificate_file"),
        ("clientKeyFile", "client_key_file"),
    ],
)
async def test_a_missing_file_is_named_with_its_setting(
    key: str, field: str, server_cert: Certificate, tmp_path: Path
) -> None:
    files = {"client_certificate_file": server_cert.cert, "client_key_file": server_cert.key}
    given: dict[str, Any] = files if field in files else {}
    server = None if field == "kubeconfig" else "https://127.0.0.1:1"
    settings = ConnectionSettings(server=server, **{**given, field: tmp_path / "none"})
    with pytest.raises(ConfigError) as refused:
        await connect(settings, user_agent="test/1")
    text = f'connection.{key}: cannot read "{tmp_path / "none"}": No such file or directory'
    assert refused.value.lines == (text,)


def exec_user(token: Path) -> dict[str, Any]:
    """A user whose token a program tells: as `token` has it now, and once more in `asked`."""
    credential = (
        '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential",'
        '"status":{"token":"%s"}}'
    )
    script = f"echo x >> {token}.asked; printf '{credential}' \"$(cat {token})\""
    return {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "sh",
            "args": ["-c", script],
            "interactiveMode": "Never",
        }
    }


@pytest.mark.requirement("UNG-18")
@pytest.mark.parametrize("source", ["exec", "tokenFile", "token"])
async def test_a_token_of_a_kubeconfig_that_expired_is_fetched_again_once_for_all(
    server: FakeApiServer, server_cert: Certificate, tmp_path: Path, source: str
) -> None:
    token = tmp_path / "token"
    kubeconfig = tmp_path / "kubeconfig"

    def write(text: str) -> None:
        token.write_text(text)
        users = {"exec": exec_user(token), "tokenFile": {source: str(token)}}
        cluster = {"server": server.url, "certificate-authority": str(server_cert.cert)}
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": cluster}],
            "users": [{"name": "u", "user": users.get(source, {"token": text})}],
        }
        kubeconfig.write_text(yaml.safe_dump(document))

    write("one")
    server.tokens = {"one"}
    settings = ConnectionSettings(kubeconfig=kubeconfig)
    client = await connect(settings, user_agent="rackgate-test/1")
    try:
        await client.get(PODS.path("ns", "p"))
        write("two")
        server.tokens = {"two"}
        await asyncio.gather(*(client.get(PODS.path("ns", "p")) for _ in range(5)))
        kubeconfig.write_text("half of it: {")
        token.unlink()
        server.tokens = {"three"}
        with pytest.raises(UnauthorizedError):
            await client.get(PODS.path("ns", "p"))
        write("three")
        await client.get(PODS.path("ns", "p"))
    finally:
        await client.close()
    if source == "exec":
        asked = await asyncio.to_thread(tmp_path.joinpath("token.asked").read_bytes)
        assert len(asked.split()) == 3, "at the start, and once for all that were refused"


@pytest.mark.parametrize("moved", ["context", "server"])
async def test_a_kubeconfig_that_names_another_cluster_meanwhile_gives_this_one_no_token_of_it(
    server: FakeApiServer, server_cert: Certificate, tmp_path: Path, moved: str
) -> None:
    kubeconfig = tmp_path / "kubeconfig"

    def write(current: str, address: str, token: str) -> None:
        ca = str(server_cert.cert)
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": current,
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": name}} for name in ("c", "d")
            ],
            "clusters": [
                {"name": "c", "cluster": {"server": address, "certificate-authority": ca}},
                {"name": "d", "cluster": {"server": "https://127.0.0.1:1"}},
            ],
            "users": [
                {"name": "c", "user": {"token": token}},
                {"name": "d", "user": {"token": "another"}},
            ],
        }
        kubeconfig.write_text(yaml.safe_dump(document))

    write("c", server.url, "one")
    server.tokens = {"two"}
    client = await connect(ConnectionSettings(kubeconfig=kubeconfig), user_agent="rackgate-test/1")
    try:
        if moved == "context":
            write("d", server.url, "two")
            await client.get(PODS.path("ns", "p"))
        else:
            write("c", "https://127.0.0.1:2", "another")
            with pytest.raises(UnauthorizedError):
                await client.get(PODS.path("ns", "p"))
    finally:
        await client.close()
    assert not any("another" in request.headers["Authorization"] for request in server.requests)
