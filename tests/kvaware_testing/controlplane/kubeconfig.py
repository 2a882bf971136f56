"""Kubeconfig files with one context: written for the programs, read for our own small clients."""

import base64
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvaware_testing.controlplane.certificates import KeyPair

__all__ = ["Access", "certificate_user", "read_access", "render_kubeconfig", "token_user"]


@dataclass(frozen=True, slots=True)
class Access:
    """How to speak to an API server."""

    server: str
    tls: ssl.SSLContext
    headers: Mapping[str, str]


def certificate_user(pair: KeyPair) -> dict[str, str]:
    """Return the ``user`` of a kubeconfig that signs in by certificate."""
    return {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)}


def token_user(token: str) -> dict[str, str]:
    """Return the ``user`` of a kubeconfig that signs in by bearer token."""
    return {"token": token}


def render_kubeconfig(*, server: str, authority: bytes, user: Mapping[str, str]) -> str:
    """Return a kubeconfig as YAML."""
    content: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "e2e", "cluster": {"server": server, "certificate-authority-data": _base64(authority)}}],
        "users": [{"name": "e2e", "user": dict(user)}],
        "contexts": [{"name": "e2e", "context": {"cluster": "e2e", "user": "e2e"}}],
        "current-context": "e2e",
    }
    return yaml.safe_dump(content)


def read_access(path: Path) -> Access:
    """Read a file that ``render_kubeconfig`` wrote for a token; nothing more general is needed here."""
    content = yaml.safe_load(path.read_text("utf-8"))
    cluster, user = content["clusters"][0]["cluster"], content["users"][0]["user"]
    authority = base64.b64decode(cluster["certificate-authority-data"]).decode("ascii")
    return Access(
        server=cluster["server"],
        tls=ssl.create_default_context(cadata=authority),
        headers={"Authorization": f"Bearer {user['token']}"},
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
