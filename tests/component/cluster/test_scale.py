import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kvaware_cluster import (
    ClusterApiError,
    ConflictError,
    DiscoverySettings,
    KubernetesApi,
    KubernetesSource,
    NotFoundError,
    ScaleTarget,
    ScaleTargetError,
)
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_testing.fake_api import Failure, FakeApi
from kvaware_testing.fake_objects import FakeKind, raw_workload
from kvaware_testing.store_harness import FakeClock, connected

LLAMA = ScaleTarget("apps/v1", "Deployment", "ml", "llama")


@pytest.fixture
async def cluster(source: KubernetesSource, clock: FakeClock) -> KubernetesApi:
    return KubernetesApi(source.http, clock=clock, settings=DiscoverySettings(ttl_s=300, absent_ttl_s=10))


def asked(api: FakeApi, path: str) -> int:
    return sum(each == path for _, each, *_ in api.requests)


async def test_a_scale_is_read_as_it_stands(api, cluster):
    await api.put("deployment", raw_workload(replicas=3, running=2, selector={"app": "llama", "tier": "gpu"}))
    scale = await cluster.read_scale(LLAMA)
    stored = api.objects["deployment"]["ml", "llama"]["metadata"]
    assert (scale.replicas, scale.current_replicas) == (3, 2)
    assert scale.selector == "app=llama,tier=gpu"
    assert (scale.uid, scale.resource_version) == (stored["uid"], stored["resourceVersion"])


async def test_zero_replicas_are_left_out_by_the_server_and_are_zero(api, cluster):
    await api.put("deployment", raw_workload(replicas=0))
    scale = await cluster.read_scale(LLAMA)
    assert (scale.replicas, scale.current_replicas) == (0, 0)


@pytest.mark.parametrize(
    "body",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"replicas": "3"}}, id="text"),
        pytest.param({"metadata": {"uid": "u"}, "spec": {"replicas": 3}}, id="no version"),
        pytest.param({"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": []}, id="a list"),
        pytest.param({"metadata": {"uid": "u", "resourceVersion": "1"}, "spec": {"replicas": True}}, id="true"),
    ],
)
async def test_an_answer_that_is_no_scale_is_an_upstream_error(api, cluster, body: dict[str, Any]):
    """Never read as zero replicas: that would scale a model up, or away."""
    await api.put("deployment", raw_workload())
    await cluster.read_scale(LLAMA)
    api.failures["object"] = Failure(200, body=body)
    with pytest.raises(UpstreamError, match="scale of Deployment ml/llama: expected a"):
        await cluster.read_scale(LLAMA)


async def test_a_scale_is_written_where_nothing_has_changed_since(api, cluster):
    await api.put("deployment", raw_workload(replicas=1))
    seen = await cluster.read_scale(LLAMA)
    # when
    written = await cluster.write_scale(LLAMA, replicas=4, seen=seen)
    # then
    assert api.objects["deployment"]["ml", "llama"]["spec"]["replicas"] == 4
    assert written.replicas == 4
    assert written.resource_version == api.objects["deployment"]["ml", "llama"]["metadata"]["resourceVersion"]
    method, _, query, _ = api.requests[-1]
    assert (method, query) == ("PUT", {"fieldManager": "kvaware-operator"})
    # and what was answered is good for the next write
    assert (await cluster.write_scale(LLAMA, replicas=0, seen=written)).replicas == 0


async def test_a_scale_is_not_written_over_somebody_elses_change(api, cluster):
    """Two writers of one number: who decided on what is not there any more has to look again."""
    await api.put("deployment", raw_workload(replicas=1))
    seen = await cluster.read_scale(LLAMA)
    await api.put("deployment", raw_workload(replicas=7))
    with pytest.raises(ConflictError):
        await cluster.write_scale(LLAMA, replicas=4, seen=seen)
    assert api.objects["deployment"]["ml", "llama"]["spec"]["replicas"] == 7


async def test_a_scale_is_not_written_to_another_workload_of_the_name(api, cluster):
    await api.put("deployment", raw_workload(replicas=1))
    seen = await cluster.read_scale(LLAMA)
    await api.delete("deployment", "ml", "llama")
    new = await api.put("deployment", raw_workload(replicas=2))
    with pytest.raises(ConflictError):
        await cluster.write_scale(
            LLAMA, replicas=4, seen=replace(seen, resource_version=new["metadata"]["resourceVersion"])
        )
    assert api.objects["deployment"]["ml", "llama"]["spec"]["replicas"] == 2


@pytest.mark.parametrize(
    ("target", "words"),
    [
        pytest.param(LLAMA._replace(kind="Deploymint"), "serves, it has no apps/v1 Deploymint", id="no such kind"),
        pytest.param(LLAMA._replace(api_version="apps/v9"), "no apps/v9 Deployment", id="no such version"),
        pytest.param(LLAMA._replace(api_version="lws.x/v1"), "no lws.x/v1 Deployment", id="no such group"),
        pytest.param(LLAMA._replace(api_version="../apps"), "it has no ../apps", id="no API version at all"),
        pytest.param(LLAMA._replace(api_version="a/b/v1"), "it has no a/b/v1", id="too many parts"),
        pytest.param(LLAMA._replace(api_version="v1", kind="Node"), "v1 Node is cluster-scoped", id="cluster-scoped"),
        pytest.param(LLAMA._replace(api_version="v1", kind="Pod"), "scale, v1 Pod has none", id="no scale"),
    ],
)
async def test_what_cannot_be_scaled_says_why(api, cluster, target: ScaleTarget, words: str):
    """A wrong scaleTargetRef is a condition on the model, not a failure that is tried again and again."""
    with pytest.raises(ScaleTargetError, match="expected a kind") as refused:
        await cluster.read_scale(target)
    assert words in str(refused.value)
    assert isinstance(refused.value, ConfigError)
    assert all(path.startswith("/api") and ".." not in path for _, path, *_ in api.requests)


async def test_a_workload_that_is_not_there_is_not_found(api, cluster):
    with pytest.raises(NotFoundError):
        await cluster.read_scale(LLAMA)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../kube-system/deployments/dns", "a%2Fb"])
async def test_a_name_that_is_a_step_in_a_path_is_not_found(api, cluster, name: str):
    """``scaleTargetRef.name`` is free text: it must not lead to another object's scale."""
    with pytest.raises(NotFoundError):
        await cluster.read_scale(LLAMA._replace(name=name))
    assert [path for _, path, *_ in api.requests] == ["/apis", "/apis/apps/v1"]


async def test_discovery_is_asked_once_for_many_targets(api, cluster, clock):
    """A thousand models of one kind cost a thousand reads of scales, not two thousand."""
    for number in range(5):
        await api.put("deployment", raw_workload(f"d{number}"))
        await cluster.read_scale(LLAMA._replace(name=f"d{number}"))
    assert asked(api, "/apis/apps/v1") == 1
    clock.now_s += 299
    await cluster.read_scale(LLAMA._replace(name="d0"))
    assert asked(api, "/apis/apps/v1") == 1
    clock.now_s += 1
    await cluster.read_scale(LLAMA._replace(name="d0"))
    assert asked(api, "/apis/apps/v1") == 2


async def test_many_who_ask_at_once_share_one_question(api, cluster):
    await api.put("deployment", raw_workload())
    await asyncio.gather(*(cluster.read_scale(LLAMA) for _ in range(8)))
    assert asked(api, "/apis/apps/v1") == 1


async def test_a_thousand_api_versions_that_nobody_serves_cost_one_question(api, cluster, clock):
    """Whoever may write InferenceModels names as many as they like: the API server must not pay for each."""
    targets = [
        LLAMA._replace(api_version=version) for i in range(500) for version in (f"bogus{i}.example/v1", f"v1alpha{i}")
    ]
    for _ in range(2):
        for target in targets:
            with pytest.raises(ScaleTargetError, match=f"it has no {target.api_version} Deployment"):
                await cluster.read_scale(target)
        clock.now_s += 9
    assert [path for _, path, *_ in api.requests] == ["/apis", "/api"]
    clock.now_s += 1
    with pytest.raises(ScaleTargetError):
        await cluster.read_scale(targets[0])
    assert [path for _, path, *_ in api.requests] == ["/apis", "/api", "/apis"]


async def test_an_api_version_that_is_listed_and_broken_is_no_fault_of_the_spec(api, cluster):
    """An aggregated API whose server is down is still listed."""
    with pytest.raises(ScaleTargetError):  # given: the list of versions is known
        await cluster.read_scale(LLAMA._replace(api_version="apps/v9"))
    api.failures["object"] = Failure(503, body={"reason": "ServiceUnavailable"})
    with pytest.raises(UpstreamError):
        await cluster.read_scale(LLAMA)


async def test_a_kind_that_arrives_can_be_scaled_within_its_ttl(api, cluster, clock):
    """A CRD that is installed after the model that names it; until then nobody asks more than once in 10 s."""
    target = ScaleTarget("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", "ml", "llama")
    for _ in range(3):
        with pytest.raises(ScaleTargetError):
            await cluster.read_scale(target)
    assert [path for _, path, *_ in api.requests] == ["/apis"]
    # when
    api.kinds["lws"] = FakeKind(
        api_version=target.api_version, kind=target.kind, plural="leaderworkersets", scalable=True
    )
    await api.put("lws", raw_workload(replicas=2))
    clock.now_s += 10
    # then
    assert (await cluster.read_scale(target)).replicas == 2


async def test_a_kind_that_loses_its_scale_is_noticed_when_its_path_is_gone(api, cluster, clock):
    await api.put("deployment", raw_workload())
    await cluster.read_scale(LLAMA)
    api.kinds["deployment"] = replace(api.kinds["deployment"], scalable=False)
    clock.now_s += 11
    with pytest.raises(ScaleTargetError, match="apps/v1 Deployment has none"):
        await cluster.read_scale(LLAMA)


async def test_a_missing_workload_does_not_ask_for_its_kind_each_time(api, cluster):
    for _ in range(5):
        with pytest.raises(NotFoundError):
            await cluster.read_scale(LLAMA)
    assert asked(api, "/apis/apps/v1") == 1


async def test_missing_rights_are_no_statement_about_the_kind(api, cluster):
    """403 is said as what it is; the operator's role is the fault, not the user's spec."""
    await api.put("deployment", raw_workload())
    await cluster.read_scale(LLAMA)
    api.failures["object"] = Failure(403, body={"reason": "Forbidden", "message": "cannot get deployments/scale"})
    with pytest.raises(ClusterApiError, match="cannot get deployments/scale") as forbidden:
        await cluster.read_scale(LLAMA)
    assert (forbidden.value.status, forbidden.value.reason) == (403, "Forbidden")


@pytest.mark.parametrize("body", [{}, {"resources": {}}, {"resources": None}])
async def test_a_discovery_that_cannot_be_read_is_an_upstream_error(api, cluster, body: dict[str, Any]):
    """Not: the kind is unknown, which would be told to the user as a fault of the spec."""
    await api.put("deployment", raw_workload())
    for expected in ("list of groups", "list of resources"):
        api.failures["object"] = Failure(200, body=body)
        with pytest.raises(UpstreamError, match=expected):
            await cluster.read_scale(LLAMA)
        with pytest.raises(ScaleTargetError):  # the list of versions is read now
            await cluster.read_scale(LLAMA._replace(api_version="apps/v9"))
    assert (await cluster.read_scale(LLAMA)).replicas == 1


@pytest.fixture
async def hurried(api: FakeApi, clock: FakeClock) -> AsyncIterator[KubernetesApi]:
    async with connected(api, write_timeout_s=0.2) as source:
        yield KubernetesApi(source.http, clock=clock)


async def test_a_scale_that_is_not_answered_in_time_is_in_doubt(api, hurried):
    """It was carried out; whoever reads it again finds that."""
    await api.put("deployment", raw_workload())
    seen = await hurried.read_scale(LLAMA)
    api.write_delay_s = 5.0
    with pytest.raises(UpstreamError, match="no answer in time") as doubt:
        await hurried.write_scale(LLAMA, replicas=4, seen=seen)
    assert not isinstance(doubt.value, ClusterApiError)
    assert (await hurried.read_scale(LLAMA)).replicas == 4
