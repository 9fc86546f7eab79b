"""KVM as lcow sees it: when it counts as broken, when not, and the way back.

The machine of these tests need not have KVM: each claims it (cpuinfo shows svm, /dev/kvm is there),
and what stands in for QEMU decides how that ends.
"""

import json
import os
import re
import shutil
import struct

import cell
import intruder
from harness import compile_c, flat, test

LIMIT = 4  # boot_timeout_s where no guest is needed
QEMU = "/usr/bin/qemu-system-x86_64"


def claim_kvm(t):
    if os.path.exists(os.path.join(t.run_root, "accel")):
        os.unlink(os.path.join(t.run_root, "accel"))  # the next boot is the first one
    with open("/proc/cpuinfo") as f:
        text = f.read()
    path = t.write("cpuinfo", text.replace("\nflags\t\t:", "\nflags\t\t: svm"))
    for source, target in ((path, "/proc/cpuinfo"), ("/dev/zero", "/dev/kvm")):
        if not os.path.exists(target):
            open(target, "x").close()
            t.at_end(os.unlink, target)
        cell.mount(source, target, None, cell.MS_BIND)
        t.at_end(cell.umount, target)


def fake(t, way):
    path = os.path.join(t.work, f"qemu-{way}")
    shutil.copy(compile_c("../fixture/fake_qemu.c"), path)
    t.config(qemu=path, boot_timeout_s=LIMIT)


def wrapped(t):
    """The real QEMU, which takes KVM for emulation."""
    with open(compile_c("../fixture/wrapped_qemu.c"), "rb") as f, open(QEMU, "rb") as g:
        wrapper, qemu = f.read(), g.read()
    t.config(qemu=t.write("qemu-wrapped", wrapper + qemu + struct.pack("<Q", len(qemu)), 0o755))


STAMP = r"20\d\d-\d\d-\d\dT[\d:]+Z"  # a remembered failure of KVM has its time


def verdict(t, *opts):
    r = t.lcow("doctor", "--json", *opts, seconds=150)
    return next(c for c in json.loads(r.out)["checks"] if c["name"] == "acceleration")


def proven(t, c):
    t.equal(c["status"], "ok", c)
    t.words("KVM works: a VM has booted with it", c["detail"], c)


def fails(t, *patterns):
    """Without emulation."""
    r = t.lcow("boot", "--", "true", seconds=LIMIT + 20)
    t.equal(r.code, 125, r)
    for p in patterns:
        t.words(p, flat(r.err), r)
    return flat(r.err)


@test("a first boot that fails for want of memory does not condemn KVM")
def no_memory(t):
    claim_kvm(t)
    fake(t, "memory")
    text = fails(t, "Cannot allocate memory")
    t.check("allow-emulation" not in text, "emulation is advised, which would not help", text)
    c = verdict(t)
    t.check(not re.search(STAMP, c["detail"]), "KVM is condemned", c)
    fake(t, "kernel")  # the next VM tries again, and proves it
    fails(t, "deadline|time")
    c = verdict(t)
    proven(t, c)


@test("a first boot that runs out of time does not condemn KVM")
def no_time(t):
    claim_kvm(t)
    fake(t, "obliging")
    t.config(boot_timeout_s=12)
    fails(t, "deadline")
    c = verdict(t)
    t.check(not re.search(STAMP, c["detail"]), "KVM is condemned", c)


@test("KVM that fails is remembered with reason and time; doctor --retest is the way back")
def retest(t):
    claim_kvm(t)
    fake(t, "kvmfails")
    fails(t, "internal-error: error: kvm run failed Bad address", "lcow doctor")
    c = verdict(t)
    t.equal(c["status"], "failed", c)
    t.match(STAMP + ": error: kvm run failed Bad address", c["detail"])  # QEMU's words
    t.match("doctor --retest", c["fix"])
    fails(t, "KVM failed at", "doctor --retest", "kvm run failed")  # refused: no VM is started
    c = verdict(t, "--retest")
    t.equal(c["status"], "failed", c)
    t.match("kvm run failed Bad address", c["detail"])
    wrapped(t)
    t.config(boot_timeout_s=90)
    c = verdict(t, "--retest")
    proven(t, c)
    r = t.lcow("boot", "--json", "--", "sh", "-c", "grep -cwE 'svm|vmx' /proc/cpuinfo")
    t.equal(json.loads(r.out.splitlines()[-1])["accel"], "kvm", r)


@test("doctor --retest reports why KVM could not be tested, and condemns nothing")
def retest_fails(t):
    claim_kvm(t)
    fake(t, "memory")
    c = verdict(t, "--retest")
    t.equal(c["status"], "failed", c)
    t.match("Cannot allocate memory", flat(c["detail"]))
    t.match("lcow boot --kvm -- true", c["fix"])
    t.check(not re.search(STAMP, c["detail"]), "KVM is condemned", c)
    fake(t, "kernel")
    c = verdict(t, "--retest")
    t.equal(c["status"], "failed", c)
    t.match("lcow boot -- true", c["fix"])  # KVM is not the cause


@test("a template is built on a host where nothing has booted yet")
def template(t):
    claim_kvm(t)
    wrapped(t)
    t.config(template="auto")
    r = t.lcow("template", "build", "--json", seconds=150)
    t.equal(r.code, 0, r)
    t.at_end(shutil.rmtree, os.path.join(t.dir, "templates"))
    proven(t, verdict(t))
    r = t.boot("true", opts=("--json",))
    t.equal(r.code, 0, r)
    t.check(json.loads(r.out.splitlines()[-1])["clone"], "it was not cloned from it", r)


@test("a guest sees neither svm nor vmx unless that is configured", clone=True)
def nested(t):
    show = ("grep", "-ow", "-m1", "svm", "/proc/cpuinfo")
    r = t.boot(*show)
    t.equal((r.code, r.out), (1, ""), r)
    t.config(nested_virtualization=True, template="off")
    r = t.boot(*show)
    t.equal((r.code, r.out), (0, "svm\n"), r)


@test("QEMU stops a running VM by itself: lcow ends with the reason", clone=True)
def stopped(t):
    p = t.start_boot("sh", "-c", "echo up; sleep 1000")
    p.await_output("up")
    intruder.stop(p.pid, p.await_vmm())
    r = p.wait(10)
    t.equal(r.code, 125, r)
    t.words("the VM has failed: QEMU stopped it with status paused", flat(r.err), r)


@test("QEMU stops a VM that boots: the boot ends with the reason, not with the deadline")
def stopped_early(t):
    p = t.start_boot("sleep", "1000", progress=True)
    p.await_stage("kernel")
    intruder.stop(p.pid, p.await_vmm())
    r = p.wait(10)
    t.equal(r.code, 125, r)
    t.words("QEMU stopped it with status paused", flat(r.err), r)
