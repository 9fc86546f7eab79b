"""Killing and stopping everything at every stage of a boot: a true error in time, and nothing left.

The stages are seen on the line of progress (harness.STAGES); the command never ends by itself, so
that a kill that comes a moment late still hits a VM that lives.
"""

import fcntl
import os
import re
import shutil
import signal
import time

import leaks
from harness import STAGES, Failure, TooSlow, flat, test

SOON = 10  # seconds until lcow must have ended after its VM has


def begun(t, stage):
    """A boot that has reached a stage, and its VMM."""
    p = t.start_boot("sleep", "1000", progress=True)
    p.await_stage(stage)
    return p, p.await_vmm()


def reached(t, r, stage):
    """The error is lcow's own and names a stage not before the one we saw."""
    t.equal(r.code, 125, r)
    text, names = flat(r.err), list(STAGES)
    told = re.search(f"'({'|'.join(names)})'", text)
    if told:
        t.check(names.index(told.group(1)) >= names.index(stage), f"seen {stage}, told less", r)
    else:
        t.match("error: ", text, r)
    return text


def for_each_stage(sentence):
    def declare(body):
        for stage in STAGES:
            def run(t, at=stage):
                body(t, at)
            test(sentence.format(stage))(run)
        return body
    return declare


@for_each_stage("QEMU killed at stage {}: a true error at once")
def qemu_killed(t, stage):
    p, vmm = begun(t, stage)
    os.kill(vmm, signal.SIGKILL)
    r = p.wait(SOON)
    t.match("kill|signal 9", reached(t, r, stage), r)


@for_each_stage("QEMU stopped at stage {}: the end comes with the deadline, or when told")
def qemu_stopped(t, stage):
    t.with_short_boot_timeout(lambda limit: stopped_at(t, stage, limit))


def stopped_at(t, stage, limit):
    try:
        p, vmm = begun(t, stage)
    except Failure as e:
        raise TooSlow(str(e)) from None
    os.kill(vmm, signal.SIGSTOP)
    if stage == "negotiated":  # no deadline any more: the user's patience counts
        time.sleep(0.5)
        t.check(p.running, "it ended", p.err)
        p.signal(signal.SIGTERM)
        time.sleep(0.3)
        p.signal(signal.SIGTERM)
        t.equal(p.wait(SOON).code, 143)
        return
    # Between our seeing a stage and stopping it, the boot may have come to its end.
    try:
        r = p.wait(limit + SOON)
    except Failure:
        t.check(re.search(STAGES["negotiated"], p.err), "no end after the deadline", p.err)
        p.signal(signal.SIGTERM)
        time.sleep(0.3)
        p.signal(signal.SIGTERM)
        t.equal(p.wait(SOON).code, 143)
        return
    text = reached(t, r, stage)
    t.words("deadline|time|within", text, r)


@for_each_stage("SIGTERM ends lcow at once at stage {}")
def told_to_end(t, stage):
    p, _ = begun(t, stage)
    p.signal(signal.SIGTERM)
    r = p.wait(SOON)
    t.equal(r.code, 143, r)


@test("Ctrl-C during the boot ends it with 130")
def interrupted(t):
    p, _ = begun(t, "kernel")
    p.signal(signal.SIGINT)
    r = p.wait(SOON)
    t.equal(r.code, 130, r)
    t.words("SIGINT", r.err, r)


@test("SIGTERM in the very first moments leaves nothing")
def very_early(t):
    for ms in (0, 1, 2, 4, 8, 16, 32, 64, 128, 256):
        p = t.start_boot("sleep", "1000")
        time.sleep(ms / 1000)
        p.signal(signal.SIGTERM)
        r = p.wait(SOON)
        t.check(r.code in (143, -signal.SIGTERM), f"after {ms} ms", r)


@test("SIGTERM goes to the command, whose exit code counts", clone=True)
def forwarded(t):
    p = t.start_boot("sh", "-c", "trap 'echo told; exit 3' TERM; echo up; while :; do sleep 0.1; done")
    p.await_output("up")
    p.signal(signal.SIGTERM)
    r = p.wait(10)
    t.equal((r.code, r.out), (3, "up\ntold\n"), r)


@test("a second signal ends a VM whose command does not listen", clone=True)
def second_signal(t):
    p = t.start_boot("sh", "-c", "trap '' TERM; echo up; while :; do sleep 0.1; done")
    p.await_output("up")
    p.signal(signal.SIGTERM)
    time.sleep(1)
    t.check(p.running, "the first one ended it", p.err)
    p.signal(signal.SIGTERM)
    r = p.wait(SOON)
    t.equal((r.code, r.out), (143, "up\n"), r)


# ---------------------------------------------------------------- the guest's end

@test("the agent killed while a command runs: a true error, never exit 0")
def agent_killed(t):
    r = t.boot("sh", "-c", "echo before; kill -9 $(pidof gcs) $PPID; sleep 100")
    t.equal(r.code, 125, r)
    t.match("before", r.out, r)
    t.match("error: ", flat(r.err), r)


@test("the guest's kernel panics while a command runs: a true error, never exit 0")
def panic(t):
    r = t.boot("sh", "-c", "echo before; echo c >/proc/sysrq-trigger; sleep 100")
    t.equal(r.code, 125, r)
    t.match("before", r.out, r)
    t.match("error: ", flat(r.err), r)


@test("the guest powers off under a command: a true error, never exit 0")
def power_off(t):
    r = t.boot("sh", "-c", "echo before; poweroff -f; sleep 100")
    t.equal(r.code, 125, r)
    t.match("error: ", flat(r.err), r)


@test("the guest reboots under a command: the VM ends, a true error")
def reboots(t):
    r = t.boot("sh", "-c", "echo before; reboot -f; sleep 100")
    t.equal(r.code, 125, r)
    t.match("error: ", flat(r.err), r)


# ---------------------------------------------------------------- lcow's end

def run_root_content(t):
    return sorted(path for path in leaks.files(t.scope)
                  if path.startswith(t.run_root + "/") and not t.allowed(path))


@for_each_stage("lcow killed at stage {}: QEMU is gone within a second, gc takes the rest back")
def lcow_killed(t, stage):
    p, vmm = begun(t, stage)
    start = leaks.parents()[vmm][2]
    p.signal(signal.SIGKILL)
    p.popen.wait(5)

    def gone():
        leaks.reap_orphans(p.popen)
        found = leaks.parents().get(vmm)
        return not found or found[2] != start
    t.until(gone, "QEMU is gone", 1)

    left = run_root_content(t)
    dry = t.lcow("gc", "--dry-run")
    t.equal(dry.code, 0, dry)
    t.equal(run_root_content(t), left, "the dry run changed something")
    real = t.lcow("gc")
    t.equal(real.code, 0, real)
    t.equal(real.out, dry.out, "gc did something else than it had announced")
    if left:
        t.check(real.out, "things were left, but gc says nothing", left)
    t.equal(run_root_content(t), [])
    again = t.lcow("gc")
    t.equal((again.code, again.out), (0, ""), again)


@test("gc never touches what lives")
def living(t):
    p, vmm = begun(t, "negotiated")
    before = run_root_content(t)
    t.check(before, "a running VM has no directory")
    for args in (("gc", "--dry-run"), ("gc",)):
        r = t.lcow(*args)
        t.equal((r.code, r.out), (0, ""), r)
        t.match("in use", r.err, r)
    t.equal(run_root_content(t), before)
    t.check(os.path.exists(f"/proc/{vmm}"), "its QEMU is gone")
    p.signal(signal.SIGTERM)
    t.equal(p.wait(SOON).code, 143)


@test("gc without pause beside a boot never disturbs it")
def gc_race(t):
    p = t.start_boot("echo", "hi")
    while p.running:
        r = t.lcow("gc", seconds=10)
        t.equal((r.code, r.out), (0, ""), r)
        time.sleep(0.01)
    r = p.wait()
    t.equal((r.code, r.out), (0, "hi\n"), r)


@test("gc cleans up dead sandboxes beside running ones")
def dead_beside_living(t):
    alive, vmm = begun(t, "negotiated")
    dead, _ = begun(t, "kernel")
    dead.signal(signal.SIGKILL)
    dead.popen.wait(5)
    dry, real = t.lcow("gc", "--dry-run", "--json"), t.lcow("gc")
    t.equal((dry.code, real.code), (0, 0), real)
    t.match('"vms":1,"in_use":1', re.sub(r"\s", "", dry.out), dry)
    t.check(alive.running and os.path.exists(f"/proc/{vmm}"), "the living was hurt", alive.err)
    t.equal(len(os.listdir(os.path.join(t.run_root, "boot"))), 1)
    alive.signal(signal.SIGTERM)
    t.equal(alive.wait(SOON).code, 143)


@test("gc removes layer images of removed snapshots and what killed builders left, unless one runs")
def layer_images(t):
    store, snapshots = (os.path.join(t.work, name) for name in ("layers", "snapshots"))
    t.config(layer_dir=store)
    for name in ("1", "2"):
        os.makedirs(os.path.join(snapshots, name, "fs/etc"))
        r = t.lcow("layers", "build", os.path.join(snapshots, name, "fs"))
        t.equal(r.code, 0, r)
    gone = next(n for n in os.listdir(store) if f"{snapshots}/1/" in t.lcow("layers", "verify", n).out)
    shutil.rmtree(os.path.join(snapshots, "1"))
    os.makedirs(os.path.join(store, ".new-x/root"))
    builder = os.open(store, os.O_RDONLY)
    fcntl.flock(builder, fcntl.LOCK_EX)
    r = t.lcow("gc")
    t.equal((r.code, r.out), (0, ""), r)
    os.close(builder)
    dry, real = t.lcow("gc", "--dry-run"), t.lcow("gc")
    lines = sorted(f"layers dir {store}/{name}" for name in (".new-x", gone))
    t.equal((real.code, sorted(real.out.splitlines()), real.out), (0, lines, dry.out), real)
    t.equal(len(os.listdir(store)), 1)
    t.equal(t.lcow("layers", "verify").code, 0)
    again = t.lcow("gc")
    t.equal((again.code, again.out), (0, ""), again)


@test("gc copes with a ledger that was torn off, is garbage or is empty")
def damaged_ledger(t):
    p, _ = begun(t, "kernel")
    p.signal(signal.SIGKILL)
    p.popen.wait(5)
    home = os.path.join(t.run_root, "boot")
    ledger = os.path.join(home, os.listdir(home)[0], "ledger")
    with open(ledger, "rb") as f:
        text = f.read()
    with open(ledger, "wb") as f:
        f.write(text[:-5])  # died while writing the last line
    r = t.lcow("gc", "--dry-run")
    t.equal(r.code, 0, r)
    for name, content in (("b-garbage", os.urandom(5000)), ("b-empty", b"")):
        os.makedirs(os.path.join(home, name), 0o700)
        with open(os.path.join(home, name, "ledger"), "wb") as f:
            f.write(content)
    r = t.lcow("gc")
    t.check(r.code in (0, 1), "gc broke", r)
    t.check(not os.path.exists(os.path.dirname(ledger)), "the torn one is still there", r)
    t.check(not os.path.exists(os.path.join(home, "b-empty")), "the empty one is still there", r)
    if r.code == 1:
        t.match("b-garbage", flat(r.err), r)
        shutil.rmtree(home)
