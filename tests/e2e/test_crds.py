"""The CRDs on a real API server: established, explained, found by their short names, and as strict as they say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvaware_crds import InferenceModel, WireError, parse_quantity, read
from kvaware_testing.controlplane import ControlPlane, eventually
from kvaware_testing.crd_cases import CASES, Case, cases

EXAMPLES = Path(__file__).parents[2] / "examples" / "crds"

_REFUSAL = re.compile(r'error when (?:creating|replacing) "(?P<path>[^"]+)": (?P<message>.*)')


def refusals(control_plane: ControlPlane, *verb: str, folder: str) -> dict[str, str]:
    """Send a folder in one go, as a dry run: file stem to the API server's refusal."""
    done = control_plane.kubectl(*verb, "--dry-run=server", "-f", str(CASES / folder), check=False)
    return {
        Path(found["path"]).stem: found["message"]
        for line in done.stderr.splitlines()
        if (found := _REFUSAL.search(line))
    }


@pytest.fixture(scope="module")
def bad_refusals(control_plane: ControlPlane) -> dict[str, str]:
    return refusals(control_plane, "apply", folder="bad")


@pytest.fixture(scope="module")
def base(control_plane: ControlPlane) -> Iterator[None]:
    """One object of each kind, which updates and status writes replace."""
    control_plane.kubectl("create", "-f", str(CASES / "base"))
    yield
    control_plane.kubectl("delete", "-f", str(CASES / "base"))


@pytest.fixture(scope="module")
def update_refusals(control_plane: ControlPlane, base: None) -> dict[str, str]:
    return refusals(control_plane, "replace", folder="updates")


@pytest.fixture(scope="module")
def status_refusals(control_plane: ControlPlane, base: None) -> dict[str, str]:
    return refusals(control_plane, "replace", "--subresource=status", folder="status_bad")


def test_generated_files_become_established(control_plane: ControlPlane) -> None:
    """The files that users apply, not only what the generator returns; rule costs inside the budget."""
    # when
    control_plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(Path(__file__).parents[2] / "crds"))
    # then
    crds = ["inferencemodels", "kvcacheblockgroups", "tenantquotas"]
    waited = control_plane.kubectl(
        "wait", "--for=condition=Established", "--timeout=20s", *(f"crd/{name}.kvaware.io" for name in crds)
    )
    assert waited.stdout.count("condition met") == 3
    for name in crds:
        conditions = control_plane.kubectl("get", "crd", f"{name}.kvaware.io", "-o", "yaml").stdout
        assert all(
            condition["status"] == "False"
            for condition in yaml.safe_load(conditions)["status"]["conditions"]
            if condition["type"] == "NonStructuralSchema"
        )


def test_explain_shows_the_descriptions(control_plane: ControlPlane) -> None:

    def explained(field: str) -> str:
        # Discovery and the published OpenAPI follow a CRD after a moment.
        text = eventually(lambda: control_plane.kubectl("explain", field).stdout, 30, f"{field} is explained")
        return " ".join(text.split())

    # when
    roles, limits, prefix = explained("im.spec.roles"), explained("tq.spec.limits"), explained("kvbg.spec.prefix")
    # then
    assert "What the model's pods need, by role." in roles
    assert "What one pod of this role needs." in roles
    assert "An amount that is unset is not limited; 0 is nothing." in limits
    assert "HBM that the tenant's pods hold" in limits
    assert "The prefix as token ids, in a ConfigMap." in prefix


@pytest.mark.usefixtures("base")
def test_short_names_category_and_columns(control_plane: ControlPlane) -> None:
    # when
    by_short_name = control_plane.kubectl("get", "im,kvbg,tq", "-n", "default").stdout
    by_category = control_plane.kubectl("get", "kvaware", "-A").stdout
    # then
    for kind in ("inferencemodel", "kvcacheblockgroup", "tenantquota"):
        assert f"{kind}.kvaware.io/changing" in by_short_name
        assert f"{kind}.kvaware.io/changing" in by_category
    for column in ("MODEL", "PINNED", "TIER", "TENANT", "GPU LIMIT", "HBM LIMIT", "ACCEPTED", "AGE"):
        assert column in by_short_name


@pytest.mark.parametrize(
    "path", [*sorted((CASES / "good").glob("*.yaml")), *sorted(EXAMPLES.glob("*.yaml"))], ids=lambda path: path.stem
)
def test_good_object_is_accepted(control_plane: ControlPlane, path: Path) -> None:
    # given: an object of a namespace that exists
    manifest = yaml.safe_load(path.read_text(encoding="utf-8"))
    if "namespace" in manifest["metadata"]:
        manifest["metadata"]["namespace"] = "default"
    # when
    done = control_plane.kubectl("apply", "--dry-run=server", "-f", "-", input=yaml.safe_dump(manifest), check=False)
    # then
    assert done.returncode == 0, done.stderr
    assert "created (server dry run)" in done.stdout


@pytest.mark.parametrize("case", cases("bad"), ids=lambda case: case.path.stem)
def test_bad_object_is_refused_with_its_message(bad_refusals: dict[str, str], case: Case) -> None:
    assert case.expected, "the file's first line says what is expected"
    assert case.expected in bad_refusals.get(case.path.stem, "accepted")


@pytest.mark.parametrize("case", cases("updates"), ids=lambda case: case.path.stem)
def test_immutable_field_is_refused_with_its_message(update_refusals: dict[str, str], case: Case) -> None:
    assert case.expected, "the file's first line says what is expected"
    assert case.expected in update_refusals.get(case.path.stem, "accepted")


@pytest.mark.parametrize("case", cases("status_bad"), ids=lambda case: case.path.stem)
def test_bad_status_is_refused_with_its_message(status_refusals: dict[str, str], case: Case) -> None:
    assert case.expected, "the file's first line says what is expected"
    assert case.expected in status_refusals.get(case.path.stem, "accepted")


@pytest.mark.usefixtures("base")
@pytest.mark.parametrize("case", cases("status_good"), ids=lambda case: case.path.stem)
def test_good_status_is_kept_as_written(control_plane: ControlPlane, case: Case) -> None:
    """Nothing that we write is pruned: else the status would be written again and again."""
    # when
    answered = control_plane.kubectl(
        "replace", "--subresource=status", "--dry-run=server", "-o", "yaml", "-f", str(case.path)
    )
    # then
    assert yaml.safe_load(answered.stdout)["status"] == case.manifest["status"]


def test_too_long_prefix_text_is_refused(control_plane: ControlPlane) -> None:
    # given
    manifest = yaml.safe_load((CASES / "good" / "kvbg-text.yaml").read_text(encoding="utf-8"))
    longest = {**manifest, "spec": {**manifest["spec"], "prefix": {"text": "x" * 65_536}}}
    longer = {**manifest, "spec": {**manifest["spec"], "prefix": {"text": "x" * 65_537}}}
    # when
    taken = control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(longest), check=False)
    refused = control_plane.kubectl("create", "--dry-run=server", "-f", "-", input=yaml.safe_dump(longer), check=False)
    # then
    assert taken.returncode == 0, taken.stderr
    assert "spec.prefix.text: Too long" in refused.stderr


def test_api_server_and_our_parser_agree_on_quantities(control_plane: ControlPlane, tmp_path: Path) -> None:
    """What one reads and the other refuses would be an object in the cluster that kvaware cannot use."""
    # given
    written = [
        "1",
        "+1",
        "-1",
        "1.5",
        ".5",
        "5.",
        ".",
        "",
        "1n",
        "1u",
        "1m",
        "1k",
        "1K",
        "1M",
        "1G",
        "1T",
        "1P",
        "1E",
        "2E",
    ]
    written += [
        "1Ki",
        "1Mi",
        "1Gi",
        "1Ti",
        "1Pi",
        "1Ei",
        "1ki",
        "1e3",
        "1E3",
        "1e+3",
        "1e-3",
        "1e",
        "1e3.5",
        "1 Gi",
        "1GiB",
    ]
    written += ["0", "0.0", "-0", "0x1", "1,0", "٣", "1_0", "1e18", "1e19", "8Ei", "9223372036854775807", "001"]
    for number, text in enumerate(written):
        (tmp_path / f"q{number}.json").write_text(json.dumps(_model_with_weights(f"q{number}", text)), encoding="utf-8")
    # when
    done = control_plane.kubectl("create", "--dry-run=server", "-f", str(tmp_path), check=False)
    # then
    by_api_server = {text for number, text in enumerate(written) if f"/q{number} created" in done.stdout}
    assert by_api_server == {text for text in written if _is_read(text)}
    assert {text for text in by_api_server if not 0 < parse_quantity(text) <= 2**60} == set()


def _model_with_weights(name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "kvaware.io/v1alpha1",
        "kind": "InferenceModel",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "modelId": "acme/llama",
            "roles": [{"name": "both", "footprint": {"gpusPerPod": 1}}],
            "weights": {"size": size},
        },
    }


def _is_read(size: str) -> bool:
    try:
        read(InferenceModel, _model_with_weights("q", size))
    except WireError:
        return False
    return True
