"""Settings: promised defaults, a file, variables, and errors that name what is wrong."""

import dataclasses

import pytest

from kvaware_crds.errors import ConfigError
from kvaware_extender import ExtenderSettings, StaleView, load_settings


def test_the_promised_defaults():
    """README, chart and scheduler profile are written against these."""
    settings = ExtenderSettings()
    groups = {
        "engine",
        "store",
        "kubernetes",
        "wake_up",
        "heartbeat",
        "workers",
        "worker_scrape",
        "kv_events",
        "gateway",
        "requests",
    }
    assert {f.name: getattr(settings, f.name) for f in dataclasses.fields(settings) if f.name not in groups} == {
        "scheduler_host": "127.0.0.1",
        "scheduler_port": 8901,
        "api_host": "127.0.0.1",
        "api_port": 8900,
        "stale_view": StaleView.REFUSE,
        "max_view_age_s": 60.0,
        "bind_timeout_s": 3.0,
        "in_doubt_s": 60.0,
        "max_body_bytes": 32 * 2**20,
        "repeat_cache_bytes": 32 * 2**20,
        "decision_log": "-",
        "decision_log_queue": 10_000,
        "hardware_profiles": "",
    }
    assert dataclasses.asdict(settings.wake_up) == {"debounce_s": 0.1, "per_s": 20.0, "burst": 50, "max_pods": 10_000}
    assert dataclasses.asdict(settings.heartbeat) == {
        "token_file": "",
        "review_tokens": True,
        "audiences": ("kvaware",),
        "service_accounts": (),
        "remember_s": 120.0,
        "remember_bad_s": 5.0,
        "remembered": 20_000,
        "min_interval_s": 0.2,
        "reviews_per_s": 50.0,
        "review_burst": 200,
    }
    assert dataclasses.asdict(settings.gateway) == {
        "token_file": "",
        "default_tenant": "default",
        "max_body_bytes": 16 * 2**20,
        "batch_max_body_bytes": 32 * 2**20,
        "frame_max_bytes": 4 * 2**20,
        "streams_max": 128,
    }
    assert (settings.requests.index.max_bytes, settings.requests.index.chunk_characters) == (4 * 2**30, 256)
    assert (settings.requests.ledger.ttl_s, settings.requests.ledger.attempts_max) == (30.0, 3)
    assert dataclasses.asdict(settings.engine.findings) == {
        "overrun_tolerance_bytes": 512 * 2**20,
        "hold_scrapes": 3,
        "hold_s": 60.0,
    }
    assert settings.engine.scheduler_name == "kvaware-scheduler"


def test_nothing_given_is_the_defaults():
    assert load_settings(None, {"PATH": "/bin"}) == ExtenderSettings()


def test_a_file_has_camel_case_keys_and_variables_override_it(tmp_path):
    path = tmp_path / "kvaware.yaml"
    path.write_text(
        """
        staleView: admit
        apiPort: 0
        decisionLog: "off"
        engine:
          intentTtlS: 7
          hbm: {labelMarginRatio: 0.05}
        store:
          dcgm: {enabled: false}
        """
    )
    settings = load_settings(
        path,
        {
            "KVAWARE_API_PORT": "8123",
            "KVAWARE_ENGINE__INTENT_TTL_S": "12.5",
            "KVAWARE_STORE__DCGM__PORT": "9401",
            "KVAWARE_DECISION_LOG": "-",
        },
    )
    assert settings.stale_view is StaleView.ADMIT
    assert settings.api_port == 8123
    assert settings.engine.intent_ttl_s == 12.5
    assert settings.engine.hbm.label_margin_ratio == 0.05
    assert (settings.store.dcgm.enabled, settings.store.dcgm.port) == (False, 9401)
    assert settings.decision_log == "-"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("stalView: admit", "unknown key stalView (nearest known: staleView", id="typing error"),
        pytest.param("stale_view: admit", "unknown key stale_view (nearest known: staleView", id="snake case"),
        pytest.param("engine: {intentTtl: 1}", "unknown key engine.intentTtl (nearest known: engine.", id="nested"),
        pytest.param("engine: 7", "engine: expected keys and values, got 7", id="a number for a group"),
        pytest.param("[1]", "the file: expected keys and values", id="a list"),
        pytest.param("staleView: maybe", "setting staleView", id="no such choice"),
        pytest.param("apiPort: 70000", "setting apiPort", id="no such port"),
        pytest.param("bindTimeoutS: -1", "setting bindTimeoutS", id="negative time"),
        pytest.param("engine: {intentTtlS: soon}", "setting engine.intentTtlS", id="words for a number"),
        pytest.param(
            "heartbeat: {audiences: {a: b}}",
            "setting heartbeat.audiences: Input should be a list, got {'a': 'b'}",
            id="keys for a list",
        ),
        pytest.param("a: [", "cannot be read", id="not YAML"),
        pytest.param("gateway: {defaultTenant: ''}", "setting gateway.defaultTenant", id="a tenant without a name"),
        pytest.param("requests: {ledger: {ttlS: 0}}", "setting requests.ledger.ttlS", id="reservations of no length"),
        pytest.param("requests: {index: {maxBytes: .nan}}", "setting requests.index.maxBytes", id="no number of bytes"),
        pytest.param("requests: {index: {maxBytes: 0}}", "setting requests.index.maxBytes: expected 1 or more, got 0"),
        pytest.param("requests: {index: {chunkCharacters: -2}}", "setting requests.index.chunkCharacters: expected"),
        pytest.param("requests: {costs: {refusedMs: -1}}", "refusedMs", id="a negative price"),
        pytest.param(
            "workerScrape: {intervalS: 60}",
            "workers.reportIntervalS: expected at least workerScrape.intervalS, 60, got 10",
            id="scrapes further apart than reports may be (llm-d/llm-d-router#2408)",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_an_error_that_names_the_key(tmp_path, text, message):
    path = tmp_path / "kvaware.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings(path, {})
    assert message in str(caught.value)


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path / "none.yaml", {})


def test_an_unknown_variable_is_an_error_that_names_the_nearest():
    with pytest.raises(ConfigError, match=r"KVAWARE_STALEVIEW \(nearest known: KVAWARE_STALE_VIEW"):
        load_settings(None, {"KVAWARE_STALEVIEW": "admit"})


def test_what_the_kubelet_adds_for_services_of_our_name_is_no_setting():
    """A Service ``kvaware`` or ``kvaware-api`` puts such variables into every pod of its namespace."""
    environ = {
        "KVAWARE_SERVICE_HOST": "10.0.0.1",
        "KVAWARE_SERVICE_PORT": "8900",
        "KVAWARE_SERVICE_PORT_HTTP": "8900",
        "KVAWARE_PORT": "tcp://10.0.0.1:8900",
        "KVAWARE_PORT_8900_TCP": "tcp://10.0.0.1:8900",
        "KVAWARE_PORT_8900_TCP_ADDR": "10.0.0.1",
        "KVAWARE_API_PORT": "tcp://10.0.0.2:8900",
        "KVAWARE_CONFIG": "/etc/kvaware.yaml",
    }
    assert load_settings(None, environ) == ExtenderSettings()
