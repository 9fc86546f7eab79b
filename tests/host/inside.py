"""Runs in the emulated host: pods by the CRI of Debian's own containerd, as the kubelet makes them.

    python3 -B inside.py life oom …     # cases of this file, each audited

    with inside.node() as n:            # in other files inside_*.py, with their own cases
        n.pod("p1").run("c1", "true").await_exit(0)

The pods, containers and the audit are those of tests/e2e and tests/integration.
"""
import contextlib
import glob
import json
import os
import re
import signal
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.realpath(__file__))
TESTS = os.path.dirname(HERE)
sys.path[:0] = [os.path.join(TESTS, "e2e"), os.path.join(TESTS, "integration")]

import archives  # noqa: E402
import cell  # noqa: E402
import cri  # noqa: E402
import harness  # noqa: E402
import leaks  # noqa: E402
import pod  # noqa: E402

SECONDS = 300  # a ceiling for what may boot a VM, on a busy machine
MIB = 1 << 20
TAG = "lcow-test"  # of the pods' cgroups
BRIDGE = "test0"
LOGS = "/var/log/pods"
BUILDERS = "/run/lcow/template/*"
SOCKET = "/run/containerd/containerd.sock"
SHIM = "containerd-shim-lcow"
NETWORK = {"cniVersion": "0.4.0", "name": "test", "plugins": [
    {"type": "bridge", "bridge": BRIDGE, "isDefaultGateway": True,
     "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.88.76.0/24"}]]}}]}


class Failure(Exception):
    pass


def check(condition, what, *details):
    if not condition:
        raise Failure("\n".join([what, *map(str, details)]))


def sh(script, code=0):
    r = subprocess.run(["bash", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                       stderr=subprocess.STDOUT, text=True, errors="replace")
    check(code in (None, r.returncode), f"{script}: exit code {r.returncode}, not {code}:", r.stdout)
    return r.stdout


# ---------------------------------------------------------------- what there is

def programs(name):
    """Processes by the name of their program, also if that was replaced meanwhile."""
    found = []
    for path in glob.glob("/proc/[0-9]*/exe"):
        try:
            if name in os.readlink(path):
                found.append(int(path.split("/")[2]))
        except OSError:
            pass  # gone, or a zombie
    return found


def shims():
    """Those that serve: anchors are forks of theirs."""
    found, table = programs(SHIM), leaks.parents()
    return [p for p in found if p in table and table[p][0] not in found]


def ours(scope):
    return {str(pid): f"{pid} {os.path.basename(name)}" for name in (SHIM, "qemu-system")
            for pid in programs(name)}


# The audit, as far as it is about what lcow may leave: a host has other things to do.
SCOPE = leaks.Scope("/var/lib/lcow", TAG)
leaks.KINDS = {k: leaks.KINDS[k] for k in ("mount", "network namespace", "interface", "cgroup",
                                           "loop device", "file")}
leaks.KINDS["process"] = ours
cell.EMPTY_DIRS = ("/run/lcow", "/run/netns", "/run/containerd/s", "/var/lib/lcow")


def allowed(path):
    """What lcow keeps on purpose: templates, directories that all sandboxes share."""
    return path.startswith(("/var/lib/lcow/layers", "/var/lib/lcow/templates")) or path.removeprefix("/run/lcow/") in (
        *harness.PERSISTENT, "k8s.io", "template", "/var/lib/lcow/sandboxes", "/var/lib/lcow/scratch")


# ---------------------------------------------------------------- the node

class Node:
    """What pods (tests/e2e/pod.py) are made with."""

    def __init__(self):
        self.cri, self._parents = cri.Client(SOCKET), []

    def serves(self):
        try:
            return all(c.status for c in self.cri.Status(seconds=20).status.conditions)
        except cri.Error:
            return False

    def until(self, condition, what, seconds=SECONDS):
        """Seconds of a busy machine: the ceilings of pod.py are for a faster one."""
        deadline = time.monotonic() + max(seconds, SECONDS)
        while not (found := condition()):
            check(time.monotonic() < deadline, f"not within {seconds} s: {what}")
            time.sleep(0.2)
        return found

    def check(self, condition, what, *details):
        check(condition, what, *details)

    def equal(self, got, wanted, what=""):
        check(got == wanted, f"{what}: got {got!r}, not {wanted!r}")

    def set_up(self):
        """Once: containerd as docs/kubernetes.md says, a network, images, a template."""
        if os.path.exists("/run/lcow-test-ready"):
            return
        sh(f"ip link add {BRIDGE} type bridge; mkdir -p /etc/cni/net.d /var/lib/cni")
        with open("/etc/cni/net.d/10-test.conflist", "w") as f:
            json.dump(NETWORK, f)
        # The second time there is nothing to append.
        sh("for i in 1 2; do lcow config containerd >>/etc/containerd/config.toml; done; "
           "systemctl restart containerd")
        self.until(self.serves, "the CRI serves")
        for image in ("pause", "busybox"):
            sh(f"ctr -n {pod.NAMESPACE} images import {archives.path(image)}")
        # The pause image by the name that containerd would otherwise pull.
        name = re.search(r'sandbox_image = "(.*)"', sh("containerd config dump")).group(1)
        sh(f"ctr -n {pod.NAMESPACE} images tag {archives.name('pause')} {name}; lcow template build")
        open("/run/lcow-test-ready", "w").close()

    def pod(self, name, handler="lcow", linux=None, **config):
        parent = f"/{TAG}/{name}"
        pod.Pods.make_parent(self, parent)  # as the kubelet does
        return pod.Pod(self, name, {
            "metadata": {"name": name, "uid": f"uid-{name}", "namespace": "default"},
            "log_directory": f"{LOGS}/{name}",
            "linux": {"cgroup_parent": parent, "security_context": {
                "namespace_options": {"pid": cri.CONTAINER}}, **(linux or {})}, **config},
            handler, seconds=SECONDS)

    def clear(self):
        """Removes all pods and containers, also after a failure; what could not be removed."""
        trouble = pod.Pods.remove_pods(self)
        sh(f"for c in $(ctr -n {pod.NAMESPACE} containers ls -q); do ctr -n {pod.NAMESPACE} tasks rm -f $c; "
           f"ctr -n {pod.NAMESPACE} containers rm $c; done; rm -rf {LOGS}", code=None)
        return trouble

    def end(self):
        """Everything is removed as the kubelet does; then nothing may be left."""
        trouble = self.clear()
        for path in [*reversed(self._parents), *{os.path.dirname(p) for p in self._parents}]:
            try:
                os.rmdir(path)
            except OSError as e:
                trouble.append(f"{path}: {e.strerror}, holds {os.listdir(path)}"[:300])
        check(not trouble, "pods could not be removed:", *trouble)


@contextlib.contextmanager
def node(audited=True):
    n = Node()
    n.set_up()
    before = leaks.snapshot(SCOPE)
    try:
        yield n
    except BaseException:
        print(sh(f"sh {HERE}/state", code=None), flush=True)  # while there are VMs
        n.clear()
        raise
    n.end()
    # A pod of a new version, or with another link, has a template built after it.
    n.until(lambda: not glob.glob(BUILDERS), "templates are built")
    left = leaks.left(before, SCOPE, allowed, settle=60) if audited else []
    check(not left, "left behind:", *left)


# ---------------------------------------------------------------- the cases

def life(n):
    """A pod: kernel of its own by KVM, address by CNI, exec, logs, exit codes."""
    p = n.pod("p1")
    c = p.run("c1", "sh", "-c", "echo out; echo err >&2; exec sleep 100000")
    with open("/usr/lib/lcow/image/manifest.json") as f:
        n.equal(c.sh("uname -r").strip(), json.load(f)["kernel_release"], "kernel")
    n.equal(c.exec("sh", "-c", "exit 7").code, 7, "exit code of an exec")
    c.await_log("out\n")
    n.equal((c.out, c.err), ("out\n", "err\n"), "logs")
    check(p.ip.startswith("10.88.76.") and p.ip in c.sh("ip addr"), f"no address by CNI: {p.ip}")
    shown = json.loads(sh("lcow ps --json"))
    n.equal([s["sandbox"] for s in shown], [p.id], "lcow ps")
    check(shown[0]["vm"]["emulated"] is False, "it does not run by KVM:", shown)
    n.equal(p.run("c2", "sh", "-c", "exit 3").await_exit(3).reason, "Error", "reason")
    overhead = json.loads(sh("lcow overhead --json"))
    printed = sh("lcow config runtimeclass")
    check(f"# {overhead['vmm_mib']} MiB for QEMU (the maximum of the VMs that run here)" in printed,
          "not the measured overhead:", overhead, printed)
    note(f"overhead: {overhead}")
    p.stop()
    n.equal(c.status().exit_code, 137, "exit code of the stopped container")


def oom(n):
    """Out of memory in a container: it is OOMKilled, and the pod keeps running."""
    p = n.pod("p1")
    c = p.run("c1", "tail", "/dev/zero", linux={"resources": {"memory_limit_in_bytes": 32 * MIB}})
    c.await_exit(137)
    n.until(lambda: c.status().reason == "OOMKilled", "the reason is OOMKilled")
    n.equal(p.state, cri.READY, "the pod")
    n.equal(p.run("c2", "echo", "well").await_exit(0).reason, "Completed", "another container")
    if not pod.e2e.CGROUP_V2:
        return  # containerd does not pass it on there
    # One process of two is too large: without memory.oom.group the other one continues.
    for group, code, out in (("0", 3, "one has gone\n"), ("1", 137, "")):
        c = p.run(f"group-{group}", "sh", "-c", "tail /dev/zero; echo one has gone; exit 3", linux={"resources": {
            "memory_limit_in_bytes": 32 * MIB, "unified": {"memory.oom.group": group}}})
        c.await_exit(code)
        n.equal(c.out, out, f"output with memory.oom.group {group}")


def resize(n):
    """vCPUs 1, 2, 1 and memory up and down under a running container."""
    p = n.pod("p1")
    c = p.run("c1", *pod.FOREVER, linux={"resources": {
        "memory_limit_in_bytes": 128 * MIB, "cpu_period": 100000, "cpu_quota": 100000}})

    def size():
        text = c.sh("cat /proc/cpuinfo /proc/meminfo")
        return (len(re.findall(r"(?m)^processor", text)),
                int(re.search(r"MemTotal:\s+(\d+)", text).group(1)) >> 10)

    def update(cpus, mib):
        n.cri.UpdateContainerResources(container_id=c.id, seconds=SECONDS, linux={
            "memory_limit_in_bytes": mib * MIB, "cpu_period": 100000, "cpu_quota": cpus * 100000})
        n.equal(c.sh("cat /sys/fs/cgroup/memory.max"), f"{mib * MIB}\n", "the container's limit")
    first = size()
    n.equal(first[0], 1, "vCPUs")
    update(2, 600)
    n.until(lambda: size()[0] == 2 and size()[1] > 600, "two vCPUs and more memory")
    second = size()
    update(1, 200)
    n.until(lambda: size()[0] == 1 and size()[1] < second[1] - 200, "one vCPU and less memory")
    note(f"vCPUs and MiB: {first}, {second}, {size()}")
    n.equal(c.sh("echo well"), "well\n", "the container")


def restart(n):
    """A restart of containerd: the pod keeps running, its logs too."""
    p = n.pod("restarted")
    c = p.run("c1", "sh", "-c", "echo one; while [ ! -e /go ]; do sleep 1; done; echo two; exit 7")
    c.await_log("one\n")
    before = c.status().started_at, shims()
    for how in ("systemctl restart containerd",
                "systemctl kill --kill-who=main -s KILL containerd; sleep 1; systemctl restart containerd"):
        sh(how)
        n.until(n.serves, "the CRI serves")
        n.equal((p.state, c.state), (cri.READY, cri.RUNNING), "pod and container")
        n.equal((c.status().started_at, shims()), before, "start time and shim")
        n.equal(c.sh("echo well"), "well\n", "exec")
    c.sh("touch /go")
    c.await_exit(7)
    n.equal(c.out, "one\ntwo\n", "log")


def qemu_killed(n):
    """kill -9 of QEMU: a non-zero exit, and the pod can be removed."""
    killed(n, "without-qemu", lambda: programs("qemu-system"))


def shim_killed(n):
    """kill -9 of the shim: nothing of the pod stays alive."""
    killed(n, "without-shim", shims)


def killed(n, name, find):
    p = n.pod(name)
    c, ended = p.run("c1", *pod.FOREVER), p.run("c2", "sh", "-c", "exit 3")
    ended.await_exit(3)
    victim, = find()
    os.kill(victim, signal.SIGKILL)
    check(c.await_exit().exit_code != 0, "exit code 0:", c.status())
    n.until(lambda: p.state == cri.NOTREADY, "the pod is not ready")
    n.equal(ended.status().exit_code, 3, "exit code of what had ended before")
    n.until(lambda: not programs("qemu-system") and not programs(SHIM), "VM and shim have gone")
    n.equal(pod.Pods.remove_pods(n), [], "removal")
    n.equal(n.pod("p1").run("c1", "echo", "again").await_exit(0).exit_code, 0, "the next pod")


def upgrade(n):
    """The package's next version is installed under a running pod, whose shim then continues as it."""
    p = n.pod("p1")
    c = p.run("c1", *pod.FOREVER)
    started, (old,) = c.status().started_at, shims()
    out = sh("dpkg -i /share/deb-next/*.deb")
    check(not re.search("warning|error", out, re.I), "dpkg complains:", out)
    check("+next" in sh("dpkg-query -W -f '${Version} ${Status}' lcow"), "not upgraded")
    n.equal(shims(), [old], "shims")
    check(os.readlink(f"/proc/{old}/exe").endswith(" (deleted)"), "the shim was not replaced")
    n.equal((c.state, c.status().started_at, p.state), (cri.RUNNING, started, cri.READY), "container")
    n.equal(c.exec("sh", "-c", "exit 7").code, 7, "exit code of an exec")
    n.equal(p.run("c2", "echo", "well").await_exit(0).reason, "Completed", "one more container")
    note(sh("lcow upgrade --all"))
    n.equal((shims(), os.readlink(f"/proc/{old}/exe")), ([old], f"/usr/bin/{SHIM}-v2"), "the upgraded shim")
    n.equal((c.state, c.status().started_at, p.state), (cri.RUNNING, started, cri.READY), "container")
    n.equal(c.exec("sh", "-c", "exit 8").code, 8, "exit code of an exec, after lcow upgrade")
    n.equal(p.run("c3", "echo", "well").await_exit(0).reason, "Completed", "another container")
    new = n.pod("p2").run("c1", *pod.FOREVER)
    fresh, = set(shims()) - {old}
    check(not os.readlink(f"/proc/{fresh}/exe").endswith(" (deleted)"), "the next pod's shim is old")
    n.equal(new.sh("echo well"), "well\n", "exec in the next pod")


def note(text):
    print(text, flush=True)


def main():
    for name in sys.argv[1:]:
        with node() as n:
            globals()[name](n)


if __name__ == "__main__":
    try:
        main()
    except (Failure, cri.Error, harness.Failure) as e:
        sys.exit(str(e))
