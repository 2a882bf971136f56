"""kvaware's kinds go and come back. The last file by name: all other tests need the CRDs."""

from collections.abc import Iterator

import pytest

from kvaware_crds import render_crds
from kvaware_testing.controlplane import ControlPlane, eventually
from kvaware_testing.controlplane.extender import ExtenderProcess
from kvaware_testing.controlplane.sandbox import Sandbox

BACKOFF_MAX_S = 10.0
"""``store.backoffMaxS``: a kind that arrives late is in force within this time."""

pytestmark = pytest.mark.usefixtures("scheduler")


@pytest.fixture
def crds(control_plane: ControlPlane) -> Iterator[None]:
    """Whatever happens in the test, the kinds are there again afterwards."""
    yield
    apply_crds(control_plane)


def apply_crds(control_plane: ControlPlane, *kinds: str) -> None:
    """Bring in some kinds; all unless told which."""
    texts = render_crds()
    wanted = [text for name, text in texts.items() if not kinds or any(kind in name for kind in kinds)]
    assert wanted, f"no {kinds} among {list(texts)}"
    control_plane.apply_text("---\n".join(wanted))
    control_plane.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize("restarted", [False, True], ids=["extender stays", "extender restarts"])
def test_without_the_kinds_gpu_pods_wait_and_with_them_quotas_hold_again(
    control_plane: ControlPlane, sandbox: Sandbox, extender: ExtenderProcess, *, restarted: bool
) -> None:
    """nolar/kopf#1094: a CRD that is deleted, or arrives after the start. Unknown is not unlimited."""
    # given: a tenant that may have nothing
    sandbox.add_nodes("a", gpus=4)
    control_plane.apply(sandbox.quota("team", gpus=0))
    control_plane.create(sandbox.pod("before"))
    sandbox.wait_refused("before", "kvaware: the tenant's GPU limit")
    # when: its quota goes with the kind
    control_plane.kubectl("delete", "crd", "tenantquotas.kvaware.io", "inferencemodels.kvaware.io", "--timeout=30s")
    if restarted:
        extender.stop()
        extender.process.start()  # not ready before the kinds are there
    eventually(lambda: "503" in extender.not_ready(), 30, "the extender knows that it does not know the quotas")
    control_plane.create(sandbox.pod("during"), sandbox.pod("plain", gpus=0))
    # then: nobody becomes unlimited, and who asks for no GPU is not held up
    sandbox.wait_refused("during", "kvaware: the view of the cluster is stale")
    assert sandbox.wait_bound("plain")
    assert sandbox.node_of("before") is None
    # when: quotas are back while models are still missing, and then these too
    apply_crds(control_plane, "tenantquotas")
    # kubectl learns of the kind a moment after it is established
    eventually(lambda: control_plane.apply(sandbox.quota("team", gpus=1)) is None, 20, "the quota is taken")
    assert not bound(sandbox)
    apply_crds(control_plane)
    # then: in force within a back-off, some seconds of kube-scheduler's own apart
    eventually(lambda: bound(sandbox), BACKOFF_MAX_S + 15, "one of the two is bound")
    (waiting,) = {"before", "during"} - bound(sandbox)
    sandbox.wait_refused(waiting, "kvaware: the tenant's GPU limit")
    assert not extender.not_ready()


def bound(sandbox: Sandbox) -> set[str]:
    return {pod["metadata"]["name"] for pod in sandbox.pods() if pod["spec"].get("nodeName")} - {"plain"}
