"""The cluster of a replay, as the extender reads it."""

from pathlib import Path

import pytest

from kvaware_cli.replay.scene import KV_BLOCKS, NAMESPACE, model_name, worker_ids, write_scene
from kvaware_cluster.manifests import load_folder
from kvaware_cluster.parse.models import parse_model
from kvaware_cluster.source import Kind
from kvaware_crds.v1alpha1.inference_model import PolicyName
from kvaware_engine import ObjectKey


@pytest.mark.parametrize("workers", [1, 8, 9])
def test_every_policy_has_a_model_and_workers_of_its_own(tmp_path: Path, workers: int) -> None:
    """On GPUs of their own: 8 to a node."""
    write_scene(tmp_path, tuple(PolicyName), workers=workers)
    objects = load_folder(tmp_path).objects
    assert len(objects[Kind.NODE]) == len(PolicyName) * (1 if workers <= 8 else 2)
    for policy in PolicyName:
        model = parse_model(objects[Kind.INFERENCE_MODEL][ObjectKey(NAMESPACE, model_name(policy))])
        assert model.policy == policy
        assert model.served_names == (model_name(policy),)
        assert model.block_size_tokens == 512
        pods = {f"{pod.namespace}:{pod.name}:0" for pod in objects[Kind.POD]}
        assert set(worker_ids(policy, workers)) <= pods
    assert len(objects[Kind.POD]) == len(PolicyName) * workers


def test_the_kv_pool_is_what_the_model_leaves_of_its_hbm() -> None:
    """(72 GiB - 16 GB) / (128 KiB x 512) = (77,309,411,328 - 16,000,000,000) / 67,108,864 = 913.58."""
    assert KV_BLOCKS == 913
