"""What a replay shows of its figures, and which decision it explains."""

import io
from typing import Any

from kvaware_cli.output import console
from kvaware_cli.replay.emptiest import passed_over
from kvaware_cli.replay.view import Result, print_result
from kvaware_simulator import Tally


def tally(*, mean_ms: float | None = 100.0, hit_ratio: float | None = 0.25, refused: int = 0) -> Tally:
    known = mean_ms is not None
    return Tally(
        requests=10 if known else 0,
        refused=refused,
        hit_ratio=hit_ratio if known else None,
        ttft_mean_ms=mean_ms,
        ttft_p50_ms=80.0 if known else None,
        ttft_p90_ms=1234.0 if known else None,
        spread_ratio=1.2 if known else None,
    )


def candidate(worker: str, total_ms: float, **fields: Any) -> Any:
    return {"worker": worker, "options": [{"action": "local", "terms": {"total": total_ms}}], **fields}


def explanation(placement_id: str = "p", *, emptiest: str = "b", other_ms: float = 300.0) -> Any:
    """One in which a is chosen at 100 ms; b would cost ``other_ms``."""
    return {
        "placement_id": placement_id,
        "request": {
            "request_id": f"r-{placement_id}",
            "model": {"namespace": "replay", "name": "cost"},
            "input_tokens": 9000,
        },
        "policy": "cost",
        "reason": "PrefixResident",
        "chosen": "a",
        "runner_up": "b",
        "runner_up_behind": other_ms - 100,
        "emptiest": emptiest,
        "in_the_running": 2,
        "candidates": [candidate("a", 100.0, matched_tokens=8192), candidate("b", other_ms)],
        "answers": [
            {"question": "Where should it go?", "answer": "To a."},
            {"question": "Why not the emptiest GPU?", "answer": "b computes it all again."},
        ],
        "flip": {"text": "with 200 ms more waiting at a"},
    }


class Explaining:
    """A gateway that knows these explanations."""

    def __init__(self, *known: Any) -> None:
        self._known = {each["placement_id"]: each for each in known}
        self.asked: list[str] = []

    async def explanation(self, placement_id: str) -> Any | None:
        self.asked.append(placement_id)
        return self._known.get(placement_id)


def printed(result: Result) -> str:
    print_result(console(plain=True, file=(text := io.StringIO())), result)
    return text.getvalue()


def result(**changes: Any) -> Result:
    given: dict[str, Any] = {
        "tallies": {"round_robin": tally(mean_ms=400.0), "cost": tally()},
        "refusals": {},
        "late_s": 0.0,
        "explained": None,
        "by_cost": True,
        **changes,
    }
    return Result(**given)


def test_the_policies_stand_side_by_side_with_what_was_measured() -> None:
    text = printed(result())
    assert text.splitlines()[1] == "POLICY       HIT RATE  TTFT P50 MS    P90  MEAN  MAX/MEAN REQUESTS"
    assert text.splitlines()[2].split() == ["round_robin", "25.0%", "80", "1,234", "400", "1.20"]
    assert text.splitlines()[3].split() == ["cost", "25.0%", "80", "1,234", "100", "1.20"]
    assert "refused" not in text
    assert "busy" not in text


def test_a_policy_whose_requests_all_failed_has_no_figures() -> None:
    text = printed(result(tallies={"cost": tally(mean_ms=None, refused=3)}, refusals={"cost": {"NoWorker": 3}}))
    assert text.splitlines()[2].split() == ["cost", *["?"] * 5]
    assert "cost: 3 NoWorker" in text


def test_a_machine_that_could_not_keep_up_is_said() -> None:
    assert "a request came up to 0.9 s late to its worker" in printed(result(late_s=0.9))


async def test_the_dearest_decision_for_the_emptiest_is_explained() -> None:
    """Of three decisions the emptiest was right in one, cost 200 ms more in one and 900 in another."""
    gateway = Explaining(
        explanation("p1", emptiest="a"), explanation("p2"), explanation("p3", other_ms=1000.0), explanation("p4")
    )
    found = await passed_over(gateway, ["p1", "p2", "gone", "p3"])
    assert found is not None
    assert (found.explanation.placement_id, found.extra_ms, found.wrong, found.looked_at) == ("p3", 900.0, 2, 3)
    text = printed(result(explained=found))
    assert "request    r-p3, placement p3" in text
    assert "emptiest   b, 900 ms more, 0.9 s" in text
    assert "why        b computes it all again." in text
    assert "flips      with 200 ms more waiting at a" in text
    assert "Of 3 placements looked at, 2 went elsewhere since the emptiest worker was dearer." in text


async def test_where_the_emptiest_was_always_right_it_says_so() -> None:
    assert await passed_over(Explaining(explanation("p1", emptiest="a")), ["p1"]) is None
    assert "the emptiest worker was as good as any for every request" in printed(result())


async def test_a_decision_for_the_cache_is_shown_before_one_for_a_shorter_queue() -> None:
    """The second is dearer for the emptiest, but there it holds as much."""
    waiting = explanation("p2", other_ms=1000.0)
    waiting["candidates"][1]["matched_tokens"] = 8192
    found = await passed_over(Explaining(explanation("p1"), waiting), ["p1", "p2"])
    assert found is not None
    assert (found.explanation.placement_id, found.wrong) == ("p1", 2)


async def test_a_tie_is_no_wrong_choice() -> None:
    """Workers that have nothing to do are all the emptiest."""
    assert await passed_over(Explaining(explanation(other_ms=100.9)), ["p"]) is None


async def test_of_many_placements_some_are_looked_at_evenly() -> None:
    gateway = Explaining()
    assert await passed_over(gateway, [str(number) for number in range(201)]) is None
    assert gateway.asked == [str(number) for number in range(0, 201, 3)]


def test_without_the_policy_cost_nothing_is_explained() -> None:
    assert "emptiest" not in printed(result(by_cost=False))


async def test_a_decision_without_costs_is_looked_at_and_passed_over() -> None:
    """An extender of another version may leave out what a worker would have cost."""
    body = explanation()
    body["candidates"][1]["options"] = []
    assert await passed_over(Explaining(body), ["p"]) is None
