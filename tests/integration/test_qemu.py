"""A QEMU that is not there, not fit, or not what it seems (fake_qemu.c stands in for it)."""

import os
import shutil
import signal

from harness import compile_c, flat, test

LIMIT = 4  # boot_timeout_s: nothing here needs a guest


def fake(t, way):
    path = os.path.join(t.work, f"qemu-{way}")
    shutil.copy(compile_c("../fixture/fake_qemu.c"), path)
    t.config(qemu=path, boot_timeout_s=LIMIT)
    return path


@test("QEMU missing: refused with the way to get it")
def missing(t):
    t.config(qemu="no-such-qemu")
    t.boot_fails("no-such-qemu", "lcow doctor|install", seconds=10)
    t.config(qemu="/no/such/qemu")
    t.boot_fails("/no/such/qemu", seconds=10)


@test("a QEMU that cannot be executed is refused by name")
def not_executable(t):
    t.config(qemu=t.write("qemu-text", "not a program\n", 0o644))
    t.boot_fails("qemu-text", seconds=10)
    t.config(qemu=t.write("qemu-garbage", os.urandom(4096), 0o755))
    t.boot_fails("qemu-garbage|qemu", seconds=10)
    t.config(qemu=t.work)
    t.boot_fails("not a regular file|directory|permission", seconds=10)


@test("a QEMU that is too old is refused with its version and the one that is needed")
def old(t):
    fake(t, "old")
    t.boot_fails(r"5\.2", "needed|least|newer|old", seconds=LIMIT + 5)


@test("a QEMU that exits at once: its own message is reported")
def fails(t):
    fake(t, "fails")
    r = t.boot_fails("the moon is in the wrong phase", seconds=LIMIT + 5)
    t.check(r.seconds < 3, "it took too long", r)


@test("a QEMU that crashes at once: the signal is reported")
def crashes(t):
    fake(t, "crashes")
    r = t.boot_fails(r"signal 4|SIGILL", seconds=LIMIT + 5)
    t.check(r.seconds < 3, "it took too long", r)


def qmp_fails(sentence, way, *patterns):
    def run(t):
        fake(t, way)
        t.boot_fails(*patterns, seconds=LIMIT + 5)
    test(sentence)(run)


qmp_fails("QMP closed: an error that names it", "closes", "QMP|monitor")
qmp_fails("QMP sends garbage: an error that names it", "garbage", "QMP|monitor")
qmp_fails("QMP sends a message without end: refused at a bound", "huge", "QMP|monitor")
qmp_fails("QMP sends brackets without end: refused at a bound", "deep", "QMP|monitor")
qmp_fails("QMP is silent: the deadline ends it", "silent", "QMP|monitor|deadline|time")
qmp_fails("QMP greets and then is silent: the deadline ends it", "greets", "QMP|deadline|time")
qmp_fails("QMP refuses everything: its message is reported", "refuses", "not today")
qmp_fails("QMP floods events: the boot still ends", "floods", "error")


@test("lcow's memory stays bounded while QMP sends a message without end")
def bounded(t):
    fake(t, "huge")
    p, most = t.start_boot("true"), 0
    while p.running:
        try:
            with open(f"/proc/{p.pid}/status") as f:
                rss = [line for line in f if line.startswith("VmHWM")]
            most = max(most, int(rss[0].split()[1]) if rss else 0)
        except (OSError, IndexError):
            break
    r = p.wait(LIMIT + 5)
    t.equal(r.code, 125, r)
    t.check(most < 64 << 10, f"lcow had {most} KiB")


@test("a silent QEMU can be interrupted at once")
def interrupted(t):
    fake(t, "silent")
    t.config(boot_timeout_s=60)
    p = t.start_boot("true")
    p.await_vmm()
    p.signal(signal.SIGINT)
    r = p.wait(5)
    t.equal(r.code, 130, r)


@test("doctor names a QEMU that is missing or too old")
def doctor(t):
    t.config(qemu="/no/such/qemu")
    r = t.lcow("doctor")
    t.equal(r.code, 1, r)
    t.match("failed +qemu", r.out, r)
    fake(t, "old")
    r = t.lcow("doctor")
    t.equal(r.code, 1, r)
    t.match(r"failed +qemu +.*5\.2", flat(r.out), r)
