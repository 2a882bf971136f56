"""``kvaware replay``: which trace, which policies, how long."""

from pathlib import Path

from kvaware_cli.demo.scene import examples
from kvaware_cli.errors import InputError
from kvaware_cli.output import console
from kvaware_cli.replay.run import ReplayPlan, replay
from kvaware_crds.v1alpha1.inference_model import PolicyName

__all__ = ["example_trace", "run"]


def example_trace() -> Path:
    """The shipped piece of a trace. Raises: InputError where it is not installed."""
    trace = examples() / "traces" / "conversation.jsonl"
    if not trace.is_file():
        raise InputError("the example trace is not installed with this package: name a file with --trace FILE")
    return trace


def run(
    *,
    trace: Path | None,
    policies: list[PolicyName] | None,
    workers: int,
    within_s: float,
    seed: int,
    requests: int | None,
    plain: bool,
) -> None:
    """Replay a trace and print the comparison.

    Args:
        trace: A file; None: the example.
        policies: Side by side; None or none: all.
        workers: Per policy.
        within_s: How long the arrivals take.
        seed: Of the arrivals.
        requests: At most so many; None: all.
        plain: No colour, 100 columns.
    """
    plan = ReplayPlan(
        trace=trace or example_trace(),
        policies=tuple(policies or PolicyName),
        workers=workers,
        within_s=within_s,
        seed=seed,
        requests_max=requests,
    )
    replay(console(plain=plain), plan)
