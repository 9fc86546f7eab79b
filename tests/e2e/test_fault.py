"""The fault programme: each system call that the shim makes fails once with each plausible error.
No crash, no hang, no leak, no status 0 that is not true, no error without text."""

import contextlib
import os
import re
import threading
import time

import fault
import leaks
import shimcall
from e2e import LOGS, Failure, kill, test
from harness import Skip
from members import PROCESS, Member, pod, told
from shimcall import Status, text

PARTS = 6


# Instead of one case of each call: those whose line in the log matches this.
MATCH = os.environ.get("LCOW_FAULT_MATCH")
ORDER = ("create", "exec", "delete", "boot", "leave", "cleanup", "launch")


def by_phase(call):
    """Those that can share a pod come one after the other."""
    return ORDER.index(call.phase), call.number, call.frames


def first_of_each(calls, programme):
    """One case of each system call, the same in every run: the first by phase and address."""
    if MATCH:
        return [f for f in programme.faults(sorted(calls, key=by_phase))
                if re.search(MATCH, programme.describe(f))]
    found = {}
    for call in sorted(calls, key=by_phase):
        found.setdefault(call.number, call)
    return [fault.Fault(c, fault.ERRORS[programme.names[c.number]][0]) for c in found.values()
            if fault.ERRORS[programme.names[c.number]]]


def run(t, name, choose):
    bad, counts = [], {"as if nothing": 0, "refused": 0, "gave up": 0, "not reached": 0,
                   "broken": 0}
    os.makedirs(LOGS, exist_ok=True)
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(os.path.join(LOGS, f"{name}.txt"), "w", buffering=1))
        programme = stack.enter_context(contextlib.closing(fault.Programme(t)))
        calls = programme.record()
        faults = choose(calls, programme)
        told(f"fault: {len(calls)} call sites, {len(programme.faults(calls))} cases; "
             f"{len(faults)} of them here")
        for f in faults:
            outcome, hit = programme.run(f)
            kind = ("broken" if outcome.broken else "not reached" if not hit else
                    "gave up" if outcome.gave_up else "refused" if outcome.errors else
                    "as if nothing")
            counts[kind] += 1
            case = programme.describe(f)
            log.write(f"{kind}\t{outcome.slow[0]:.1f} s {outcome.slow[1]}\t{case}\t"
                      f"{'; '.join(outcome.broken or outcome.errors)[:600]!r}\n")
            if outcome.broken:
                bad.append(f"{case}\n  " + "\n  ".join(outcome.broken + outcome.errors))
    told(f"fault: {len(faults)} cases: " + ", ".join(f"{n} {k}" for k, n in counts.items()))
    t.note(f"calls of a life without a table entry: {' '.join(programme.unknown)}")
    t.check(not bad, f"{len(bad)} of {len(faults)} cases broke a law", "\n".join(bad))


@test("fault: each system call of the shim fails once: no crash, hang, leak or lie", runc=False,
      images=(), versions=("2.1",), deadline=1200)
def sample(t):
    run(t, "fault-sample", first_of_each)


def part(i):
    @test(f"fault: every call site fails with each plausible error, part {i + 1} of {PARTS}",
          full=True, runc=False, images=(), versions=("2.1",), deadline=7200)
    def every(t):
        run(t, f"fault-part-{i + 1}", lambda calls, programme: programme.faults(sorted(
            calls, key=by_phase))[i::PARTS])


for index in range(PARTS):
    part(index)


# ---------------------------------------------------------------- kill -9 after each ledger record

KILL_AGENT = """for p in /proc/[0-9]*; do
    read -r name <$p/comm 2>/dev/null || continue
    [ "$name" = gcs ] && [ "$p" != /proc/1 ] && kill -9 "${p#/proc/}"
done"""
EACH = 4  # without --full one record in so many


def the_shim(life, tid):
    with open(f"/proc/{tid}/status") as f:
        pid = int(re.search(r"^Tgid:\s+(\d+)", f.read(), re.M).group(1))
    kill(pid)
    return True


def qemu(life, tid):
    pids = life.t.qemu_pids()
    for pid in pids:
        kill(pid)
    return pids


def agent(life, tid):
    """By a command in the VM, which the shim passes on when it runs again."""
    if not life.shim.address or not life.t.qemu_pids():
        return False

    def send():
        try:
            life.shim.call("DiagExecInHost", *[text(1, w) for w in ("sh", "-c", KILL_AGENT)],
                           service="containerd.runhcs.v1.diag.ShimDiag")
        except (Status, OSError, Failure):
            pass  # there may be no guest yet; and this one ends before it can answer
    threading.Thread(target=send, daemon=True).start()
    return True


def containerd(life, tid):
    """The shim stands still meanwhile: what is new is the new containerd's."""
    programme, old = life.programme, leaks.snapshot(life.t.scope)
    life.t.containerd.restart()
    for kind, things in leaks.snapshot(life.t.scope).items():
        programme.before[kind].update({k: v for k, v in things.items() if k not in old[kind]})
    return True


VICTIMS = (the_shim, qemu, agent, containerd)


def kills(t, cases):
    """cases(number of records): (record, victim) of each"""
    bad, done = [], {v.__name__: 0 for v in VICTIMS}
    with contextlib.closing(fault.Programme(t)) as programme:
        records = programme.count_records()
        for record, victim in cases(records):
            outcome, killed = programme.kill_after(record, victim)
            done[victim.__name__] += killed
            if outcome.broken:
                bad.append(f"kill -9 of {victim.__name__} after record {record}\n  " +
                           "\n  ".join(outcome.broken + outcome.errors))
    told(f"fault: {records} records; killed: " + ", ".join(f"{k} {n}" for k, n in done.items()))
    t.check(not bad, f"{len(bad)} kills broke a law", "\n".join(bad))


@test("fault: kill -9 of shim, QEMU, agent or containerd after some records of the ledger",
      runc=False, images=(), versions=("2.1",), deadline=600)
def some_kills(t):
    kills(t, lambda n: [(r, VICTIMS[r // EACH % len(VICTIMS)]) for r in range(1, n + 1, EACH)])


def all_kills(victim):
    @test(f"fault: kill -9 of {victim.__name__.replace('_', ' ')} after each record of the ledger",
          full=True, runc=False, images=(), versions=("2.1",), deadline=3600)
    def run_all(t):
        kills(t, lambda n: [(r, victim) for r in range(1, n + 1)])


for someone in VICTIMS:
    all_kills(someone)


# ---------------------------------------------------------------- memory and time

def small_cgroup(t):
    """The file to join a memory cgroup that is too small for anything."""
    for root, limit, swap in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes", None),
                              ("/sys/fs/cgroup", "memory.max", "memory.swap.max")):
        path = f"{root}/{t.tag}-oom"
        if not os.path.exists(f"{root}/{limit}") and not os.path.exists(f"{root}/cgroup.procs"):
            continue
        try:
            os.mkdir(path)
            t.at_end(os.rmdir, path)
            with open(f"{path}/{limit}", "w") as f:
                f.write("65536")
            return f"{path}/cgroup.procs"
        except OSError:
            pass
    raise Skip("no memory cgroup can be made here")


@test("fault: the host's OOM killer ends the shim: delete cleans up and reports 137", runc=False,
      images=(), versions=("2.1",))
def out_of_memory(t):
    procs = small_cgroup(t)
    shim = pod(t)
    member, pid = Member(shim, "c1", shim.document()).start(), t.shim_pid()
    with open(procs, "w") as f:
        f.write(str(pid))
    spec = shimcall.wrapped(7, PROCESS, b'{"cwd":"/","args":["%s"]}' % (b"x" * (3 << 20)))
    deadline = time.monotonic() + 60
    while pid in t.shim_pids() and time.monotonic() < deadline:
        try:
            member.call("Exec", text(2, "e1"), spec)
        except (Status, OSError, Failure):
            pass  # it is refused, or nobody is there any more
    t.equal(t.shim_pids(), [])
    r = shim.delete()
    t.equal((r.returncode, shimcall.fields(r.stdout)[2]), (0, 137), r)
    t.until(lambda: not t.qemu_pids(), "QEMU is gone", 10)


@test("fault: the guest's clock is set forward and back: execs and ends go on", runc=False,
      images=(), versions=("2.1",))
def guest_time(t):
    shim = pod(t)
    member = Member(shim, "c1", shim.document()).start()
    now = int(time.time())
    for at in (now + 86400 * 365, now - 86400 * 365 * 5, 100, now):
        vm = shim.call("DiagExecInHost", *[text(1, w) for w in ("date", "-s", f"@{at}")],
                       service="containerd.runhcs.v1.diag.ShimDiag")
        t.equal(vm.get(1, 0), 0, at)
        start = time.monotonic()
        t.equal(member.exec("sh", "-c", "sleep 0.2; date +%s >/dev/null; echo on; exit 7"),
                (7, b"on\n"))
        other = Member(shim, f"at{at}", shim.document()).start()
        other.end()
        t.check(time.monotonic() - start < 30, f"it took too long with the clock at {at}")
    member.end()
