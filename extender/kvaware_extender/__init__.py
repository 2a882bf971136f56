"""The extender: kube-scheduler's verbs and the ``/v1`` API over the engine, fed by the store."""

from kvaware_cluster import TaskEndedError
from kvaware_extender.app import Extender, run_extender, running_extender
from kvaware_extender.errors import ApiError
from kvaware_extender.load import load_settings
from kvaware_extender.settings import ExtenderSettings, GatewaySettings, HeartbeatSettings, StaleView, WakeUpSettings

__all__ = [
    "ApiError",
    "Extender",
    "ExtenderSettings",
    "GatewaySettings",
    "HeartbeatSettings",
    "StaleView",
    "TaskEndedError",
    "WakeUpSettings",
    "load_settings",
    "run_extender",
    "running_extender",
]
