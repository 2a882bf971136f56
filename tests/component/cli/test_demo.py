"""``kvaware demo``: the real extender over HTTP, on the example cluster and on other YAML."""

import os
import re
import shutil
from pathlib import Path

import pytest

from kvaware_cli.replay.run import ReplayPlan
from kvaware_crds.v1alpha1.inference_model import PolicyName
from kvaware_testing.command_line import Kvaware
from kvaware_testing.demo_output import demo_output
from kvaware_testing.repository import REPOSITORY

TWO_NODES = """
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Node
  metadata:
    name: {small}
    labels: {{nvidia.com/gpu.product: NVIDIA-L40S, nvidia.com/gpu.count: "1", nvidia.com/gpu.memory: "46068"}}
  status: {{allocatable: {{nvidia.com/gpu: "1"}}, capacity: {{nvidia.com/gpu: "1"}}}}
- apiVersion: v1
  kind: Node
  metadata:
    name: large
    labels: {{nvidia.com/gpu.product: NVIDIA-H100, nvidia.com/gpu.count: "1", nvidia.com/gpu.memory: "81559"}}
  spec: {{taints: {taints}}}
  status: {{allocatable: {{nvidia.com/gpu: "1"}}, capacity: {{nvidia.com/gpu: "1"}}}}
- apiVersion: v1
  kind: Pod
  metadata: {{name: waiting, annotations: {{kvaware.io/hbm-per-gpu: {hbm}}}}}
  spec:
    schedulerName: kvaware-scheduler
    containers: [{{name: server, image: vllm, resources: {{limits: {{nvidia.com/gpu: 1}}}}}}]
"""


def cluster(folder: Path, *, hbm: str, taints: str = "[]") -> str:
    """A folder with a small and a large node and one pending pod."""
    (folder / "all.yaml").write_text(TWO_NODES.format(small="small", taints=taints, hbm=hbm))
    return str(folder)


def section(output: str, pod: str) -> str:
    """What the demo says about one pod."""
    [found] = [part for part in re.split(r"\n\npod \d+ of \d+ ─+\n", output) if part.startswith(f"pod        {pod}\n")]
    return found.split("\n\ntenants, after")[0]


def test_the_example_shows_each_kind_of_decision() -> None:
    """A newcomer sees: weights and cache win, quota and HBM refuse, foreign use is seen, partitions, AMD."""
    output = demo_output()
    llama = section(output, "chat/llama-70b-1")
    assert "choice     h100-a1 (WeightsOnNode)" in llama
    assert "h100-b2" in llama.split("refused", 1)[1]
    assert "held by programs without a reservation" in " ".join(llama.split())
    assert "choice     a100-a4 (CacheOnNode)" in section(output, "chat/llama-8b-2")
    assert "TenantGPULimit: the tenant's GPU limit is reached" in section(output, "batch/embed-2")
    assert "choice     l40s-b4" in section(output, "research/qwen-32b-1")
    assert "choice     h100-b1 (OnlyCandidate)" in section(output, "labs/finetune-2")
    assert "choice     mig-b5" in section(output, "research/classifier-0")
    assert "the GPU partition's memory is smaller" in section(output, "research/reranker-0")
    assert "choice     mi300x-b6" in section(output, "chat/llama-70b-amd-0")
    assert "ModelNotFound" in section(output, "chat/gemma-0")
    assert "6 placed, 3 pending" in output
    assert "21 pods (11 running, 9 pending, 1 finished)" in output


def test_what_to_try_next_can_be_typed_as_it_stands() -> None:
    """``make demo`` puts nothing on PATH."""
    [command] = re.findall(r"^  (\S*kvaware) top tenants$", demo_output(), re.MULTILINE)
    assert Path(shutil.which(command, path=os.environ["PATH"]) or REPOSITORY / command).is_file()
    assert "make demo CLUSTER=real" in demo_output()


def test_pods_of_another_scheduler_are_placed_and_named(kvaware: Kvaware, tmp_path: Path) -> None:
    """The demo takes people's YAML as it is; a cluster would not ask kvaware about these pods."""
    folder = cluster(tmp_path, hbm="20Gi")
    file = tmp_path / "all.yaml"
    file.write_text(file.read_text().replace("    schedulerName: kvaware-scheduler\n", ""))
    result = kvaware("demo", "--cluster", folder)
    assert result.code == 0, result.err
    [line] = [line for line in result.out.splitlines() if line.startswith("as if ours")]
    assert line.endswith("default/waiting")
    assert "schedulerName kvaware-scheduler" in line


def test_long_names_leave_the_figures_whole_at_100_columns(kvaware: Kvaware, tmp_path: Path) -> None:
    folder = cluster(tmp_path, hbm="20Gi")
    file = tmp_path / "all.yaml"
    name = "gke-" + "pool-" * 14 + "k7x2"
    file.write_text(file.read_text().replace("name: large", f"name: {name}"))
    result = kvaware("demo", "--cluster", folder, "--plain")
    assert result.code == 0, result.err
    assert max(len(line) for line in result.out.splitlines() if "--cluster-dir" not in line) <= 100
    rows = [row for row in result.out.splitlines() if re.match(r"(→ | )? *gke-pool", row)]
    assert len(rows) >= 2
    assert all(re.search(r"-k7x2 .*\b(\d+\.\d)/\1 ", row) for row in rows)


def test_the_emptiest_gpu_is_priced_with_the_figures_of_the_table() -> None:
    """The difference that is told is that of the two totals in the table above it."""
    tail = demo_output().split('why not "the emptiest GPU"?')[1]
    totals = [int(m.replace(",", "")) for m in re.findall(r"(?:node|near|far) +(\d[\d,]*)  ", tail)]
    [told] = re.findall(r"there +([\d,]+) ms more", tail)
    assert len(totals) == 2
    # each of the three figures is rounded on its own
    assert abs(totals[1] - totals[0] - int(told.replace(",", ""))) <= 1
    assert totals[1] > totals[0]


def test_lines_fit_and_nothing_is_coloured_when_asked_for_plain() -> None:
    output = demo_output()
    assert max(map(len, output.splitlines())) <= 100
    assert "\x1b" not in output
    assert not [line for line in output.splitlines() if line != line.rstrip()]


def test_where_the_emptiest_gpu_is_right_it_says_so(kvaware: Kvaware, tmp_path: Path) -> None:
    """Nothing is hard-coded: here only the large GPU has room."""
    result = kvaware("demo", "--cluster", cluster(tmp_path, hbm="60Gi"))
    assert result.code == 0, result.err
    assert "choice     large (OnlyCandidate)" in result.out
    assert "was the cheapest for every pod that was placed" in result.out


def test_what_kube_scheduler_keeps_back_is_told_apart_from_what_kvaware_refuses(
    kvaware: Kvaware, tmp_path: Path
) -> None:
    """The pod would fit on the tainted node; that it stays pending is not kvaware's doing."""
    folder = cluster(tmp_path, hbm="60Gi", taints="[{key: gpu, effect: NoSchedule}]")
    result = kvaware("demo", "--cluster", folder, "--plain")
    assert result.code == 0, result.err
    assert "not asked  kept back by kube-scheduler's own rules: large" in result.out
    assert "pending    every node that could take it is kept back" in result.out
    assert "0 placed, 1 pending" in result.out


def test_a_cluster_that_the_extender_cannot_read_is_one_line(kvaware: Kvaware, tmp_path: Path) -> None:
    """The user's own file is named, not the copy that the extender reads."""
    folder = cluster(tmp_path, hbm="60Gi")
    (tmp_path / "quota.yaml").write_text("{apiVersion: kvaware.io/v1alpha1, kind: TenantQuota, metadata: {name: q}}")
    result = kvaware("demo", "--cluster", folder)
    assert result.code == 2
    assert len(result.err.splitlines()) == 1
    assert "quota.yaml, document 1: " in result.err
    assert "spec" in result.err


@pytest.mark.parametrize("option", ["--cluster", "--pods"])
def test_a_folder_that_does_not_exist_is_wrong_use(kvaware: Kvaware, option: str) -> None:
    result = kvaware("demo", option, "nowhere")
    assert result.code == 2
    assert "expected a folder with YAML files, got 'nowhere'" in result.err


def test_the_users_files_are_only_read(kvaware: Kvaware, tmp_path: Path) -> None:
    folder = cluster(tmp_path, hbm="20Gi")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert kvaware("demo", "--cluster", folder).code == 0
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_the_examples_lie_where_the_demo_looks() -> None:
    assert (REPOSITORY / "examples" / "cluster" / "dcgm").is_dir()


def test_requests_follow_the_pods_where_they_are_asked_for(
    kvaware: Kvaware, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a cluster of one's own only then; the replay itself has tests of its own."""
    plans: list[ReplayPlan] = []
    monkeypatch.setattr("kvaware_cli.demo.run.replay", lambda _out, plan: plans.append(plan))
    folder = cluster(tmp_path, hbm="60Gi")
    assert kvaware("demo", "--cluster", folder).code == 0
    assert not plans
    assert kvaware("demo", "--cluster", folder, "--replay").code == 0
    [plan] = plans
    assert plan.trace == REPOSITORY / "examples" / "traces" / "conversation.jsonl"
    assert plan.policies == tuple(PolicyName)
