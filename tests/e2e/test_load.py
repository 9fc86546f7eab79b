"""Many, much, and slow."""

import os
import random

from e2e import test

FOREVER = ("sleep", "100000")
GROUP, KIND = "io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.container-type"


def pod(t, name):
    """A pod's first container; the labels become annotations of its spec."""
    t.detach(f"--label={GROUP}={name}", f"--label={KIND}=sandbox", name, *FOREVER)


def member(name):
    return (f"--label={GROUP}={name}", f"--label={KIND}=container")


@test("containers of one pod share one shim and one VM; the pod goes last", smoke=True)
def small_pod(t):
    pod(t, "p1")
    t.equal(t.run("--rm", *member("p1"), "c1", "echo", "one").out, "one\n")
    t.detach(*member("p1"), "c2", *FOREVER)
    t.equal(t.exec("c2", "echo", "two").out, "two\n")
    t.equal(len(t.shim_pids()), 1)
    t.equal(len(t.qemu_pids()), 0 if t.is_runc else 1)
    t.ctr("tasks", "rm", "-f", "c2")
    t.equal(t.exec("p1", "echo", "still").out, "still\n")


@test("20 containers in one pod", deadline=600)
def twenty(t):
    pod(t, "p1")
    for i in range(20):
        t.detach(*member("p1"), f"c{i}", "sh", "-c", f"echo {i} >/mine; sleep 100000")
    t.equal(len(t.shim_pids()), 1)
    for i in range(20):
        t.equal(t.exec(f"c{i}", "cat", "/mine").out, f"{i}\n")
    t.note(f"shim: {t.resident_kib(t.shim_pid())} KiB resident")


@test("50 containers that write 1 MiB and exit: every byte arrives", deadline=900)
def fifty(t):
    data = random.Random(2).randbytes(1 << 20)
    path = t.write("data", data)
    pod(t, "p1")
    for i in range(50):
        r = t.run("--rm", *member("p1"), f"--mount=type=bind,src={path},dst=/data,options=bind:ro",
                  f"c{i}", "cat", "/data")
        t.equal(r.code, 0, r.err)
        t.check(r.out_bytes == data, f"container {i}: {len(r.out_bytes)} bytes, or other ones")
    if not t.is_runc:  # on cgroup v1 each container wrote 2 KiB to it
        size = os.path.getsize(os.path.join(t.run_root, t.tag, "p1", "ledger"))
        t.note(f"ledger: {size} bytes")
        t.check(size < 68 << 10, f"the ledger has {size} bytes")


@test("64 execs side by side", deadline=600)
def many_execs(t):
    t.detach("c1", *FOREVER)
    running = [t.start_ctr(*t.exec_args("c1", "sh", "-c", f"echo {i}; exit {i}"))
               for i in range(64)]
    for i, p in enumerate(running):
        r = p.wait(400)
        t.equal((r.code, r.out), (i, f"{i}\n"), r)
    t.note(f"shim: {t.resident_kib(t.shim_pid())} KiB resident")


@test("a grandchild that holds the pipe does not hold up the exit")
def held_pipe(t):
    t.detach("c1", *FOREVER)
    r = t.exec("c1", "sh", "-c", "sleep 30 & echo done", seconds=25 if not t.is_runc else 60)
    t.equal((r.code, r.out), (0, "done\n"), r)


@test("ten containers started side by side", deadline=600, runc=True)
def side_by_side(t):
    pod(t, "p1")
    running = [t.start_run("--rm", *member("p1"), f"c{i}", "echo", str(i)) for i in range(10)]
    for i, p in enumerate(running):
        r = p.wait(300)
        t.equal((r.code, r.out), (0, f"{i}\n"), r)
