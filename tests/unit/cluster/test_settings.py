"""Settings come from files and variables, so each is held to its bounds where they are read."""

import pytest

from kvaware_crds.errors import ConfigError
from kvaware_extender.load import load_settings

SECONDS = [
    "kubernetes.requestTimeoutS",
    "kubernetes.writeTimeoutS",
    "kubernetes.watchTimeoutS",
    "kubernetes.watchGraceS",
    "kubernetes.exporterTimeoutS",
    "store.backoffFirstS",
    "store.backoffMaxS",
    "store.retryAfterMaxS",
    "store.watchMinS",
    "store.quotaRemovalHoldS",
    "store.dcgm.intervalS",
    "store.dcgm.firstRoundLimitS",
    "store.dcgm.slowAfterMissesIntervalS",
]
COUNTS = [
    "kubernetes.pageSize",
    "kubernetes.exporterBodyBytes",
    "store.dcgm.port",
    "store.dcgm.concurrency",
    "store.dcgm.missedLimit",
]
RATIOS = ["kubernetes.watchJitterRatio", "store.dcgm.intervalJitterRatio"]


def refused(key: str, value: str) -> str:
    """The message for one setting, given as a variable."""
    variable = "KVAWARE_" + "__".join(
        "".join(f"_{letter}" if letter.isupper() else letter for letter in part).upper() for part in key.split(".")
    )
    with pytest.raises(ConfigError) as error:
        load_settings(None, {variable: value})
    return str(error.value)


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "1e9", "soon"])
@pytest.mark.parametrize("key", SECONDS)
def test_a_duration_is_above_zero_and_ends(key: str, value: str):
    assert f"setting {key}: " in refused(key, value)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "nan", "9999999999", "many"])
@pytest.mark.parametrize("key", COUNTS)
def test_a_count_is_whole_above_zero_and_bounded(key: str, value: str):
    assert f"setting {key}: " in refused(key, value)


@pytest.mark.parametrize("value", ["-0.1", "1", "nan", "inf", "half"])
@pytest.mark.parametrize("key", RATIOS)
def test_a_jitter_is_a_share_below_the_whole(key: str, value: str):
    assert f"setting {key}: " in refused(key, value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        pytest.param("store.rackLabel", "", id="no rack label"),
        pytest.param("store.zoneLabel", "", id="no zone label"),
        pytest.param("store.dcgm.namespaces", "gpu-operator", id="a text, not a list"),
        pytest.param("store.dcgm.namespaces", "['']", id="an empty namespace"),
        pytest.param("store.dcgm.selectors", "[[]]", id="labels that every pod has"),
        pytest.param("store.dcgm.selectors", "[[[app]]]", id="a label without a value"),
        pytest.param("store.dcgm.enabled", "perhaps", id="neither yes nor no"),
    ],
)
def test_texts_and_lists_that_cannot_be_meant(key: str, value: str):
    assert f"setting {key}" in refused(key, value)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        pytest.param(
            "engine.hbm.labelMarginRatio",
            "80",
            "setting engine.hbm.labelMarginRatio: expected a number from 0 to 1, got 80.0",
            id="one setting of a group",
        ),
        pytest.param(
            "workers.rateWindowS",
            "0",
            "setting workers.reportIntervalS, rateWindowS: expected numbers above 0, got 10.0, 0.0",
            id="several of a group",
        ),
        pytest.param(
            "workers.reportIntervalS",
            "1",
            "settings: workers.reportIntervalS: expected at least workerScrape.intervalS, 5, got 1: healthy workers "
            "would drop out between two scrapes",
            id="of several groups",
        ),
    ],
)
def test_a_rule_names_its_settings_as_people_write_them(key: str, value: str, message: str):
    assert refused(key, value) == message


def test_lists_are_read_and_an_empty_one_means_any_namespace():
    settings = load_settings(
        None,
        {
            "KVAWARE_STORE__DCGM__NAMESPACES": "[]",
            "KVAWARE_STORE__DCGM__SELECTORS": "[[[app, exporter], [tier, gpu]]]",
        },
    )
    assert settings.store.dcgm.namespaces == ()
    assert settings.store.dcgm.selectors == ((("app", "exporter"), ("tier", "gpu")),)
