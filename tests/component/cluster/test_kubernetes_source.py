import asyncio
import sys
from contextlib import aclosing
from pathlib import Path

import pytest
from kubernetes.aio.client.configuration import Configuration

from kvaware_cluster import (
    ClusterApiError,
    ConflictError,
    EventType,
    GoneError,
    Kind,
    KubernetesSettings,
    KubernetesSource,
    NotFoundError,
    ThrottledError,
)
from kvaware_cluster.kubernetes_http import settle_proxy
from kvaware_crds.errors import ConfigError, UpstreamError
from kvaware_testing.fake_api import Failure, raw_pod
from kvaware_testing.store_harness import connected, drain, eventually


async def listed(source: KubernetesSource, kind: Kind) -> list[list[str]]:
    async with aclosing(source.list_pages(kind)) as pages:
        return [[item["metadata"]["name"] async for item in _each(page.items)] async for page in pages]


async def _each(items):
    for item in items:
        yield item


async def test_lists_come_in_pages_of_one_moment(api, source):
    # given
    for number in range(7):
        await api.put("pod", raw_pod(f"p{number}"))
    # when
    pages = await listed(source, Kind.POD)
    # then
    assert pages == [["p0", "p1", "p2"], ["p3", "p4", "p5"], ["p6"]]
    assert all(query.get("limit") == "3" for _, _, query, _ in api.requests)


async def test_every_kind_has_its_path(api, source):
    for kind in Kind:
        assert await listed(source, kind) == [[]]
    assert {path for _, path, _, _ in api.requests} == {
        "/api/v1/nodes",
        "/api/v1/pods",
        "/apis/kvaware.io/v1alpha1/inferencemodels",
        "/apis/kvaware.io/v1alpha1/kvcacheblockgroups",
        "/apis/kvaware.io/v1alpha1/tenantquotas",
        "/apis/autoscaling/v2/horizontalpodautoscalers",
    }


async def test_an_expired_continue_token_is_gone(api, source):
    for number in range(7):
        await api.put("pod", raw_pod(f"p{number}"))
    async with aclosing(source.list_pages(Kind.POD)) as pages:
        await anext(pages)
        await api.compact()
        with pytest.raises(GoneError):
            await anext(pages)


async def test_a_watch_begins_with_a_bookmark_and_then_tells_changes(api, source):
    """The first event proves that the stream is open: the view's age is counted from it."""
    await api.put("pod", raw_pod("before"))
    async with aclosing(source.watch(Kind.POD, "1")) as stream:
        first = await anext(stream)
        assert (first.type, first.object["metadata"]["resourceVersion"]) == (EventType.BOOKMARK, "1")
        await api.put("pod", raw_pod("after"))
        assert (await anext(stream)).object["metadata"]["name"] == "after"
        await api.delete("pod", "ml", "before")
        assert (await anext(stream)).type is EventType.DELETED
    query = api.requests[-1][2]
    assert query["allowWatchBookmarks"] == "true"
    assert 27 <= int(query["timeoutSeconds"]) <= 33  # 30 s and a tenth of jitter


@pytest.mark.parametrize("as_event", [False, True])
async def test_an_old_version_is_gone_as_status_and_as_event(api, source, *, as_event: bool):
    await api.put("pod", raw_pod())
    await api.compact()
    api.gone_as_event = as_event
    with pytest.raises(GoneError):
        await drain(source.watch(Kind.POD, "0"))


@pytest.mark.parametrize(
    "line",
    [
        b"{\n",
        b"[]\n",
        b'{"type":"ADDED"}\n',
        b'{"type":"ADDED","object":[]}\n',
        b'{"type":"MOVED","object":{}}\n',
        b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}\n',
        b"\xff\xfe\n",
    ],
)
async def test_an_event_that_cannot_be_read_is_an_upstream_error(api, source, line: bytes):
    api.garbage_lines["pod"] = line
    with pytest.raises(UpstreamError):
        await drain(source.watch(Kind.POD, "0"))


async def test_a_cut_watch_is_an_upstream_error_not_an_end(api, source):
    """A clean end proves freshness; a cut must not."""
    async with aclosing(source.watch(Kind.POD, "0")) as stream:
        await anext(stream)
        api.cut("pod")
        with pytest.raises(UpstreamError):
            await anext(stream)


async def test_a_watch_that_ends_in_order_just_ends(api, source):
    async with aclosing(source.watch(Kind.POD, "0")) as stream:
        await anext(stream)
        await api.end_watches("pod")
        with pytest.raises(StopAsyncIteration):
            await anext(stream)


async def test_a_silent_watch_is_given_up_after_its_grace(api):
    """A peer that vanished sends no reset: without a limit of ours the watch would hang for ever."""
    api.watch_limit_s = 60.0
    async with connected(api, watch_timeout_s=0.01, watch_grace_s=0.0) as source:
        with pytest.raises(UpstreamError, match="in time"):  # timeoutSeconds is at least 1
            await drain(source.watch(Kind.POD, "0"))


async def test_a_slow_list_is_given_up(api):
    api.read_gate.clear()
    async with connected(api, request_timeout_s=0.05) as source:
        with pytest.raises(UpstreamError, match="in time"):
            await listed(source, Kind.POD)
    api.read_gate.set()


async def test_answers_become_errors_with_their_fields(api, source):
    api.hidden.add("tenantquota")
    with pytest.raises(NotFoundError):
        await listed(source, Kind.TENANT_QUOTA)
    api.forbidden.add("node")
    with pytest.raises(ClusterApiError) as forbidden:
        await listed(source, Kind.NODE)
    assert (forbidden.value.status, forbidden.value.reason) == (403, "Forbidden")
    api.failures["pod"] = Failure(429, {"Retry-After": "7"})
    with pytest.raises(ThrottledError) as throttled:
        await listed(source, Kind.POD)
    assert throttled.value.retry_after_s == 7.0


async def test_a_list_that_is_none_is_an_upstream_error(api, source):
    api.failures["pod"] = Failure(200, body={"items": "x", "metadata": {}})
    with pytest.raises(UpstreamError, match="list of pod"):
        await listed(source, Kind.POD)


async def test_bind_assigns_and_annotates_in_one_write(api, source):
    pod = await api.put("pod", raw_pod(annotations={"mine": "stays"}))
    await source.bind(
        namespace="ml",
        name="p1",
        uid=pod["metadata"]["uid"],
        node="n1",
        annotations={"kvaware.io/reservation": "{}"},
    )
    bound = await source.get_pod("ml", "p1")
    assert bound is not None
    assert bound["spec"]["nodeName"] == "n1"
    assert bound["metadata"]["annotations"] == {"mine": "stays", "kvaware.io/reservation": "{}"}


async def test_bind_refuses_another_uid_a_bound_pod_and_a_missing_one(api, source):
    pod = await api.put("pod", raw_pod())
    uid = pod["metadata"]["uid"]

    async def bind(name: str = "p1", uid: str = uid) -> None:
        await source.bind(namespace="ml", name=name, uid=uid, node="n1", annotations={})

    with pytest.raises(ConflictError):
        await bind(uid="another")
    with pytest.raises(NotFoundError):
        await bind(name="p2")
    await bind()
    with pytest.raises(ConflictError):
        await bind()
    assert api.objects["pod"]["ml", "p1"]["spec"]["nodeName"] == "n1"


async def test_a_bind_that_is_not_answered_in_time_is_in_doubt(api):
    """kubernetes/kubernetes#96579: the binding happened; only the answer is missing."""
    pod = await api.put("pod", raw_pod())
    api.write_delay_s = 5.0
    async with connected(api, write_timeout_s=0.2) as source:
        await source.get_pod("ml", "p1")  # the first call also opens the session
        with pytest.raises(UpstreamError) as doubt:
            await source.bind(namespace="ml", name="p1", uid=pod["metadata"]["uid"], node="n1", annotations={})
    assert not isinstance(doubt.value, ClusterApiError)
    await eventually(lambda: "nodeName" in api.objects["pod"]["ml", "p1"]["spec"])
    assert api.objects["pod"]["ml", "p1"]["spec"]["nodeName"] == "n1"


async def test_a_condition_is_set_by_type_and_only_on_the_same_uid(api, source):
    conditions = [{"type": "PodScheduled", "status": "False"}]
    pod = await api.put("pod", raw_pod(conditions=conditions))
    condition = {"type": "kvaware.io/Placeable", "status": "True", "reason": "HBMFreed", "message": ""}
    await source.patch_pod_condition(namespace="ml", name="p1", uid=pod["metadata"]["uid"], condition=condition)
    assert api.objects["pod"]["ml", "p1"]["status"]["conditions"] == [*conditions, condition]
    with pytest.raises(ConflictError):
        await source.patch_pod_condition(namespace="ml", name="p1", uid="another", condition=condition)


async def test_a_pod_that_is_not_there_is_none(source):
    assert await source.get_pod("ml", "nobody") is None


async def test_names_from_outside_stay_inside_their_path(api, source):
    """A pod's name is checked by nobody before a bind request reaches us."""
    assert await source.get_pod("ml", "../../../nodes?x=") is None
    assert all(not path.startswith("/api/v1/nodes") for _, path, _, _ in api.requests)


async def test_a_server_that_is_not_there_is_an_upstream_error():
    source = KubernetesSource(Configuration(host="http://127.0.0.1:1"))
    with pytest.raises(UpstreamError):
        await listed(source, Kind.POD)
    await source.close()


async def test_the_token_is_asked_for_before_every_request(api):
    """Service account tokens are replaced every hour; a token read once would end as 401."""
    configuration = Configuration(host=api.url)
    configuration.api_key["BearerToken"] = "Bearer one"
    asked = 0

    def refresh(present: Configuration) -> None:
        nonlocal asked
        asked += 1
        present.api_key["BearerToken"] = f"Bearer {asked}"

    configuration.refresh_api_key_hook = refresh
    source = KubernetesSource(configuration)
    await listed(source, Kind.NODE)
    await listed(source, Kind.NODE)
    await source.close()
    assert [headers["authorization"] for *_, headers in api.requests] == ["Bearer 1", "Bearer 2"]


KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: test
clusters: [{{name: c, cluster: {{server: "{url}"}}}}]
users: [{{name: u, user: {{token: secret}}}}]
contexts: [{{name: test, context: {{cluster: c, user: u}}}}]
"""


async def test_connect_reads_a_kubeconfig(api, tmp_path: Path):
    path = tmp_path / "config"
    path.write_text(KUBECONFIG.format(url=api.url))
    source = await KubernetesSource.connect(kubeconfig=str(path))
    await listed(source, Kind.NODE)
    await source.close()
    assert api.requests[0][3]["authorization"] == "Bearer secret"


@pytest.mark.parametrize("text", ["", "[]", "current-context: nowhere\ncontexts: []\n", "{"])
async def test_an_unusable_kubeconfig_is_a_config_error(tmp_path: Path, text: str):
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError, match="config"):
        await KubernetesSource.connect(kubeconfig=str(path))
    with pytest.raises(ConfigError, match="missing"):
        await KubernetesSource.connect(kubeconfig=str(tmp_path / "missing"))


async def test_connections_are_closed_with_the_source(api):
    source = KubernetesSource(Configuration(host=api.url), settings=KubernetesSettings())
    await source.close()
    await listed(source, Kind.NODE)
    await source.close()
    await source.close()


async def test_importing_the_room_does_not_load_the_kubernetes_client():
    """It costs 0.7 s and 20 MB, which a demo on a folder of YAML need not pay."""
    code = "import sys, kvaware_cluster; sys.exit('kubernetes' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


@pytest.mark.parametrize(
    ("environment", "proxy"),
    [
        pytest.param({}, None, id="no proxy"),
        pytest.param({"http_proxy": "http://proxy.test:3128"}, "http://proxy.test:3128", id="the environment's"),
        pytest.param({"http_proxy": "http://proxy.test:3128", "no_proxy": "api.test"}, None, id="not for this host"),
    ],
)
def test_the_environments_proxy_is_looked_up_once(monkeypatch, environment, proxy):
    """Left to the session, each request would ask a thread for it."""
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    configuration = Configuration()
    configuration.host, configuration.proxy = "http://api.test:8080", None
    settle_proxy(configuration)
    assert configuration.proxy == proxy
    assert configuration.client_session_kwargs == {"trust_env": False}
