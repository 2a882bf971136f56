"""What is asked about the number of replicas, and what is answered: the words of ``Scaler.plan``."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from kvaware_engine.observations import ObjectKey
from kvaware_engine.reports import RoleHeadroom, RoleLoad

__all__ = ["ScalingPlan", "ScalingReason", "ScalingRequest", "ScalingRules"]


class ScalingReason(StrEnum):
    """Why a role gets the replicas that it gets."""

    LOAD_FITS = "LoadFits"
    """The load asks for as many as there are."""
    QUEUE_GROWS = "QueueGrows"
    """Requests wait longer than the objective, or than a replica can take."""
    KV_PRESSURE = "KVPressure"
    """The KV pools are nearly full, or requests are preempted for it."""
    OBJECTIVE_MISSED = "ObjectiveMissed"
    """TTFT or TPOT is above its objective."""
    CAPACITY = "Capacity"
    """The token rate is above what the replicas can do at the objective."""
    LESS_LOAD = "LessLoad"
    """Fewer replicas would do."""
    WAITS_FOR_WINDOW = "WaitsForWindow"
    """The load asks for a change, not yet for as long as the window says."""
    AFTER_RESTART = "AfterRestart"
    """Fewer would do, and kvaware has not watched for one full window yet."""
    LOAD_UNKNOWN = "LoadUnknown"
    """Nobody, or too few, tell what the load is: the number stays."""
    HBM_CONSTRAINED = "HBMConstrained"
    """More are wanted and do not fit."""
    REPLICA_UNSCHEDULABLE = "ReplicaUnschedulable"
    """More are wanted while one of the role cannot be scheduled."""
    REPLICAS_STARTING = "ReplicasStarting"
    """More are wanted and those added last are not Ready yet."""
    AT_MAXIMUM = "AtMaximum"
    AT_MINIMUM = "AtMinimum"
    BELOW_MINIMUM = "BelowMinimum"
    """Somebody set fewer than the minimum."""
    ABOVE_MAXIMUM = "AboveMaximum"
    """Somebody set more than the maximum."""
    INVALID_BOUNDS = "InvalidBounds"
    """The minimum is above the maximum, by an object that is older than the rule against it: the number stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRules:
    """How a model's replicas follow its load, from its spec."""

    up_window_s: float = 0.0
    down_window_s: float = 300.0
    up_step: int = 4
    """Replicas added in one step, at most."""
    down_step: int = 1
    ttft_ms: float | None = None
    """Objective at the 99th percentile; None: none is promised."""
    tpot_ms: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingRequest:
    """One role of one model as it stands."""

    model: ObjectKey
    role: str
    min_replicas: int
    """At least 1 until requests are placed by kvaware."""
    max_replicas: int
    pods_per_replica: int = 1
    rules: ScalingRules = ScalingRules()
    replicas: int
    """``spec.replicas`` of the scale target."""
    ready_replicas: int
    unschedulable_pods: int = 0
    load: RoleLoad | None
    """None: the extender did not answer."""
    headroom: RoleHeadroom | None = None
    """None: not asked, or no answer. A plan that wants more without it says how many to ask for."""
    product: str | None = None
    """GPU product of the role's pods, for its hardware profile; None: unknown."""
    model_id: str = ""
    gpus_per_pod: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPlan:
    """What to do about one role now."""

    desired: int | None
    """What the load asks for, within min and max, after windows (before steps and HBM); None: unknown."""
    target: int
    """What to set now; the present number where nothing is to be done."""
    reason: ScalingReason
    message: str
    """One sentence with the figures."""
    ask_headroom: int = 0
    """Above 0: more are wanted; ask whether so many more fit, and plan again with the answer."""
    hbm_constrained: bool = False
    lacking: str = ""
    """What keeps the others from fitting: a constant text, unlike the message; empty: nothing, or it is not told."""
    terms: Mapping[str, float] = field(default_factory=dict)
    """The figures behind it, by name, for the log: replicas that each signal asks for, capacity."""
