"""Which pods are DCGM exporters, and where each is reached."""

from sys import intern
from typing import Any

from kvaware_cluster.parse.reports import Report, silent
from kvaware_cluster.parse.wire import entries, mapping, metadata_of, string, uid_of
from kvaware_cluster.settings import DcgmSettings
from kvaware_cluster.source import ExporterTarget

__all__ = ["exporter_of"]


def exporter_of(raw: dict[str, Any], settings: DcgmSettings, *, report: Report = silent) -> ExporterTarget | None:
    """The pod as an exporter that can be scraped; None when it is none, or has no node or address (yet).

    One in a namespace where exporters are not believed is none, and ``report`` gets a sentence.
    Raises: WireError when it is no pod at all.
    """
    metadata = metadata_of(raw, "pod")
    labels = mapping(metadata, "labels", "pod.metadata")
    for wanted in settings.selectors:  # plain loops: every pod of the cluster comes through here
        for key, value in wanted:
            if labels.get(key) != value:
                break
        else:
            break
    else:
        return None
    namespace = string(metadata, "namespace", "pod.metadata")
    if settings.namespaces and namespace not in settings.namespaces:
        report(f"expected exporters in one of the namespaces {', '.join(settings.namespaces)}, found one elsewhere")
        return None
    status = mapping(raw, "status", "pod")
    node = string(mapping(raw, "spec", "pod"), "nodeName", "pod.spec")
    address = string(status, "podIP", "pod.status")
    if not node or not address or string(status, "phase", "pod.status") in {"Succeeded", "Failed"}:
        return None
    host = f"[{address}]" if ":" in address else address
    return ExporterTarget(
        uid=uid_of(metadata, "pod"),
        node=intern(node),
        address=f"{host}:{_port(raw) or settings.port}",
        created_at=string(metadata, "creationTimestamp", "pod.metadata"),
    )


def _port(raw: dict[str, Any]) -> int | None:
    """The container port that the exporter's manifests call ``metrics``; None without one."""
    for container in entries(mapping(raw, "spec", "pod"), "containers", "pod.spec"):
        for port in entries(container, "ports", "container"):
            number = port.get("containerPort")
            if port.get("name") == "metrics" and type(number) is int and 0 < number < 65_536:
                return number
    return None
