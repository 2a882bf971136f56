"""Which kinds the API server serves: kind → path, scope and whether it can be scaled. Asked for once in a while.

What is named in specs and is not there costs nothing of its own: one list of all API versions answers for all of it.
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kvaware_cluster.errors import NotFoundError, ScaleTargetError
from kvaware_cluster.kubernetes_http import KubernetesHttp
from kvaware_cluster.settings import DiscoverySettings
from kvaware_cluster.source import RawObject
from kvaware_cluster.workloads import WorkloadKind
from kvaware_crds.errors import UpstreamError

__all__ = ["Discovery", "ServedKind"]

API_VERSION: Final = re.compile(r"(?:(?P<group>[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?)/)?(?P<version>v[a-z0-9]{1,62})")
"""``v1``, ``apps/v1``. It comes out of a spec and becomes a part of a path."""
MAX_API_VERSIONS: Final = 1000
"""Kept at a time, of those that are served: more than any API server has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedKind:
    """One kind as the API server serves it."""

    path: str
    """Of all its objects in all namespaces: ``/apis/apps/v1/deployments``."""
    namespaced: bool
    scalable: bool
    """Whether it has the subresource ``scale``."""


@dataclass(slots=True)
class _Versions:
    """All API versions under ``/api`` or ``/apis``."""

    names: frozenset[str] = frozenset()
    asked_at_s: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(slots=True)
class _Served:
    kinds: Mapping[str, ServedKind] | None = None
    """None: the API version is not served."""
    asked_at_s: float | None = None
    asking: asyncio.Lock = field(default_factory=asyncio.Lock)


class Discovery:
    """One API server's kinds, kept per API version. One per event loop."""

    def __init__(
        self, http: KubernetesHttp, *, settings: DiscoverySettings | None = None, clock: Callable[[], float]
    ) -> None:
        self._http = http
        self._settings = settings or DiscoverySettings()
        self._clock = clock
        self._served: dict[str, _Served] = {}
        self._versions = {"/api": _Versions(), "/apis": _Versions()}

    async def served(self, kind: WorkloadKind, *, doubted: bool = False) -> ServedKind | None:
        """The kind as it is served, at most ``ttl_s`` ago; None when it is not.

        What is not there is looked for again after ``absent_ttl_s``, and so is a kind that the caller doubts because a
        path of it was answered 404.
        Raises: UpstreamError, ClusterApiError when the API server cannot be asked.
        """
        match = API_VERSION.fullmatch(kind.api_version)
        if match is None:
            return None
        root = "/apis" if match["group"] else "/api"
        known = self._served.get(kind.api_version)
        if (known is None or known.kinds is None) and kind.api_version not in await self._listed(root):
            return None
        known = self._of(kind.api_version)
        async with known.asking:  # of a thousand objects that want the same, one asks
            found = (known.kinds or {}).get(kind.kind)
            sure = found is not None and found.namespaced and found.scalable and not doubted
            if self._older(known.asked_at_s, self._settings.ttl_s if sure else self._settings.absent_ttl_s):
                known.kinds = await self._ask(f"{root}/{kind.api_version}")
                known.asked_at_s = self._clock()
            return (known.kinds or {}).get(kind.kind)

    async def scalable(self, kind: WorkloadKind, *, doubted: bool = False) -> ServedKind:
        """The kind, which has namespaces and a scale.

        Raises: ScaleTargetError that says what is missing; as ``served``.
        """
        found = await self.served(kind, doubted=doubted)
        named = f"{kind.api_version} {kind.kind}"[:400]
        if found is None:
            raise ScaleTargetError(f"expected a kind that the API server serves, it has no {named}")
        if not found.namespaced:
            raise ScaleTargetError(f"expected a kind with namespaces, {named} is cluster-scoped")
        if not found.scalable:
            raise ScaleTargetError(f"expected a kind with the subresource scale, {named} has none")
        return found

    def _of(self, api_version: str) -> _Served:
        known = self._served.get(api_version)
        if known is None:
            if len(self._served) >= MAX_API_VERSIONS:
                self._served.pop(next(iter(self._served)))  # the oldest; who needs it asks again
            known = self._served[api_version] = _Served()
        return known

    def _older(self, asked_at_s: float | None, limit_s: float) -> bool:
        return asked_at_s is None or self._clock() - asked_at_s >= limit_s

    async def _listed(self, root: str) -> frozenset[str]:
        """Every API version below ``root``, as of at most ``absent_ttl_s`` ago."""
        versions = self._versions[root]
        async with versions.asking:
            if self._older(versions.asked_at_s, self._settings.absent_ttl_s):
                what = f"discovery of {root}"
                try:
                    answer = await self._http.read(root, what=what)
                except NotFoundError as error:  # not to be taken for a workload that is not there
                    raise UpstreamError(f"{what}: expected a list of API versions, it is not served") from error
                versions.names = _version_names(root, answer, what=what)
                versions.asked_at_s = self._clock()
            return versions.names

    async def _ask(self, prefix: str) -> Mapping[str, ServedKind] | None:
        what = f"discovery of {prefix}"
        try:
            answer = await self._http.read(prefix, what=what)
        except NotFoundError:
            return None
        resources = answer.get("resources")
        if type(resources) is not list:
            raise UpstreamError(f"{what}: expected a list of resources, got {type(resources).__name__}")
        return _kinds(prefix, resources)


def _version_names(root: str, answer: RawObject, *, what: str) -> frozenset[str]:
    if root == "/api":
        named = answer.get("versions")
        if type(named) is not list:
            raise UpstreamError(f"{what}: expected a list of versions, got {type(named).__name__}")
        return frozenset(each for each in named if type(each) is str)
    groups = answer.get("groups")
    if type(groups) is not list:
        raise UpstreamError(f"{what}: expected a list of groups, got {type(groups).__name__}")
    listed = [group.get("versions") for group in groups if type(group) is dict]
    entries = [each for versions in listed if type(versions) is list for each in versions if type(each) is dict]
    return frozenset(name for each in entries if type(name := each.get("groupVersion")) is str)


def _kinds(prefix: str, resources: list[Any]) -> dict[str, ServedKind]:
    named = [each for each in resources if type(each) is dict and type(each.get("name")) is str]
    names = {each["name"] for each in named}
    return {
        str(each.get("kind")): ServedKind(
            path=f"{prefix}/{each['name']}",
            namespaced=each.get("namespaced") is True,
            scalable=f"{each['name']}/scale" in names,
        )
        for each in named
        if "/" not in each["name"]
    }
