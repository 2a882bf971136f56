"""``kvaware crds``: the CustomResourceDefinitions, made from the types of this installation."""

from kvaware_crds import render_crds

__all__ = ["crd_yaml"]


def crd_yaml() -> str:
    """All of them as one stream of YAML documents, by file name."""
    documents = (text.removeprefix("---\n") for _, text in sorted(render_crds().items()))
    return "---\n".join(documents)
