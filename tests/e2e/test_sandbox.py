"""The Sandbox service by hand, and what no client of containerd does: several pods in one VM."""

import json
import os
import signal

import members
import shimcall
from e2e import test
from members import GROUP, KIND
from shimcall import number, text

SERVICE = "containerd.runtime.sandbox.v1.Sandbox"


class Sandbox:
    def __init__(self, t):
        self.shim = shimcall.Shim(t, "s1")
        os.unlink(os.path.join(self.shim.bundle, "config.json"))  # CRI puts none there
        self.shim.start()
        self.call("CreateSandbox", text(2, self.shim.bundle))

    def call(self, method, *parts):
        return self.shim.call(method, text(1, "s1"), *parts, service=SERVICE)

    def state(self):
        return self.call("SandboxStatus")[3].decode()


def member(shim, name, kind, pod, host=None):
    """A container that waits, in this pod."""
    document = shim.document()
    if host:
        document["hostname"] = host
    m = members.Member(shim, name, document)
    document["annotations"] = {GROUP: pod, KIND: kind}
    with open(os.path.join(m.bundle, "config.json"), "w") as f:
        json.dump(document, f)
    m.call("Create", text(2, m.bundle), shim.rootfs())
    m.call("Start")
    return m


def end(m):
    m.call("Kill", number(3, signal.SIGKILL), number(4, 1))
    m.call("Wait")
    m.call("Delete")


@test("a sandbox by hand: create, start, status, ping, metrics, stop, shutdown", images=(),
      runc=False)
def by_hand(t):
    s = Sandbox(t)
    t.equal(s.state(), "SANDBOX_NOTREADY")
    started = s.call("StartSandbox")
    t.equal(s.call("StartSandbox")[1], started[1])
    t.check(os.path.exists(f"/proc/{started[1]}/ns/net"), "its pid is no process")
    t.equal(s.state(), "SANDBOX_READY")
    s.call("PingSandbox")
    t.check(s.call("SandboxMetrics")[1], "no metrics")
    entry = shimcall.fields(s.call("SandboxStatus", number(2, 1))[4])
    vm = json.loads(entry[2])["vm"]
    t.check(vm["emulated"] in (True, False) and vm["kernel"] and vm["memory_mib"] and vm["boot"],
            f"the VM: {vm}")
    c = members.Member(s.shim, "c1", {**s.shim.document(), "process": {
        "cwd": "/", "args": ["echo", "hello"], "env": ["PATH=/bin"], "user": {}}})
    document = json.load(open(os.path.join(c.bundle, "config.json")))
    document["annotations"] = {GROUP: "s1", KIND: "container"}
    with open(os.path.join(c.bundle, "config.json"), "w") as f:
        json.dump(document, f)
    t.equal(c.run(), (0, b"hello\n"))
    t.equal(s.state(), "SANDBOX_READY")
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


@test("a sandbox's process on the host is killed: the pod ends, with a bad status", images=(),
      runc=False)
def killed(t):
    s = Sandbox(t)
    pid = s.call("StartSandbox")[1]
    os.kill(pid, signal.SIGKILL)
    t.equal(s.call("WaitSandbox").get(1, 0), 137)
    t.equal(s.state(), "SANDBOX_NOTREADY")
    s.call("StopSandbox")
    s.call("ShutdownSandbox")
