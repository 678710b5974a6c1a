"""The command line and the environment of every component.

The playground and docker-compose.yaml use the same ones; only the `Site` differs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

SERVICE_ACCOUNT_ISSUER: Final = "https://kubernetes.default.svc"
SERVICE_CLUSTER_RANGE: Final = "10.0.0.0/16"
FRONT_PROXY: Final = "front-proxy-client"
KWOK_NODE_ANNOTATION: Final = "kwok.x-k8s.io/node=fake"
KWOK_NODE_ADDRESS: Final = "10.128.0.1"
# Native PodGroups, alpha in 1.36. With the gates and without the API, or the other way round, the
# API server does not become ready and the scheduler binds no pod.
_GANG_GATES: Final = (
    "--feature-gates=GenericWorkload=true,GangScheduling=true,TopologyAwareWorkloadScheduling=true"
)
_GANG_API: Final = "--runtime-config=scheduling.k8s.io/v1alpha2=true"

# At Go's default of 100, the garbage collector takes much of the CPU of a busy kube-apiserver whose
# heap is as small as here. 200 saves a fifth of its CPU in bench.gang_cost, and lets the heap grow
# to three times what is in use, instead of twice.
ENVIRONMENT: Final = {"GOGC": "200"}

# Simulated kubelets renew every few minutes; a busy machine must not make nodes unhealthy.
NODE_GRACE_PERIOD: Final = "1h"


@dataclass(frozen=True)
class Site:
    """Where the components of one control plane listen and find their files.

    Attributes:
        bind: address every component listens on.
        etcd_host, apiserver_host: names or addresses under which others reach the two.
        advertise: IP address that the API server advertises.
        pki: folder of keys and certificates.
        kubeconfigs: folder with one kubeconfig per client.
        data: folder of etcd's data.
        manifests: folder with the audit policy and the KWOK stages.
        audit_log: file the audit log goes to, None for no audit log.
        gang_scheduling: whether the control plane serves PodGroups and schedules by them.
    """

    bind: str
    etcd_host: str
    apiserver_host: str
    advertise: str
    pki: str
    kubeconfigs: str
    data: str
    manifests: str
    etcd_port: int = 2379
    etcd_peer_port: int = 2380
    apiserver_port: int = 6443
    kcm_port: int = 10257
    scheduler_port: int = 10259
    kwok_port: int = 10247
    audit_log: str | None = None
    gang_scheduling: bool = False

    @property
    def server(self) -> str:
        """URL of the API server."""
        return f"https://{self.apiserver_host}:{self.apiserver_port}"


def arguments(site: Site) -> dict[str, list[str]]:
    """Return the arguments of every component, in starting order, without the program itself."""
    gates = [_GANG_GATES] if site.gang_scheduling else []
    apis = [_GANG_API] if site.gang_scheduling else []
    return {
        "etcd": _etcd(site),
        "kube-apiserver": [*_apiserver(site), *gates, *apis],
        "kube-controller-manager": [*_controller_manager(site), *gates],
        "kube-scheduler": [*_scheduler(site), *gates],
        "kwok": _kwok(site),
    }


def _etcd(site: Site) -> list[str]:
    client = f"https://{site.etcd_host}:{site.etcd_port}"
    peer = f"https://{site.etcd_host}:{site.etcd_peer_port}"
    return [
        "--name=rackgate",
        f"--data-dir={site.data}",
        f"--listen-client-urls=https://{site.bind}:{site.etcd_port}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls=https://{site.bind}:{site.etcd_peer_port}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=rackgate={peer}",
        f"--cert-file={site.pki}/etcd-server.crt",
        f"--key-file={site.pki}/etcd-server.key",
        f"--trusted-ca-file={site.pki}/etcd-ca.crt",
        "--client-cert-auth=true",
        f"--peer-cert-file={site.pki}/etcd-server.crt",
        f"--peer-key-file={site.pki}/etcd-server.key",
        f"--peer-trusted-ca-file={site.pki}/etcd-ca.crt",
        "--peer-client-cert-auth=true",
        "--quota-backend-bytes=8589934592",
        "--log-level=warn",
        # A playground may lose its last second of writes, and a busy disk must not slow it.
        "--unsafe-no-fsync=true",
    ]


def _apiserver(site: Site) -> list[str]:
    lines = [
        f"--bind-address={site.bind}",
        f"--secure-port={site.apiserver_port}",
        f"--advertise-address={site.advertise}",
        # No component of a playground uses the Service of the API server.
        "--endpoint-reconciler-type=none",
        f"--etcd-servers=https://{site.etcd_host}:{site.etcd_port}",
        f"--etcd-cafile={site.pki}/etcd-ca.crt",
        f"--etcd-certfile={site.pki}/etcd-client.crt",
        f"--etcd-keyfile={site.pki}/etcd-client.key",
        f"--tls-cert-file={site.pki}/kube-apiserver.crt",
        f"--tls-private-key-file={site.pki}/kube-apiserver.key",
        f"--client-ca-file={site.pki}/ca.crt",
        # The aggregation layer: how the API server proves itself to the servers of APIServices.
        f"--proxy-client-cert-file={site.pki}/front-proxy-client.crt",
        f"--proxy-client-key-file={site.pki}/front-proxy-client.key",
        f"--requestheader-client-ca-file={site.pki}/front-proxy-ca.crt",
        f"--requestheader-allowed-names={FRONT_PROXY}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--authorization-mode=RBAC",
        f"--service-account-issuer={SERVICE_ACCOUNT_ISSUER}",
        f"--service-account-key-file={site.pki}/service-account.pub",
        f"--service-account-signing-key-file={site.pki}/service-account.key",
        f"--service-cluster-ip-range={SERVICE_CLUSTER_RANGE}",
        "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",
        "--allow-privileged=true",
        "--max-requests-inflight=1200",
        "--max-mutating-requests-inflight=600",
        "--profiling=false",
    ]
    if site.audit_log is not None:
        lines += [
            f"--audit-policy-file={site.manifests}/audit-policy.yaml",
            f"--audit-log-path={site.audit_log}",
            # Tests read the whole log: do not rotate it.
            "--audit-log-maxsize=0",
        ]
    return lines


def _controller_manager(site: Site) -> list[str]:
    kubeconfig = f"{site.kubeconfigs}/kube-controller-manager.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={site.bind}",
        f"--secure-port={site.kcm_port}",
        f"--tls-cert-file={site.pki}/kube-controller-manager.crt",
        f"--tls-private-key-file={site.pki}/kube-controller-manager.key",
        f"--root-ca-file={site.pki}/ca.crt",
        f"--service-account-private-key-file={site.pki}/service-account.key",
        # Admission policies see the controllers under their own names, as in a real cluster.
        "--use-service-account-credentials=true",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--concurrent-job-syncs=20",
        f"--node-monitor-grace-period={NODE_GRACE_PERIOD}",
        "--profiling=false",
    ]


def _scheduler(site: Site) -> list[str]:
    kubeconfig = f"{site.kubeconfigs}/kube-scheduler.kubeconfig"
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--bind-address={site.bind}",
        f"--secure-port={site.scheduler_port}",
        f"--tls-cert-file={site.pki}/kube-scheduler.crt",
        f"--tls-private-key-file={site.pki}/kube-scheduler.key",
        "--leader-elect=false",
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]


def _kwok(site: Site) -> list[str]:
    return [
        f"--kubeconfig={site.kubeconfigs}/kwok.kubeconfig",
        f"--config={site.manifests}/stages/kwok.yaml",
        f"--config={site.manifests}/stages/nodes.yaml",
        f"--config={site.manifests}/stages/pods.yaml",
        f"--manage-nodes-with-annotation-selector={KWOK_NODE_ANNOTATION}",
        f"--node-ip={KWOK_NODE_ADDRESS}",
        f"--server-address={site.bind}:{site.kwok_port}",
        # Leases would cost a write for each node every few seconds; the heartbeat stage is enough.
        "--node-lease-duration-seconds=0",
        # INFO logs one line per pod.
        "--v=WARN",
    ]
