"""The text of ``/metrics`` is made in slices, and is the same as in one piece."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from kvaware_cluster.process_metrics import ProcessMetrics, count, gauge
from kvaware_extender.exposition import SAMPLES_AT_A_TIME, render_in_slices
from kvaware_extender.histograms import Seconds, histogram


def many(name: str, samples: int) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, 'A\nlong "one".', labels=["worker"])
    for number in range(samples):
        family.add_metric([f'w"{number}\n'], number)
    return family


@pytest.fixture
def registry() -> CollectorRegistry:
    metrics = ProcessMetrics()
    Counter("some", "Counted.", ["reason"], registry=metrics.registry).labels("x").inc()
    Histogram("took", "Time.", registry=metrics.registry).observe(0.1)
    seconds = Seconds((0.1, 1.0))
    seconds.observe(0.5)
    metrics.collect_from(
        lambda: [
            gauge("first", "One.", 1.0),
            many("long_one", 3 * SAMPLES_AT_A_TIME + 1),
            count("plain_count", "As it is.", 7),
            many("exact", SAMPLES_AT_A_TIME),
            histogram("own", "Ours.", ["model"], [(["ml/llama"], seconds)]),
            many("none", 0),
        ]
    )
    return metrics.registry


async def test_slices_say_the_same_as_one_piece(registry):
    text = await render_in_slices(registry)
    assert text == generate_latest(registry)
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    assert len(families["long_one"].samples) == 3 * SAMPLES_AT_A_TIME + 1


async def test_others_come_between_the_slices(registry):
    """A scrape of many workers must not hold up requests: so many samples, so many turns of the loop."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(others())
    await render_in_slices(registry)
    task.cancel()
    assert turns >= 4


async def test_own_histograms_are_as_the_client_librarys():
    mine, theirs = ProcessMetrics(), CollectorRegistry()
    bounds = (0.001, 0.25, 10.0)
    seconds = Seconds(bounds)
    other = Histogram("took", "Time.", ["verb"], buckets=bounds, registry=theirs).labels("place")
    for value_s in (0.0005, 0.001, 0.2, 3.0, 99.0):
        seconds.observe(value_s)
        other.observe(value_s)
    mine.collect_from(lambda: [histogram("took", "Time.", ["verb"], [(["place"], seconds)])])
    assert await render_in_slices(mine.registry) == generate_latest(theirs)


async def test_a_family_without_samples_still_says_what_it_is(registry):
    registry = ProcessMetrics()
    registry.collect_from(lambda: [HistogramMetricFamily("nobody_yet", "Of models.", labels=["model"])])
    assert b"# TYPE nobody_yet histogram" in await render_in_slices(registry.registry)
