"""Create a client from settings: explicit files, in-cluster, or a kubeconfig."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Any, Final

from rackgate.kube.client import Client
from rackgate.kube.transport import Credentials, RefreshableToken, TokenFile, Transport
from rackgate.runtime.settings import ConnectionSettings, SettingsError

__all__ = ["ConfigError", "ConnectionSettings", "connect"]

IN_CLUSTER_DIR: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConfigError(SettingsError):
    """The connection settings are invalid."""

    def __init__(self, message: str) -> None:
        super().__init__([message])


async def connect(settings: ConnectionSettings, *, user_agent: str) -> Client:
    """A client for `settings`. Nothing is sent yet.

    Args:
        settings: explicit server and files, a kubeconfig, or empty for in-cluster.
        user_agent: the part before "/" is the default field manager of writes.

    Raises:
        ConfigError: a file is missing or invalid, or the process does not run in a Pod.
    """
    _require_files(settings)
    try:
        if settings.kubeconfig:
            transport = await _from_kubeconfig(settings, user_agent)
        else:
            transport = _from_files(settings, user_agent)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"connection: {error}") from error
    return Client(transport, request_timeout_s=settings.request_timeout)


def _require_files(settings: ConnectionSettings) -> None:
    """Name a file that cannot be read; TLS and kubeconfig libraries do not."""
    for key, path in (
        ("kubeconfig", settings.kubeconfig),
        ("caFile", settings.ca_file),
        ("tokenFile", settings.token_file),
        ("clientCertificateFile", settings.client_certificate_file),
        ("clientKeyFile", settings.client_key_file),
    ):
        if path is None:
            continue
        try:
            path.open("rb").close()
        except OSError as error:
            text = f'connection.{key}: cannot read "{path}": {error.strerror}'
            raise ConfigError(text) from error


def _from_files(settings: ConnectionSettings, user_agent: str) -> Transport:
    server, ca_file, token_file = settings.server, settings.ca_file, settings.token_file
    if server is None:
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host:
            raise ConfigError(
                "connection: neither server nor kubeconfig is set, and this process does not run "
                "in a Pod (KUBERNETES_SERVICE_HOST is unset)"
            )
        server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        ca_file, token_file = IN_CLUSTER_DIR / "ca.crt", IN_CLUSTER_DIR / "token"
    credentials = TokenFile(token_file) if token_file else Credentials()
    credentials.header()  # report a missing file now, not at the first request
    return Transport(
        server,
        ssl_context=_ssl_context(
            server, ca_file, settings.client_certificate_file, settings.client_key_file
        ),
        credentials=credentials,
        user_agent=user_agent,
        connections=settings.connections,
    )


async def _from_kubeconfig(settings: ConnectionSettings, user_agent: str) -> Transport:
    # This import takes a second and 50 MiB.
    from kubernetes_asyncio import client as library
    from kubernetes_asyncio.config import ConfigException, load_kube_config
    from yaml import YAMLError

    async def load(into: Any, context: str | None) -> Any:
        return await load_kube_config(
            config_file=str(settings.kubeconfig), context=context, client_configuration=into
        )

    loaded = library.Configuration()
    try:
        loader = await load(loaded, settings.context)
    except ConfigException as error:
        raise ConfigError(f"connection.kubeconfig: {error}") from error
    except (YAMLError, ValueError, TypeError, AttributeError) as error:
        # Errors of the library for files that are not kubeconfigs.
        text = f'connection.kubeconfig: "{settings.kubeconfig}" is not a kubeconfig: {error}'
        raise ConfigError(text) from error

    context = (loader.current_context or {}).get("name")

    async def renew() -> str | None:
        # The library does not renew: load again, which runs the plugin or reads the token file.
        fresh = library.Configuration()
        await load(fresh, context)
        if fresh.host != loaded.host:  # do not send its token to this server
            raise ConfigError(f'connection.kubeconfig: context "{context}" has another server now')
        return _header(fresh.api_key)

    if not loaded.verify_ssl:
        raise ConfigError("connection.kubeconfig: insecure-skip-tls-verify is not supported")
    server = str(loaded.host)
    return Transport(
        server,
        ssl_context=_ssl_context(server, loaded.ssl_ca_cert, loaded.cert_file, loaded.key_file),
        credentials=RefreshableToken(_header(loaded.api_key), renew),
        user_agent=user_agent,
        connections=settings.connections,
        proxy=loaded.proxy,
    )


def _header(api_key: dict[str, str]) -> str | None:
    return api_key.get("BearerToken") or api_key.get("authorization")


def _ssl_context(
    server: str,
    ca_file: Path | str | None,
    cert_file: Path | str | None,
    key_file: Path | str | None,
) -> ssl.SSLContext | None:
    """TLS settings; None for plain http, which is for tests on loopback."""
    if server.startswith("http://"):
        return None
    context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
    if cert_file:
        context.load_cert_chain(str(cert_file), str(key_file) if key_file else None)
    return context
