"""Modelled workers and recorded requests: time is an argument, nothing here has a clock, a socket or a policy."""

from kvaware_simulator.arrivals import arrivals_s
from kvaware_simulator.errors import TraceError
from kvaware_simulator.prefix_cache import PrefixCache
from kvaware_simulator.reuse import seen_before_ratio
from kvaware_simulator.tally import Outcome, Tally, tally
from kvaware_simulator.traces import TraceRequest
from kvaware_simulator.traces.mooncake import BLOCK_TOKENS, parse_mooncake, read_mooncake
from kvaware_simulator.worker import Happening, ModelledWorker, WorkerEvent, WorkerFigures, WorkerRequest

__all__ = [
    "BLOCK_TOKENS",
    "Happening",
    "ModelledWorker",
    "Outcome",
    "PrefixCache",
    "Tally",
    "TraceError",
    "TraceRequest",
    "WorkerEvent",
    "WorkerFigures",
    "WorkerRequest",
    "arrivals_s",
    "parse_mooncake",
    "read_mooncake",
    "seen_before_ratio",
    "tally",
]
