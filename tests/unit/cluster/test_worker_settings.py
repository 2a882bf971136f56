import pytest
from pydantic import TypeAdapter, ValidationError

from kvaware_cluster import WorkerScrapeSettings


def test_promised_defaults_of_the_scrape_of_workers():
    """Each changes what a cluster sees, or how late: change them knowingly."""
    settings = WorkerScrapeSettings()
    assert settings.enabled
    assert (settings.interval_s, settings.interval_jitter_ratio, settings.timeout_s) == (5.0, 0.2, 3.0)
    assert (settings.concurrency, settings.body_bytes) == (64, 4 * 2**20)
    assert (settings.missed_limit, settings.slow_after_misses_interval_s) == (3, 30.0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("interval_s", 0), ("timeout_s", -1), ("concurrency", 0), ("body_bytes", 10), ("missed_limit", 0)],
)
def test_settings_beyond_their_bounds_are_refused(field: str, value: float):
    with pytest.raises(ValidationError, match=field):
        TypeAdapter(WorkerScrapeSettings).validate_python({field: value})
