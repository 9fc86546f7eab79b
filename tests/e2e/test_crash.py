"""kill -9 of containerd, the shim, QEMU and the client, and what is left then."""

import fcntl
import json
import os
import re
import signal
import struct
import tarfile
import time

import intruder
from e2e import kill, test

FOREVER = ("sleep", "100000")


@test("the container ends while containerd is dead: its exit is not lost", runc=False)
def ends_meanwhile(t):
    t.detach("c1", "sh", "-c", "while [ ! -e /go ]; do sleep 0.1; done; sleep 1; exit 3")
    t.equal(t.exec("c1", "touch", "/go").code, 0)
    t.containerd.kill()
    time.sleep(2)
    t.containerd.start()
    t.await_status("c1", "STOPPED", 20)
    r = t.ctr("tasks", "rm", "c1")
    t.match(r"\b3\b", f"{r.out} {r.err} {r.code}")


@test("containerd and the reader die: every byte not yet read is delivered later")
def reader_returns(t):
    p = t.start_run("c1", "sh", "-c", "echo first; while [ ! -e /go ]; do sleep 0.1; done; "
                    "seq 1 200000; echo end")
    p.await_output("first")
    t.containerd.kill()
    p.signal(signal.SIGKILL)
    p.popen.wait()
    t.containerd.start()
    t.equal(t.exec("c1", "touch", "/go").code, 0)
    time.sleep(1)  # the program fills the pipe, which nobody reads
    t.containerd.restart()
    r = t.ctr("tasks", "attach", "c1", seconds=60)
    t.equal(r.out, "".join(f"{i}\n" for i in range(1, 200001)) + "end\n", r.err)


@test("the shim dies: containerd cleans up, nothing is left, the id is free", smoke=True)
def shim_dies(t):
    e = t.events()
    t.detach("c1", *FOREVER)
    shim, pid = t.shim_pid(), t.tasks()["c1"][0]
    qemus = t.qemu_pids()
    kill(shim)
    t.until(lambda: "c1" not in t.tasks(), "the task is gone", 20)
    for process in [pid, *qemus]:
        t.gone(process)
    t.until(lambda: "delete" in t.topics(e, "c1"), "its end is reported", 10)
    t.equal(t.topics(e, "c1")[-2:], ["exit", "delete"])
    t.explains("c1", "SHIM_KILLED")
    t.must("containers", "rm", "c1")
    t.equal(t.run("--rm", "c1", "echo", "again").out, "again\n")


@test("the shim crashes: its journal has a backtrace, and nothing else is left", runc=False)
def shim_crashes(t):
    t.detach("c1", *FOREVER)
    shim, qemu = t.shim_pid(), t.qemu_pid()
    t.until(lambda: os.path.exists(f"{t.run_root}/.journal/{t.tag}@c1@state"), "its state is kept", 20)
    os.kill(shim, signal.SIGSEGV)
    t.until(lambda: "c1" not in t.tasks(), "the task is gone", 20)
    t.gone(shim)
    t.gone(qemu)
    with open(f"{t.run_root}/.journal/{t.tag}@c1") as f:
        lines = [json.loads(line) for line in f]
    found = [n for n in lines if "backtrace" in n]
    t.equal([n["signal"] for n in found], ["SIGSEGV"])
    t.match(r"containerd-shim-lcow-v2\+0x", found[0]["backtrace"])
    t.explains("c1", "SHIM_CRASHED")
    r = t.lcow("report", "-o", os.path.join(t.work, "r.tar"), "c1")
    t.equal(r.code, 0, r)
    with tarfile.open(os.path.join(t.work, "r.tar")) as tar:
        kept = json.load(tar.extractfile("lcow-report/state.json"))
    t.equal([(c["id"], c["state"]) for c in kept["containers"]], [("c1", "running")], kept)
    t.must("containers", "rm", "c1")


@test("the shim dies while containerd is dead: the next one cleans up")
def both_die(t):
    t.detach("c1", *FOREVER)
    shim = t.shim_pid()
    t.containerd.kill()
    kill(shim)
    t.containerd.start()
    t.until(lambda: "c1" not in t.tasks(), "the task is gone", 20)
    t.must("containers", "rm", "c1")


@test("QEMU dies: the exit is reported, is not 0, and rm works", smoke=True, runc=False)
def qemu_dies(t):
    e = t.events()
    p = t.start_run("c1", *FOREVER)
    t.await_status("c1", "RUNNING")
    x = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000"))
    x.await_output("up")
    at = time.monotonic()
    kill(t.qemu_pid())
    t.until(lambda: t.topics(e, "c1").count("exit") == 2, "both exits are reported", 10)
    t.note(f"exit events after {(time.monotonic() - at) * 1000:.0f} ms, as seen through ctr")
    t.equal((p.wait(20).code, x.wait(20).code), (137, 137))
    t.explains("c1", "QEMU_KILLED")
    t.must("containers", "rm", "c1")


@test("QEMU stops the VM by itself: the exits are reported, are not 0, explain knows, rm works",
      runc=False)
def qemu_stops(t):
    e = t.events()
    p = t.start_run("c1", *FOREVER)
    t.await_status("c1", "RUNNING")
    x = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000"))
    x.await_output("up")
    intruder.stop(t.shim_pid(), t.qemu_pid())
    t.until(lambda: t.topics(e, "c1").count("exit") == 2, "both exits are reported", 10)
    t.equal((p.wait(20).code, x.wait(20).code), (137, 137))
    t.explains("c1", "VM_STOPPED")
    t.match("reason=VM_STOPPED", t.lcow("logs", "c1").out)
    t.words("QEMU stopped it with status paused", t.lcow("logs", "c1").out)
    t.must("containers", "rm", "c1")


@test("QEMU dies while it boots: run fails, says so, and leaves nothing", runc=False)
def qemu_dies_at_boot(t):
    t.config(template="off")  # a clone that dies is followed by a cold start
    p = t.start_run("--rm", "c1", "true")
    pid = t.until(t.qemu_pids, "QEMU runs", 60, p)[0]
    kill(pid)
    r = p.wait(30)
    t.check(r.code != 0, "run succeeded", r)
    t.match(r" 9 \(\w+KILL\)", r.err, r)  # which signal: the words may change
    t.explains("c1", "QEMU_KILLED")


@test("the shim dies while QEMU boots: run fails and nothing is left", runc=False)
def shim_dies_at_boot(t):
    p = t.start_run("--rm", "c1", "true")
    pid = t.until(t.qemu_pids, "QEMU runs", 60, p)[0]
    kill(t.shim_pid())
    r = p.wait(30)
    t.check(r.code != 0, "run succeeded", r)
    t.gone(pid)


@test("the client dies while QEMU boots: nothing is left", runc=False)
def client_dies_at_boot(t):
    p = t.start_run("--rm", "c1", "true")
    pid = t.until(t.qemu_pids, "QEMU runs", 60, p)[0]
    p.signal(signal.SIGKILL)
    p.popen.wait()
    t.until(lambda: not t.tasks(), "no task is left", 60)
    t.gone(pid, 30)


@test("QEMU hangs: State answers at once, and rm -f ends it", runc=False)
def qemu_hangs(t):
    t.detach("c1", *FOREVER)
    pid = t.qemu_pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        at = time.monotonic()
        t.equal(t.status("c1"), "RUNNING")
        t.check(time.monotonic() - at < 5, "State took too long")
        t.ctr("tasks", "rm", "-f", "c1", seconds=90)
        t.equal(t.tasks(), {})
        t.gone(pid)
        t.explains("c1", "GUEST_SILENT")
    finally:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            pass


@test("lcow gc finds nothing after all that", runc=False)
def nothing_to_collect(t):
    t.equal(t.run("--rm", "c1", "true").code, 0)
    e = t.events()
    t.detach("c2", *FOREVER)
    kill(t.shim_pid())
    t.until(lambda: "delete" in t.topics(e, "c2"), "containerd has cleaned up", 20)
    r = t.lcow("gc", "--dry-run")
    t.equal(r.code, 0, r)
    t.check(not re.search(r"would remove", r.out), "there is something to collect", r)


@test("the shim is asked to exit: each exit is reported once, and correctly", runc=False)
def shim_leaves(t):
    e = t.events()
    t.detach("--label=io.kubernetes.cri.sandbox-id=c1",
             "--label=io.kubernetes.cri.container-type=sandbox", "c1", *FOREVER)
    t.detach("--label=io.kubernetes.cri.sandbox-id=c1",
             "--label=io.kubernetes.cri.container-type=container", "c2", "sh", "-c", "exit 3")
    t.await_status("c2", "STOPPED")
    x = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000", exec_id="x"))
    x.await_output("up")
    os.kill(t.shim_pid(), signal.SIGTERM)
    for name in ("c1", "c2"):
        t.until(lambda: "delete" in t.topics(e, name), f"{name}'s end is reported", 30)
    told = exits(e)
    t.equal(sorted(c for i, c in told if i == "c1"), [137], told)
    t.equal([c for i, c in told if i == "x"], [137], told)
    t.equal({c for i, c in told if i == "c2"}, {3}, told)  # containerd repeats what it has told
    t.equal(t.topics(e, "c1").count("delete"), 1)
    t.equal(t.tasks(), {})
    for name in ("c1", "c2"):
        t.must("containers", "rm", name)


def exits(events):
    """(id of the process, status) of each reported exit."""
    with open(events.out_path) as f:
        found = re.findall(r" /tasks/exit (\{.*\})", f.read())
    return [(d["id"], d.get("exit_status", 0)) for d in map(json.loads, found)]


F_OFD_GETLK, F_OFD_SETLK = 36, 37
QUEUE_BYTE = 1 << 30  # src/host/jail/slots.h


def flock(fd, command, kind, byte):
    """What the kernel answers: the lock that is in the way, or F_UNLCK."""
    answer = fcntl.fcntl(fd, command, struct.pack("hhqqi4x", kind, os.SEEK_SET, byte, 1, 0))
    return struct.unpack("hhqqi4x", answer)[0]


@test("the shim that is first in the queue of starts is stopped: the next overtakes it",
      runc=False)
def first_stopped(t):
    t.config(parallel_starts=1)
    fd = os.open(f"{t.run_root}/starts", os.O_RDWR | os.O_CREAT, 0o600)
    try:
        flock(fd, F_OFD_SETLK, fcntl.F_WRLCK, 0)  # the only turn
        c1 = t.start_run("--rm", "c1", "echo", "one")
        t.until(lambda: flock(fd, F_OFD_GETLK, fcntl.F_WRLCK, QUEUE_BYTE) != fcntl.F_UNLCK,
                "it is in the queue", 60)
        shim = t.shim_pid()
        os.kill(shim, signal.SIGSTOP)
        try:
            flock(fd, F_OFD_SETLK, fcntl.F_UNLCK, 0)
            # Long, and yet less than the 180 s after which nobody waits any more.
            t.equal(t.ctr(*t.run_args("-d", "c2", *FOREVER), seconds=120).code, 0)
        finally:
            os.kill(shim, signal.SIGCONT)
        t.words(rf"is overtaken.* pid={shim}\b", t.lcow("logs", "--shim", "c2").out)
        r = c1.wait(120)
        t.equal((r.code, r.out), (0, "one\n"), r)
    finally:
        os.close(fd)
