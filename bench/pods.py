"""Pods: how many fit, many at once, and one as the kubelet makes it."""

import time

import cells  # noqa: F401  (finds the e2e modules)
import pod
import procfs
from shims import SETTLE
from stats import summary, timed

MARK = 20  # pods for which there is a mark


def kib(t):
    """All that the pods cost: shims, QEMUs, and the processes that containerd sees."""
    pids = t.shim_pids() + t.qemu_pids() + [pid for pid, _ in t.tasks().values()]
    return sum(procfs.pss_kib(pid) for pid in set(pids))


def remove(t, names):
    for name in names:
        t.ctr("tasks", "rm", "-f", name)
        t.ctr("containers", "rm", name)


def density(t, limit_kib, most):
    """Pods with one idle container each, until they take limit_kib: how many, and MiB each; at 20,
    where those are reached, and at the end. What they share is shared by more of them then."""
    used, names, result = 0, [], {}
    while used < limit_kib and len(names) < most:
        names.append(f"d{len(names)}")
        t.detach(names[-1], "sleep", "100000")
        if len(names) % 5 == 0 or len(names) == 1:
            used = kib(t)
        if len(names) == MARK:
            time.sleep(SETTLE)
            result["pod20_mib"] = summary([kib(t) / MARK / 1024])
    time.sleep(SETTLE)
    each = kib(t) / len(names)
    remove(t, names)
    return {**result, "pods": len(names), "pod_mib": summary([each / 1024]),
            "fit_2gib": int((2 << 20) / each)}


def parallel(t, count):
    """So many at once, until the last one runs."""
    names = [f"p{i}" for i in range(count)]

    def start_all():
        started = [t.start_run("-d", name, "sleep", "100000") for name in names]
        for process in started:
            r = process.wait(300)
            t.equal(r.code, 0, r)

    wall = timed(start_all)
    remove(t, names)
    return {"parallel_ms": summary([wall]), "parallel": count}


def cri(t, runs, handler):
    """RunPodSandbox until the container has been started."""
    pods, times = pod.Pods(t, handler), []

    for i in range(runs):
        def make(n=i):
            made.append(pods.pod(f"p{n}"))
            made[-1].run("c1", "sleep", "100000")
        made = []
        times.append(timed(make))
        made[0].stop()
        made[0].remove()
    return {"cri_pod_ms": summary(times)}


cri.prepare, cri.images = pod.prepare, ()
