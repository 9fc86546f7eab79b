"""Long runs: what must not grow does not, and no byte is lost. `make soak` runs these at full
length (tests/e2e/soak); with --full they are part of the other tests, shorter."""

import os
import random
import re
import statistics
import time

from e2e import test
from harness import Failure, Skip
from members import Collector, Member, own_kib, pod, told
from shimcall import text

CONTAINERS = max(1, int(os.environ.get("LCOW_SOAK", "150")))
WARM = min(50, CONTAINERS // 2)            # until all that is made once has been made
EVERY = min(10, max(1, CONTAINERS // 10))  # containers between two looks at what there is
EXECS = max(20, int(os.environ.get("LCOW_SOAK_EXECS", "1000")))
OUTPUT = 1 << 20

# Runs in the VM itself: what the agent holds, mounts, cgroups.
LOOK = r"""
for p in /proc/[0-9]*; do
    read -r name <$p/comm 2>/dev/null || continue
    case $name in gcs|init) ;; *) continue ;; esac
    set -- $(grep -s ^Rss: $p/smaps_rollup); rss=$2
    set -- $p/fd/*
    [ -n "$rss" ] && echo "gcs ${p#/proc/} $rss $#"
done
echo mounts $(wc -l </proc/1/mountinfo)
echo cgroups $(find /sys/fs/cgroup -type d | wc -l)
echo files $(find /run -xdev | wc -l)
set -- $(grep MemAvailable /proc/meminfo); echo available $2
set -- $(grep SUnreclaim /proc/meminfo); echo slab $2
"""


def look(shim):
    """What there is in the VM, by name."""
    path = os.path.join(shim.bundle, "look")
    os.mkfifo(path)
    out = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    collector = Collector(out)
    try:
        code = shim.call("DiagExecInHost", *[text(1, word) for word in ("sh", "-c", LOOK)],
                         text(5, path), service="containerd.runhcs.v1.diag.ShimDiag").get(1, 0)
        collector.start()  # it fits into the FIFO, which stays while we have it open
        said = collector.end().decode()
    finally:
        os.close(out)
        os.unlink(path)
    if code != 0:
        raise Failure(f"looking at the VM failed with {code}:\n{said}")
    agents = sorted((int(pid), int(rss), int(fds)) for pid, rss, fds in
                    re.findall(r"^gcs (\d+) (\d+) (\d+)$", said, re.M))
    if len(agents) != 2:
        raise Failure(f"not two roles of the agent in the VM:\n{said}")
    found = {name: int(re.search(rf"^{name} (\d+)$", said, re.M).group(1))
             for name in ("mounts", "cgroups", "files", "available", "slab")}
    return {"agent's RSS": agents[1][1], "init's RSS": agents[0][1], "agent's fds": agents[1][2],
            "VM's mounts": found["mounts"], "VM's cgroups": found["cgroups"],
            "VM's files in /run": found["files"], "VM's slab": found["slab"],
            "VM's MemAvailable": found["available"]}


def look_at_shim(pid, t):
    with open(f"/proc/{pid}/mountinfo") as f:
        mounts = len(f.readlines())
    cgroups = sum(1 for top, dirs, _ in os.walk("/sys/fs/cgroup") for d in dirs if t.tag in
                  os.path.join(top, d))
    return {"shim's memory": own_kib(pid), "shim's fds": len(os.listdir(f"/proc/{pid}/fd")),
            "shim's mounts": mounts, "host's cgroups": cgroups,
            "shim's files": sum(len(d) + len(f) for _, d, f in os.walk(t.run_root))}


# How much more may be there at the end than after the first WARM. KiB for memory; 0: not one more.
MAY_GROW = {"shim's memory": 96, "agent's RSS": 96, "init's RSS": 32, "VM's slab": 2048}


def is_flat(t, samples):
    """The most of the first five looks against the least of the last five: what comes and goes may
    be there in one of them, what stays is in all."""
    for name in samples[0]:
        if name == "VM's MemAvailable":
            continue  # the page cache comes and goes: told, not judged
        early = max(s[name] for s in samples[:5])
        late = min(s[name] for s in samples[-5:])
        t.note(f"{name}: {early} after the first {WARM}, {late} at the end")
        t.check(late <= early + MAY_GROW.get(name, 0),
                f"{name} grew from {early} to {late}", [s[name] for s in samples])


@test("soak: containers that write 1 MiB and exit, in one VM: every byte, and nothing grows",
      full=True, runc=False, images=(), deadline=120 + 10 * CONTAINERS)
def many(t):
    if t.version != "2.1":
        raise Skip("the shim is called without containerd")
    shim = pod(t)
    pid = t.shim_pid()
    data = random.Random(3).randbytes(OUTPUT)
    shim.rootfs()
    t.write("tree/data", data)
    samples, start = [], time.monotonic()
    for i in range(1, CONTAINERS + 1):
        document = shim.document()
        document["process"]["args"] = ["cat", "/data"]
        member = Member(shim, f"c{i}", document)
        code, got = member.run()
        t.equal(code, 0, f"container {i}")
        t.check(got == data, f"container {i}: {len(got)} bytes, or other ones")
        member.wipe()
        if i >= WARM and i % EVERY == 0:
            samples.append({**look_at_shim(pid, t), **look(shim)})
            told(f"{i} of {CONTAINERS}, {(time.monotonic() - start) / i:.2f} s each; " + ", ".join(
                f"{k} {v}" for k, v in samples[-1].items()))
    t.equal(t.shim_pid(), pid)
    t.equal(len(t.qemu_pids()), 1)
    is_flat(t, samples)


@test("soak: the hundredth exec costs what the first does, and leaves as little", full=True,
      runc=False, images=(), deadline=900)
def hundred_execs(t):
    if t.version != "2.1":
        raise Skip("the shim is called without containerd")
    shim = pod(t)
    member = Member(shim, "c1", shim.document())
    member.call("Create", text(2, member.bundle), shim.rootfs())
    member.call("Start")
    samples, times = [], []
    for i in range(100):
        start = time.monotonic()
        t.equal(member.exec("true"), (0, b""))
        times.append(time.monotonic() - start)
        if i % 10 == 9:
            samples.append({**look_at_shim(t.shim_pid(), t), **look(shim)})
    first, last = statistics.median(times[:10]), statistics.median(times[-10:])
    told(f"an exec took {first * 1000:.0f} ms at first, {last * 1000:.0f} ms at the end")
    t.check(last < 3 * first, f"execs became slower: {first:.3f} s, then {last:.3f} s", times)
    is_flat(t, samples)
    member.end()


@test(f"soak: {EXECS} execs in one container: every exit code, and nothing grows", full=True,
      runc=False, images=(), versions=("2.1",), deadline=600 + EXECS)
def thousands_of_execs(t):
    shim = pod(t)
    member = Member(shim, "c1", shim.document()).start()
    samples, start = [], time.monotonic()
    for i in range(1, EXECS + 1):
        t.equal(member.exec("sh", "-c", f"exit {i % 256}"), (i % 256, b""), f"exec {i}")
        if i % max(1, EXECS // 20) == 0:
            samples.append({**look_at_shim(t.shim_pid(), t), **look(shim)})
            told(f"{i} of {EXECS}, {(time.monotonic() - start) / i * 1000:.0f} ms each; " +
                 ", ".join(f"{k} {v}" for k, v in samples[-1].items()))
    is_flat(t, samples)
    member.end()
