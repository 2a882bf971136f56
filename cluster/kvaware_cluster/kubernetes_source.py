"""The API server as a source: raw JSON, never the typed models of ``kubernetes.aio``.

A V1Pod costs 0.4 ms and 42 KB, so 40,000 pods would be 16 s and 1.6 GB.
"""

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp

from kvaware_cluster.credentials import load_configuration
from kvaware_cluster.errors import NotFoundError, WorkerError
from kvaware_cluster.kubernetes_http import KubernetesHttp, pod_path, read_up_to
from kvaware_cluster.list_watch import list_pages, watch
from kvaware_cluster.settings import KubernetesSettings
from kvaware_cluster.source import ExporterTarget, Kind, ListPage, RawObject, WatchEvent
from kvaware_crds.names import GROUP, VERSION

if TYPE_CHECKING:
    from kubernetes.aio.client.configuration import Configuration

__all__ = ["PATHS", "KubernetesSource"]

PATHS: Final[Mapping[Kind, str]] = {
    Kind.NODE: "/api/v1/nodes",
    Kind.POD: "/api/v1/pods",
    Kind.INFERENCE_MODEL: f"/apis/{GROUP}/{VERSION}/inferencemodels",
    Kind.KV_CACHE_BLOCK_GROUP: f"/apis/{GROUP}/{VERSION}/kvcacheblockgroups",
    Kind.TENANT_QUOTA: f"/apis/{GROUP}/{VERSION}/tenantquotas",
    Kind.AUTOSCALER: "/apis/autoscaling/v2/horizontalpodautoscalers",
}


class KubernetesSource:
    """Lists, watches and writes through the API server. One per event loop.

    A ``Source``. Made by ``connect``, or directly from a ``kubernetes.aio`` Configuration.
    """

    def __init__(
        self,
        configuration: "Configuration",
        *,
        settings: KubernetesSettings | None = None,
        rng: random.Random | None = None,
    ) -> None:
        self.http = KubernetesHttp(configuration, settings=settings)
        """Its connections, for what else this process asks the API server; closed with the source."""
        self._settings = self.http.settings
        self._rng = rng or random.Random()  # noqa: S311  # jitter, not a secret

    @classmethod
    async def connect(
        cls,
        *,
        kubeconfig: str | None = None,
        context: str | None = None,
        settings: KubernetesSettings | None = None,
        rng: random.Random | None = None,
    ) -> Self:
        """Read credentials: of the given kubeconfig, else of the service account, else of the user's kubeconfig.

        Raises: ConfigError when there are none or they cannot be used.
        """
        return cls(await load_configuration(kubeconfig=kubeconfig, context=context), settings=settings, rng=rng)

    def list_pages(self, kind: Kind) -> AsyncGenerator[ListPage, None]:
        """See ``Source``. Each page has its own time limit."""
        return list_pages(self.http, PATHS[kind], what=kind)

    def watch(self, kind: Kind, resource_version: str) -> AsyncGenerator[WatchEvent, None]:
        """See ``Source``. Ends when the server has closed the stream at its time-out."""
        return watch(self.http, PATHS[kind], resource_version, what=kind, rng=self._rng)

    async def get_pod(self, namespace: str, name: str) -> RawObject | None:
        """See ``Source``."""
        try:
            return await self.http.read(pod_path(namespace, name), what=f"read of pod {namespace}/{name}")
        except NotFoundError:
            return None

    async def bind(self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str]) -> None:
        """See ``Source``. The API server refuses another UID and writes the annotations into the pod with the node."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": uid, "annotations": dict(annotations)},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self.http.write(
            "POST",
            f"{pod_path(namespace, name)}/binding",
            body,
            what=f"binding of pod {namespace}/{name} to {node}",
        )

    async def patch_pod_condition(self, *, namespace: str, name: str, uid: str, condition: Mapping[str, Any]) -> None:
        """See ``Source``. A UID in the patch is a precondition; conditions merge by their type."""
        await self.http.write(
            "PATCH",
            f"{pod_path(namespace, name)}/status",
            {"metadata": {"uid": uid}, "status": {"conditions": [dict(condition)]}},
            content_type="application/strategic-merge-patch+json",
            what=f"condition {condition.get('type')} of pod {namespace}/{name}",
        )

    async def read_exporter(self, target: ExporterTarget) -> str:
        """See ``Source``. Plain HTTP without our credentials: the exporter is somebody else's program."""
        limit = self._settings.exporter_body_bytes
        try:
            async with (
                asyncio.timeout(self._settings.exporter_timeout_s),
                aiohttp.ClientSession(trust_env=False) as session,
                session.get(f"http://{target.address}/metrics", allow_redirects=False) as response,
            ):
                body = await read_up_to(response.content, limit + 1)
                if response.status != 200 or len(body) > limit:
                    raise WorkerError(
                        f"exporter of node {target.node}: expected 200 and at most {limit} bytes, "
                        f"got {response.status} and {len(body)} bytes"
                    )
                return body.decode(errors="replace")
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            raise WorkerError(f"exporter of node {target.node}: no answer: {type(error).__name__}") from error

    async def close(self) -> None:
        """See ``Source``."""
        await self.http.close()
