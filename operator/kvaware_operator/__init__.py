"""The operator: replicas by load, deletion costs, and the statuses of kvaware's kinds; kopf and the store say where."""

from kvaware_cluster import TaskEndedError
from kvaware_operator.app import Operator, run_operator, running_operator
from kvaware_operator.settings import LeaseSettings, OperatorSettings, QueueSettings, load_settings

__all__ = [
    "LeaseSettings",
    "Operator",
    "OperatorSettings",
    "QueueSettings",
    "TaskEndedError",
    "load_settings",
    "run_operator",
    "running_operator",
]
