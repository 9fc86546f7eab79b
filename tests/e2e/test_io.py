"""Where output goes and input comes from: slow and vanishing readers, log programs, terminals."""

import hashlib
import os
import random
import select
import time

from e2e import test
from harness import cpu_seconds
from members import Collector, Member, own_kib, pod, told
from shimcall import number, text

# Not a multiple of any page: what is lost, doubled or swapped shows in the sum.
PIECE = (4 << 20) + 4099


def slow_reader(t, pieces, burst, pause):
    """Reads bursts at full speed, with pauses in between in which the shim's memory is looked at.
    (cat of a file instead of yes: an emulated processor makes few bytes of its own.)"""
    data = random.Random(4).randbytes(PIECE)
    path, h = t.write("data", data), hashlib.sha256()
    for _ in range(pieces):
        h.update(data)
    r, w = os.pipe()
    p = t.start_run("--rm", f"--mount=type=bind,src={path},dst=/data,options=bind:ro", "c1", "sh",
                    "-ec", f"cat /data >/copy; i=0; while [ $i -lt {pieces} ]; do cat /copy; "
                    "i=$((i+1)); done", stdout=w)
    os.close(w)
    got, pauses, taken, start = hashlib.sha256(), 0, [], time.monotonic()
    size = 0
    try:
        while part := os.read(r, 1 << 20):
            got.update(part)
            size += len(part)
            if size // burst > pauses:
                pauses = size // burst
                time.sleep(pause)
                if size < pieces * PIECE - burst:  # behind that it may be over, and the shim gone
                    taken.append(own_kib(t.shim_pid()))
                if pauses % 8 == 0:
                    told(f"{size >> 20} MiB in {time.monotonic() - start:.0f} s, "
                         f"the shim's own memory {taken[-1]} KiB")
    finally:
        os.close(r)
    r = p.wait()
    t.equal(r.code, 0)
    t.equal(size, pieces * PIECE, r.err)
    t.equal(got.hexdigest(), h.hexdigest())
    t.note(f"{size >> 20} MiB in {time.monotonic() - start:.0f} s with {len(taken)} pauses of "
           f"{pause} s; the shim's own memory: {taken[0]} KiB in the first, {max(taken)} at most")
    t.check(max(taken) <= taken[0] + 128, f"the shim grew from {taken[0]} to {max(taken)} KiB",
            taken)


@test("a reader in bursts: 64 MiB arrive right and the shim keeps none of them", runc=False)
def bursts(t):
    slow_reader(t, 16, 4 << 20, 0.2)


@test("soak: 1 GiB through a slow reader: right to the byte, the shim's memory flat", full=True,
      runc=False, deadline=1200)
def gibibyte(t):
    slow_reader(t, 256, 16 << 20, 0.25)


# ---------------------------------------------------------------- log programs

LOGGER = """#!/bin/sh
# A log program as containerd wants it: output on fd 3, errors on 4, ready when fd 5 is closed.
trap '' TERM
cd {work}
echo "$CONTAINER_ID $CONTAINER_NAMESPACE $*" >said
{before}
exec 5>&-
cat <&4 >errors &
{slow} cat <&3 >output
wait
echo yes >finished
"""


def logger(t, before="", slow=""):
    """Its URI, with arguments."""
    path = t.write("logger", LOGGER.format(work=t.work, before=before, slow=slow), 0o755)
    return f"binary://{path}?size=5&name=of%20it"


def wrote(t, name):
    with open(os.path.join(t.work, name), "rb") as f:
        return f.read()


@test("binary://: a log program gets both outputs to the end, and time to write them", smoke="one")
def binary(t):
    data = random.Random(5).randbytes(3 << 20)
    path = t.write("data", data)
    t.detach(f"--log-uri={logger(t, before='sleep 1; echo x >was-ready', slow='sleep 2;')}",
             f"--mount=type=bind,src={path},dst=/data,options=bind:ro", "c1", "sh", "-c",
             "cat /data; echo of errors >&2; exit 6")
    t.check(os.path.exists(os.path.join(t.work, "was-ready")),
            "the task was started before the log program was ready")
    t.await_status("c1", "STOPPED")
    r = t.ctr("tasks", "rm", "c1")
    t.match(r"\b6\b", f"{r.out} {r.err} {r.code}")
    t.until(lambda: os.path.exists(os.path.join(t.work, "finished")), "it has finished", 20)
    words = sorted(wrote(t, "said").decode().split())
    t.equal(words, sorted(["c1", t.tag, "size", "5", "name", "of", "it"]))
    t.check(wrote(t, "output") == data, f"{len(wrote(t, 'output'))} bytes, or other ones")
    t.equal(wrote(t, "errors"), b"of errors\n")


@test("binary://: a log program that dies does not stop the container", runc=False)
def dead_logger(t):
    t.detach(f"--log-uri={logger(t, slow='sleep 1; kill -9 $!; exit 1;')}", "c1", "sh", "-c",
             "head -c 1200000 /dev/zero; exit 4")
    t.await_status("c1", "STOPPED")
    r = t.ctr("tasks", "rm", "c1")
    t.match(r"\b4\b", f"{r.out} {r.err} {r.code}")


@test("binary://: one that does not exist, or fails before it is ready, fails the start",
      runc=False)
def no_logger(t):
    t.fails(*t.run_args("-d", "--log-uri=binary:///no/such/program", "c1", "true"),
            pattern="/no/such/program")
    t.explains("c1", "LOG_DRIVER_FAILED")
    t.ctr("containers", "rm", "c1")
    t.fails(*t.run_args("-d", f"--log-uri={logger(t, before='exit 9')}", "c2", "true"),
            pattern="logger")
    t.explains("c2", "LOG_DRIVER_FAILED")


# ---------------------------------------------------------------- streams, without a client between

def fifo(t, name, flags):
    path = os.path.join(t.work, name)
    os.mkfifo(path)
    fd = os.open(path, flags | os.O_NONBLOCK)
    t.at_end(os.close, fd)
    return path, fd


def read_end(t, fd, seconds=30):
    """What comes until the writer has closed."""
    data = b""
    while True:
        t.check(select.select([fd], [], [], seconds)[0], "no end of the stream", data[-200:])
        part = os.read(fd, 65536)
        if not part:
            return data
        data += part


@test("stdout, stderr and stdin end one by one while the program keeps running", images=(), runc=False)
def half_closed(t):
    shim = pod(t)
    document = shim.document()
    document["process"]["args"] = [
        "sh", "-c", "echo out; exec >&-; cat >&2; exec <&-; echo after input >&2; "
        "exec 2>&-; sleep 100000"]
    member = Member(shim, "c1", document)
    into, writer = fifo(t, "in", os.O_RDWR)
    out, outs = fifo(t, "out", os.O_RDONLY)
    err, errs = fifo(t, "err", os.O_RDONLY)
    member.call("Create", text(2, member.bundle), shim.rootfs(), text(5, into), text(6, out),
                text(7, err))
    member.call("Start")
    t.equal(read_end(t, outs), b"out\n")
    t.equal(member.call("State")[4], 2)
    os.write(writer, b"through stdin\n")
    t.until(lambda: select.select([errs], [], [], 1)[0], "stderr still works", 30)
    member.call("CloseIO", number(3, 1))
    closed(t, writer)
    t.equal(read_end(t, errs), b"through stdin\nafter input\n")
    t.equal(member.call("State")[4], 2)
    member.call("Kill", number(3, 9))
    t.equal(member.call("Wait")[1], 137)
    member.call("Delete")


def closed(t, fd):
    """Closes what at_end would."""
    t._undo = [(call, args) for call, args in t._undo if args != (fd,)]
    os.close(fd)


@test("a terminal has its size before the program looks", images=(), runc=False)
def first_size(t):
    shim = pod(t)
    document = shim.document()
    document["process"].update({"args": ["busybox", "stty", "size"], "terminal": True,
                                "consoleSize": {"height": 33, "width": 101}})
    document["mounts"].append({"destination": "/dev/pts", "type": "devpts", "source": "devpts",
                               "options": ["newinstance", "ptmxmode=0666", "mode=0620"]})
    member = Member(shim, "c1", document)
    out, outs = fifo(t, "out", os.O_RDONLY)
    member.call("Create", text(2, member.bundle), shim.rootfs(), number(4, 1), text(6, out))
    member.call("Start")
    t.equal(member.call("Wait").get(1, 0), 0)
    t.equal(read_end(t, outs), b"33 101\r\n")
    member.call("Delete")


@test("without a reader the program exits and its output waits: a late reader gets all of it",
      images=(), runc=False)
def late_reader(t):
    shim = pod(t)
    document = shim.document()
    data = random.Random(6).randbytes(300000)
    shim.rootfs()
    t.write("tree/data", data)
    document["process"]["args"] = ["cat", "/data"]
    member = Member(shim, "c1", document)
    member.call("Create", text(2, member.bundle), shim.rootfs(), text(6, member.fifo))
    member.call("Start")
    time.sleep(2)
    fd = os.open(member.fifo, os.O_RDONLY | os.O_NONBLOCK)
    collector = Collector(fd)
    collector.start()
    t.equal(member.call("Wait").get(1, 0), 0)
    got = collector.end()
    os.close(fd)
    t.check(got == data, f"{len(got)} bytes of {len(data)}, or other ones")
    member.call("Delete")


def execs_stay_cheap(t, shim):
    """QEMU's processor time, which is the guest's work, does not depend on what else this machine
    does. The first ten are dearer under emulation, which translates what they run."""
    member, qemu, used = Member(shim, "execs", shim.document()).start(), t.qemu_pid(), []
    for i in range(10):
        before = cpu_seconds(qemu)
        for _ in range(10):
            t.equal(member.exec("true"), (0, b""))
        used.append(cpu_seconds(qemu) - before)
    t.note(f"ten execs: {used[0]:.2f} s of QEMU at first, {used[1]:.2f} s then, "
           f"{used[-1]:.2f} s at the end")
    t.check(min(used[-3:]) < 2 * max(used[:2]), "execs become dearer", used)
    member.end()


@test("when the exit is reported, all output is there and its end too; the hundredth exec costs what "
      "the twentieth did", images=(), runc=False)
def before_exit(t):
    shim = pod(t)
    data = random.Random(8).randbytes(60000)  # fits into the FIFO: nobody has to read meanwhile
    shim.rootfs()
    t.write("tree/data", data)
    for i in range(5):
        document = shim.document()
        document["process"]["args"] = ["cat", "/data"]
        member = Member(shim, f"c{i}", document)
        fd = os.open(member.fifo, os.O_RDONLY | os.O_NONBLOCK)
        member.call("Create", text(2, member.bundle), shim.rootfs(), text(6, member.fifo))
        member.call("Start")
        t.equal(member.call("Wait").get(1, 0), 0)
        got, end = os.read(fd, 1 << 20), os.read(fd, 1)
        os.close(fd)
        t.check(got == data, f"{len(got)} bytes of {len(data)}, or other ones")
        t.equal(end, b"")
        member.call("Delete")
    execs_stay_cheap(t, shim)


@test("64 MiB in and 64 MiB out at full speed, right to the byte", images=(), runc=False)
def full_speed(t):
    """No client between; the rates are noted, not judged: other tests run beside this one. What
    does not depend on those is the processor time."""
    shim = pod(t)
    pids = (t.qemu_pid(), t.shim_pid())
    data = random.Random(7).randbytes(16 << 20) * 4
    for i, args in enumerate((["cat"], ["sh", "-c", "cat >/dev/null"], ["cat", "/data"])):
        shim.rootfs()
        t.write("tree/data", data)
        document = shim.document()
        document["process"]["args"] = args
        member = Member(shim, f"c{i}", document)
        into, writer = fifo(t, f"in{i}", os.O_RDWR)
        fd = os.open(member.fifo, os.O_RDONLY | os.O_NONBLOCK)
        member.call("Create", text(2, member.bundle), shim.rootfs(), text(5, into),
                    text(6, member.fifo))
        collector = Collector(fd)
        member.call("Start")
        start, used = time.monotonic(), [cpu_seconds(pid) for pid in pids]
        collector.start()
        if i < 2:
            os.set_blocking(writer, True)
            for at in range(0, len(data), 1 << 20):
                os.write(writer, data[at:at + (1 << 20)])
        member.call("CloseIO", number(3, 1))
        closed(t, writer)
        t.equal(member.call("Wait").get(1, 0), 0)
        got, seconds = collector.end(), time.monotonic() - start
        used = [cpu_seconds(pid) - before for pid, before in zip(pids, used)]
        os.close(fd)
        t.check(i == 1 or got == data, f"{args}: {len(got)} bytes of {len(data)}, or other ones")
        t.note(f"{' '.join(args)}: {len(data) / seconds / 1e6:.1f} MB/s; processor time of QEMU "
               f"{used[0]:.2f} s, of the shim {used[1]:.2f} s")
        member.call("Delete")
