"""What kind (Kubernetes in Docker) can do for these tests: nothing that the programs themselves do not do better.

The tests stop and start the API server, run kube-schedulers and kwok as processes of their own with their own rights,
and put a proxy in front of pods/binding. A kind cluster brings none of kwok, kube-scheduler for the host, or an API
server that may be restarted without its node; so a machine with kind and without the programs still skips, and says so.
"""

import shutil
import subprocess

__all__ = ["kind_note"]


def kind_note() -> str | None:
    """Return a remark for the skip line where Docker answers and kind is installed; None elsewhere."""
    docker, kind = shutil.which("docker"), shutil.which("kind")
    if docker is None or kind is None or not _answers(docker):
        return None
    return "kind is here, but brings no kwok and no API server that tests may restart"


def _answers(docker: str) -> bool:
    try:
        return subprocess.run([docker, "info"], capture_output=True, check=False, timeout=10).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
