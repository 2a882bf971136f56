"""The annotation ``kvaware.io/reservation``: what a pod holds, written in the same write as its binding.

One JSON object of version 1. A field is added only in a way that version 1 readers can ignore; all else is version 2.
"""

from sys import intern
from typing import Any, Final

import orjson

from kvaware_cluster.parse.bounds import MAX_DEVICES, MAX_GPUS_PER_POD, MAX_HBM_PER_GPU_BYTES
from kvaware_crds.errors import WireError
from kvaware_engine.observations import GpuClass, Reservation

__all__ = ["parse_reservation", "render_reservation"]

VERSION: Final = 1
MAX_TEXT_BYTES: Final = 8192
"""A real one has about 250 bytes; longer ones are not ours."""


def render_reservation(reservation: Reservation) -> str:
    """The annotation's text; equal reservations give equal bytes."""
    return orjson.dumps(
        {
            "v": VERSION,
            "model": reservation.model,
            "tenant": reservation.tenant,
            "resource": reservation.resource,
            "gpus": reservation.gpus,
            "hbm_per_gpu_bytes": reservation.hbm_per_gpu_bytes,
            "class": reservation.gpu_class.value,
            "devices": reservation.devices,
            "decision_id": reservation.decision_id,
        }
    ).decode()


def parse_reservation(text: str) -> Reservation:
    """Read the annotation.

    Raises: WireError saying what was expected and what came.
    """
    if len(text) > MAX_TEXT_BYTES:
        raise WireError(f"reservation: expected at most {MAX_TEXT_BYTES} characters, got {len(text)}")
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise WireError(f"reservation: expected JSON, got {text[:64]!r}") from error
    if type(value) is not dict or value.get("v") != VERSION or type(value.get("v")) is not int:
        raise WireError(f"reservation: expected an object with v = {VERSION}, got {text[:64]!r}")
    hbm = value.get("hbm_per_gpu_bytes")
    devices = value.get("devices", [])
    if type(devices) is not list or len(devices) > MAX_GPUS_PER_POD:
        raise WireError("reservation.devices: expected a list of device indexes")
    return Reservation(
        model=None if value.get("model") is None else _text(value, "model"),
        tenant=_text(value, "tenant"),
        resource=_text(value, "resource"),
        gpus=_whole(value.get("gpus"), "gpus", least=1, most=MAX_GPUS_PER_POD),
        hbm_per_gpu_bytes=None
        if hbm is None
        else _whole(hbm, "hbm_per_gpu_bytes", least=1, most=MAX_HBM_PER_GPU_BYTES),
        gpu_class=_gpu_class(value.get("class")),
        devices=tuple(_whole(device, "devices", least=0, most=MAX_DEVICES) for device in devices),
        decision_id=_text(value, "decision_id") if value.get("decision_id") else "",
    )


def _text(value: dict[str, Any], key: str) -> str:
    text = value.get(key)
    if type(text) is not str or not text:
        raise WireError(f"reservation.{key}: expected a text, got {str(text)[:64]!r}")
    return text if key == "decision_id" else intern(text)  # all but the decision's id repeat from pod to pod


def _whole(number: Any, key: str, *, least: int, most: int) -> int:
    if type(number) is not int or not least <= number <= most:
        raise WireError(f"reservation.{key}: expected a whole number from {least} to {most}, got {str(number)[:64]!r}")
    return number


def _gpu_class(text: Any) -> GpuClass:
    try:
        return GpuClass(text)
    except ValueError as error:
        expected = ", ".join(GpuClass)
        raise WireError(f"reservation.class: expected one of {expected}, got {str(text)[:64]!r}") from error
