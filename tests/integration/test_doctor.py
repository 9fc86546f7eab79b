"""lcow doctor: what it checks, what it says of damage, and what it never does."""

import json
import os
import re
import shutil
import signal

import images
from harness import LCOW, Skip, flat, test, without_kvm

CHECKS = {"qemu", "acceleration", "image", "memory", "templates", "netns", "tun", "tc", "cgroups", "disk",
          "mke2fs", "mkfs.erofs", "scratch", "pci", "containerd", "leftovers"}


def doctor(t):
    """{name: check}, exit code"""
    r = t.lcow("doctor", "--json", seconds=30)
    report = json.loads(r.out)
    return {c["name"]: c for c in report["checks"]}, r, report


@test("doctor --json parses, names each check and counts them")
def parses(t):
    checks, r, report = doctor(t)
    names = set(checks)
    t.check(len(names) == len(report["checks"]), "a name twice", names)
    for wanted in CHECKS:
        t.check(any(wanted[:5] in name for name in names), f"no check of {wanted}", sorted(names))
    for c in checks.values():
        t.check(c["status"] in ("ok", "warning", "failed") and c["detail"], "half a check", c)
        if c["status"] == "failed":
            t.check(c["fix"], "failed without a remedy", c)
    failed = sum(c["status"] == "failed" for c in checks.values())
    t.equal(report["failed"], failed)
    t.equal(r.code, 1 if failed else 0, r)


@test("doctor prints a line for each check, with the same words")
def text(t):
    r = t.lcow("doctor", seconds=30)
    checks, _, _ = doctor(t)
    for name, c in checks.items():
        t.match(rf"(?m)^{c['status']} +{re.escape(name)} ", r.out, r)
    t.match(r"\d+ ok, \d+ warnings?, \d+ failed", r.out, r)


@test("doctor finds a good image good and a damaged one damaged")
def image(t):
    checks, _, _ = doctor(t)
    t.equal(checks["image"]["status"], "ok", checks["image"])
    images.make(t, "flipped", honest=False, initrd=b"x" * len(images.read(images.INITRD)))
    checks, r, _ = doctor(t)
    t.equal((checks["image"]["status"], r.code), ("failed", 1), checks["image"])
    t.match("initrd", checks["image"]["detail"])
    t.match("make", checks["image"]["fix"])
    t.config(image_dir=os.path.join(t.work, "nothing"))
    checks, r, _ = doctor(t)
    t.equal((checks["image"]["status"], r.code), ("failed", 1), checks["image"])


@test("doctor finds that scratch disks have no room")
def scratch(t):
    checks, _, _ = doctor(t)
    t.equal((checks["mke2fs"]["status"], checks["scratch"]["status"]), ("ok", "ok"), checks)
    t.config(scratch_free_mib=16 * 1024 * 1024)
    checks, r, _ = doctor(t)
    t.equal((checks["scratch"]["status"], r.code), ("failed", 1), checks["scratch"])
    t.words("MiB must be left", checks["scratch"]["detail"])
    t.match("scratch_dir", checks["scratch"]["fix"])


@test("doctor reports leftovers and the command that removes them")
def leftovers(t):
    p = t.start_boot("sleep", "1000", progress=True)
    p.await_stage("kernel")
    checks, _, _ = doctor(t)
    t.equal(checks["leftovers"]["status"], "ok", checks["leftovers"])
    p.signal(signal.SIGKILL)
    p.popen.wait(5)
    checks, _, _ = doctor(t)
    t.equal(checks["leftovers"]["status"], "warning", checks["leftovers"])
    t.match("lcow gc", checks["leftovers"]["fix"])
    t.equal(t.lcow("gc").code, 0)
    checks, _, _ = doctor(t)
    t.equal(checks["leftovers"]["status"], "ok", checks["leftovers"])


def opened(t, *args):
    """The files that lcow and its children open."""
    if not shutil.which("strace"):
        raise Skip("strace is not installed")
    log = os.path.join(t.work, "strace")
    r = t.lcow(*args, wrap=("strace", "-f", "-qq", "-e", "trace=open,openat,openat2", "-o", log),
               seconds=60)
    with open(log, errors="replace") as f:
        calls = f.read()
    t.check(calls.count("openat(") > 5, f"strace saw nothing of {LCOW}", r)
    return calls, r


@test("without vmx or svm in the CPU's flags /dev/kvm is never opened")
def no_kvm(t):
    without_kvm(t)
    calls, _ = opened(t, "doctor")
    t.check("/dev/kvm" not in calls, "doctor opened /dev/kvm")
    calls, r = opened(t, "boot", "--", "true")
    t.check("/dev/kvm" not in calls, "boot opened /dev/kvm")
    t.equal(r.code, 125, r)


@test("doctor says that only emulation is left, and how to allow it")
def acceleration(t):
    without_kvm(t)
    checks, _, _ = doctor(t)
    name = next(n for n in checks if n.startswith("accel"))
    t.check(checks[name]["status"] != "ok", "it is fine with that", checks[name])
    t.match("allow_emulation|allow-emulation", flat(str(checks[name])))
