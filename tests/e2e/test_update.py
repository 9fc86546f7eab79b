"""Update: a container's limits in the guest, its VM's memory and CPUs, QEMU's share of the host."""

import glob
import json
import os
import re

import cri
import grpcwire
import shimcall
import taskapi
from e2e import test
from harness import has_kvm
from pod import FOREVER, pod_test
from shimcall import text

RESOURCES = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"
MIB = 1 << 20
CGROUP = "--mount=type=cgroup,src=cgroup,dst=/sys/fs/cgroup,options=ro"


def update(t, task, namespace=None, **resources):
    """Task.Update through containerd, as `ctr` or nerdctl would."""
    grpcwire.unary(t.containerd.address, "/containerd.services.tasks.v1.Tasks/Update",
                   text(1, task) + shimcall.wrapped(2, RESOURCES, json.dumps(resources).encode()),
                   120, metadata=(("containerd-namespace", namespace or t.tag),))


def refused(t, pattern, *args, **resources):
    try:
        update(t, *args, **resources)
    except grpcwire.Error as e:
        t.words(pattern, e.message)
        return
    t.check(False, f"not refused, though it should have said: {pattern}")


def mib(meminfo):
    return int(re.search(r"MemTotal:\s+(\d+)", meminfo).group(1)) >> 10


def host_cpu(pid):
    """(quota, shares or weight) of the cgroup that a process of the host is in."""
    with open(f"/proc/{pid}/cgroup") as f:
        lines = [line.strip().split(":", 2) for line in f]
    for _, controllers, path in lines:
        if "cpu" in controllers.split(","):
            for root in glob.glob("/sys/fs/cgroup/cpu*"):
                if os.path.exists(f"{root}{path}/cpu.cfs_quota_us"):
                    return tuple(int(open(f"{root}{path}/{name}").read())
                                 for name in ("cpu.cfs_quota_us", "cpu.shares"))
    path = next(p for _, c, p in lines if c == "")
    quota = open(f"/sys/fs/cgroup{path}/cpu.max").read().split()[0]
    return (-1 if quota == "max" else int(quota),
            int(open(f"/sys/fs/cgroup{path}/cpu.weight").read()))


@test("Update of a container by containerd's Task service: VM grows and shrinks, CPUs come, "
      "limits hold in guest and host", runc=False, smoke=True)
def standalone(t):
    t.detach("--memory-limit=134217728", CGROUP,
             "--mount=type=tmpfs,src=tmpfs,dst=/memory,options=size=500m", "c1", *FOREVER)

    def see(script):
        r = t.exec("c1", "sh", "-c", script)
        t.equal(r.code, 0, r)
        return r.out

    def total():
        return mib(see("cat /proc/meminfo"))
    begin, qemu = total(), t.qemu_pid()
    t.check(begin < 300, f"{begin} MiB")
    update(t, "c1", memory={"limit": 600 * MIB},
           cpu={"quota": 150000, "period": 100000, "shares": 512})
    t.equal(see("cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max"),
            f"{600 * MIB}\n150000 100000\n")
    t.until(lambda: total() > 600, "the VM has more memory", 60)
    t.until(lambda: see("grep -c ^processor /proc/cpuinfo") == "2\n", "the VM has two CPUs", 60)
    quota, share = host_cpu(qemu)
    t.equal(quota, 150000)
    t.check(share in (512, 20), f"shares or weight: {share}")
    see("dd if=/dev/zero of=/memory/much bs=1M count=250 && rm /memory/much")  # it is really there

    update(t, "c1", memory={"limit": 200 * MIB}, cpu={"quota": 50000, "period": 100000})
    t.equal(see("cat /sys/fs/cgroup/memory.max"), f"{200 * MIB}\n")
    t.equal(host_cpu(qemu)[0], 50000)
    # QEMU cannot take a vCPU from an emulated VM; the limit holds all the same. By KVM it is taken,
    # also if the guest could not give its memory back.
    t.equal(see("grep -c ^processor /proc/cpuinfo"), "1\n" if has_kvm() else "2\n")
    t.note(f"MiB: {begin}, 600 + 128 asked for, then 200 + 128: {total()}")
    update(t, "c1", cpu={"quota": -1})
    t.equal(host_cpu(qemu)[0], -1)


@test("Update that cannot be is refused by its reason and changes nothing", runc=False)
def too_much(t):
    t.config(max_memory_mib=512)
    t.detach("--memory-limit=134217728", CGROUP, "c1", *FOREVER)
    refused(t, r"max_memory_mib = 512; raise that key", "c1", memory={"limit": 600 * MIB})
    t.explains("c1", "VM_MEMORY_LIMIT")
    refused(t, r"(?i)limit", "c1", memory={"limit": "much"})
    t.explains("c1", "UPDATE_FAILED")
    r = t.exec("c1", "cat", "/sys/fs/cgroup/memory.max")
    t.equal(r.out, "134217728\n", r)


@pod_test("Update of a pod and of its container: the VM has what both need", runc=False,
          sandboxers=("podsandbox",))
def pods(t):
    pod = t.pod("p1", linux={"resources": {"memory_limit_in_bytes": 128 * MIB}})
    c = pod.run("c1", *FOREVER, linux={"resources": {"memory_limit_in_bytes": 100 * MIB}})

    def total():
        return mib(c.sh("cat /proc/meminfo"))
    t.check(total() < 300, f"{total()} MiB")
    # what the kubelet does: it never speaks of the pod
    t.cri.UpdateContainerResources(container_id=c.id, linux={
        "memory_limit_in_bytes": 400 * MIB, "cpu_period": 100000, "cpu_quota": 200000})
    t.equal(c.sh("cat /sys/fs/cgroup/memory.max"), f"{400 * MIB}\n")
    t.until(lambda: total() > 400, "the VM has what its container may use", 60)
    t.until(lambda: c.sh("grep -c ^processor /proc/cpuinfo") == "2\n", "and its CPUs", 60)
    # the pod itself, by its first task
    update(t, pod.id, "k8s.io", memory={"limit": 600 * MIB}, cpu={"shares": 2048})
    t.until(lambda: total() > 600, "the VM has what its pod may use", 60)
    t.check(host_cpu(t.qemu_pid())[1] in (2048, 79), str(host_cpu(t.qemu_pid())))
    t.equal(c.sh("cat /sys/fs/cgroup/memory.max"), f"{400 * MIB}\n")
    t.equal(c.state, cri.RUNNING)


@test("Update of what there is not, and after the end", runc=False)
def nothing(t):
    refused(t, "(?i)not found|no running task", "c1", memory={"limit": 100 * MIB})
    t.detach("c1", "sh", "-c", "sleep 1")
    t.await_status("c1", "STOPPED")
    refused(t, "(?i)stopped", "c1", memory={"limit": 100 * MIB})
    tasks = taskapi.Tasks(t)
    t.equal(tasks.status("c1"), taskapi.STOPPED)
