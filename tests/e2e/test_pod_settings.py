"""What a pod's spec asks for beyond running a program."""

import json
import os
import re
import time

import cri
from pod import FOREVER, pod_test

CHOWN, NET_ADMIN, SYS_ADMIN, SYS_TIME = 0, 12, 21, 25


def security(**context):
    return {"linux": {"security_context": context}}


def caps(c, kind="Eff"):
    return int(re.search(rf"Cap{kind}:\s*(\w+)", c.sh("cat /proc/self/status")).group(1), 16)


@pod_test("run as user and groups, read-only root, capabilities, no new privileges")
def security_context(t):
    pod = t.pod("p1")
    c = pod.run("user", *FOREVER, **security(
        run_as_user={"value": 1000}, run_as_group={"value": 1234},
        supplemental_groups=[5, 4321], readonly_rootfs=True, no_new_privs=True))
    t.equal(c.sh("id -u; id -g"), "1000\n1234\n")
    groups = set(c.sh("id -G").split())
    t.check({"1234", "5", "4321"} <= groups, f"groups: {groups}")
    t.equal(c.exec("touch", "/tmp/x").code, 1, "the root can be written to")
    t.match(r"(?m)^NoNewPrivs:\s+1$", c.sh("cat /proc/self/status"))
    t.match(r"(?m)^\S+ / \S+ ro[, ]", c.sh("cat /proc/mounts"))

    c = pod.run("name", *FOREVER, **security(run_as_username="worker"))
    t.equal(c.sh("id -un"), "worker\n")

    usual = pod.run("usual", *FOREVER)
    more = pod.run("more", *FOREVER, **security(
        capabilities={"add_capabilities": ["SYS_TIME", "NET_ADMIN"],
                      "drop_capabilities": ["CHOWN"]}))
    none = pod.run("none", *FOREVER, **security(capabilities={"drop_capabilities": ["ALL"]}))
    t.equal(caps(more), (caps(usual) | 1 << SYS_TIME | 1 << NET_ADMIN) & ~(1 << CHOWN))
    t.equal(caps(none, "Bnd"), 0)
    t.equal(none.exec("chown", "1000", "/tmp").code, 1)
    t.equal(usual.exec("mount", "-t", "tmpfs", "none", "/tmp").code, 1, "it may mount")


@pod_test("seccomp: the runtime's default, a profile of the host, none")
def seccomp(t):
    pod = t.pod("p1")
    profile = t.write("deny.json", json.dumps({
        "defaultAction": "SCMP_ACT_ALLOW", "architectures": ["SCMP_ARCH_X86_64"],
        "syscalls": [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}))

    def mode(c):
        return int(re.search(r"(?m)^Seccomp:\s+(\d)$", c.sh("cat /proc/self/status")).group(1))
    default = pod.run("default", *FOREVER, **security(
        seccomp={"profile_type": cri.RUNTIME_DEFAULT}))
    local = pod.run("local", *FOREVER, **security(
        seccomp={"profile_type": cri.LOCALHOST, "localhost_ref": profile}))
    none = pod.run("none", *FOREVER, **security(seccomp={"profile_type": cri.UNCONFINED}))
    t.equal((mode(default), mode(local), mode(none)), (2, 2, 0))
    for c, code in ((default, 0), (local, 1), (none, 0)):
        t.equal(c.exec("mkdir", "/tmp/d").code, code, c.name)
        t.equal(c.exec("sh", "-c", "echo well").out, "well\n")
    # unshare of a user namespace is what the default profile denies without any capability
    t.equal(default.exec("unshare", "-U", "true").code, 1, "the default profile lets it pass")
    t.equal(none.exec("unshare", "-U", "true").code, 0)


@pod_test("privileged: everything in its VM, nothing of the host")
def privileged(t):
    pod = t.pod("p1", security={"privileged": True})
    c = pod.run("c1", *FOREVER, **security(privileged=True))
    t.equal(caps(c) & (1 << SYS_ADMIN | 1 << NET_ADMIN), 1 << SYS_ADMIN | 1 << NET_ADMIN)
    c.sh("mkdir -p /m && mount -t tmpfs none /m && echo x >/m/x && umount /m")
    t.match(r"(?m)^Seccomp:\s+0$", c.sh("cat /proc/self/status"))
    c.sh("mount -o remount,rw /proc/sys 2>/dev/null; echo 17 >/proc/sys/kernel/msg_next_id")
    if not t.is_runc:
        own = os.uname().release
        t.check(c.sh("uname -r").strip() != own, f"it runs on the host's kernel, {own}")
        disks = set(c.sh("ls /dev").split()) & {"sda1", "vda", "nvme0", "kvm", "mem", "kmsg"}
        t.equal(disks, set(), "devices of the host or of the VM")
        # cgroups within each other until the VM refuses: the container can still be removed
        c.sh("mount -o remount,rw /sys/fs/cgroup && cd /sys/fs/cgroup && "
             "i=0; while mkdir d 2>/dev/null && cd d && [ $i -lt 40 ]; do i=$((i+1)); done; "
             "[ $i -gt 4 ] && [ $i -lt 20 ]")
        c.remove()


@pod_test("sysctls of the pod, and none of another")
def sysctls(t):
    values = {"net.ipv4.ip_local_port_range": "40000 41000", "kernel.shm_rmid_forced": "1",
              "net.ipv4.ping_group_range": "0 1000"}
    c = t.pod("p1", linux={"sysctls": values}).run("c1", *FOREVER)
    for key, value in values.items():
        t.equal(c.sh(f"cat /proc/sys/{key.replace('.', '/')}").split(), value.split(), key)


@pod_test("DNS file, host aliases, environment, annotations and labels come back", smoke="one")
def names(t):
    hosts = t.write("hosts", "127.0.0.1 localhost\n10.1.2.3 alias.example alias\n")
    pod = t.pod("p1", hostname="dns-pod", labels={"app": "x"}, annotations={"io.lcow.note": "y"},
                dns_config={"servers": ["10.0.0.10"], "searches": ["svc.local", "example.org"],
                            "options": ["ndots:5"]})
    c = pod.run("c1", *FOREVER, mounts=[{"container_path": "/etc/hosts", "host_path": hosts}],
                labels={"part": "one"})
    text = c.sh("cat /etc/resolv.conf")
    t.match(r"(?m)^nameserver 10\.0\.0\.10$", text)
    t.match(r"(?m)^search svc\.local example\.org$", text)
    t.match(r"(?m)^options ndots:5$", text)
    t.match(r"(?m)^10\.1\.2\.3 alias\.example alias$", c.sh("cat /etc/hosts"))
    t.match(r"HOSTNAME=dns-pod", c.sh("env"))
    status = pod.status()
    t.equal((dict(status.labels), dict(status.annotations)), ({"app": "x"}, {"io.lcow.note": "y"}))
    t.equal([s.id for s in t.cri.ListPodSandbox(filter={"label_selector": {"app": "x"}}).items],
            [pod.id])


@pod_test("volumes: emptyDir of two containers, a config map that changes, a single file, "
          "the termination message", smoke="one")
def volumes(t):
    empty = os.path.join(t.work, "pods/uid/volumes/kubernetes.io~empty-dir/shared")
    config = os.path.join(t.work, "pods/uid/volumes/kubernetes.io~configmap/conf")
    message = t.write("termination-log", "", 0o666)
    single = t.write("single", "one file\n")
    os.makedirs(empty, 0o777)
    os.makedirs(os.path.join(config, "..v1"))
    for name, text in (("..v1/key", "first\n"),):
        with open(os.path.join(config, name), "w") as f:
            f.write(text)
    os.symlink("..v1", os.path.join(config, "..data"))
    os.symlink("..data/key", os.path.join(config, "key"))
    mounts = [{"container_path": "/shared", "host_path": empty},
              {"container_path": "/conf", "host_path": config, "readonly": True},
              {"container_path": "/etc/single", "host_path": single, "readonly": True},
              {"container_path": "/dev/termination-log", "host_path": message}]
    pod = t.pod("p1")
    a, b = (pod.run(name, *FOREVER, mounts=mounts) for name in ("a", "b"))
    a.sh("mkdir -p /shared/d && echo from-a >/shared/d/note && chown 1000:1000 /shared/d/note && "
         "chmod 640 /shared/d/note")
    t.equal(b.sh("cat /shared/d/note; stat -c '%u %g %a' /shared/d/note"),
            "from-a\n1000 1000 640\n")
    b.sh("rm -r /shared/d")
    t.equal(a.exec("ls", "/shared/d").code, 1)
    t.equal(a.sh("cat /conf/key /etc/single"), "first\none file\n")
    t.equal(a.exec("sh", "-c", "echo x >/conf/new").code, 1, "a read-only volume was written to")
    t.equal(a.exec("sh", "-c", "echo x >/etc/single").code, 1, "a read-only file was written to")

    os.makedirs(os.path.join(config, "..v2"))
    with open(os.path.join(config, "..v2/key"), "w") as f:
        f.write("second\n")
    os.symlink("..v2", os.path.join(config, "..data_tmp"))
    os.rename(os.path.join(config, "..data_tmp"), os.path.join(config, "..data"))
    t.until(lambda: a.sh("cat /conf/key") == "second\n", "the new config map is seen", 30)

    a.sh("echo 'why it ended' >/dev/termination-log")
    a.stop()
    with open(message) as f:
        t.equal(f.read(), "why it ended\n")


@pod_test("stats: processor time and memory of a container, of all, and of the pod; new limits",
          smoke=True)
def stats(t):
    pod = t.pod("p1")
    c = pod.run("busy", "sh", "-c", "while :; do :; done", linux={
        "resources": {"memory_limit_in_bytes": 96 << 20, "cpu_period": 100000,
                      "cpu_quota": 90000}})
    idle = pod.run("idle", *FOREVER)
    first = c.stats()
    t.equal(first.attributes.id, c.id)
    t.until(lambda: c.stats().cpu.usage_core_nano_seconds.value >
            first.cpu.usage_core_nano_seconds.value > 0, "processor time grows", 30)
    t.check(0 < c.stats().memory.working_set_bytes.value < 96 << 20, "memory", c.stats())
    found = {s.attributes.id for s in t.cri.ListContainerStats().stats}
    t.equal(found, {c.id, idle.id})
    whole = pod.stats()
    t.equal(whole.attributes.id, pod.id)
    t.equal({s.attributes.id for s in whole.linux.containers}, found)
    t.until(lambda: pod.stats().linux.cpu.usage_core_nano_seconds.value > 0, "the pod's time", 30)
    memory = pod.stats().linux.memory
    t.check(memory.working_set_bytes.value > 0, "the pod's memory", whole)
    t.note(f"pod's working set: {memory.working_set_bytes.value >> 20} MiB")
    t.equal([s.attributes.id for s in t.cri.ListPodSandboxStats().stats], [pod.id])
    if not t.is_runc:
        text = t.lcow("config", "runtimeclass").out
        t.match("the maximum of the VMs that run here", text)
        t.note(text.split("\n")[2])
    update(t, c)


def update(t, c):
    """The container of stats(), while it runs."""
    names = ("memory/memory.limit_in_bytes", "cpu/cpu.cfs_quota_us") if t.is_runc else \
        ("memory.max", "cpu.max")

    def limits():
        return [c.sh(f"cat /sys/fs/cgroup/{n}").split()[0] for n in names]
    t.equal(limits(), [str(96 << 20), "90000"])
    t.cri.UpdateContainerResources(container_id=c.id, linux={
        "memory_limit_in_bytes": 80 << 20, "cpu_period": 100000, "cpu_quota": 70000})
    t.equal(limits(), [str(80 << 20), "70000"])


@pod_test("the VM has the size of the pod's limits and what its own system needs", runc=False)
def vm_size(t):
    pod = t.pod("p1", linux={"resources": {
        "memory_limit_in_bytes": 700 << 20, "cpu_period": 100000, "cpu_quota": 200000}})
    c = pod.run("c1", *FOREVER)
    mib = int(re.search(r"MemTotal:\s+(\d+)", c.sh("cat /proc/meminfo")).group(1)) >> 10
    t.check(660 < mib < 1000, f"{mib} MiB in the VM")
    t.equal(c.sh("grep -c ^processor /proc/cpuinfo"), "2\n")


# ---------------------------------------------------------------- what a VM cannot do

@pod_test("host network, PIDs and IPC of the host are refused, in so many words", runc=False)
def host_namespaces(t):
    wanted = {"network": "host ?network", "pid": "host ?PID", "ipc": "host ?IPC"}
    for kind, words in wanted.items():
        if kind == "network" and t.is_shim:
            continue  # containerd 2.1 itself crashes (docs/reference/containerd-contract.md §4.8)
        begin = time.monotonic()
        t.fails(lambda: t.pod(f"p-{kind}", namespaces={kind: cri.NODE}), f"(?i){words}")
        t.check(time.monotonic() - begin < 30, "it was refused late")
        t.explains(None, "HOST_NAMESPACE")
    t.equal(t.qemu_pids(), [])


@pod_test("mounts that shall reach back to the host are refused", runc=False)
def propagation(t):
    folder = os.path.join(t.work, "volume")
    os.makedirs(folder)
    pod = t.pod("p1", security={"privileged": True})
    t.fails(lambda: pod.run("c1", *FOREVER, linux={"security_context": {"privileged": True}},
                            mounts=[{"container_path": "/v", "host_path": folder,
                                     "propagation": cri.PROPAGATION_BIDIRECTIONAL}]),
            "(?i)propagation|rshared|shared mount")
    t.equal(pod.run("c2", "echo", "well").await_exit(0).exit_code, 0)
