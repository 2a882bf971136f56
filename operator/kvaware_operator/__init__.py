"""Convergence: InferenceModels, block groups and quotas brought to what they ask for, and their status told."""

__all__: list[str] = []
