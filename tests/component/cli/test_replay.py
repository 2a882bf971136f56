"""``kvaware replay``: the real extender over HTTP, and modelled workers."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvaware_cli.errors import ServerError
from kvaware_cli.output import console
from kvaware_cli.replay.run import ReplayPlan, _replayed
from kvaware_cli.replay.scene import worker_ids
from kvaware_crds.v1alpha1.inference_model import PolicyName
from kvaware_engine import FALLBACK_PROFILE
from kvaware_simulator import read_mooncake
from kvaware_testing.command_line import Kvaware
from kvaware_testing.placing_stub import PlacingStub


def trace(folder: Path, *, conversations: int = 6, turns: int = 3, blocks: int = 2, answer: int = 5) -> str:
    """Conversations that grow by ``blocks`` each turn, and share their first block; answers of so many tokens."""
    lines = []
    for turn in range(turns):
        for number in range(conversations):
            hashes = [0, *range(1000 * number + 1, 1000 * number + 1 + blocks * (turn + 1))]
            record = {"timestamp": 3000 * turn, "input_length": 512 * len(hashes), "output_length": answer}
            lines.append(json.dumps({**record, "hash_ids": hashes}))
    file = folder / "trace.jsonl"
    file.write_text("\n".join(lines))
    return str(file)


def rows(output: str) -> dict[str, list[str]]:
    """Policy → its figures."""
    table = output.split("MAX/MEAN REQUESTS\n")[1].split("\n\n", maxsplit=1)[0]
    return {cells[0]: cells[1:] for cells in map(str.split, table.splitlines())}


def test_every_policy_gets_the_same_requests_and_is_compared(kvaware: Kvaware, tmp_path: Path) -> None:
    """18 requests on 3 workers: no policy refuses any, and what caches could save bounds every hit rate.

    Of (3 + 5 + 7) · 6 = 90 blocks, 5 are the first turns' shared one, 6 · (3 + 5) were in the turn before: 53.
    """
    result = kvaware(
        "replay", "--trace", trace(tmp_path), "--workers", "3", "--seconds", "3", "--plain"
    )  # fmt: skip
    assert result.code == 0, result.err
    assert "18 requests of a recorded trace, under 5 policies" in result.out
    assert f"{53 / 90:.1%} of all were in a prompt before" in result.out
    found = rows(result.out)
    assert list(found) == list(PolicyName)
    assert "refused" not in result.out
    for hit_rate, p50, p90, mean, spread in found.values():
        assert 0 <= float(hit_rate.removesuffix("%")) <= 58.9
        assert 0 < float(p50) <= float(p90)
        assert float(mean) > 0
        assert 1 <= float(spread) <= 3
    assert found["round_robin"][-1] == "1.00"
    assert max(map(len, result.out.splitlines())) <= 100
    assert "\x1b" not in result.out


def test_a_decision_against_the_emptiest_is_explained(kvaware: Kvaware, tmp_path: Path) -> None:
    """One conversation, each turn 20,000 tokens longer; answers of 7 s keep its worker busy, the other is idle.

    So the emptiest is the one that would compute all turns again.
    """
    long = trace(tmp_path, conversations=1, turns=5, blocks=40, answer=2000)
    result = kvaware("replay", "--trace", long, "--workers", "2", "--seconds", "5", "--policy", "cost", "--plain")
    assert result.code == 0, result.err
    assert list(rows(result.out)) == ["cost"]
    tail = result.out.split('why not "the emptiest worker"?')[1]
    [(chosen, reason)] = re.findall(r"^choice +(replay:cost-\d:0) \((\w+)\)$", tail, re.MULTILINE)
    [(emptiest, told)] = re.findall(r"^emptiest +(replay:cost-\d:0), ([\d.,]+) ms more", tail, re.MULTILINE)
    assert emptiest != chosen
    assert reason == "PrefixResident"
    assert float(told.replace(",", "")) >= 1
    assert re.search(r"^why +\S", tail, re.MULTILINE)
    assert re.search(r"^Of \d placements looked at, [1-5] went elsewhere", tail, re.MULTILINE)


def test_a_trace_that_cannot_be_read_is_one_line(kvaware: Kvaware, tmp_path: Path) -> None:
    file = tmp_path / "trace.jsonl"
    file.write_text("timestamp,input_length\n0,1\n")
    result = kvaware("replay", "--trace", str(file))
    assert result.code == 2
    assert result.err == f"kvaware: error: {file}, line 1: expected a JSON object, got 'timestamp,input_length'\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(("--policy", "cost", "--policy", "cost"), "expected different policies", id="twice"),
        pytest.param(("--policy", "emptiest"), "'emptiest' is not one of", id="unknown"),
        pytest.param(("--seconds", "nan"), "seconds", id="no time"),
        pytest.param(("--workers", "0"), "greater than or equal to 1", id="no worker"),
    ],
)
def test_wrong_use_is_said(kvaware: Kvaware, arguments: tuple[str, ...], message: str) -> None:
    result = kvaware("replay", *arguments)
    assert result.code == 2
    assert message in result.err
    assert "Traceback" not in result.err


async def test_an_extender_that_fails_in_the_middle_is_one_error(tmp_path: Path) -> None:
    """Not the groups of errors in which tasks end together."""
    plan = ReplayPlan(trace=Path(trace(tmp_path)), policies=(PolicyName.COST,), workers=1, within_s=0.1)
    extender = PlacingStub(worker_ids("cost", 1), token="a token of the test")
    extender.refusal = (200, "NoPlacementInIt")
    async with extender.serve() as url:
        with pytest.raises(ServerError, match=r"^placement: expected placement_id and worker\.id"):
            await _replayed(
                console(plain=True), plan, read_mooncake(plan.trace), profile=FALLBACK_PROFILE,
                extender=SimpleNamespace(api_url=url), token="a token of the test",
            )  # fmt: skip
