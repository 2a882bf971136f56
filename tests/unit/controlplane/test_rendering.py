"""The configuration and the nodes that the harness writes."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from kvaware_testing.controlplane import kwok_node
from kvaware_testing.controlplane.certificates import Authority, token_key_pair
from kvaware_testing.controlplane.kubeconfig import certificate_user, read_access, render_kubeconfig, token_user
from kvaware_testing.controlplane.scheduler import EXAMPLE_CONFIG, PROFILE, render_scheduler_config

URL = "http://127.0.0.1:1234/scheduler"


def example() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(EXAMPLE_CONFIG.read_text("utf-8"))
    return content


def test_the_shipped_profile_says_what_it_must() -> None:
    """Each of these was a fault in somebody's cluster: examples/kube-scheduler/README.md tells which."""
    config = example()
    (profile,) = config["profiles"]
    (extender,) = config["extenders"]
    assert profile["schedulerName"] == PROFILE
    assert profile["percentageOfNodesToScore"] == 100
    assert {one["name"] for one in profile["plugins"]["score"]["disabled"]} == {
        "NodeResourcesFit",
        "NodeResourcesBalancedAllocation",
    }
    assert "filter" not in profile["plugins"]
    assert (extender["filterVerb"], extender["prioritizeVerb"], extender["bindVerb"]) == (
        "filter",
        "prioritize",
        "bind",
    )
    assert extender["nodeCacheCapable"] is True
    assert extender["ignorable"] is False
    assert extender["httpTimeout"] == "5s"


def test_our_first_choice_outweighs_what_nobody_asked_for_and_not_what_somebody_did() -> None:
    """The arithmetic of the README: one point of ours is weight x 10; plugin scores are 0..100 times their weight."""
    (extender,) = example()["extenders"]
    one_point = extender["weight"] * 10
    image_locality = 100 * 1
    preferred_node_affinity = 100 * 2
    assert image_locality < one_point < preferred_node_affinity


def test_a_test_runs_the_example_with_only_its_own_addresses_changed() -> None:
    """What is shown to users is what is tested."""
    # when
    config = yaml.safe_load(render_scheduler_config(kubeconfig=Path("/k"), extender_url=URL))
    # then
    assert config["extenders"][0].pop("urlPrefix") == URL
    assert config.pop("clientConnection") == {"kubeconfig": "/k"}
    assert config.pop("leaderElection") == {"leaderElect": False}
    expected = example()
    del expected["extenders"][0]["urlPrefix"], expected["leaderElection"]
    assert config == expected


def test_a_test_may_shorten_the_time_out_and_lift_the_client_limit() -> None:
    text = render_scheduler_config(kubeconfig=Path("/k"), extender_url=URL, http_timeout="2s", qps=300)
    config = yaml.safe_load(text)
    assert config["extenders"][0]["httpTimeout"] == "2s"
    assert config["clientConnection"] == {"kubeconfig": "/k", "qps": 300, "burst": 600}


def test_a_node_carries_the_labels_of_gpu_feature_discovery() -> None:
    node = kwok_node("n", gpus=4, clique="fabric.1", rack="r1", zone="z1", labels={"a": "b"})
    labels = node["metadata"]["labels"]
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.memory"] == "81559"
    assert labels["nvidia.com/gpu.replicas"] == "1"
    assert labels["nvidia.com/gpu.sharing-strategy"] == "none"
    assert labels["nvidia.com/gpu.clique"] == "fabric.1"
    assert labels["topology.kubernetes.io/rack"] == "r1"
    assert labels["topology.kubernetes.io/zone"] == "z1"
    assert labels["a"] == "b"
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "4"


@pytest.mark.parametrize(
    ("sharing", "product", "mps"),
    [
        pytest.param(None, "NVIDIA-H100-80GB-HBM3-SHARED", "false", id="time-slicing unless told"),
        pytest.param("mps", "NVIDIA-H100-80GB-HBM3", "true", id="mps"),
    ],
)
def test_a_shared_node_offers_its_replicas(sharing: str | None, product: str, mps: str) -> None:
    """4 GPUs shared by 2 are 8 allocatable, and still 4 by label."""
    node = kwok_node("n", gpus=4, replicas=2, sharing=sharing)
    labels = node["metadata"]["labels"]
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
    assert labels["nvidia.com/gpu.count"] == "4"
    assert labels["nvidia.com/gpu.product"] == product
    assert labels["nvidia.com/mps.capable"] == mps


def test_a_node_without_gpus_has_no_gpu_labels() -> None:
    node = kwok_node("n", gpus=0)
    assert not [label for label in node["metadata"]["labels"] if label.startswith("nvidia.com/")]
    assert "nvidia.com/gpu" not in node["status"]["allocatable"]


def test_certificates_name_their_user_and_group() -> None:
    """The API server takes the common name as the user and the organization as a group."""
    # given
    authority = Authority()
    # when
    pair = authority.issue("admin", organization="system:masters")
    # then
    certificate = x509.load_pem_x509_certificate(pair.certificate)
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority.certificate))
    assert certificate.subject.rfc4514_string() == "O=system:masters,CN=admin"
    user = certificate_user(pair)
    assert base64.b64decode(user["client-certificate-data"]) == pair.certificate
    assert base64.b64decode(user["client-key-data"]) == pair.key


def test_the_key_that_signs_tokens_matches_the_one_that_checks_them() -> None:
    pair = token_key_pair()
    assert load_pem_private_key(pair.key, None).public_key() == load_pem_public_key(pair.certificate)


def test_a_token_kubeconfig_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig"
    server = "https://127.0.0.1:1"
    authority = Authority().certificate
    path.write_text(render_kubeconfig(server=server, authority=authority, user=token_user("abc")), "utf-8")
    access = read_access(path)
    assert access.server == server
    assert access.headers == {"Authorization": "Bearer abc"}
    assert access.tls.cert_store_stats()["x509_ca"] == 1
