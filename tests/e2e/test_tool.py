"""lcow's own questions to running shims: ps, inspect, exec --vm, share, stacks."""

import contextlib
import json
import os
import signal
import socket
import struct
import threading

import shimcall
import terminal
from e2e import test
from harness import has_kvm

FOREVER = ("sleep", "100000")


@test("lcow ps and inspect show sandboxes, VMs, containers and execs", runc=False)
def ps(t):
    t.equal(json.loads(t.lcow("ps", "--json").out), [])
    t.detach("first", *FOREVER)
    x = t.start_ctr(*t.exec_args("first", "sh", "-c", "echo up; sleep 1000", exec_id="looker"))
    x.await_output("up")
    r = t.lcow("ps", "-e")
    t.equal(r.code, 0, r)
    mark = "" if has_kvm() else r"\*"
    t.match(rf"(?m)^first +\(VM\) +Running{mark} +\d+ +\d+ MiB", r.out)
    t.match(r"(?m)^first +first +running +" + str(t.tasks()["first"][0]), r.out)
    t.match(r"(?m)^ +\+looker +running", r.out)
    t.check(all(len(line) <= 80 for line in r.out.splitlines()), "within 80 columns", r)

    doc = json.loads(t.lcow("inspect", "fir").out)
    t.equal((doc["sandbox"], doc["namespace"], doc["pid"]), ("first", t.tag, t.shim_pid()))
    t.equal(doc["vm"]["pid"], t.qemu_pid())
    t.equal(doc["vm"]["emulated"], not has_kvm())
    t.equal([(d["state"], d["holders"]) for d in doc["vm"]["disks"]], [("Attached", 1)])
    t.equal(len(doc["vm"]["shares"]), 1)
    t.check({"agent", "negotiated"} <= {s["name"] for s in doc["vm"]["boot"]}, "boot stages", doc)

    for word, said in (("frist", r'no sandbox or container "frist", but first'),
                       ("nobody-is-called-that", "lcow ps"), ("other/first", "no sandbox")):
        r = t.lcow("inspect", word)
        t.equal(r.code, 1)
        t.words(said, " ".join(r.err.split()))


@test("lcow: an id that matches two pods is refused, a longer one is not", runc=False)
def two(t):
    t.detach("pod-a", *FOREVER)
    t.detach("pod-b", *FOREVER)
    r = t.lcow("inspect", "pod")
    t.equal(r.code, 1)
    t.words(r"matches \S+/pod-a, \S+/pod-b", " ".join(r.err.split()))
    for words in (("logs", "pod"), ("explain", "pod"), ("exec", "--vm", "pod", "--", "true"),
                  ("timeline", "pod"), ("report", "pod"), ("cp", "pod:/etc", t.work)):
        r = t.lcow(*words)
        t.check(r.code not in (0, None), f"{words}: {r}")
        t.words(" matches ", " ".join(r.err.split()), words)
    t.equal(json.loads(t.lcow("inspect", f"{t.tag}/pod-b").out)["sandbox"], "pod-b")


@test("lcow exec --vm: stdin, stdout, stderr and the exit code, outside the container", runc=False)
def vm_exec(t):
    t.detach("c1", *FOREVER)
    r = t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "cat; echo bad >&2; exit 7",
               stdin=b"through the VM\n")
    t.equal((r.out, r.err, r.code), ("through the VM\n", "bad\n", 7))
    t.match("crun", t.lcow("exec", "--vm", "c1", "--", "ls", "/bin", "/usr/bin").out)
    big = t.lcow("exec", "--vm", "c1", "--", "seq", "1", "100000")
    t.equal(big.out, "".join(f"{i}\n" for i in range(1, 100001)))
    t.equal(t.lcow("exec", "--vm", "c1").code, 2)


@test("lcow exec: in a container, with its environment; on a terminal; nothing stays", runc=False)
def container_exec(t):
    t.detach("--env=COLOUR=green", "c1", *FOREVER)
    r = t.lcow("exec", "c1", "--", "sh", "-c", "cat; echo $COLOUR >&2; cd /; exit 7",
               stdin=b"through containerd's door\n")
    t.equal((r.out, r.err, r.code), ("through containerd's door\n", "green\n", 7))
    t.equal(t.lcow("exec", "-C", "/tmp", "c1", "--", "pwd").out, "/tmp\n")
    r = t.lcow("exec", "c1", "--", "/no/such/command")
    t.equal(r.code, 125)
    t.match("/no/such/command", " ".join(r.err.split()))
    t.equal(t.lcow("exec", "c2", "--", "true").code, 125)

    live = terminal.Terminal(t, "exec", "-it", "c1", "--", "sh", rows=33, cols=99)
    live.expect("# ")
    live.send("stty size; tty; exit 5\n")
    live.expect("33 99")
    live.expect("/dev/pts/")
    t.equal(live.wait(60), 5)

    killed = t.start("exec", "c1", "--", "sh", "-c", "echo up; exec sleep 10000")
    killed.await_output("up")
    killed.signal(signal.SIGTERM)
    t.equal(killed.wait(60).code, 125)
    t.until(lambda: t.lcow("tasks", "c1").out == "c1\n", "no exec is left")


@test("lcow exec --vm works although crun is broken in the guest", runc=False)
def broken_crun(t):
    t.detach("c1", *FOREVER)
    r = t.lcow("exec", "--vm", "c1", "--", "sh", "-c", "rm -r /run/crun/* && echo gone")
    t.equal((r.out, r.code), ("gone\n", 0), r)
    t.check(t.exec("c1", "true").code != 0, "crun is broken")
    t.explains("c1", "CONTAINER_LOST")
    t.equal(t.lcow("exec", "--vm", "c1", "--", "echo", "still here").out, "still here\n")


@test("lcow share: a directory of the host is where it was asked for", runc=False)
def share(t):
    t.detach("c1", *FOREVER)
    at = os.path.join(t.work, "given")
    os.mkdir(at)
    t.write("given/file", "from the host\n")
    r = t.lcow("share", "c1", at, "/mnt/given")
    t.equal((r.out, r.code), ("/mnt/given\n", 0), r)
    t.equal(t.lcow("exec", "--vm", "c1", "--", "cat", "/mnt/given/file").out, "from the host\n")
    t.check(t.lcow("exec", "--vm", "c1", "--", "touch", "/mnt/given/x").code != 0, "read-only")
    t.check(not os.path.exists(f"{at}/x"), "read-only")
    r = t.lcow("share", "c1", at, "/opt/given")
    t.equal(r.code, 1)
    t.words(r"choose\s+a\s+path\s+below\s+/mnt:", r.err)
    r = t.lcow("share", "c1", f"{at}/nothing")
    t.equal(r.code, 1)
    t.words("does not exist", r.err)


# ---------------------------------------------------------------- what does not answer

ALWAYS = (("ps",), ("inspect", "c1"), ("stacks", "c1"), ("console", "c1"), ("logs", "c1"),
          ("explain", "c1"), ("tasks", "c1"), ("timeline", "c1"), ("events",), ("top", "--once"),
          ("metrics",), ("overhead",), ("report", "-o", "r.tar", "c1"), ("gc", "--dry-run"),
          ("config", "show"), ("completion", "bash"), ("template", "ls"))
GUESTS = (("exec", "--vm", "c1", "--", "true"), ("exec", "c1", "--", "true"),
          ("cp", "c1:/etc/passwd", "."), ("share", "c1", "/etc", "/mnt/etc"))


def side_by_side(t, commands, seconds=100):
    """{words: result}; each must end in time."""
    running = {" ".join(words): t.start(*words) for words in commands}
    return {words: p.wait(seconds) for words, p in running.items()}


@test("lcow: each command answers while QEMU is stopped, or the guest's agent, as far as it can",
      deadline=600, runc=False)
def stopped(t):
    t.detach("c1", *FOREVER)
    qemu, shim = t.qemu_pid(), t.shim_pid()
    for words, r in side_by_side(t, ALWAYS).items():
        t.equal(r.code, 0, f"{words}: {r}")
    os.kill(qemu, signal.SIGSTOP)
    try:
        done = side_by_side(t, ALWAYS + GUESTS)
        for words in map(" ".join, ALWAYS):
            t.check(done[words].code in ((0, 1) if words == "overhead" else (0,)),
                    f"{words}: {done[words]}")
        t.match("vm.reap c1", done["stacks c1"].out)
        t.check(" hotplug " not in done["stacks c1"].out, "fibers of a guest that is stopped",
                done["stacks c1"])
        t.words("the guest did not answer", done["stacks c1"].out)
        for words in map(" ".join, GUESTS):
            t.check(done[words].code not in (0, None), f"{words}: {done[words]}")
    finally:
        os.kill(qemu, signal.SIGCONT)
    t.match(" hotplug ", t.lcow("stacks", "c1").out)

    agent = t.lcow("exec", "--vm", "c1", "--", "pidof", "gcs").out.split()[0]  # the one that serves
    wedge = t.start("exec", "--vm", "c1", "--", "sh", "-c",
                    f"echo up; kill -STOP {agent}; sleep 12; kill -CONT {agent}")
    wedge.await_output("up")
    for words, r in side_by_side(t, ALWAYS).items():
        t.check(r.code in ((0, 1) if words == "overhead" else (0,)), f"{words}: {r}")
    t.equal(wedge.wait(120).code, 0)
    shim_stopped(t, shim)
    other_version(t)
    other_user(t)


def shim_stopped(t, shim):
    os.kill(shim, signal.SIGSTOP)
    try:
        done = side_by_side(t, ALWAYS + GUESTS)
    finally:
        os.kill(shim, signal.SIGCONT)
    t.equal(done["ps"].code, 1)
    t.words(r"c1 .*no answer: the shim does not answer; check whether pid \d+ is stopped", done["ps"].out)
    for words in ("logs c1", "explain c1", "events", "report -o r.tar c1", "gc --dry-run"):
        t.equal(done[words].code, 0, f"{words}: {done[words]}")
    for words in (*map(" ".join, GUESTS), "inspect c1", "stacks c1", "console c1", "tasks c1"):
        t.check(done[words].code not in (0, None), f"{words}: {done[words]}")
        t.check(done[words].err, f"{words} says nothing")


class OtherVersion(threading.Thread):
    """A shim that knows none of the questions, in place of c1's: ttrpc, status 12."""

    def __init__(self, path):
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.bind(path)
        self.socket.listen(64)
        self.start()

    def end(self):
        self.socket.shutdown(socket.SHUT_RDWR)  # accept returns
        self.join(30)
        self.socket.close()

    def run(self):
        while True:
            try:
                peer = self.socket.accept()[0]
            except OSError:
                return
            # Each at once: one that is slow to hang up must not make the others wait.
            threading.Thread(target=self.refuse, args=(peer,), daemon=True).start()

    @staticmethod
    def refuse(peer):
        body = shimcall.text(1, shimcall.number(1, 12) + shimcall.text(2, "unknown service"))
        with peer, contextlib.suppress(OSError):
            head = peer.recv(10, socket.MSG_WAITALL)
            if len(head) == 10:
                peer.recv(struct.unpack(">I", head[:4])[0], socket.MSG_WAITALL)
                peer.sendall(struct.pack(">I", len(body)) + head[4:8] + b"\2\0" + body)
                peer.recv(1)


def other_version(t):
    run_file = os.path.join(t.run_root, t.tag, "c1", "shim")
    with open(run_file) as f:
        true = f.read()
    path = os.path.join(t.work, "other.sock")
    server = OtherVersion(path)
    try:
        with open(run_file, "w") as f:
            f.write(json.dumps({**json.loads(true), "address": f"unix://{path}",
                                "version": "0.0.7"}))
        done = side_by_side(t, ALWAYS + GUESTS)
    finally:
        with open(run_file, "w") as f:
            f.write(true)
        server.end()
    t.equal(done["ps"].code, 1)
    t.words("c1 .*no answer: the shim has version 0.0.7", done["ps"].out)
    t.words("does not answer: the shim has version 0.0.7", " ".join(done["explain c1"].out.split()))
    t.equal((done["logs c1"].code, done["explain c1"].code), (0, 0))
    for words in (*map(" ".join, GUESTS), "stacks c1", "console c1", "tasks c1"):
        t.check(done[words].code not in (0, None), f"{words}: {done[words]}")


def other_user(t):
    """A user other than root gets an error at once, and no information."""
    nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    # Or else each is refused before it begins, in the same words.
    for words in (("--version",), ("config", "show")):
        r = t.lcow(*words, seconds=60, wrap=nobody)
        t.equal(r.code, 0, f"{words}: user 65534 must be able to run lcow and to read its "
                f"configuration (let others enter the directories above): {r}")
    for words in (("ps",), ("explain", "c1"), ("logs", "c1"), ("exec", "--vm", "c1", "--", "id")):
        r = t.lcow(*words, seconds=60, wrap=nobody)
        text = " ".join(r.err.split())
        t.check(r.code not in (0, None) and "ermission denied" in text, f"{words}: {r}")
        t.check(t.run_root in text, f"{words}: not because of the shims' directory: {r}")
