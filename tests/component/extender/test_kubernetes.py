"""The extender over the real Kubernetes client, against an API server that breaks on request."""

from kvaware_testing.extender_harness import serving
from kvaware_testing.fake_api import FakeApi, raw_node, raw_pod
from kvaware_testing.store_harness import connected, eventually


async def test_a_binding_whose_answer_is_late_is_a_success_the_second_time():
    """kubernetes#96579, over HTTP: the server binds the pod and answers after our deadline."""
    async with FakeApi.serve() as api, connected(api) as source:
        await api.put("node", raw_node("n1", gpus=1))
        pod = await api.put("pod", raw_pod("p"))
        async with serving(source, bind_timeout_s=0.1) as caller:
            await caller.until_seen(pod)
            api.write_delay_s = 0.2
            assert "did not say in time" in await caller.bind(pod, "n1")
            assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
            api.write_delay_s = 0.0
            assert await caller.bind(pod, "n1") == ""
            assert caller.extender.engine.holder(pod["metadata"]["uid"]) == ("n1",)
        assert api.objects["pod"]["ml", "p"]["spec"]["nodeName"] == "n1"


async def test_what_is_booked_after_trouble_is_what_a_fresh_process_computes():
    """Project-HAMi/HAMi#2923: bind, cut the watch, delete and re-create under the same name, resume with 410."""
    async with FakeApi.serve() as api, connected(api) as source:
        await api.put("node", raw_node("n1", gpus=8))
        first = await api.put("pod", raw_pod("p-0", gpus=8))
        async with serving(source) as caller:
            await caller.until_seen(first)
            assert await caller.bind(first, "n1") == ""
            api.cut("pod")
            await api.delete("pod", "ml", "p-0")
            second = await api.put("pod", raw_pod("p-0", gpus=8))
            await api.compact()
            await caller.until_seen(second)
            _, nodes = await caller.get("/v1/nodes")
            assert caller.extender.engine.holder(first["metadata"]["uid"]) == ()
            assert await caller.bind(second, "n1") == ""
            await eventually(lambda: caller.extender.store.pod("ml", "p-0").node == "n1")
            _, after = await caller.get("/v1/nodes")
        async with serving(source) as fresh:
            _, expected = await fresh.get("/v1/nodes")
    assert nodes["items"][0]["pools"][0]["free"] == 8
    assert after == expected
    assert expected["items"][0]["pools"][0]["free"] == 0


async def test_a_refused_pod_is_woken_by_its_status():
    async with FakeApi.serve() as api, connected(api) as source:
        await api.put("node", raw_node("n1", gpus=1))
        await api.put("pod", raw_pod("a", node="n1"))
        waiting = await api.put("pod", raw_pod("b"))
        async with serving(source) as caller:
            await caller.until_seen(waiting)
            assert (await caller.filter(waiting, "n1"))["NodeNames"] == []
            await api.delete("pod", "ml", "a")
            await eventually(lambda: bool(api.objects["pod"]["ml", "b"]["status"].get("conditions")))
    [condition] = api.objects["pod"]["ml", "b"]["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("kvaware.io/Placeable", "True")
