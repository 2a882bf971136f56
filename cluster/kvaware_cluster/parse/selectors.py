"""A label selector of our kinds → the engine's."""

from kvaware_crds.meta import LabelSelector
from kvaware_engine.observations import NodeSelector, SelectorRequirement

__all__ = ["selector_of"]


def selector_of(selector: LabelSelector) -> NodeSelector:
    """The same in the engine's words, labels sorted: equal selectors compare equal."""
    return NodeSelector(
        match_labels=tuple(sorted(selector.match_labels.items())),
        match_expressions=tuple(
            SelectorRequirement(key=each.key, operator=each.operator.value, values=each.values)
            for each in selector.match_expressions
        ),
    )
