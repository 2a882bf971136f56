"""How a worker is chosen for a request: one file per policy, all over the same candidates.

The package collects its own folder: a new policy is a new file. Two of one name are refused when they are imported.
"""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from enum import StrEnum
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from kvaware_crds.errors import ConfigError
from kvaware_engine.policies.base import Policy
from kvaware_engine.requests.figures import Figure

__all__ = ["POLICIES", "Policy", "collect", "policy_named"]


def collect(modules: Iterable[object]) -> dict[str, type[Policy]]:
    """Every policy that the modules define, by name.

    Raises: ConfigError where two have one name, or one reads what is no figure: nobody would ever observe it.
    """
    found: dict[str, type[Policy]] = {}
    for module in modules:
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, Policy)) or "name" not in vars(value):
                continue
            reads = getattr(value, "reads", None)
            if not isinstance(reads, frozenset) or not all(isinstance(each, Figure) for each in reads):
                raise ConfigError(f"policy {value.name}, reads: expected a frozenset of Figures, got {reads!r}")
            other = found.setdefault(value.name, value)
            if other is not value:
                raise ConfigError(
                    f"policy {value.name}: expected one of that name, got {other.__qualname__} in {other.__module__} "
                    f"and {value.__qualname__} in {value.__module__}"
                )
    return found


POLICIES: Final[Mapping[str, type[Policy]]] = collect(
    import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)
)
"""By name."""
_DEFAULTS: Final = {name: policy() for name, policy in POLICIES.items()}


def policy_named(name: str, given: Iterable[tuple[str, str]] = ()) -> Policy:
    """The policy of that name.

    Args:
        name: As in ``spec.policy.name``.
        given: Names of its fields and their values, as text; the others have their defaults.
    Raises: ConfigError where there is no such policy, field or value.
    """
    policy = _DEFAULTS.get(name)
    if policy is None:
        raise ConfigError(f"policy: expected one of {', '.join(sorted(POLICIES))}, got {name!r}")
    changes: dict[str, StrEnum] = {}
    for field, value in given:
        default = getattr(policy, field, None) if field in {each.name for each in fields(policy)} else None
        if not isinstance(default, StrEnum):
            known = " or ".join(each.name for each in fields(policy)) or "none of its fields"
            raise ConfigError(f"policy {name}: expected {known}, got {field!r}")
        values = type(default)
        try:
            changes[field] = values(value)
        except ValueError as e:
            expected = ", ".join(values)
            raise ConfigError(f"policy {name}, {field}: expected one of {expected}, got {value!r}") from e
    return replace(policy, **changes) if changes else policy
