"""``kvaware explain``: ask the extender about one pod and print the answer as a table, JSON or YAML."""

import json
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from kvaware_cli.client import ApiClient
from kvaware_cli.errors import InputError
from kvaware_cli.explain_view import print_explanation
from kvaware_cli.manifests import pod_of, read_documents
from kvaware_cli.output import console
from kvaware_cli.wire import Explanation, read

__all__ = ["explain_file", "explain_pod"]


def explain_file(file: Path, *, server: str, output: str) -> None:
    """A dry run for every pod of a file, one after another."""
    pods = [pod_of(document, file=str(file)) for document in read_documents(file)]
    if not pods:
        raise InputError(f"{file}: expected a Pod, got an empty file")
    client = ApiClient(server)
    _print([client.explain(pod) for pod in pods], output)


def explain_pod(pod: tuple[str, str], *, server: str, output: str) -> None:
    """What is known about a pod of the cluster."""
    _print([ApiClient(server).explanation(*pod)], output)


def _print(answers: list[Any], output: str) -> None:
    out = console()
    match output:
        case "json":
            for answer in answers:
                _raw(out, json.dumps(answer, indent=2) + "\n")
        case "yaml":
            _raw(out, yaml.safe_dump_all(answers, sort_keys=False, allow_unicode=True))
        case _:
            for number, answer in enumerate(answers):
                if number:
                    out.print()
                print_explanation(out, read(Explanation, answer))


def _raw(out: Console, text: str) -> None:
    """Past the console: it would break long lines."""
    out.file.write(text)
