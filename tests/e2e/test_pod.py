"""A pod's life through the CRI."""

import os
import re
import time

import cri
from pod import FOREVER, pod_test


@pod_test("runs a container, whose output is in its log", smoke=True)
def runs(t):
    pod = t.pod("p1")
    t.equal(pod.state, cri.READY)
    c = pod.run("c1", "sh", "-c", "echo out; echo err >&2; exit 3")
    status = c.await_exit(3)
    t.equal((c.out, c.err), ("out\n", "err\n"))
    t.equal(status.reason, "Error", status)
    t.check(0 < status.created_at < status.finished_at, "times", status)
    t.equal(len(t.shim_pids()), 1)
    pod.stop()
    t.equal(pod.state, cri.NOTREADY)
    pod.remove()
    t.equal(list(t.cri.ListPodSandbox().items), [])
