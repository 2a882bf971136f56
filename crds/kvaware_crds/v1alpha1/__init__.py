"""``kvaware.io/v1alpha1``: one module per kind."""

from kvaware_crds.v1alpha1.inference_model import InferenceModel
from kvaware_crds.v1alpha1.kv_cache_block_group import KVCacheBlockGroup
from kvaware_crds.v1alpha1.tenant_quota import TenantQuota

__all__ = ["InferenceModel", "KVCacheBlockGroup", "TenantQuota"]
