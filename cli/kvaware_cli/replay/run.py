"""A replay from start to end: serve the workers' cluster, send the requests under every policy at once, compare."""

import asyncio
import secrets
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from kvaware_cli.demo.process import Extender, running_extender
from kvaware_cli.errors import InputError, ServerError
from kvaware_cli.replay.emptiest import passed_over
from kvaware_cli.replay.gateway import Gateway, open_gateway
from kvaware_cli.replay.policy_run import PolicyRun
from kvaware_cli.replay.scene import GPU_PRODUCT, MODEL_ID, write_scene
from kvaware_cli.replay.view import Result, print_heading, print_result
from kvaware_cluster.profiles import load_profiles
from kvaware_crds.v1alpha1.inference_model import PolicyName
from kvaware_engine import HardwareProfile, ProfileBook
from kvaware_simulator import TraceRequest, arrivals_s, read_mooncake

__all__ = ["ReplayPlan", "replay"]

LEAD_S: Final = 0.5
"""Between the first heartbeats and the first arrival."""
EXPLAINED_MAX: Final = 10_000
"""Of longer traces the latest decisions can be explained; each takes some kilobytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What is replayed."""

    trace: Path
    policies: tuple[PolicyName, ...] = tuple(PolicyName)
    workers: int = 8
    """Per policy."""
    within_s: float = 30.0
    """How long the arrivals take."""
    seed: int = 1
    requests_max: int | None = None
    """None: the whole trace."""


def replay(out: Console, plan: ReplayPlan) -> None:
    """Run it and print what it came to.

    Raises: TraceError, ServerError.
    """
    if not plan.policies or len(set(plan.policies)) < len(plan.policies):
        raise InputError(f"expected different policies, at least one, got {', '.join(plan.policies) or 'none'}")
    requests = read_mooncake(plan.trace)[: plan.requests_max]
    profile = ProfileBook(load_profiles()).find(GPU_PRODUCT, MODEL_ID, 1)
    token = secrets.token_hex(16)
    with tempfile.TemporaryDirectory(prefix="kvaware-replay-") as folder:
        write_scene(Path(folder), plan.policies, workers=plan.workers)
        token_file = Path(folder, "token")
        token_file.write_text(token, encoding="utf-8")
        # Nobody reads the record of each decision here: what is shown comes from the explanations.
        settings = {
            "KVAWARE_HEARTBEAT__TOKEN_FILE": str(token_file),
            "KVAWARE_DECISION_LOG": "off",
            "KVAWARE_REQUESTS__LEDGER__KEPT_EXPLAINED": str(min(EXPLAINED_MAX, len(requests) * len(plan.policies))),
        }
        with running_extender(Path(folder), settings) as extender:
            print_heading(
                out, plan.trace, requests,
                policies=plan.policies, workers=plan.workers, within_s=plan.within_s, seed=plan.seed,
                profile=profile, server=extender.api_url,
            )  # fmt: skip
            result = asyncio.run(_replayed(out, plan, requests, profile=profile, extender=extender, token=token))
    print_result(out, result)


async def _replayed(
    out: Console,
    plan: ReplayPlan,
    requests: Sequence[TraceRequest],
    *,
    profile: HardwareProfile,
    extender: Extender,
    token: str,
) -> Result:
    try:
        async with open_gateway(extender.api_url, token=token) as gateway:
            runs = await _policies_side_by_side(out, plan, requests, profile=profile, gateway=gateway)
            explained = next((run for run in runs if run.policy == PolicyName.COST), None)
            return Result(
                tallies={run.policy: run.tally() for run in runs},
                refusals={run.policy: run.refusals for run in runs if run.refusals},
                late_s=max(run.late_s for run in runs),
                explained=None if explained is None else await passed_over(gateway, explained.placements),
                by_cost=explained is not None,
            )
    except ExceptionGroup as group:
        if (failed := group.subgroup(ServerError)) is not None:
            raise _first(failed) from group
        raise


async def _policies_side_by_side(
    out: Console, plan: ReplayPlan, requests: Sequence[TraceRequest], *, profile: HardwareProfile, gateway: Gateway
) -> list[PolicyRun]:
    begins_s = time.monotonic()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    # where nobody can see it move, a bar is only noise
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        bar = progress.add_task("requests placed", total=len(requests) * len(plan.policies))
        runs = [
            PolicyRun(
                policy,
                workers=plan.workers,
                profile=profile,
                gateway=gateway,
                clock=lambda: time.monotonic() - begins_s,
                progressed=lambda: progress.advance(bar),
            )
            for policy in plan.policies
        ]
        await asyncio.gather(*(run.greet() for run in runs))
        first_s = time.monotonic() - begins_s + LEAD_S
        arrivals = arrivals_s(requests, within_s=plan.within_s, seed=plan.seed)
        times_s = [first_s + each for each in arrivals]
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(run.replay(requests, times_s), name=f"replay-{run.policy}")
    return runs


def _first(group: BaseExceptionGroup[ServerError]) -> ServerError:
    found: BaseException = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    assert isinstance(found, ServerError)  # noqa: S101 - the subgroup holds nothing else
    return found
