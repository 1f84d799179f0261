"""Every kind of fault, by name: those that come one after the other, and those that go on beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.chaos import faults_replicas as replicas
from benchmarks.chaos import faults_servers as servers

if TYPE_CHECKING:
    from benchmarks.chaos.faults_replicas import Deed

MAIN: dict[str, Deed] = {
    "kill": replicas.kill,
    "stop": replicas.stop_long,
    "stop-short": replicas.stop_short,
    "stop+terminate": replicas.stop_and_terminate,
    "shutdown": replicas.graceful,
    "step-down": replicas.step_down,
    "freeze-both": replicas.freeze("both"),
    "freeze-up": replicas.freeze("up"),
    "freeze-down": replicas.freeze("down"),
    "freeze-slow": replicas.freeze_slow,
    "partition": replicas.partition,
    "cut": replicas.cut_both,
    "cut-client": replicas.cut_client,
    "cut-server": replicas.cut_server,
    "deaf": replicas.deaf,
    "terminate": servers.terminate,
    "terminate-all": servers.terminate_all,
    "restart-fast": servers.restart("fast"),
    "restart-immediate": servers.restart("immediate"),
    "promote": servers.promote,
    "promote-lossy": servers.promote_lossy,
    "rotate-password": servers.rotate_password,
    "exhaust": servers.exhaust,
}
ASIDE: dict[str, Deed] = {"cancel": servers.cancel_statements, "index": servers.build_index, "vacuum": servers.vacuum}
KINDS = (*MAIN, *ASIDE)
