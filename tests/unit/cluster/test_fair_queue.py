"""Places are shared between groups, and none is kept free."""

from kvaware_cluster.fair_queue import FairQueue


async def test_who_has_all_places_waits_for_those_that_have_none():
    """A namespace of slow pods took all 64 places for scrapes, and other models' loads became unknown."""
    queue: FairQueue[str, str] = FairQueue()
    for number in range(100):
        queue.put(f"slow-{number}", group="slow")
    assert [await queue.get() for _ in range(64)] == [f"slow-{number}" for number in range(64)], "nobody else waits"
    queue.put("good", group="good")
    queue.done("slow")
    assert await queue.get() == "good"


async def test_while_others_wait_nobody_has_more_than_half():
    """Of 7 places 4 are half, rounded up."""
    queue: FairQueue[str, str] = FairQueue()
    for number in range(20):
        queue.put(f"slow-{number}", group="slow")
    for number in range(20):
        queue.put(f"good-{number}", group="good")
    taken = [await queue.get() for _ in range(7)]
    assert sum(entry.startswith("slow") for entry in taken) == 4
    assert [entry for entry in taken if entry.startswith("good")] == ["good-0", "good-1", "good-2"]


async def test_equals_take_turns():
    queue: FairQueue[str, str] = FairQueue()
    for group in ("a", "b", "a", "b", "c"):
        queue.put(group, group=group)
    order = []
    for _ in range(5):
        order.append(await queue.get())
        queue.done(order[-1])
    assert order == ["a", "b", "c", "a", "b"]
