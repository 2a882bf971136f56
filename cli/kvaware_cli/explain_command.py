"""``kvaware explain``: ask the extender about one pod or placement; print the answer as a table, JSON or YAML."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvaware_cli.client import SCHEDULER_NAME, ApiClient
from kvaware_cli.errors import InputError, reading
from kvaware_cli.explain_view import print_explanation
from kvaware_cli.manifests import pod_of, read_documents
from kvaware_cli.output import console, print_raw
from kvaware_cli.placement_view import print_placement
from kvaware_cli.wire import Explanation, read

__all__ = ["explain_file", "explain_placement", "explain_pod"]


def explain_file(file: Path, *, server: str, output: str) -> None:
    """A dry run for every pod of a file, one after another."""
    with reading(str(file)):
        pods = [pod_of(document, file=str(file)) for document in read_documents(file)]
        if not pods:
            raise InputError(f"{file}: expected a Pod, got an empty file")
        client = ApiClient(server)
        answers = [client.explain(pod) for pod in pods]
    _print(answers, output, notes=[_note(pod) for pod in pods])


def explain_pod(pod: tuple[str, str], *, server: str, output: str) -> None:
    """What is known about a pod of the cluster."""
    _print([ApiClient(server).explanation(*pod)], output, notes=[""])


def explain_placement(placement_id: str, *, server: str, output: str) -> None:
    """Why a request went where it is, as it was decided."""
    answer, out = ApiClient(server).placement(placement_id), console()
    if output == "table":
        print_placement(out, answer)
    else:
        print_raw(out, [answer], output)


def _note(pod: Mapping[str, Any]) -> str:
    """A dry run answers for every pod, as if kube-scheduler had asked."""
    spec = pod.get("spec")
    name = (spec.get("schedulerName") if isinstance(spec, dict) else None) or "default-scheduler"
    if name == SCHEDULER_NAME:
        return ""
    return (
        f"kube-scheduler will not ask kvaware about this pod unless its schedulerName is {SCHEDULER_NAME}; it is {name}"
    )


def _print(answers: Sequence[Any], output: str, *, notes: Sequence[str]) -> None:
    out = console()
    if output != "table":
        print_raw(out, answers, output)
        return
    for number, (answer, note) in enumerate(zip(answers, notes, strict=True)):
        if number:
            out.print()
        print_explanation(out, read(Explanation, answer), note=note)
