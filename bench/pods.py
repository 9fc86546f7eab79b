"""Pods: how many fit into memory, many at once, and one as the kubelet creates it."""

import threading
import time

import cells  # noqa: F401  (finds the e2e modules)
import pod
import procfs
from shims import SETTLE, take_turns
from stats import summary, timed, timed_both

MARK = 20  # pods for which there is a mark
PATIENCE = 300  # seconds for one of many pods


def kib(t):
    """Memory of all processes of the pods: shims, QEMUs, and the processes that containerd sees."""
    pids = t.shim_pids() + t.qemu_pids() + [pid for pid, _ in t.tasks().values()]
    return sum(procfs.pss_kib(pid) for pid in set(pids))


def made_of(t, count):
    """MiB of each pod: QEMU and what is in it, and the rest."""
    qemus = t.qemu_pids()
    parts = {"qemu": sum(map(procfs.pss_kib, qemus))}
    parts["rest"] = kib(t) - parts["qemu"]
    for pid in qemus:
        for key, each in procfs.qemu_kib(pid).items():
            parts[key] = parts.get(key, 0) + each
    return {f"pod20_{key}_mib": summary([each / count / 1024]) for key, each in parts.items()}


def remove(t, names):
    for name in names:
        t.ctr("tasks", "rm", "-f", name)
        t.ctr("containers", "rm", name)


def density(t, limit_kib, most):
    """Starts pods with one idle container each until they use limit_kib: how many, and MiB each; at 20
    pods, if that many fit, and at the end. With more pods, shared memory counts less for each."""
    used, names, result = 0, [], {}
    while used < limit_kib and len(names) < most:
        names.append(f"d{len(names)}")
        t.detach(names[-1], "sleep", "100000")
        if len(names) % 5 == 0 or len(names) == 1:
            used = kib(t)
        if len(names) == MARK:
            time.sleep(SETTLE)
            result["pod20_mib"] = summary([kib(t) / MARK / 1024])
            if not t.is_runc:
                result.update(made_of(t, MARK))
    time.sleep(SETTLE)
    each = kib(t) / len(names)
    remove(t, names)
    return {**result, "pods": len(names), "pod_mib": summary([each / 1024]),
            "fit_2gib": int((2 << 20) / each)}


def end(one):
    one.stop()
    one.remove()


def cri(t, runs, handler, turn, others):
    """RunPodSandbox until the container has been started."""
    pods, times = pod.Pods(t, handler), []

    def one():
        made = []

        def make():
            made.append(pods.pod(f"p{len(times)}"))
            made[0].run("c1", "sleep", "100000")
        times.append(timed(make))
        end(made[0])
    take_turns(runs, one, turn, others)
    return {"cri_pod_ms": summary(times)}


def together(calls):
    threads = [threading.Thread(target=call, args=args) for call, *args in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def parallel(t, count, times, handler, turn, others):
    """Starts `count` pods of one container by the CRI at once; measures until the last one runs."""
    pods, walls, cpus, each = pod.Pods(t, handler), [], [], []
    pods.settings(boot_timeout_s=120)  # the last one waits for all

    def once():
        made, trouble = [], []
        configs = {name: pods.config(name) for name in (f"p{len(walls)}-{i}" for i in range(count))}

        def make(name):
            begin = time.perf_counter()
            try:
                made.append(pod.Pod(pods, name, configs[name], handler, PATIENCE))
                made[-1].create("c1", "sleep", "100000").start(PATIENCE)
                each.append((time.perf_counter() - begin) * 1000)
            except Exception as e:  # an exception in a thread would be lost
                trouble.append(f"{name}: {e}")

        wall, cpu = timed_both(lambda: together([(make, name) for name in configs]))
        if trouble:
            raise RuntimeError(f"{len(trouble)} of {count} pods: {trouble[0]}"[:500])
        together([(end, one) for one in made])
        walls.append(wall)
        cpus.append(cpu)
    take_turns(times, once, turn, others)
    return {"parallel_ms": summary(walls), "parallel_cpu_ms": summary(cpus),
            "parallel_each_ms": summary(each), "parallel": count}


cri.prepare, cri.images = pod.prepare, ()
parallel.prepare, parallel.images = pod.prepare, ()
