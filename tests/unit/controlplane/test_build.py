"""The build, with a fake ``go``: what appears in the cache, and what never does."""

import os
from pathlib import Path

import pytest

from kvaware_testing.controlplane.build import BuildFailedError, build

GO = """#!/bin/sh
if [ "$1" = version ]; then echo "go version go9.9.9 linux/amd64"; exit 0; fi
echo "$PWD $*" >> "$CALLS"
while [ "$1" != -o ]; do shift; done
echo program > "$2"
{after}
"""


def environ(tmp_path: Path, after: str = "") -> dict[str, str]:
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(GO.replace("{after}", after), "utf-8")
    go.chmod(0o755)
    return {"PATH": f"{go.parent}:{os.defpath}", "CALLS": str(tmp_path / "calls")}


def calls(tmp_path: Path) -> list[str]:
    return (tmp_path / "calls").read_text("utf-8").splitlines()


def test_each_program_is_built_in_its_module_with_its_version_stamped(tmp_path: Path) -> None:
    """An unstamped API server calls itself v0.0.0, and clients complain."""
    # given
    cache = tmp_path / "cache"
    said: list[str] = []
    # when
    build(["kwok", "kube-scheduler"], into=cache, environ=environ(tmp_path), report=said.append)
    # then
    kwok, scheduler = calls(tmp_path)
    assert "/controlplane/kwok build -trimpath" in kwok
    assert kwok.endswith("sigs.k8s.io/kwok/cmd/kwok")
    assert "/controlplane/kubernetes build -trimpath" in scheduler
    assert "gitVersion=v1.37.2" in scheduler
    assert (cache / "kwok").read_text("utf-8") == "program\n"
    assert len(said) == 2


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    """An interrupted build goes on where it stopped."""
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kwok").write_text("yesterday's", "utf-8")
    build(["kwok", "etcd"], into=cache, environ=environ(tmp_path), report=lambda _: None)
    assert (cache / "kwok").read_text("utf-8") == "yesterday's"
    assert len(calls(tmp_path)) == 1


def test_a_failed_build_leaves_no_program_and_shows_the_log(tmp_path: Path) -> None:
    # given
    cache = tmp_path / "cache"
    broken = environ(tmp_path, after="echo 'undefined: x' >&2; exit 3")
    # when
    with pytest.raises(BuildFailedError) as raised:
        build(["kwok"], into=cache, environ=broken, report=lambda _: None)
    # then
    assert "exit status 3" in str(raised.value)
    assert "undefined: x" in str(raised.value)
    assert {path.name for path in cache.iterdir()} == {".lock", "kwok.log"}
