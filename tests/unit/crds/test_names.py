"""What other rooms may import, and the names that users write into their manifests."""

import kvaware_crds
from kvaware_crds import KINDS, ConditionType


def test_every_exported_name_exists() -> None:
    assert all(hasattr(kvaware_crds, name) for name in kvaware_crds.__all__)
    assert len(set(kvaware_crds.__all__)) == len(kvaware_crds.__all__)


def test_promised_names() -> None:
    """Users and other rooms rely on these spellings."""
    names = {name: getattr(kvaware_crds, name) for name in kvaware_crds.__all__ if name.isupper() and name != "KINDS"}
    assert names == {
        "GROUP": "kvaware.io",
        "VERSION": "v1alpha1",
        "CATEGORY": "kvaware",
        "LABEL_MODEL": "kvaware.io/model",
        "LABEL_ROLE": "kvaware.io/role",
        "ANNOTATION_HBM_PER_GPU": "kvaware.io/hbm-per-gpu",
        "ANNOTATION_RESERVATION": "kvaware.io/reservation",
        "ANNOTATION_WEIGHTS": "kvaware.io/weights",
        "ANNOTATION_DELETION_COST": "controller.kubernetes.io/pod-deletion-cost",
        "CONDITION_FOREIGN_USE_UNKNOWN": "kvaware.io/ForeignUseUnknown",
        "CONDITION_HBM_OVERRUN": "kvaware.io/HBMOverrun",
        "CONDITION_PLACEABLE": "kvaware.io/Placeable",
        "FIELD_MANAGER_OPERATOR": "kvaware-operator",
        "MAX_QUANTITY": 2**63 - 1,
    }


def test_kinds() -> None:
    assert {kind: (row.api_version, row.plural, row.namespaced) for kind, row in KINDS.items()} == {
        "InferenceModel": ("kvaware.io/v1alpha1", "inferencemodels", True),
        "KVCacheBlockGroup": ("kvaware.io/v1alpha1", "kvcacheblockgroups", True),
        "TenantQuota": ("kvaware.io/v1alpha1", "tenantquotas", False),
    }


def test_condition_types_are_camel_case_words() -> None:
    assert all(condition[0].isupper() and condition.isalpha() for condition in ConditionType)
