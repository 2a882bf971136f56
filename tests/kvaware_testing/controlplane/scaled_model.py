"""A model, the workload that runs its pods, and the questions that tests of scaling ask about them."""

import json
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from kvaware_testing.controlplane.eventually import eventually
from kvaware_testing.controlplane.sandbox import Sandbox
from kvaware_testing.controlplane.workers_under_kwok import ModelServer

__all__ = ["COST", "SERVICE_ACCOUNT", "ScaledModel", "autoscaler", "inference_model"]

COST: Final = "controller.kubernetes.io/pod-deletion-cost"
SERVICE_ACCOUNT: Final = "model-server"
_API_VERSIONS: Final = {
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "LeaderWorkerSet": "leaderworkerset.x-k8s.io/v1",
}
_WINDOWS: Final = {"scaleUp": "0s", "scaleDown": "2s"}


def inference_model(
    name: str,
    namespace: str,
    *,
    target: tuple[str, str, str] | None = None,
    port: int | None = None,
    least: int = 1,
    most: int = 4,
    hbm: str = "40Gi",
    mode: str | None = "Auto",
    windows: Mapping[str, str] = _WINDOWS,
    **spec: Any,
) -> dict[str, Any]:
    """Return an InferenceModel with one role; ``target`` is (apiVersion, kind, name)."""
    role: dict[str, Any] = {"name": "both", "footprint": {"gpusPerPod": 1, "hbmPerGPU": hbm}}
    if target is not None:
        api_version, kind, target_name = target
        role["scaleTargetRef"] = {"apiVersion": api_version, "kind": kind, "name": target_name}
        role["replicas"] = {"min": least, "max": most}
    content: dict[str, Any] = {"modelId": f"test/{name}", "roles": [role], **spec}
    if port is not None:
        content["workers"] = {"ports": {"http": port}}
    if mode is not None:
        content["scaling"] = {"mode": mode, "windows": dict(windows)}
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": namespace},
        "spec": content,
    }


def autoscaler(name: str, namespace: str, *, target: tuple[str, str, str]) -> dict[str, Any]:
    """Return a HorizontalPodAutoscaler. It finds no metrics here, so it never scales anything itself."""
    api_version, kind, target_name = target
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": api_version, "kind": kind, "name": target_name},
            "minReplicas": 1,
            "maxReplicas": 9,
            "metrics": [
                {
                    "type": "Resource",
                    "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 80}},
                }
            ],
        },
    }


class ScaledModel:
    """One InferenceModel and its workload of the same name, in the sandbox's namespace."""

    def __init__(self, sandbox: Sandbox, name: str, *, kind: str = "Deployment", server: ModelServer) -> None:
        self.sandbox = sandbox
        self.name = name
        self.kind = kind
        self.server = server

    @property
    def target(self) -> tuple[str, str, str]:
        """The workload, as ``scaleTargetRef`` names it."""
        return _API_VERSIONS[self.kind], self.kind, self.name

    def manifest(self, **options: Any) -> dict[str, Any]:
        """The InferenceModel; ``options`` are those of ``inference_model``."""
        return inference_model(self.name, self.sandbox.namespace, target=self.target, port=self.server.port, **options)

    def workload(self, *, replicas: int) -> dict[str, Any]:
        """The workload, whose pods all answer on the model server's port."""
        made = self.sandbox.deployment(
            self.name,
            replicas=replicas,
            model=self.name,
            role="both",
            host_network=True,
            service_account=SERVICE_ACCOUNT,
        )
        if self.kind == "Deployment":
            return made
        made["apiVersion"], made["kind"], _ = self.target
        if self.kind == "StatefulSet":
            made["spec"] |= {"serviceName": self.name, "podManagementPolicy": "Parallel"}
        else:
            template = made["spec"]["template"]
            made["spec"] = {"replicas": replicas, "leaderWorkerTemplate": {"size": 1, "workerTemplate": template}}
        return made

    def start(self, *, replicas: int = 1, **options: Any) -> None:
        """Create both and wait until the pods are Ready; ``options`` are those of ``inference_model``."""
        account = {"name": SERVICE_ACCOUNT, "namespace": self.sandbox.namespace}
        self.sandbox.control_plane.apply(
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account},
            self.workload(replicas=replicas),
            self.manifest(**options),
        )
        self.wait_ready(replicas)

    # -- what is --------------------------------------------------------------------------------------------------

    def get(self) -> dict[str, Any]:
        """The InferenceModel as the API server has it."""
        found: dict[str, Any] = self._read("kvaware.io/v1alpha1", "inferencemodels", self.name)
        return found

    def wanted(self) -> int:
        """``spec.replicas`` of the workload."""
        replicas: int = self._read(_API_VERSIONS[self.kind], f"{self.kind.lower()}s", self.name)["spec"]["replicas"]
        return replicas

    def _read(self, api_version: str, plural: str, name: str) -> Any:
        return self.sandbox.control_plane.read(
            f"/apis/{api_version}/namespaces/{self.sandbox.namespace}/{plural}/{name}"
        )

    def pods(self) -> list[dict[str, Any]]:
        """The model's pods that are not being deleted."""
        selector = quote(f"kvaware.io/model={self.name}", safe="")
        path = f"/api/v1/namespaces/{self.sandbox.namespace}/pods?labelSelector={selector}"
        found = self.sandbox.control_plane.read(path)["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def pod_names(self) -> set[str]:
        """Names of those pods."""
        return {pod["metadata"]["name"] for pod in self.pods()}

    def ready(self) -> int:
        """How many of those pods are Ready."""
        return sum(1 for pod in self.pods() if _is(pod, "Ready", "True"))

    def unscheduled(self) -> int:
        """How many of those pods have no node."""
        return sum(1 for pod in self.pods() if "nodeName" not in pod["spec"])

    def costs(self) -> dict[str, str]:
        """The pods' deletion costs, by pod, where one is set."""
        return {
            pod["metadata"]["name"]: pod["metadata"]["annotations"][COST]
            for pod in self.pods()
            if COST in pod["metadata"].get("annotations", {})
        }

    def role(self) -> dict[str, Any]:
        """The role's part of the status."""
        (role,) = self.get().get("status", {}).get("roles", [{}])
        found: dict[str, Any] = role
        return found

    def figures(self) -> tuple[int | None, int | None, int | None]:
        """Desired, existing and Ready replicas of the role, as the status has them."""
        role = self.role()
        return role.get("desiredReplicas"), role.get("replicas"), role.get("readyReplicas")

    def conditions(self) -> dict[str, dict[str, Any]]:
        """The status' conditions by type."""
        return {one["type"]: one for one in self.get().get("status", {}).get("conditions", ())}

    def condition(self, type_: str) -> str:
        """``True``, ``False``, ``Unknown``, or nothing where it is not there."""
        return str(self.conditions().get(type_, {}).get("status", ""))

    # -- waiting --------------------------------------------------------------------------------------------------

    def wait_figures(self, desired: int, replicas: int, ready: int, *, timeout_s: float = 30.0) -> None:
        """Wait for what the status says."""

        def so() -> bool:
            assert self.figures() == (desired, replicas, ready), self.story()
            return True

        eventually(so, timeout_s, f"{self.name}'s status says {desired}, {replicas}, {ready}", every_s=0.3)

    def wait_ready(self, replicas: int, *, timeout_s: float = 60.0) -> None:
        """Wait until the workload wants exactly so many, and so many pods are there, all Ready."""

        def there() -> bool:
            wanted, pods, ready = self.wanted(), self.pods(), self.ready()
            assert (wanted, len(pods), ready) == (replicas, replicas, replicas), (
                f"wanted {wanted}, pods {len(pods)}, ready {ready}; {self.story()}"
            )
            return True

        eventually(there, timeout_s, f"{self.name} has {replicas} Ready replicas", every_s=0.3)

    def wait_condition(
        self, type_: str, status: str = "True", *, reason: str = "", timeout_s: float = 30.0
    ) -> dict[str, Any]:
        """Wait for a condition, of a reason where one is given; return it."""

        def so() -> dict[str, Any]:
            found = self.conditions().get(type_, {})
            assert found.get("status") == status, self.story()
            assert not reason or found["reason"] == reason, self.story()
            assert found["observedGeneration"] == self.get()["metadata"]["generation"], self.story()
            return found

        return eventually(so, timeout_s, f"{self.name} has the condition {type_}={status} {reason}", every_s=0.3)

    def story(self) -> str:
        """The status and the pods in one line, for messages of failing tests."""
        pods = {
            pod["metadata"]["name"]: pod["spec"].get("nodeName", "no node") + ("" if _is(pod, "Ready", "True") else "!")
            for pod in self.pods()
        }
        status = self.get().get("status", {})
        said = [f"{c['type']}={c['status']} {c['reason']}: {c['message']}" for c in status.get("conditions", ())]
        return json.dumps({"roles": status.get("roles"), "conditions": said, "pods": pods})


def _is(pod: Mapping[str, Any], type_: str, status: str) -> bool:
    return any(one["type"] == type_ and one["status"] == status for one in pod["status"].get("conditions", ()))
