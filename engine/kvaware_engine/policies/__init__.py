"""How a worker is chosen for a request: one file per policy, all over the same candidates.

The package collects its own folder: a new policy is a new file. Two of one name are refused when they are imported.
"""

from collections.abc import Iterable, Mapping
from importlib import import_module
from pkgutil import iter_modules
from typing import Final

from kvaware_crds.errors import ConfigError
from kvaware_engine.policies.base import Policy

__all__ = ["POLICIES", "Policy", "collect", "policy_named"]


def collect(modules: Iterable[object]) -> dict[str, type[Policy]]:
    """Every policy that the modules define, by name.

    Raises: ConfigError where two have one name.
    """
    found: dict[str, type[Policy]] = {}
    for module in modules:
        for value in vars(module).values():
            if not (isinstance(value, type) and issubclass(value, Policy)) or "name" not in vars(value):
                continue
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


def policy_named(name: str) -> Policy:
    """The policy of that name, with the defaults of its fields.

    Raises: ConfigError where there is none.
    """
    policy = _DEFAULTS.get(name)
    if policy is None:
        raise ConfigError(f"policy: expected one of {', '.join(sorted(POLICIES))}, got {name!r}")
    return policy
