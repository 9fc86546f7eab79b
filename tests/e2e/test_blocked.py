"""What answers at once although something else does not: a dead path, a stopped QEMU."""

import json
import os
import signal
import threading
import time

import deadfs
import images
import members
import shimcall
import test_mounts
from e2e import test
from harness import cpu_seconds
from shimcall import NOT_FOUND, number, text

AT_ONCE = 5     # seconds, on a machine that is busy with other tests
KILLED_IN = 40  # the guest's time to take a SIGKILL, then the VM's end
TRUE = b'{"cwd":"/","args":["true"],"env":["PATH=/bin"]}'


class InBackground:
    """One call; its answer or its error, later."""

    def __init__(self, shim, method, *parts):
        self.answer, self.error, self._shim = None, None, shim
        self._thread = threading.Thread(target=self._run, args=(method, parts), daemon=True)
        self._thread.start()

    def _run(self, method, parts):
        try:
            self.answer = self._shim.call(method, *parts)
        except Exception as e:  # whatever it is, the test looks at it
            self.error = e

    @property
    def running(self):
        return self._thread.is_alive()

    def join(self, seconds):
        self._thread.join(seconds)
        return not self.running


def at_once(t, what, call, *args):
    begin = time.monotonic()
    answer = call(*args)
    took = time.monotonic() - begin
    t.check(took < AT_ONCE, f"{what} took {took:.1f} s")
    return answer


def queries(t, shim, name):
    """All that must not depend on anybody."""
    call, about = shim.call, text(1, name)
    t.equal(at_once(t, "State", call, "State", about)[4], 2)
    t.check(at_once(t, "Pids", call, "Pids", about)[1], "no pid")
    t.check(at_once(t, "Connect", call, "Connect", about)[1], "no shim pid")
    t.equal(at_once(t, "Connect", call, "Connect", text(1, "unknown")).get(2, 0), 0)
    at_once(t, "Shutdown", call, "Shutdown", about)
    t.equal(at_once(t, "State", shim.code, "State", text(1, "unknown")), NOT_FOUND)
    t.equal(at_once(t, "Delete", shim.code, "Delete", about), shimcall.PRECONDITION)


@test("a create hangs on a dead path: everything else works, and it ends with an error",
      images=(), runc=False)
def dead_path(t):
    shim = members.pod(t)
    dead = deadfs.Dead(t)
    c2 = members.Member(shim, "c2", shim.document())
    create = InBackground(shim, "Create", text(1, "c2"), text(2, c2.bundle), text(
        3, text(1, "bind") + text(2, os.path.join(dead.path, "tree")) + text(4, "rbind")))
    time.sleep(0.5)
    t.check(create.running, f"Create is back: {create.answer} {create.error}")
    queries(t, shim, "p1")
    t.equal(at_once(t, "Kill", shim.code, "Kill", text(1, "c2"), number(3, 9)), NOT_FOUND)
    at_once(t, "Kill", shim.call, "Kill", text(1, "p1"), number(3, signal.SIGCONT))
    c3 = members.Member(shim, "c3", {**shim.document(), "process": {
        "cwd": "/", "args": ["echo", "through"], "env": ["PATH=/bin"], "user": {}}})
    t.equal(c3.run(), (0, b"through\n"))
    t.check(create.running, f"Create is back: {create.answer} {create.error}")
    dead.end()
    t.check(create.join(60), "Create does not end although its path does")
    t.check(isinstance(create.error, shimcall.Status), f"Create: {create.answer} {create.error}")
    t.equal(shim.code("State", text(1, "c2")), NOT_FOUND)
    t.equal(shim.call("State", text(1, "p1"))[4], 2)
    t.explains("p1", "FILESYSTEM_DEAD")


FLOOD_SECONDS = 4
FLOOD_CPU = 0.15  # of one processor; without a bound it is what the guest can make of it


def flooded(t, deed):
    """A shim whose guest has come up and does nothing but that; and the Create that waits for it."""
    images.evil(t, deed)
    shim = shimcall.Shim(t, deed)
    shim.start()
    create = InBackground(shim, "Create", text(1, deed), text(2, shim.bundle), shim.rootfs())

    def negotiated():
        r = t.lcow("inspect", deed)
        return r.code == 0 and json.loads(r.out).get("vm", {}).get("stage") == "negotiated"
    return shim, create, negotiated


def floods(deed, what):
    @test(f"{what}: State and Connect answer at once, the shim needs little CPU", images=(),
          runc=False)
    def run(t):
        t.config(template="off")
        shim, create, negotiated = flooded(t, deed)
        t.until(negotiated, "the guest has come up", 60)
        pid = shim.call("Connect", text(1, deed))[1]
        time.sleep(1)  # what may come at once
        used, begin, slowest = cpu_seconds(pid), time.monotonic(), 0
        while time.monotonic() < begin + FLOOD_SECONDS:
            before = time.monotonic()
            shim.call("Connect", text(1, deed))
            shim.code("State", text(1, deed))
            slowest = max(slowest, time.monotonic() - before)
            time.sleep(0.02)
        took = time.monotonic() - begin
        used = cpu_seconds(pid) - used
        t.note(f"slowest State and Connect: {slowest * 1000:.0f} ms, CPU time: {used:.2f} s in "
               f"{took:.1f} s")
        t.check(create.running, f"Create is back: {create.answer} {create.error}")
        t.check(slowest < 1, f"State and Connect took {slowest:.2f} s")
        t.check(used < FLOOD_CPU * took, f"the shim took {used:.2f} s of CPU time in {took:.1f} s")
        os.kill(t.qemu_pid(), signal.SIGKILL)
        t.check(create.join(30), "Create does not end with its VM")


floods("floods-bytes", "a guest that sends notifications without end")
floods("floods-log", "a guest that logs without end")


@test("a guest that sends a notification of 1 MiB: its VM is ended, and Create says why",
      images=(), runc=False)
def large_notification(t):
    t.config(template="off")
    _, create, _ = flooded(t, "floods-notifications")
    t.check(create.join(90), "Create does not end")
    t.match("a notification of 1048576 bytes: at most 4096", str(create.error), create.answer)


@test("QEMU is stopped: queries answer at once, Kill ends the VM, every call gets an answer",
      images=(), runc=False)
def stopped_qemu(t):
    shim = members.pod(t)
    p1, e1 = text(1, "p1"), text(2, "e1")
    shim.call("Exec", p1, e1, shimcall.wrapped(7, members.PROCESS, TRUE))
    wait = InBackground(shim, "Wait", p1)
    os.kill(t.qemu_pid(), signal.SIGSTOP)
    c2 = members.Member(shim, "c2", shim.document())
    blocked = {"Create": InBackground(shim, "Create", text(1, "c2"), text(2, c2.bundle),
                                      shim.rootfs()),
               "Start": InBackground(shim, "Start", p1, e1),
               "Stats": InBackground(shim, "Stats", p1),
               "Pause": InBackground(shim, "Pause", p1)}
    time.sleep(0.5)
    for name, call in blocked.items():
        t.check(call.running, f"{name} is back: {call.answer} {call.error}")
    queries(t, shim, "p1")
    begin = time.monotonic()
    shim.call("Kill", p1, number(3, 9))
    t.check(wait.join(KILLED_IN), "Wait does not end")
    t.check(time.monotonic() - begin < KILLED_IN, "Kill and the end took too long")
    t.note(f"SIGKILL to the exit: {time.monotonic() - begin:.1f} s")
    t.equal(wait.answer.get(1), 137, wait.error)
    for name, call in blocked.items():
        t.check(call.join(10), f"{name} does not end with its VM")
        t.check(isinstance(call.error, shimcall.Status), f"{name}: {call.answer} {call.error}")
    t.equal(shim.call("Delete", p1)[2], 137)
    t.explains("p1", "GUEST_SILENT")


def open_files(pid):
    """What its descriptors stand for."""
    folder, found = f"/proc/{pid}/fd", []
    for name in os.listdir(folder):
        try:
            found.append(os.readlink(os.path.join(folder, name)))
        except FileNotFoundError:
            pass
    return found


def on_disk(shim, fs, name, *options):
    """A member with the image that the file system holds as a disk."""
    document = shim.document()
    document["mounts"].append({"destination": "/disk", "type": "virtual-disk",
                               "source": fs.file("disk"), "options": list(options)})
    return members.Member(shim, name, document)


def with_image(t):
    path = test_mounts.image(t, "image", text="on the disk\n")
    with open(path, "rb") as f:
        return deadfs.Stalling(t, {"disk": f.read()})


@test("close() hangs on a client's file system: no call waits for it, all is closed when it answers",
      images=(), runc=False)
def dead_close(t):
    shim = members.pod(t)
    threads = f"/proc/{t.shim_pid()}/task"
    before = len(os.listdir(threads))
    fs = with_image(t)
    fs.stall(deadfs.FLUSH)
    c2 = on_disk(shim, fs, "c2", "ro")
    create = InBackground(shim, "Create", text(1, "c2"), text(2, c2.bundle), shim.rootfs())
    t.until(lambda: fs.waiting(), "a close()", 30)
    queries(t, shim, "p1")
    t.check(create.join(30), "Create waits for a close()")
    t.equal(create.error, None)
    c2.call("Start")
    t.equal(c2.exec("cat", "/disk/text"), (0, b"on the disk\n"))
    t.note(f"{fs.waiting()} close() wait")
    queries(t, shim, "p1")
    # QEMU has it open, too, and waits when it closes it: with its only thread for devices.
    at_once(t, "Kill", shim.call, "Kill", text(1, "c2"), number(3, 9))
    at_once(t, "Wait", shim.call, "Wait", text(1, "c2"))
    delete = InBackground(shim, "Delete", text(1, "c2"))
    time.sleep(1)
    queries(t, shim, "p1")
    t.note(f"Delete meanwhile: running {delete.running}, {delete.answer} {delete.error}")
    fs.answer()
    t.check(delete.join(60), "Delete does not end although the file system answers")
    if delete.error:
        shim.call("Delete", text(1, "c2"))
    c3 = members.Member(shim, "c3", {**shim.document(), "process": {
        "cwd": "/", "args": ["echo", "through"], "env": ["PATH=/bin"], "user": {}}})
    t.equal(c3.run(), (0, b"through\n"))
    t.until(lambda: len(os.listdir(threads)) <= before, "the closing threads to end", 10)
    t.equal([to for to in open_files(t.shim_pid()) if to.startswith(fs.path)], [])
