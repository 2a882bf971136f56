"""A role whose replicas really do something: requests come, queue, run and take long, on virtual time.

A fluid model: what one replica finishes per second is fixed, what is above waits. Latency follows the share of time
that a replica works, as in a queue with Poisson arrivals. Token rates are means over the last minute, as reports give.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from kvaware_engine import RoleLoad, Scaler, ScalingPlan, ScalingRules
from kvaware_testing.worker_builders import ROOMY, role_load, wanting

__all__ = ["Plant"]

WINDOW_S = 60.0


@dataclass
class Plant:
    """One role, its scaler, and the loop of the operator around them."""

    scaler: Scaler
    offered_per_s: Callable[[float], float]
    """Requests per second, by time."""
    replica_per_s: float
    """Requests per second that one replica really finishes."""
    rules: ScalingRules = field(default_factory=ScalingRules)
    at_most: int = 64
    start_s: float = 60.0
    """From being added to Ready."""
    poll_s: float = 10.0
    replicas: int = 1
    prompt_tokens: float = 500.0
    answer_tokens: float = 50.0
    now_s: float = 0.0
    backlog: float = 0.0
    starts: list[float] = field(default_factory=list)
    """When those that start become Ready."""
    served: deque[float] = field(default_factory=lambda: deque([0.0], maxlen=round(WINDOW_S / 10)))
    history: list[tuple[float, int]] = field(default_factory=list)
    """Time and replicas, at each change."""
    plans: list[ScalingPlan] = field(default_factory=list)

    @property
    def ready(self) -> int:
        """Replicas that serve."""
        return self.replicas - sum(1 for ready_at_s in self.starts if ready_at_s > self.now_s)

    def load(self) -> RoleLoad:
        """What the workers report now."""
        served_per_s = sum(self.served) / len(self.served)
        share = min(0.99, self.served[-1] / (self.ready * self.replica_per_s))
        ttft_ms = 200.0 / (1 - share) + 1000 * self.backlog / max(0.01, self.served[-1])
        busy = served_per_s > 0
        return role_load(
            workers=self.ready,
            waiting=round(self.backlog),
            running=round(8 * share * self.ready),
            kv_usage_ratio=0.7 * share,
            requests_per_s=served_per_s,
            prompt_tokens_per_s=served_per_s * self.prompt_tokens,
            generation_tokens_per_s=served_per_s * self.answer_tokens,
            ttft_p99_ms=ttft_ms if busy else None,
            tpot_p99_ms=20 * (1 + share) if busy else None,
        )

    def step(self) -> ScalingPlan:
        """One poll: traffic flows, the scaler plans, the plan is carried out."""
        self.now_s += self.poll_s
        coming = self.offered_per_s(self.now_s) * self.poll_s + self.backlog
        done = min(coming, self.ready * self.replica_per_s * self.poll_s)
        self.backlog = min(coming - done, 2000.0)
        self.served.append(done / self.poll_s)
        request = wanting(
            self.load(),
            replicas=self.replicas,
            ready=self.ready,
            at_most=self.at_most,
            rules=self.rules,
            headroom=ROOMY,
        )
        plan = self.scaler.plan(request, now_s=self.now_s)
        self.plans.append(plan)
        self.starts = [ready_at_s for ready_at_s in self.starts if ready_at_s > self.now_s]
        if plan.target != self.replicas:
            more = plan.target - self.replicas
            self.starts += [self.now_s + self.start_s] * more
            self.starts = self.starts[: plan.target - 1]
            self.replicas = plan.target
            self.history.append((self.now_s, plan.target))
        return plan

    def run(self, seconds: float) -> None:
        """Go on for so long."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.step()
