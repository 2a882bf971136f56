"""Whatever happens on the API's side, in whatever order, the store ends as the server's list is."""

import asyncio

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvaware_cluster import Kind, Store
from kvaware_testing.fake_api import FakeApi, raw_pod
from kvaware_testing.store_harness import QUICK, FakeClock, Recorder, connected, eventually, running

NAMES = st.sampled_from(["p-0", "p-1", "p-2", "p-3"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), NAMES),
        st.tuples(st.just("bind"), NAMES),
        st.tuples(st.just("strip"), NAMES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("replace"), NAMES),
        st.tuples(st.sampled_from(["cut", "end", "compact", "bookmark", "hide", "show", "restart", "wait"])),
    ),
    max_size=25,
)


async def carry_out(api: FakeApi, step: tuple[str, ...]) -> None:
    name = step[-1]
    present = ("ml", name) in api.objects["pod"]
    match step[0]:
        case "put":
            await api.put("pod", raw_pod(name))
        case "bind":
            await api.put("pod", raw_pod(name, node="n1"))
        case "strip":
            await api.put("pod", raw_pod(name, gpus=0))  # it asks for no GPU any more: not observed
        case "delete" if present:
            await api.delete("pod", "ml", name)
        case "replace" if present:
            await api.delete("pod", "ml", name)
            await api.put("pod", raw_pod(name))
        case "cut":
            api.cut("pod")
        case "end":
            await api.end_watches("pod")
        case "compact":
            await api.compact()
        case "bookmark":
            await api.bookmark("pod")
        case "hide":
            api.hidden.add("pod")
            await api.end_watches("pod")
        case "show":
            api.hidden.clear()
        case "restart":
            await api.stop()
            await api.start()
        case "wait" if "pod" not in api.hidden:
            await eventually(lambda: api.watching("pod") == 1)
        case _:
            pass


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, as_event=st.booleans())
def test_the_store_ends_as_the_servers_list(steps: list[tuple[str, ...]], *, as_event: bool):
    """Project-HAMi/HAMi#2923 in general: booked state equals what a fresh list gives, after every sequence."""

    async def play() -> None:
        async with FakeApi.serve() as api, connected(api, page_size=2) as source:
            api.gone_as_event = as_event
            recorder = Recorder()
            store = Store(source, settings=QUICK, clock=FakeClock())
            store.subscribe(recorder)
            async with running(store):
                for step in steps:
                    await carry_out(api, step)
                api.hidden.clear()
                expected = {
                    name: (raw["metadata"]["uid"], raw["spec"].get("nodeName"))
                    for (_, name), raw in api.objects["pod"].items()
                    if raw["spec"]["containers"][0]["resources"]
                }

                def seen() -> dict[str, tuple[str, str | None]]:
                    return {key.name: (pod.uid, pod.node) for key, pod in store.objects(Kind.POD).items()}

                await eventually(lambda: store.synced() and seen() == expected)
                told = {key.name: pod.uid for (kind, key), pod in recorder.view.items() if kind == Kind.POD}
                assert told == {name: uid for name, (uid, _) in expected.items()}

    asyncio.run(play())
