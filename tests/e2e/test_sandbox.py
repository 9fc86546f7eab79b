"""The Sandbox service by hand, and what no client of containerd does: several pods in one VM."""

import json
import os
import re
import signal

import cni
import members
import shimcall
from e2e import Failure, test
from members import GROUP, KIND
from shimcall import number, text

SHARES = "io.microsoft.virtualmachine.fileshares.disablewritable"
SERVICE = "containerd.runtime.sandbox.v1.Sandbox"


def runhcs(field, *parts):
    """hcsshim's runtime options, as this field."""
    return shimcall.wrapped(field, "type.googleapis.com/containerd.runhcs.v1.Options", b"".join(parts))


def memory(mib):
    return number(9, mib)


class Sandbox:
    def __init__(self, t, *more, spec=None):
        self.shim = shimcall.Shim(t, "s1")
        os.unlink(os.path.join(self.shim.bundle, "config.json"))  # CRI puts none there
        if spec:
            self.shim.spec(spec)
        self.shim.start()
        t.at_end(self.end)
        self.call("CreateSandbox", text(2, self.shim.bundle), *more)

    def end(self):
        """Also of a test that failed."""
        try:
            self.call("ShutdownSandbox")
        except (shimcall.Status, OSError, Failure):
            pass  # it has left

    def call(self, method, *parts):
        return self.shim.call(method, text(1, "s1"), *parts, service=SERVICE)

    def state(self):
        return self.call("SandboxStatus")[3].decode()


PING = ["CAP_NET_RAW"]


def member(shim, name, kind, pod, host=None, namespaces=None):
    """A container that waits, in this pod. namespaces: kind -> path of those that it shares."""
    document = shim.document()
    document["process"]["capabilities"] = {
        where: PING for where in ("bounding", "effective", "permitted", "inheritable")}
    if host:
        document["hostname"] = host
    for entry in document["linux"]["namespaces"]:
        if path := (namespaces or {}).get(entry["type"]):
            entry["path"] = path
    m = members.Member(shim, name, document)
    document["annotations"] = {GROUP: pod, KIND: kind}
    with open(os.path.join(m.bundle, "config.json"), "w") as f:
        json.dump(document, f)
    m.call("Create", text(2, m.bundle), shim.rootfs())
    m.pid = m.call("Start")[1]
    return m


def end(m):
    m.call("Kill", number(3, signal.SIGKILL), number(4, 1))
    m.call("Wait")
    m.call("Delete")


def processes(s):
    """In the guest, as the sandbox's metrics have it. None: it needs more than its two seconds, on a
    busy machine."""
    data = shimcall.fields(shimcall.fields(s.call("SandboxMetrics")[1])[3])
    pids = shimcall.fields(data[2]).get(2 if b".v1." in data[1] else 1, b"")
    return shimcall.fields(pids).get(1)


def look(t):
    """With lcow: the container that holds the sandbox is not there for clients."""
    t.until(lambda: re.search(r"(?m)^lcow_guest_up\{.* 1$", t.lcow("metrics").out), "the guest's figures")
    r = t.lcow("exec", "s1", "--", "true")
    t.equal(r.code, 125, r)
    t.words("s1 names a sandbox, not a container; use a container's ID, or --vm", " ".join(r.err.split()))
    t.equal(t.lcow("exec", "--vm", "s1", "--", "true").code, 0)


def refused_options(t, s):
    """Of a Create, when the VM runs: what differs is named, and nothing is left."""
    for options, code, pattern in (
            (runhcs(10, memory(512)), shimcall.PRECONDITION,
             "^create container c1: vm_memory_size_in_mb in the runtime options differs from the value "
             "with which this shim started its VM: options apply to the whole sandbox"),
            (shimcall.wrapped(10, "runtimeoptions.v1.Options", text(2, "/etc/other.conf")),
             shimcall.PRECONDITION, "ConfigPath in the runtime options differs from the value with which this shim was started"),
            (runhcs(10, text(15, "tcp:x")), shimcall.UNIMPLEMENTED,
             "NCProxyAddr in the runtime options: lcow does not support the network proxy"),
            (shimcall.wrapped(10, "runsc.v1.Options", b""), shimcall.INVALID, "runsc.v1.Options")):
        try:
            s.shim.call("Create", text(1, "c1"), text(2, s.shim.bundle), options)
        except shimcall.Status as e:
            t.equal(e.code, code, e)
            t.words(pattern, e.message)
        else:
            t.check(False, f"not refused: {pattern}")


def refused_mount(t, s):
    """The sandbox forbids its containers writable shares; they need not say so themselves."""
    document = s.shim.document()
    document["mounts"].append({"destination": "/s", "type": "bind", "source": t.work,
                               "options": ["rbind", "rw"]})
    try:
        members.Member(s.shim, "c2", document).create()
    except shimcall.Status as e:
        t.words(f"mount {t.work} is writable, which annotation {SHARES} forbids", e.message)
        return
    t.check(False, "a writable share is not refused")


@test("a sandbox by hand: create, start, status, ping, metrics, stop, shutdown", images=(),
      runc=False)
def by_hand(t):
    s = Sandbox(t, runhcs(4, memory(384), number(17, 10)),  # as hcsshim's clients send them
                spec={"annotations": {SHARES: "true"}})
    t.equal(s.state(), "SANDBOX_NOTREADY")
    started = s.call("StartSandbox")
    t.equal(s.call("StartSandbox")[1], started[1])
    t.check(os.path.exists(f"/proc/{started[1]}/ns/net"), "its pid is not a process")
    t.equal(s.state(), "SANDBOX_READY")
    s.call("PingSandbox")
    t.equal(t.until(lambda: processes(s), "the guest reports its numbers"), 1, "the pod's own process")
    entry = shimcall.fields(s.call("SandboxStatus", number(2, 1))[4])
    vm = json.loads(entry[2])["vm"]
    t.check(vm["emulated"] in (True, False) and vm["kernel"] and vm["memory_mib"] == 384 and
            vm["boot"], f"the VM: {vm}")
    t.match("^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$", vm["runtime_id"])
    refused_options(t, s)
    refused_mount(t, s)
    c = members.Member(s.shim, "c1", {**s.shim.document(), "process": {
        "cwd": "/", "args": ["echo", "hello"], "env": ["PATH=/bin"], "user": {}}})
    document = json.load(open(os.path.join(c.bundle, "config.json")))
    document["annotations"] = {GROUP: "s1", KIND: "container"}
    with open(os.path.join(c.bundle, "config.json"), "w") as f:
        json.dump(document, f)
    t.equal(c.run(), (0, b"hello\n"))
    t.equal(s.state(), "SANDBOX_READY")
    look(t)
    s.call("StopSandbox", number(2, 2))
    t.equal(s.call("WaitSandbox").get(1, 0), 0)
    t.equal(s.state(), "SANDBOX_NOTREADY")
    s.call("ShutdownSandbox")
    t.until(lambda: not os.path.exists(s.shim.address), "the shim leaves")


@test("several pods in one VM: each its own names and processes; one goes, the others go on",
      images=(), runc=False)
def several(t):
    s = Sandbox(t)
    s.call("StartSandbox")
    qemu = t.qemu_pid()
    p1, p2 = (member(s.shim, p, "sandbox", p, f"host-{p}") for p in ("p1", "p2"))
    c1, c2 = (member(s.shim, c, "container", p) for c, p in (("c1", "p1"), ("c2", "p2")))
    t.equal(t.qemu_pid(), qemu)
    name = ("cat", "/proc/sys/kernel/hostname")
    t.equal(p1.exec(*name), (0, b"host-p1\n"))
    t.equal(p2.exec(*name), (0, b"host-p2\n"))
    end(c1)
    end(p1)
    t.equal(p2.exec(*name), (0, b"host-p2\n"))
    t.equal(c2.exec("echo", "still"), (0, b"still\n"))
    t.equal(s.state(), "SANDBOX_READY")
    s.call("ShutdownSandbox")
    t.until(lambda: not os.path.exists(s.shim.address), "the shim leaves")


def plain(shim, name):
    """A container of no pod, that waits."""
    m = members.Member(shim, name, shim.document())
    path = os.path.join(m.bundle, "config.json")
    document = json.load(open(path))
    del document["annotations"]
    with open(path, "w") as f:
        json.dump(document, f)
    return m.start()


def status(m):
    return m.call("State").get(4, 0)


KILL_ALL = (number(3, signal.SIGKILL), number(4, 1))
RUNNING, KILLED = 2, 137


@test("Kill with all ends every container of that pod, and of no other pod", images=(), runc=False)
def kill_all(t):
    s = Sandbox(t)
    s.call("StartSandbox")
    p1, p2 = (member(s.shim, p, "sandbox", p) for p in ("p1", "p2"))
    c1, d1, c2, own = (member(s.shim, c, "container", p)
                       for c, p in (("c1", "p1"), ("d1", "p1"), ("c2", "p2"), ("o1", "s1")))
    alone = plain(s.shim, "x1")
    p1.call("Kill", *KILL_ALL)
    for m in (c1, d1, p1):
        t.equal(m.call("Wait").get(1, 0), KILLED, m.name)
        m.call("Delete")
    c2.call("Kill", *KILL_ALL)  # not the pod's first one: itself alone
    t.equal(c2.call("Wait").get(1, 0), KILLED)
    alone.call("Kill", *KILL_ALL)
    t.equal(alone.call("Wait").get(1, 0), KILLED)
    t.equal([status(m) for m in (p2, own)], [RUNNING, RUNNING])
    t.equal(own.exec("echo", "still"), (0, b"still\n"))
    t.equal(s.shim.code("Kill", text(1, "s1"), *KILL_ALL), shimcall.NOT_FOUND, "a sandbox's own")
    s.call("ShutdownSandbox")
    t.until(lambda: not os.path.exists(s.shim.address), "the shim leaves")


@test("the first container of a pod dies: the others run on, until Kill with all", images=(),
      runc=False)
def first_dies(t):
    s = Sandbox(t)
    s.call("StartSandbox")
    p1, p2 = (member(s.shim, p, "sandbox", p) for p in ("p1", "p2"))
    c1, c2 = (member(s.shim, c, "container", p) for c, p in (("c1", "p1"), ("c2", "p2")))
    p1.call("Kill", number(3, signal.SIGKILL))
    t.equal(p1.call("Wait").get(1, 0), KILLED)
    t.equal(c1.exec("echo", "still"), (0, b"still\n"))
    t.equal(s.shim.code("Delete", text(1, "p1")), shimcall.PRECONDITION, "c1 is in it")
    p1.call("Kill", *KILL_ALL)
    t.equal(c1.call("Wait").get(1, 0), KILLED)
    # The anchor of a pod's first container stands for the pod: so does its death.
    os.kill(p2.pid, signal.SIGKILL)
    t.equal([m.call("Wait").get(1, 0) for m in (p2, c2)], [KILLED, KILLED])
    t.equal(s.state(), "SANDBOX_READY")
    s.call("ShutdownSandbox")
    t.until(lambda: not os.path.exists(s.shim.address), "the shim leaves")


def pod_in(shim, name, network):
    """A pod with this network, and a container in it as containerd makes one."""
    pod = member(shim, name, "sandbox", name, f"host-{name}", {"network": network.path})
    shared = {kind: f"/proc/{pod.pid}/ns/{short}" for kind, short in
              (("network", "net"), ("ipc", "ipc"), ("uts", "uts"))}
    return pod, member(shim, f"c{name}", "container", name, namespaces=shared)


def says(t, m, *command):
    """What a program of busybox writes; it must succeed."""
    code, out = m.exec("busybox", *command)
    t.equal(code, 0, f"{m.name}: {command}: {out.decode(errors='replace')}")
    return out.decode()


def reaches(t, m, address):
    t.until(lambda: m.exec("busybox", "ping", "-c", "1", "-W", "10", address)[0] == 0,
            f"{m.name} reaches {address}", 60)


def kernel_view(t, m):
    """kind -> the namespace that it is in."""
    return {kind: says(t, m, "readlink", f"/proc/self/ns/{kind}")
            for kind in ("net", "ipc", "uts", "pid", "mnt")}


@test("several pods in one VM, each on its own network: they reach each other and see nothing of "
      "each other; one goes, another comes", images=(), runc=False, deadline=600)
def several_networks(t):
    networks = [cni.Namespace(t, f"n{i}") for i in range(3)]
    s = Sandbox(t)
    s.call("StartSandbox")
    qemu = t.qemu_pid()
    (p1, c1), (p2, c2) = (pod_in(s.shim, f"p{i + 1}", networks[i]) for i in range(2))
    for m, own, other in ((c1, networks[0], networks[1]), (c2, networks[1], networks[0])):
        text_ = says(t, m, "ip", "addr", "show", "dev", "eth0")
        t.check(f"inet {own.ip}/24" in text_ and f"inet6 {own.ip6}/64" in text_, text_)
        t.check(f"inet {other.ip}/" not in text_, "the other pod's address", text_)
        for address in (cni.GATEWAY, other.ip, other.ip6):
            reaches(t, m, address)
    one, two = kernel_view(t, c1), kernel_view(t, c2)
    t.check(not set(one.values()) & set(two.values()), f"they share something: {one} {two}")
    pod = kernel_view(t, p1)
    t.equal({k for k in pod if pod[k] == one[k]}, {"net", "ipc", "uts"})
    says(t, c1, "sh", "-c", "echo mine >/note")
    t.equal(c2.exec("cat", "/note")[0], 1, "it sees the other's file")
    t.check("host-p1" not in says(t, c2, "sh", "-c", "hostname; cat /proc/*/cmdline"), "a process")

    end(c1)
    end(p1)
    t.equal(sorted(networks[0].links()), ["eth0", "lo"], "a tap is left")
    t.equal(says(t, c2, "hostname"), "host-p2\n")
    reaches(t, c2, cni.GATEWAY)
    p3, c3 = pod_in(s.shim, "p3", networks[2])
    reaches(t, c3, networks[1].ip)
    reaches(t, c2, networks[2].ip6)
    t.equal(t.qemu_pid(), qemu)
    for m in (c3, p3, c2, p2):
        end(m)
    t.equal(s.state(), "SANDBOX_READY")
    s.call("ShutdownSandbox")
    t.until(lambda: not os.path.exists(s.shim.address), "the shim leaves")


@test("a sandbox's process on the host is killed: the pod ends, with a bad status", images=(),
      runc=False)
def killed(t):
    s = Sandbox(t)
    pid = s.call("StartSandbox")[1]
    c1 = member(s.shim, "c1", "container", "s1")
    os.kill(pid, signal.SIGKILL)
    t.equal(s.call("WaitSandbox").get(1, 0), KILLED)
    t.equal(c1.call("Wait").get(1, 0), KILLED)
    t.equal(s.state(), "SANDBOX_NOTREADY")
    s.call("StopSandbox")
    s.call("ShutdownSandbox")
