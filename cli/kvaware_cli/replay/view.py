"""What a replay shows: what is replayed, the policies side by side, and one decision explained."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from kvaware_cli.output import UNKNOWN, Fact, Listing, ms, plural, print_facts, print_rule, print_table, seconds, table
from kvaware_cli.placement_view import request_facts, workers_table
from kvaware_cli.program import shown
from kvaware_cli.replay.emptiest import PassedOver
from kvaware_cli.replay.scene import KV_BLOCKS, MODEL_ID
from kvaware_engine import HardwareProfile
from kvaware_simulator import BLOCK_TOKENS, Tally, TraceRequest, seen_before_ratio

__all__ = ["Result", "print_heading", "print_result"]

LATE_S: Final = 0.25
"""By so much a request may come late before it is worth a word: the times to first token are seconds."""
EMPTIEST_QUESTION: Final = "emptiest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a replay came to."""

    tallies: Mapping[str, Tally]
    """By policy, in the order in which they are shown."""
    refusals: Mapping[str, Mapping[str, int]]
    """Policy → code → requests, where there were any."""
    late_s: float
    explained: PassedOver | None
    by_cost: bool
    """Whether the policy ``cost``, whose decisions are explained, took part."""


def print_heading(
    out: Console,
    trace: Path,
    requests: Sequence[TraceRequest],
    *,
    policies: Sequence[str],
    workers: int,
    within_s: float,
    seed: int,
    profile: HardwareProfile,
    server: str,
) -> None:
    """What is replayed, where, and how far the figures can be believed."""
    recorded_s = requests[-1].at_s - requests[0].at_s
    under = "one policy" if len(policies) == 1 else f"{len(policies)} policies"
    print_rule(out, f"{plural(len(requests), 'request')} of a recorded trace, under {under}")
    mean_tokens = sum(each.input_tokens for each in requests) / len(requests)
    best = seen_before_ratio(requests, block_tokens=BLOCK_TOKENS)
    speed = (
        f"prefill of 8,192 tokens {ms(profile.prefill_ms(8192))} ms, a decode step {profile.decode_step_ms(1):.1f} ms"
    )
    print_facts(
        out,
        [
            ("trace", f"{shown(trace)}: {recorded_s:,.0f} s packed into {within_s:g} s, order kept (seed {seed})"),
            ("prompts", f"{mean_tokens:,.0f} tokens on average; {best:.1%} of all were in a prompt before"),
            ("workers", f"{workers} per policy, modelled: {MODEL_ID} on one {profile.product.name.upper()} each"),
            ("", f"{speed} ({profile.origin}); {KV_BLOCKS} KV blocks of {BLOCK_TOKENS}"),
            ("extender", f"{server}, asked as a gateway asks; heartbeats and events in real time"),
        ],
    )


def print_result(out: Console, result: Result) -> None:
    """The table, then the decision."""
    out.print()
    print_table(out, _comparison(result.tallies))
    out.print()
    print_facts(out, _comparison_facts(result))
    if result.by_cost:
        print_rule(out, 'why not "the emptiest worker"?')
        _print_explained(out, result.explained)


def _comparison(tallies: Mapping[str, Tally]) -> Listing:
    figures = ("HIT RATE", "TTFT P50 MS", "P90", "MEAN", "MAX/MEAN REQUESTS")
    made = table("POLICY", *figures, right=frozenset(figures))
    best_ms = min((t.ttft_mean_ms for t in tallies.values() if t.ttft_mean_ms is not None), default=None)
    for policy, each in tallies.items():
        made.add_row(
            policy,
            UNKNOWN if each.hit_ratio is None else f"{each.hit_ratio:.1%}",
            *(UNKNOWN if t is None else ms(t) for t in (each.ttft_p50_ms, each.ttft_p90_ms, each.ttft_mean_ms)),
            UNKNOWN if each.spread_ratio is None else f"{each.spread_ratio:.2f}",
            style="green" if best_ms is not None and each.ttft_mean_ms == best_ms else "",
        )
    return made


def _comparison_facts(result: Result) -> Iterator[Fact]:
    yield "hit rate", "prompt tokens that the workers found in their own caches"
    yield "TTFT", "from the worker's queue to its first token, by the hardware profile: estimated, no GPU was asked"
    yield "MAX/MEAN", "requests of the busiest worker over the mean of all: 1 is even"
    for policy, codes in result.refusals.items():
        told = ", ".join(f"{count} {code}" for code, count in sorted(codes.items()))
        yield "refused", f"{policy}: {told}; they are in none of the figures"
    if result.late_s > LATE_S:
        late = f"this machine was busy: a request came up to {result.late_s:.1f} s late to its worker"
        yield "note", Text(late, style="yellow")


def _print_explained(out: Console, passed: PassedOver | None) -> None:
    if passed is None:
        out.print("Here the emptiest worker was as good as any for every request that was looked at.")
        return
    explanation = passed.explanation
    print_facts(out, request_facts(explanation))
    out.print()
    pair = explanation.model_copy(
        update={"candidates": (passed.chosen, passed.emptiest), "in_the_running": 2, "filtered": {}}
    )
    print_table(out, workers_table(pair))
    out.print()
    print_facts(out, _explained_facts(passed))
    looked_at = plural(passed.looked_at, "placement")
    out.print(f"Of {looked_at} looked at, {passed.wrong} went elsewhere since the emptiest worker was dearer.")


def _explained_facts(passed: PassedOver) -> Iterator[Fact]:
    explanation = passed.explanation
    yield "choice", Text.assemble((explanation.chosen, "bold green"), f" ({explanation.reason})")
    yield "emptiest", f"{passed.emptiest.worker}, {ms(passed.extra_ms)} ms more, {seconds(passed.extra_ms)} s"
    for each in explanation.answers:
        if EMPTIEST_QUESTION in each.question.lower():
            yield "why", each.answer
    yield "flips", explanation.no_flip if explanation.flip is None else explanation.flip.text
