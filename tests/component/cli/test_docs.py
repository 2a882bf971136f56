"""What the documentation shows is what there is: output, YAML, commands, settings, refusals, files."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaware_cli.docs import PAGES, main
from kvaware_cli.manifests import pod_of
from kvaware_cluster import parse_pod
from kvaware_cluster.load import load_settings
from kvaware_crds import InferenceModel, KVCacheBlockGroup, TenantQuota, read
from kvaware_engine import Engine
from kvaware_engine.reasons import REFUSAL_TEXTS
from kvaware_extender import ExtenderSettings
from kvaware_operator import OperatorSettings
from kvaware_testing.command_line import Kvaware
from kvaware_testing.demo_output import demo_output
from kvaware_testing.repository import REPOSITORY

KINDS = {model.__name__: model for model in (InferenceModel, KVCacheBlockGroup, TenantQuota)}
SETTINGS: dict[str, type] = {"docs/settings.md": ExtenderSettings, "docs/operator-settings.md": OperatorSettings}
PAGES_WITH_TEXT = [
    "README.md",
    "CONTRIBUTING.md",
    *SETTINGS,
    "docs/conditions.md",
    "docs/install.md",
    "docs/upgrade.md",
    "docs/why-is-my-pod-pending.md",
]


def page(name: str) -> str:
    return (REPOSITORY / name).read_text("utf-8")


def blocks(name: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


def commands() -> list[Any]:
    """Every ``kvaware`` and ``make`` command that stands in a shell block, by page."""
    found = []
    for name in PAGES_WITH_TEXT:
        for block in blocks(name, "sh"):
            for line in block.replace("\\\n", " ").splitlines():
                words = shlex.split(line.partition("|")[0], comments=True)
                if words and words[0] in {"kvaware", "make"}:
                    found.append(pytest.param(words, id=f"{name}: {' '.join(words)}"))
    return found


def test_the_decision_in_the_readme_is_what_the_demo_prints() -> None:
    """A picture that nobody checks lies sooner or later. Out of step: run ``kvaware demo --plain`` and copy pod 1."""
    [shown] = re.findall(r"<!-- demo:.*?-->\n```\n(.*?)```\n", page("README.md"), re.DOTALL)
    assert shown.strip() in demo_output()


@pytest.mark.parametrize("document", [d for b in blocks("README.md", "yaml") for d in yaml.safe_load_all(b)])
def test_yaml_in_the_readme_is_accepted(document: dict[str, Any]) -> None:
    """Objects of ours validate; pods are recognised as ours and name a model that the README shows."""
    if document["kind"] in KINDS:
        read(KINDS[document["kind"]], document)
        return
    pod = parse_pod(pod_of(document, file="README.md"))
    assert pod is not None
    assert Engine().is_ours(pod)
    assert pod.problem is None
    models = [d for b in blocks("README.md", "yaml") for d in yaml.safe_load_all(b) if d["kind"] == "InferenceModel"]
    assert (pod.namespace, pod.model) in {(m["metadata"]["namespace"], m["metadata"]["name"]) for m in models}


@pytest.mark.parametrize("words", commands())
def test_commands_in_the_documentation_exist(kvaware: Kvaware, words: list[str]) -> None:
    """Subcommands and options for ours, targets for make."""
    if words[0] == "make":
        target = next((word for word in words[1:] if "=" not in word), "")
        assert re.search(rf"^{target}:", page("Makefile"), re.MULTILINE)
        return
    help_text = kvaware(words[1], "--help").out
    assert help_text.startswith(f"Usage: kvaware {words[1]}")
    for option in [word for word in words[2:] if word.startswith("-")]:
        assert option in help_text


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_files_that_are_named_exist(name: str) -> None:
    """Links, and paths in backticks that lead into the repository."""
    text = page(name)
    links = [target for target in re.findall(r"\]\(([^)]+)\)", text) if "://" not in target]
    paths = re.findall(r"`((?:crds|engine|cluster|extender|cli|examples|tests|docs)/[\w./-]*)`", text)
    missing = [path for path in {*links, *paths} if not (REPOSITORY / path).exists()]
    assert not missing


@pytest.mark.parametrize("reason", REFUSAL_TEXTS)
def test_every_refusal_is_explained(reason: str) -> None:
    """A reader searches for the text that kubectl showed, or for the reason of the explanation."""
    text = page("docs/why-is-my-pod-pending.md")
    assert f"### {reason}\n> {REFUSAL_TEXTS[reason]}\n" in text  # type: ignore[index]  # a Reason is its text


def test_no_refusal_is_explained_that_does_not_exist() -> None:
    explained = re.findall(r"^### (\w+)$", page("docs/why-is-my-pod-pending.md"), re.MULTILINE)
    assert sorted(explained) == sorted(REFUSAL_TEXTS)


def test_generated_pages_are_in_step() -> None:
    assert main(["--check", str(REPOSITORY / "docs")]) == 0


def test_a_page_out_of_step_is_named_and_can_be_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check", str(tmp_path)]) == 1
    assert "settings.md" in capsys.readouterr().err
    assert main([str(tmp_path)]) == 0
    assert {path.name for path in tmp_path.iterdir()} == set(PAGES)
    assert main(["--check", str(tmp_path)]) == 0


@pytest.mark.parametrize(("name", "settings"), SETTINGS.items())
def test_a_settings_page_shows_every_setting_with_a_value_that_is_accepted(
    tmp_path: Path, name: str, settings: type
) -> None:
    """All shown defaults, written as a file, are read back as the defaults; so are the variables."""
    shown = re.findall(r"^- `([\w.]+)` = `(.*?)`(?: \(.*?\))?, `(KVAWARE_\w+)`", page(name), re.MULTILINE)
    tree: dict[str, Any] = {}
    for key, value, _ in shown:
        *groups, name = key.split(".")
        group = tree
        for part in groups:
            group = group.setdefault(part, {})
        group[name] = yaml.safe_load(value) if value[0] in '"[{0123456789tfn' else value
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump(tree))
    defaults = load_settings(settings, None, {})
    assert load_settings(settings, file, {}) == defaults
    assert load_settings(settings, None, {variable: value for _, value, variable in shown}) == defaults


@pytest.mark.parametrize(("name", "settings"), SETTINGS.items())
def test_the_example_in_a_settings_page_is_accepted(tmp_path: Path, name: str, settings: type) -> None:
    [example] = blocks(name, "yaml")
    file = tmp_path / "settings.yaml"
    file.write_text(example)
    assert load_settings(settings, file, {}) != load_settings(settings, None, {})


def test_crds_come_with_the_package_as_one_yaml_stream(kvaware: Kvaware) -> None:
    """``kvaware crds | kubectl apply --server-side -f -``."""
    result = kvaware("crds")
    assert result.code == 0
    crds = list(yaml.safe_load_all(result.out))
    assert [crd["kind"] for crd in crds] == ["CustomResourceDefinition"] * len(KINDS)
    assert {crd["spec"]["names"]["kind"] for crd in crds} == set(KINDS)
