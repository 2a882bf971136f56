"""The extender's settings from a YAML file and ``KVAWARE_*`` variables."""

from collections.abc import Mapping
from pathlib import Path

from kvaware_cluster.load import load_settings as load
from kvaware_extender.settings import ExtenderSettings

__all__ = ["load_settings"]


def load_settings(path: Path | None, environ: Mapping[str, str]) -> ExtenderSettings:
    """Read the settings. Raises: ConfigError that names what is wrong. Reads a file: not for the event loop."""
    return load(ExtenderSettings, path, environ)
