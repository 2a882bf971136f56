"""One test's own corner of the shared control plane: a namespace, and nodes on which only its pods may run."""

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

from kvaware_testing.controlplane.eventually import eventually
from kvaware_testing.controlplane.nodes import kwok_node
from kvaware_testing.controlplane.plane import ControlPlane
from kvaware_testing.controlplane.scheduler import PROFILE

__all__ = ["GPU", "RESERVATION", "Sandbox"]

GPU: Final = "nvidia.com/gpu"
RESERVATION: Final = "kvaware.io/reservation"
OWNER_LABEL: Final = "kvaware-test/owner"
_CLUSTER_SCOPED: Final = "nodes,persistentvolumes,storageclasses,priorityclasses"


class Sandbox:
    """Everything made through it carries the owner's label and goes when it closes. A context manager."""

    def __init__(self, control_plane: ControlPlane, namespace: str) -> None:
        self.control_plane = control_plane
        self.namespace = namespace

    def __enter__(self) -> Self:
        self.control_plane.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove it all. The namespace's own end takes some 10 s more and is not waited for."""
        kubectl = self.control_plane.kubectl
        kubectl("delete", "namespace", self.namespace, "--wait=false", "--ignore-not-found")
        # One call for all pods, which kubectl would delete one after another.
        kubectl("delete", "--raw", f"/api/v1/namespaces/{self.namespace}/pods?gracePeriodSeconds=0", check=False)
        owned = ["-l", f"{OWNER_LABEL}={self.namespace}", "--wait=false"]
        kubectl("delete", _CLUSTER_SCOPED, *owned)
        kubectl("delete", "tenantquotas.kvaware.io", *owned, check=False)  # the kind is not there before its CRD

    # -- making -----------------------------------------------------------------------------------------------------

    def add_nodes(self, *names: str, **options: Any) -> list[str]:
        """Add nodes that are Ready, all alike; ``options`` are those of ``kwok_node``. Return their full names."""
        full = [self.full_name(name) for name in names]
        labels = {**self.owner, **options.pop("labels", {})}
        self.control_plane.add_nodes([kwok_node(name, labels=labels, **options) for name in full])
        return full

    def full_name(self, name: str) -> str:
        """Return a name that no other test has, for what lies outside namespaces."""
        return f"{name}-{self.namespace[-6:]}"

    @property
    def owner(self) -> dict[str, str]:
        """The label of everything outside the namespace, and the node selector of the pods."""
        return {OWNER_LABEL: self.namespace}

    def pod(self, name: str, **options: Any) -> dict[str, Any]:
        """Return a Pod; ``options`` are those of ``template``."""
        template = self.template(**options)
        metadata = {"name": name, "namespace": self.namespace, **template["metadata"]}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}

    def deployment(self, name: str, *, replicas: int, **options: Any) -> dict[str, Any]:
        """Return a Deployment; ``options`` are those of ``template``."""
        template = self.template(**options)
        template["metadata"]["labels"]["app"] = name
        spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template}
        metadata = {"name": name, "namespace": self.namespace}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}

    def template(
        self,
        *,
        gpus: int = 1,
        hbm: str | None = None,
        model: str | None = None,
        role: str | None = None,
        scheduler: str = PROFILE,
        priority_class: str | None = None,
        labels: Mapping[str, str] | None = None,
        annotations: Mapping[str, str] | None = None,
        claim: str | None = None,
        node_name: str | None = None,
        host_network: bool = False,
        service_account: str | None = None,
        cpu: str = "1",
        group: str | None = None,
    ) -> dict[str, Any]:
        """Return a pod template that runs on the sandbox's nodes only.

        ``hbm`` is the annotation ``kvaware.io/hbm-per-gpu``, ``claim`` a PersistentVolumeClaim to mount, ``node_name``
        a node to put it on without any scheduler, as another scheduler's binding would. With ``host_network`` its
        address is the node's, which kwok makes 127.0.0.1: a server of the test's own answers there. ``group`` is the
        PodGroup that the pod is placed with.
        """
        limits = {"cpu": cpu, "memory": "1Gi", **({GPU: str(gpus)} if gpus else {})}
        container: dict[str, Any] = {
            "name": "server",
            "image": "registry.invalid/server:1",
            "resources": {"limits": limits},
        }
        spec: dict[str, Any] = {
            "schedulerName": scheduler,
            "nodeSelector": self.owner,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
        }
        if priority_class is not None:
            spec["priorityClassName"] = priority_class
        if claim is not None:
            spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}]
            container["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
        if node_name is not None:
            spec["nodeName"] = node_name
        if group is not None:
            spec["schedulingGroup"] = {"podGroupName": group}
        if host_network:
            spec["hostNetwork"] = True
        if service_account is not None:
            spec["serviceAccountName"] = service_account
        named = {"kvaware.io/model": model, "kvaware.io/role": role}
        pod_labels = {key: value for key, value in named.items() if value is not None}
        hbm_annotation = {} if hbm is None else {"kvaware.io/hbm-per-gpu": hbm}
        return {
            "metadata": {
                "labels": {**pod_labels, **(labels or {})},
                "annotations": {**hbm_annotation, **(annotations or {})},
            },
            "spec": spec,
        }

    def quota(self, name: str, **limits: Any) -> dict[str, Any]:
        """Return a TenantQuota for the sandbox's namespace, such as ``quota("q", gpus=2, hbm="80Gi")``."""
        return {
            "apiVersion": "kvaware.io/v1alpha1",
            "kind": "TenantQuota",
            "metadata": {"name": self.full_name(name), "labels": self.owner},
            "spec": {"tenant": self.namespace, "namespaces": [self.namespace], "limits": limits},
        }

    def priority_class(self, name: str, value: int) -> dict[str, Any]:
        """Return a PriorityClass; its name is ``full_name(name)``."""
        return {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": self.full_name(name), "labels": self.owner},
            "value": value,
        }

    # -- looking ----------------------------------------------------------------------------------------------------

    def get_pod(self, name: str) -> dict[str, Any]:
        """Return one pod as the API server has it."""
        pod: dict[str, Any] = self.control_plane.get_json("pod", name, "-n", self.namespace)
        return pod

    def pods(self, selector: str = "") -> list[dict[str, Any]]:
        """Return the namespace's pods."""
        items: list[dict[str, Any]] = self.control_plane.get_json("pods", "-n", self.namespace, "-l", selector)["items"]
        return items

    def node_of(self, name: str) -> str | None:
        """Return the node that a pod is bound to."""
        node: str | None = self.get_pod(name)["spec"].get("nodeName")
        return node

    def wait_bound(self, name: str, *, timeout_s: float = 20.0) -> str:
        """Wait until a pod is bound; return its node."""
        try:
            return eventually(lambda: self.node_of(name), timeout_s, f"pod {name} is bound") or ""
        except AssertionError as error:
            raise AssertionError(f"{error}; its events: {self.events(name)}") from error

    def wait_refused(self, name: str, text: str, *, timeout_s: float = 20.0) -> None:
        """Wait until the pod's PodScheduled condition is False with a message that holds the text."""

        def refused() -> bool:
            pod = self.get_pod(name)
            assert "nodeName" not in pod["spec"], f"bound to {pod['spec']['nodeName']}"
            conditions = [one for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"]
            assert conditions, "no condition PodScheduled"
            message = conditions[0].get("message", "")
            assert conditions[0]["status"] == "False", conditions
            assert text in message, message
            return True

        eventually(refused, timeout_s, f"pod {name} is refused with {text!r}")

    def wait_ready(self, deployment: str, *, timeout_s: int = 30) -> None:
        """Wait until all of a Deployment's replicas are Ready."""
        self.control_plane.kubectl(
            "rollout", "status", f"deployment/{deployment}", "-n", self.namespace, f"--timeout={timeout_s}s"
        )

    def events(self, name: str) -> list[str]:
        """Return a pod's events as lines, for messages of failing tests."""
        selector = f"involvedObject.name={name}"
        items = self.control_plane.get_json("events", "-n", self.namespace, f"--field-selector={selector}")["items"]
        return [f"{item.get('reason')}: {item.get('message', item.get('note'))}" for item in items]
