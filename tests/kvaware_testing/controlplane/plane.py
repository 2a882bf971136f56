"""A real control plane on loopback: etcd, kube-apiserver, kube-controller-manager, kube-scheduler and kwok.

Every process has the least rights that it needs: the controller manager its certificate and per-controller accounts,
the cluster's own scheduler ``CN=system:kube-scheduler``, kvaware's scheduler and extender the two accounts of
``examples/kube-scheduler/rbac.yaml``, kwok one of its own. Only ``kubectl`` here, the test's own hand, is admin.
"""

import json
import os
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from kvaware_testing.controlplane.binaries import Binaries
from kvaware_testing.controlplane.bulk import create_all
from kvaware_testing.controlplane.certificates import Authority, token_key_pair
from kvaware_testing.controlplane.eventually import eventually
from kvaware_testing.controlplane.kubeconfig import certificate_user, render_kubeconfig, token_user
from kvaware_testing.controlplane.process import Process, free_ports
from kvaware_testing.controlplane.scheduler import PROFILE, render_default_config, render_scheduler_config
from kvaware_testing.controlplane.versions import REPOSITORY

__all__ = ["ControlPlane"]

_MANIFESTS: Final = REPOSITORY / "tests" / "e2e" / "manifests"
_RBAC: Final = REPOSITORY / "examples" / "kube-scheduler" / "rbac.yaml"
_ISSUER: Final = "https://kubernetes.default.svc"
_TOKEN_LIFE: Final = "24h"


class ControlPlane:
    """Start it with ``with ControlPlane(folder, binaries) as control_plane``, or by ``up`` and ``down``.

    Args:
        folder: An empty folder of its own: keys, configuration, etcd's data, a log per process.
        binaries: What ``obtain`` returned.
        feature_gates: For the API server, the controller manager and every scheduler.
        runtime_config: The API server's ``--runtime-config``, such as ``scheduling.k8s.io/v1beta1=true``.
        client_qps: Requests per second that controllers and schedulers may send. Kubernetes' defaults of 20 and 50 are
            for shared API servers, and would be what a test of 1,000 nodes measures.
    """

    def __init__(
        self,
        folder: Path,
        binaries: Binaries,
        *,
        feature_gates: Mapping[str, bool] | None = None,
        runtime_config: str = "",
        client_qps: float = 200.0,
        accounts: bool = True,
    ) -> None:
        self.folder = folder
        self.binaries = binaries
        self._gates = ",".join(f"{name}={str(on).lower()}" for name, on in sorted((feature_gates or {}).items()))
        self._runtime_config = runtime_config
        self._qps = client_qps
        self._accounts = accounts
        self._processes: dict[str, Process] = {}
        self._authority = Authority()
        self._tls = ssl.create_default_context(cadata=self._authority.certificate.decode("ascii"))
        self._admin_tls = self._tls
        self.api_url = ""

    @property
    def ca_file(self) -> Path:
        """The authority that signed every server's certificate here."""
        return self.folder / "ca.crt"

    @property
    def tls(self) -> ssl.SSLContext:
        """Believes every server here."""
        return self._tls

    @property
    def admin_tls(self) -> ssl.SSLContext:
        """The same, with the admin's certificate: for the test's own hand, where kubectl is too slow."""
        return self._admin_tls

    @property
    def serving_certificate(self) -> tuple[Path, Path]:
        """Certificate and key of a server on 127.0.0.1 that clients of this control plane believe."""
        return self.folder / "server.crt", self.folder / "server.key"

    @property
    def admin_kubeconfig(self) -> Path:
        """For the test's own hand only."""
        return self.folder / "admin.kubeconfig"

    def __enter__(self) -> Self:
        try:
            self.up()
        except BaseException:
            self.down()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.down()

    # -- life -------------------------------------------------------------------------------------------------------

    def up(self) -> None:
        """Start everything but kvaware's scheduler, and return when all of it is ready."""
        self.folder.mkdir(parents=True, exist_ok=True)
        etcd_port, peer_port, api_port, controller_port, scheduler_port, kwok_port = free_ports(6)
        self.api_url = f"https://127.0.0.1:{api_port}"
        self._write_keys()
        self._add_etcd(etcd_port, peer_port)
        self._add_api_server(api_port, etcd_port)
        # The API server gives up without etcd, so etcd goes first; it takes 0.3 s.
        for name in ("etcd", "kube-apiserver"):
            self.start(name)
        self.apply_file(_MANIFESTS / "kwok-rbac.yaml")
        if self._accounts:
            self.apply_file(_RBAC)
        self._add_controller_manager(controller_port)
        self._add_scheduler(
            "kube-scheduler",
            render_default_config(kubeconfig=self.folder / "kube-scheduler.kubeconfig", qps=self._qps),
            scheduler_port,
        )
        self._add_kwok(kwok_port)
        others = [self._processes[name] for name in ("kube-controller-manager", "kube-scheduler", "kwok")]
        for process in others:
            process.start()
        for process in others:
            process.wait_ready()

    def down(self) -> None:
        """Stop everything, clients before servers. Harmless when some of it never started."""
        for process in reversed(self._processes.values()):
            process.stop(timeout_s=3.0)

    def process(self, name: str) -> Process:
        """Return one process by its program's name, or ``kvaware-scheduler``."""
        return self._processes[name]

    def start(self, name: str) -> None:
        """Start one process that is stopped and wait until it is ready."""
        self._processes[name].start()
        self._processes[name].wait_ready()

    def stop(self, name: str) -> None:
        """Stop one process; the others go on."""
        # 3 s: the API server waits up to a minute for open watches, which its clients never end. Whoever holds one sees
        # it break, as when a machine is turned off.
        self._processes[name].stop(timeout_s=3.0)

    def restart(self, name: str) -> None:
        """Stop one process and start it again on the same port."""
        self.stop(name)
        self.start(name)

    def start_scheduler(
        self, extender_url: str, *, http_timeout: str | None = None, qps: float | None = None
    ) -> Process:
        """Start kvaware's kube-scheduler from the example's configuration; stops the one that ran before.

        Args:
            extender_url: ``urlPrefix``, such as ``http://127.0.0.1:8901/scheduler``.
            http_timeout: ``httpTimeout``, a Go duration; None keeps the example's.
            qps: Requests per second to the API server; None takes the control plane's ``client_qps``.
        """
        self.stop_scheduler()
        config = render_scheduler_config(
            kubeconfig=self.service_account_kubeconfig("kvaware-system", "kvaware-scheduler"),
            extender_url=extender_url,
            http_timeout=http_timeout,
            qps=qps or self._qps,
        )
        self._add_scheduler(PROFILE, config, free_ports(1)[0])
        self.start(PROFILE)
        return self._processes[PROFILE]

    def stop_scheduler(self) -> None:
        """Stop kvaware's kube-scheduler; harmless when it does not run."""
        if PROFILE in self._processes:
            self.stop(PROFILE)

    # -- the test's hand --------------------------------------------------------------------------------------------

    def kubectl(
        self,
        *arguments: str,
        input: str | None = None,  # noqa: A002  as subprocess.run names it
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as admin.

        Raises: AssertionError with kubectl's own words when it fails and ``check`` is set.
        """
        done = subprocess.run(
            [str(self.binaries["kubectl"]), f"--kubeconfig={self.admin_kubeconfig}", *arguments],
            input=input,
            capture_output=True,
            text=True,
            check=False,
            # HOME: kubectl keeps a discovery cache there by host and port, and ports come again in the next run.
            env={**os.environ, "HOME": str(self.folder)},
        )
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def get_json(self, *arguments: str) -> Any:
        """Return what ``kubectl get … -o json`` answers."""
        return json.loads(self.kubectl("get", *arguments, "-o", "json").stdout)

    def read(self, path: str) -> Any:
        """Return the JSON of a GET on the API server, as admin: some ms, where kubectl takes a tenth of a second.

        Raises: AssertionError with the API server's words.
        """
        request = urllib.request.Request(f"{self.api_url}{path}")  # noqa: S310  own URL
        try:
            with urllib.request.urlopen(request, timeout=10, context=self._admin_tls) as reply:  # noqa: S310  own URL
                return json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"GET {path}: {error.code} {error.read(500)!r}") from error
        except OSError as error:
            raise AssertionError(f"GET {path}: {error}") from error

    def apply_file(self, path: Path) -> None:
        """Server-side apply of a YAML file or folder."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(path))

    def apply_text(self, text: str) -> None:
        """Server-side apply of YAML."""
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", input=text)

    def apply(self, *manifests: Mapping[str, Any]) -> None:
        """Server-side apply of manifests; the status is not among what apply changes."""
        self.apply_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)}))

    def create(self, *manifests: Mapping[str, Any]) -> None:
        """Create manifests as they are; a Node's status is kept."""
        content = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(manifests)})
        self.kubectl("create", "--validate=false", "-f", "-", input=content)

    def add_nodes(self, nodes: Sequence[Mapping[str, Any]], *, timeout_s: float = 60.0) -> None:
        """Create nodes (``kwok_node``) and wait until they are Ready and carry no taint of the node's life cycle."""
        create_all(f"{self.api_url}/api/v1/nodes", nodes, tls=self._admin_tls)
        names = {node["metadata"]["name"] for node in nodes}

        def all_usable() -> bool:
            items = json.loads(self.kubectl("get", "--raw", "/api/v1/nodes?resourceVersion=0").stdout)["items"]
            waiting = names - {item["metadata"]["name"] for item in items if _usable(item)}
            assert not waiting, f"{len(waiting)} nodes are not usable, such as {min(waiting)}"
            return True

        eventually(all_usable, timeout_s, f"{len(names)} nodes are Ready and untainted")

    def service_account_kubeconfig(self, namespace: str, name: str, *, server: str | None = None) -> Path:
        """Return a kubeconfig with a fresh token of a ServiceAccount.

        ``server`` is another URL for the API server, such as a proxy's; None: its own.
        """
        token = self.kubectl("create", "token", "-n", namespace, name, f"--duration={_TOKEN_LIFE}").stdout.strip()
        suffix = "" if server is None else f".{server.rsplit(':', 1)[-1]}"
        path = self.folder / f"{namespace}.{name}{suffix}.kubeconfig"
        self._write_kubeconfig(path, token_user(token), server=server)
        return path

    # -- the parts --------------------------------------------------------------------------------------------------

    def _write_keys(self) -> None:
        self.ca_file.write_bytes(self._authority.certificate)
        self._authority.issue("127.0.0.1", serves_loopback=True).write(self.folder, "server")
        token_key_pair().write(self.folder, "tokens")
        for name, user, group in (
            ("admin", "admin", "system:masters"),
            ("kube-scheduler", "system:kube-scheduler", None),
            ("kube-controller-manager", "system:kube-controller-manager", None),
        ):
            pair = self._authority.issue(user, organization=group)
            pair.write(self.folder, name)
            self._write_kubeconfig(self.folder / f"{name}.kubeconfig", certificate_user(pair))
        self._admin_tls = ssl.create_default_context(cafile=self.ca_file)
        self._admin_tls.load_cert_chain(self.folder / "admin.crt", self.folder / "admin.key")

    def _write_kubeconfig(self, path: Path, user: Mapping[str, str], *, server: str | None = None) -> None:
        path.touch(mode=0o600)
        path.write_text(
            render_kubeconfig(server=server or self.api_url, authority=self._authority.certificate, user=user), "utf-8"
        )

    def _add(self, name: str, program: str, arguments: Sequence[str], ready_url: str) -> None:
        self._processes[name] = Process(
            name,
            [self.binaries[program], *arguments],
            log=self.folder / f"{name}.log",
            ready_url=ready_url,
            tls=self._tls if ready_url.startswith("https:") else None,
            environ={**os.environ, "HOME": str(self.folder)},
        )

    def _serving(self, port: int) -> list[str]:
        certificate, key = self.serving_certificate
        return [
            "--bind-address=127.0.0.1",
            f"--secure-port={port}",
            f"--tls-cert-file={certificate}",
            f"--tls-private-key-file={key}",
        ]

    def _with_gates(self, arguments: list[str]) -> list[str]:
        return [*arguments, f"--feature-gates={self._gates}"] if self._gates else arguments

    def _add_etcd(self, port: int, peer_port: int) -> None:
        url = f"http://127.0.0.1:{port}"
        arguments = [
            f"--data-dir={self.folder / 'etcd'}",
            f"--listen-client-urls={url}",
            f"--advertise-client-urls={url}",
            f"--listen-peer-urls=http://127.0.0.1:{peer_port}",
            "--unsafe-no-fsync",  # a lost machine loses the test anyway; without it a slow disk slows every write
            "--log-level=warn",
        ]
        self._add("etcd", "etcd", arguments, f"{url}/health")

    def _add_api_server(self, port: int, etcd_port: int) -> None:
        arguments = [
            *self._serving(port),
            f"--etcd-servers=http://127.0.0.1:{etcd_port}",
            "--service-cluster-ip-range=10.0.0.0/24",
            "--authorization-mode=RBAC",
            f"--client-ca-file={self.ca_file}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={self.folder / 'tokens.crt'}",
            f"--service-account-signing-key-file={self.folder / 'tokens.key'}",
            "--allow-privileged=true",
            "--endpoint-reconciler-type=none",
            # It would refuse pods until the controller manager has made the namespace's account, and mount tokens that
            # nobody reads: under kwok no container runs.
            "--disable-admission-plugins=ServiceAccount",
        ]
        if self._runtime_config:
            arguments.append(f"--runtime-config={self._runtime_config}")
        self._add("kube-apiserver", "kube-apiserver", self._with_gates(arguments), f"{self.api_url}/readyz")

    def _add_controller_manager(self, port: int) -> None:
        arguments = [
            *self._serving(port),
            f"--kubeconfig={self.folder / 'kube-controller-manager.kubeconfig'}",
            f"--root-ca-file={self.ca_file}",
            f"--service-account-private-key-file={self.folder / 'tokens.key'}",
            "--use-service-account-credentials=true",  # without it nobody may take the not-ready taint off new nodes
            "--leader-elect=false",
            # kwok renews a node's status every 5 to 10 minutes and no lease: by the default of 50 s every node and pod
            # would be NotReady in the middle of a test, and kwok never makes such a pod Ready again.
            "--node-monitor-grace-period=1h",
            f"--kube-api-qps={self._qps:g}",
            f"--kube-api-burst={2 * self._qps:g}",
        ]
        name = "kube-controller-manager"
        self._add(name, name, self._with_gates(arguments), f"https://127.0.0.1:{port}/healthz")

    def _add_scheduler(self, name: str, config: str, port: int) -> None:
        path = self.folder / f"{name}.yaml"
        path.write_text(config, "utf-8")
        arguments = [
            *self._serving(port),
            f"--config={path}",
            "--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
        ]
        self._add(name, "kube-scheduler", self._with_gates(arguments), f"https://127.0.0.1:{port}/readyz")

    def _add_kwok(self, port: int) -> None:
        arguments = [
            f"--kubeconfig={self.service_account_kubeconfig('kwok-system', 'kwok')}",
            f"--config={_MANIFESTS / 'kwok-stages.yaml'}",
            "--manage-all-nodes=true",
            "--node-ip=127.0.0.1",
            f"--server-address=127.0.0.1:{port}",
        ]
        self._add("kwok", "kwok", arguments, f"http://127.0.0.1:{port}/healthz")


def _usable(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    # Other taints may be part of the test; these two are the node controller's.
    waiting = {"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"}
    return ready and not any(taint["key"] in waiting for taint in node.get("spec", {}).get("taints", ()))
