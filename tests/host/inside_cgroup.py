"""Runs in the emulated host: pods whose cgroups are units of systemd. Cases as in inside.py."""
import json
import os
import re
import signal
import sys

import inside
from inside import MIB, SECONDS, check, sh

import cri
import harness
import pod

SLICE = f"kubepods-burstable-pod{sys.argv[1]}.slice"  # one for each case
PARENT = f"/kubepods.slice/kubepods-burstable.slice/{SLICE}"
DIR = "/sys/fs/cgroup" + PARENT


UNITS = []


def sliced(n, name):
    """The pod's slice is the kubelet's, which asks systemd for it."""
    with open(f"/run/systemd/system/{SLICE}", "w") as f:
        f.write("[Slice]\nMemoryAccounting=yes\n")
    sh(f"systemctl daemon-reload && systemctl start {SLICE}")
    return n.pod(f"{sys.argv[1]}-{name}", linux={"cgroup_parent": PARENT})


def unit(some):
    name = f"cri-containerd-{some.id}.scope"
    if name not in UNITS:
        UNITS.append(name)
    return name


def pids(some, name):
    """Processes of a container's unit by their name."""
    return [int(pid) for pid in read(f"{DIR}/{unit(some)}/cgroup.procs").split()
            if read(f"/proc/{pid}/comm").startswith(name)]


def show(name, *properties):
    return [sh(f"systemctl show -P {p} {name}").strip() for p in properties]


def processes(some):
    """Names. The kernel puts a thread of KVM beside QEMU."""
    names = [read(f"/proc/{pid}/comm").strip() for pid in pids(some, "")]
    return sorted(name for name in names if not name.startswith("kvm-"))


def read(path):
    with open(path) as f:
        return f.read()


def left():
    """Units and directories of our containers that are still there."""
    lines = sh("systemctl list-units --all --plain --no-legend 'cri-containerd-*'").splitlines()
    dirs = os.listdir(DIR) if os.path.isdir(DIR) else []
    return [u for u in UNITS if u in dirs or any(u in line for line in lines)]


def await_nothing_left(n):
    n.equal(pod.Pods.remove_pods(n), [], "removal")
    n.until(lambda: not left(), "no unit and no directory is left")
    sh(f"systemctl stop {SLICE} && rm /run/systemd/system/{SLICE} && systemctl daemon-reload")
    check(not os.path.exists(DIR), "the pod's slice is not empty")


# ---------------------------------------------------------------- the cases

def scope(n):
    p = sliced(n, "p1")
    c = p.run("c1", *pod.FOREVER, linux={"resources": {"oom_score_adj": 999}})
    (qemu,), (anchor,) = pids(p, "qemu"), pids(c, "lcow-anchor")

    def look():
        for some in (p, c):
            n.equal(show(unit(some), "ActiveState", "Slice", "Delegate", "ControlGroup", "TasksMax"),
                    ["active", SLICE, "yes", f"{PARENT}/{unit(some)}", "infinity"], unit(some))
        n.equal(read(f"/proc/{qemu}/cgroup"), f"0::{PARENT}/{unit(p)}\n", "QEMU's cgroup")
        # The process that kept a scope (cat) has gone.
        n.equal([processes(p), processes(c)], [["lcow-anchor", "qemu-system-x86"], ["lcow-anchor"]], "processes")
        n.equal(c.sh("echo well"), "well\n", "exec")
        return read(f"{DIR}/{unit(p)}/cpuset.cpus").strip()

    n.equal(look(), "", "CPUs")
    check({"cpu", "memory", "pids"} <= set(read(f"{DIR}/{unit(p)}/cgroup.controllers").split()),
          "controllers are missing:", read(f"{DIR}/{unit(p)}/cgroup.controllers"))
    # As dispensable as its container, which the pause container (-998) is not; anchors never are.
    n.equal(read(f"/proc/{qemu}/oom_score_adj"), "999\n", "QEMU's score")
    n.equal(read(f"/proc/{anchor}/oom_score_adj"), "-1000\n", "the anchor's score")
    # What lcow sets systemd knows: else a daemon-reload would undo it.
    sh(f"lcow cpugroup create slow 0 && lcow cpugroup move {p.id} slow")
    n.equal(look(), "0", "CPUs")
    for _ in range(2):
        sh("systemctl daemon-reload")
        n.equal(look(), "0", "CPUs after a daemon-reload")
    n.equal(show(unit(p), "AllowedCPUs"), ["0"], "CPUs that systemd knows")
    sh("systemctl restart containerd")
    n.until(n.serves, "the CRI serves")
    look()
    c.stop()
    c.remove()
    n.until(lambda: unit(c) not in left(), "the container's unit has gone")
    n.equal(show(unit(p), "ActiveState"), ["active"], "the pod's unit")
    sh("lcow cpugroup rm slow")
    await_nothing_left(n)


def metrics(n):
    p = sliced(n, "p1")
    c = p.run("c1", "sh", "-c", "head -c 5000000 /dev/zero >/tmp/f; sync; exec sleep 100000",
              linux={"resources": {"memory_limit_in_bytes": 64 * MIB}})
    n.until(lambda: c.exec("test", "-s", "/tmp/f").code == 0, "a file is written")
    c.exec("sh", "-c", "tail /dev/zero")  # one process is OOM-killed
    n.equal([show(unit(some), "ActiveState") for some in (p, c)], [["active"]] * 2, "units")
    s = c.stats()
    check(s.memory.working_set_bytes.value > 0 and s.cpu.usage_core_nano_seconds.value > 0, "CRI:", s)
    # ctr decodes by the type: of version 2 it has memory events and pressure.
    m = json.loads(sh(f"ctr -n {pod.NAMESPACE} tasks metrics --format json {c.id}"))
    check(m["memory"]["usage"] > 0 and m["memory"]["usage_limit"] == 64 * MIB, "memory:", m)
    check(m["memory_events"]["oom_kill"] > 0 and m["memory_events"]["max"] > 0, "events:", m)
    check(m["cpu"]["usage_usec"] > 0 and m["pids"]["current"] > 0, "cpu and pids:", m)
    check(sum(d.get("wbytes", 0) + d.get("rbytes", 0) for d in m["io"]["usage"]) > 0, "io:", m)
    await_nothing_left(n)


def limit(n):
    p = sliced(n, "p1")
    c = p.run("c1", *pod.FOREVER, linux={"resources": {"oom_score_adj": 999}})
    # Anonymous memory: the template's pages could be given up and read again.
    n.equal([show(unit(some), "ActiveState") for some in (p, c)], [["active"]] * 2, "units")
    used = int(re.search(r"(?m)^anon (\d+)", read(f"{DIR}/memory.stat")).group(1))
    check(used > 16 * MIB, f"QEMU's memory does not count in the pod's slice: {used} bytes")
    sh(f"systemctl set-property --runtime {SLICE} MemoryMax={used + 16 * MIB} MemorySwapMax=0")
    try:
        c.exec("sh", "-c", "head -c 200000000 /dev/zero >/dev/shm/much", seconds=SECONDS)
    except cri.Error:
        pass  # it has no VM any more
    c.await_exit(137)
    n.until(lambda: c.status().reason == "OOMKilled", "the reason is OOMKilled")
    said = sh(f"journalctl -u containerd --no-pager | grep -F 'OOM killer' | grep -F {p.id}")
    for words in (f"cgroup {SLICE} reached its memory limit of ", "memory.events: max ", "oom_kill ",
                  "stalled "):
        check(words in said, f"the log does not say: {words}", said)
    check("HOST_OOM" in sh(f"lcow explain {p.id}", code=None), "lcow explain:",
          sh(f"lcow explain {p.id}", code=None))
    await_nothing_left(n)


def killed(n):
    p = sliced(n, "p1")
    c = p.run("c1", *pod.FOREVER)
    anchor, = pids(c, "lcow-anchor")
    os.kill(int(re.search(r"PPid:\s+(\d+)", read(f"/proc/{anchor}/status")).group(1)), signal.SIGKILL)
    check(c.await_exit().exit_code != 0, "exit code 0:", c.status())
    n.until(lambda: not left(), "units and directories have gone")
    await_nothing_left(n)
    # The same slice again.
    again = sliced(n, "p2")
    c = again.run("c1", "echo", "well")
    n.equal(c.await_exit(0).reason, "Completed", "another pod")
    check(unit(again) in left(), "it has no unit")
    await_nothing_left(n)


if __name__ == "__main__":
    try:
        for case in sys.argv[1:]:
            with inside.node() as node:
                globals()[case](node)
    except (inside.Failure, cri.Error, harness.Failure) as e:
        sys.exit(str(e))
