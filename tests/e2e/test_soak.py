"""Long runs: what must not grow does not, and no byte is lost. `make soak` runs these at full
length (tests/e2e/soak); with --full they are part of the other tests, shorter."""

import json
import os
import random
import re
import time

import shimcall
from e2e import test
from harness import Failure, Skip
from members import PROCESS, Collector, Member, pod, pss_kib, told
from shimcall import number, text

CONTAINERS = int(os.environ.get("LCOW_SOAK", "150"))
WARM = 50           # containers until all that is made once has been made
EVERY = 10          # containers between two looks at what there is
OUTPUT = 1 << 20

# Read in the VM by a container that shares its pids: what the agent holds, mounts, cgroups.
LOOK = r"""
for p in /proc/[0-9]*; do
    read -r name <$p/comm 2>/dev/null || continue
    case $name in gcs|init) ;; *) continue ;; esac
    set -- $(grep -s ^Rss: $p/smaps_rollup); rss=$2
    set -- $p/fd/*
    [ -n "$rss" ] && echo "gcs ${p#/proc/} $rss $#"
done
echo mounts $(wc -l </proc/1/mountinfo)
echo cgroups $(find /cgroup -type d | wc -l)
echo files $(find /run -xdev | wc -l)
set -- $(grep MemAvailable /proc/meminfo); echo available $2
set -- $(grep SUnreclaim /proc/meminfo); echo slab $2
"""


def watcher(shim):
    """Sees the VM's processes, mounts and cgroups; lives as long as the pod."""
    document = shim.document()
    caps = ["CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH", "CAP_SYS_ADMIN"]
    document["process"]["capabilities"] = {k: caps for k in
                                           ("bounding", "effective", "permitted")}
    document["linux"]["namespaces"] = [{"type": k} for k in ("ipc", "mount", "network")]
    document["mounts"] += [
        {"destination": "/cgroup", "type": "bind", "source": "uvm:///sys/fs/cgroup",
         "options": ["rbind", "ro"]},
        {"destination": "/run", "type": "bind", "source": "uvm:///run", "options": ["bind", "ro"]}]
    member = Member(shim, "watcher", document)
    member.call("Create", text(2, member.bundle), shim.rootfs())
    member.call("Start")
    shim.t.at_end(end_watcher, member)
    return member


def end_watcher(member):
    for method, more in (("Kill", number(3, 9)), ("Wait", b""), ("Delete", b"")):
        try:
            member.call(method, more)
        except (shimcall.Status, OSError, Failure):
            pass  # the test has failed already, or the audit will tell


def look(member, count=[0]):
    """What there is in the VM, by name."""
    count[0] += 1
    fifo = os.path.join(member.bundle, f"look{count[0]}")
    os.mkfifo(fifo)
    out = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    process = {"cwd": "/", "args": ["sh", "-c", LOOK], "env": ["PATH=/bin"],
               "user": {"uid": 0, "gid": 0}}
    e = text(2, f"look{count[0]}")
    try:
        member.call("Exec", e, text(5, fifo), shimcall.wrapped(
            7, PROCESS, json.dumps(process).encode()))
        collector = Collector(out)
        member.call("Start", e)
        collector.start()
        member.call("Wait", e)
        said = collector.end().decode()
        member.call("Delete", e)
    finally:
        os.close(out)
        os.unlink(fifo)
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
    return {"shim's PSS": pss_kib(pid), "shim's fds": len(os.listdir(f"/proc/{pid}/fd")),
            "shim's mounts": mounts, "host's cgroups": cgroups,
            "shim's files": sum(len(d) + len(f) for _, d, f in os.walk(t.run_root))}


# How much more may be there at the end than after the first WARM. KiB for memory; 0: not one more.
MAY_GROW = {"shim's PSS": 96, "agent's RSS": 96, "init's RSS": 32, "VM's slab": 2048}


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
    watch, samples, start = watcher(shim), [], time.monotonic()
    for i in range(1, CONTAINERS + 1):
        document = shim.document()
        document["process"]["args"] = ["cat", "/data"]
        member = Member(shim, f"c{i}", document)
        code, got = member.run()
        t.equal(code, 0, f"container {i}")
        t.check(got == data, f"container {i}: {len(got)} bytes, or other ones")
        member.wipe()
        if i >= WARM and i % EVERY == 0:
            samples.append({**look_at_shim(pid, t), **look(watch)})
            told(f"{i} of {CONTAINERS}, {(time.monotonic() - start) / i:.2f} s each; " + ", ".join(
                f"{k} {v}" for k, v in samples[-1].items()))
    t.equal(t.shim_pid(), pid)
    t.equal(len(t.qemu_pids()), 1)
    is_flat(t, samples)
