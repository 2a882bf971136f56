"""Promised defaults of what the operator uses of this room."""

from dataclasses import asdict

from kvaware_cluster import (
    DiscoverySettings,
    ExtenderClientSettings,
    LeaseTiming,
    WorkloadWatchSettings,
)


def test_the_promised_defaults():
    assert asdict(DiscoverySettings()) == {"ttl_s": 300.0, "absent_ttl_s": 10.0}
    assert asdict(WorkloadWatchSettings()) == {
        "kinds_max": 32,
        "absent_again_s": 60.0,
        "backoff_first_s": 1.0,
        "backoff_max_s": 60.0,
        "retry_after_max_s": 60.0,
        "watch_min_s": 1.0,
    }
    assert asdict(ExtenderClientSettings()) == {
        "timeout_s": 5.0,
        "connect_timeout_s": 2.0,
        "connections": 8,
        "body_bytes": 16 * 2**20,
    }


def test_a_lease_is_timed_as_kubernetes_own():
    """client-go's defaults: who is used to one is used to the other."""
    assert asdict(LeaseTiming()) == {"duration_s": 15.0, "renew_deadline_s": 10.0, "retry_s": 2.0}
