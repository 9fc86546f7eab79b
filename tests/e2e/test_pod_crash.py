"""What dies under a pod, and what then is true; many pods at once."""

import glob
import os
import random
import signal
import threading
import time

import cell
import cri
from e2e import CGROUP_V2, kill
from pod import FOREVER, Pod, pod_test


def await_dead(t, pod, *containers, seconds=20):
    """CRI needs a moment to see it; the times are those of the kubelet's next looks."""
    for c in containers:
        c.await_exit(seconds=seconds)
    t.until(lambda: pod.state == cri.NOTREADY, "the pod is not ready", seconds)


@pod_test("QEMU killed: a non-zero exit at once, and the pod can be removed", runc=False,
          smoke="one")
def qemu_killed(t):
    pod = t.pod("p1")
    a, b = pod.run("a", *FOREVER), pod.run("b", "sh", "-c", "exit 3")
    b.await_exit(3)
    begin = time.monotonic()
    kill(t.qemu_pid())
    await_dead(t, pod, a)
    t.equal((a.status().exit_code, a.status().reason), (137, "Error"), a.status())
    t.equal(b.status().exit_code, 3, "what had ended before")
    t.fails(lambda: a.exec("true"), "(?i)not running|exited|state|not found")
    t.explains(pod.id, "QEMU_KILLED")
    pod.stop()
    pod.remove()
    t.note(f"{time.monotonic() - begin:.1f} s until it was removed")
    t.equal(t.pod("p1").run("c1", "echo", "again").await_exit(0).exit_code, 0)


@pod_test("the shim killed: nothing of the pod stays alive, and it can be removed", runc=False)
def shim_killed(t):
    pod = t.pod("p1")
    a = pod.run("a", *FOREVER)
    kill(t.shim_pid())
    await_dead(t, pod, a)
    t.check(a.status().exit_code != 0, "exit 0", a.status())
    t.until(lambda: not t.qemu_pids(), "its VM has gone", 20)
    t.explains(pod.id, "SHIM_KILLED")
    t.equal(t.remove_pods(), [])


@pod_test("the shim stopped while containerd starts: nothing of the pod stays alive", runc=False,
          both=True)
def shim_stopped(t):
    pod = t.pod("p1")
    a = pod.run("a", *FOREVER)
    shim = t.shim_pid()
    os.kill(shim, signal.SIGSTOP)
    try:
        restart(t)
        await_dead(t, pod, a, seconds=60)
        t.until(lambda: not t.qemu_pids() and not t.shim_pids(), "VM and shim have gone", 30)
    finally:
        try:
            os.kill(shim, signal.SIGCONT)
        except ProcessLookupError:
            pass
    t.check(a.status().exit_code != 0, "exit 0", a.status())
    t.equal(t.remove_pods(), [])


@pod_test("QEMU killed by the host's OOM killer in the pod's cgroup: told as OOM", runc=False,
          both=True)
def host_oom(t):
    pod = t.pod("p1")
    c = pod.run("c1", *FOREVER)
    usage, limit = (f"/sys/fs/cgroup{path.format(f'{t.tag}/p1')}" for path in (
        ("/{}/memory.current", "/{}/memory.max") if CGROUP_V2 else
        ("/memory/{}/memory.usage_in_bytes", "/memory/{}/memory.limit_in_bytes")))
    with open(usage) as f:
        used = int(f.read())
    t.check(used > 32 << 20, f"QEMU is not in the pod's cgroup: {used} bytes")
    with open(limit, "w") as f:
        f.write(str(used + (16 << 20)))
    try:
        c.exec("sh", "-c", "head -c 200000000 /dev/zero >/dev/shm/much", seconds=60)
    except cri.Error:
        pass  # it has no VM any more
    await_dead(t, pod, c, seconds=60)
    t.equal((c.status().exit_code, c.status().reason), (137, "OOMKilled"), c.status())
    t.explains(pod.id, "HOST_OOM")
    t.equal(t.remove_pods(), [])


# ---------------------------------------------------------------- containerd

def restart(t):
    t.containerd.restart()
    t.until(t.serves, "the CRI serves", 60)


@pod_test("containerd killed at each step of a pod's life: its state is true afterwards",
          deadline=600, both=True)
def containerd_killed(t):
    volume = os.path.join(t.work, "volume")
    os.makedirs(volume)
    mounts = [{"container_path": "/v", "host_path": volume}]
    pod = t.pod("p1")
    restart(t)
    t.equal(pod.state, cri.READY)
    c = pod.create("c1", "sh", "-c", "echo one; while [ ! -e /v/go ]; do sleep 0.1; done; "
                   "echo two; exit 7", mounts=mounts)
    restart(t)
    t.equal((pod.state, c.state), (cri.READY, cri.CREATED))
    c.start()
    c.await_log("one")
    restart(t)
    t.equal((pod.state, c.state), (cri.READY, cri.RUNNING))
    t.equal(c.sh("echo well"), "well\n")

    late = threading.Thread(target=quietly, args=(lambda: c.exec("sleep", "5"),))
    late.start()  # an exec whose client and whose containerd die
    time.sleep(0.5)
    restart(t)
    late.join(60)
    t.equal(c.sh("echo well"), "well\n")

    t.containerd.kill()
    with open(os.path.join(volume, "go"), "w"):
        pass
    time.sleep(2)  # it ends while nobody looks
    t.containerd.start()
    t.until(t.serves, "the CRI serves", 60)
    status = c.await_exit(255 if t.is_runc else 7)  # whose shim reports nothing about an ended task
    t.check(status.finished_at > status.started_at, "times", status)
    t.match("one\n", c.out)
    other = pod.run("c2", *FOREVER, mounts=mounts)
    pod.stop()
    restart(t)
    t.equal((pod.state, other.state), (cri.NOTREADY, cri.EXITED))
    pod.remove()
    restart(t)
    t.equal(list(t.cri.ListPodSandbox().items), [])


def quietly(call):
    try:
        call()
    except cri.Error:
        pass


def killed_during(t, call, when):
    """containerd dies while it is at it: after so many seconds, or when something is there."""
    thread = threading.Thread(target=quietly, args=(call,))
    thread.start()
    if callable(when):
        t.until(lambda: when() or not thread.is_alive(), "the moment to kill containerd", 60)
    else:
        time.sleep(when)  # somewhere in it: any moment is as good as any other
    t.containerd.kill()
    thread.join(60)
    t.containerd.start()
    t.until(t.serves, "the CRI serves", 60)


def namespaces():
    return set(glob.glob("/run/netns/cni-*"))


def drop_lost_namespaces(t, before):
    """containerd makes a pod's network namespace before it writes the pod down: one that was killed
    in between knows nothing of it any more, whatever the runtime. There is no pod now."""
    for path in namespaces() - before:
        t.note(f"containerd has lost {path}")
        cell.umount(path)  # umount(8) leaves /run/mount behind
        os.unlink(path)


@pod_test("containerd killed while a pod is made, started and stopped: nothing stays",
          deadline=900, both=True, runc=False)
def containerd_killed_meanwhile(t):
    before = namespaces()
    for i, moment in enumerate((0.1, t.shim_pids, t.qemu_pids, 1.5)):
        config = t.config(f"p{i}")
        killed_during(t, lambda: t.cri.RunPodSandbox(config=config, runtime_handler=t.handler),
                      moment)
        t.equal(t.remove_pods(), [], f"killed at moment {i} of RunPodSandbox")
        t.equal(list(t.cri.ListPodSandbox().items), [])
        drop_lost_namespaces(t, before)
    pod = t.pod("last")
    for i, moment in enumerate((0.05, 0.3)):
        c = pod.create(f"c{i}", *FOREVER)
        killed_during(t, c.start, moment)
        t.check(c.state in (cri.CREATED, cri.RUNNING, cri.EXITED, cri.UNKNOWN), "no state")
        killed_during(t, lambda: c.stop(timeout=0), 0.05)
    t.equal(pod.run("after", "echo", "well").await_exit(0).exit_code, 0)
    killed_during(t, pod.stop, 0.05)
    t.equal(t.remove_pods(), [])
    # Of one that was started and never called containerd knows nothing: it leaves after a minute.
    t.until(lambda: not t.shim_pids(), "the shims leave", 90)


# ---------------------------------------------------------------- many

def together(calls):
    """Each in a thread of its own; what they raised."""
    trouble, threads = [], []

    def run(call):
        try:
            call()
        except Exception as e:
            trouble.append(str(e))
    for call in calls:
        threads.append(threading.Thread(target=run, args=(call,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    return trouble


def many_pods(t, count):
    pods, containers = {}, {}
    configs = {f"p{i}": t.config(f"p{i}") for i in range(count)}
    seconds = 45 * count  # emulated, all at once on a few cores: the last one waits for all
    t.settings(boot_timeout_s=120)  # the most: the machine may have other work, too

    def make(name):
        pods[name] = Pod(t, name, configs[name], t.handler, seconds)
        c = pods[name].create("c1", "sh", "-c", f"echo {name}; exec sleep 100000")
        containers[name] = c.start(seconds)
    begin = time.monotonic()
    t.equal(together([lambda name=name: make(name) for name in configs]), [])
    t.note(f"{count} pods in {time.monotonic() - begin:.1f} s")
    t.equal(len(t.shim_pids()), count)
    for name, c in containers.items():
        c.await_log(f"{name}\n")
    order = list(pods.values())
    random.Random(os.getpid()).shuffle(order)

    def end(pod):
        pod.stop()
        pod.remove()
    half = count // 2
    t.equal(together([lambda p=p: end(p) for p in order[:half]]), [])
    for pod in order[half:]:
        t.equal(containers[pod.name].sh("echo well"), "well\n")
    t.equal(together([lambda p=p: end(p) for p in order[half:]]), [])
    t.equal(list(t.cri.ListPodSandbox().items), [])


@pod_test("four pods side by side, removed in random order", deadline=600, full=True)
def four(t):
    many_pods(t, 4)


@pod_test("20 pods side by side, removed in random order", deadline=1800)
def twenty(t):
    many_pods(t, 20)
