"""Containers that containerd has given up: `delete` is its last word, whatever the shim does."""

import glob
import json
import os
import shutil
import signal
import subprocess
import time

import packages
import shimcall
from e2e import test

FOREVER = ("sleep", "100000")
GROUP, KIND = "io.kubernetes.cri.sandbox-id", "io.kubernetes.cri.container-type"
DELETE_SECONDS = 5  # containerd kills it then
ANSWER_SECONDS = 1.2  # so long it waits for a shim


def stop(t, pid):
    """SIGSTOP, until the test is over at the latest."""
    os.kill(pid, signal.SIGSTOP)
    t.at_end(go_on, pid)


def go_on(pid):
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


def state_of(pid):
    with open(f"/proc/{pid}/stat") as f:
        return f.read().rsplit(")", 1)[1].split()[0]


def pod(t, *members):
    """A pod of the Task service, each container by ctr."""
    t.detach(f"--label={GROUP}=p", f"--label={KIND}=sandbox", "p", *FOREVER)
    for name in members:
        t.detach(f"--label={GROUP}=p", f"--label={KIND}=container", name, *FOREVER)


def delete(t, container):
    """As containerd runs it. (pid, exit status, time of the exit, seconds that it took)"""
    bundle = t.containerd.bundle(t.tag, container)
    began = time.monotonic()
    r = subprocess.run(
        [packages.SHIM, "-namespace", t.tag, "-address", t.containerd.address, "-publish-binary",
         packages.program(t.version, "containerd"), "-id", container, "-bundle", bundle, "delete"],
        cwd=bundle, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=t.containerd.env)
    took = time.monotonic() - began
    t.note(f"delete of {container} took {took:.2f} s")
    t.equal(r.returncode, 0, r)
    t.check(took < DELETE_SECONDS, f"containerd would have killed it: {took:.1f} s")
    answer = shimcall.fields(r.stdout)
    return answer.get(1, 0), answer.get(2, 0), shimcall.fields(answer[3])[1], took


def nothing_left(t, *pids):
    for pid in pids:
        t.gone(pid)
    t.until(lambda: not os.path.exists(os.path.join(t.run_root, t.tag)), "its files are gone", 10)
    t.equal(t.lcow("gc", "--dry-run").out, "")


@test("containerd gives up a shim that is stopped: all of it is gone, and the id is free at once",
      smoke=True, runc=False)
def stopped(t):
    t.detach("c1", *FOREVER)
    shim, qemu, anchor = t.shim_pid(), t.qemu_pid(), t.tasks()["c1"][0]
    stop(t, shim)
    t.containerd.restart()
    t.until(lambda: "c1" not in t.tasks(), "containerd has given it up", 30)
    nothing_left(t, shim, qemu, anchor)
    t.must("containers", "rm", "c1")
    t.equal(t.run("--rm", "c1", "echo", "again").out, "again\n")


@test("containerd gives up a pod whose shim is stopped: all of it is gone", runc=False)
def stopped_pod(t):
    pod(t, "c1", "c2")
    shim, qemu, tasks = t.shim_pid(), t.qemu_pid(), t.tasks()
    stop(t, shim)
    t.containerd.restart()
    t.until(lambda: not t.tasks(), "containerd has given them up", 60)
    nothing_left(t, shim, qemu, *[pid for pid, _ in tasks.values()])
    for name in ("p", "c1", "c2"):
        t.must("containers", "rm", name)
    pod(t, "c1")


def containers(t):
    """Of the only shim, as lcow shows them."""
    return sorted(c["id"] for c in json.loads(t.lcow("ps", "--json").out)[0]["containers"])


@test("one container of a pod is given up: its shim wakes up and ends it, the others go on",
      runc=False)
def one_of_two(t):
    pod(t, "c1", "c2")
    shim, anchor = t.shim_pid(), t.tasks()["c1"][0]
    events = t.events()
    stop(t, shim)
    t.equal(delete(t, "c1")[:2], (anchor, 137))
    t.equal(state_of(anchor), "Z", "its anchor is dead")
    t.check(t.shim_pids() == [shim] and t.qemu_pids(), "the others keep shim and VM")
    go_on(shim)
    t.until(lambda: containers(t) == ["c2", "p"], "the shim has deleted it", 30)
    t.gone(anchor)
    t.equal(t.exec("c2", "echo", "on").out, "on\n")
    t.equal(t.topics(events, "c1"), [], "containerd has its end from delete")
    t.equal(glob.glob(f"{t.run_root}/{t.tag}/p/forsaken.*"), [], "the note is obeyed")
    t.equal(t.tasks()["c2"][1], "RUNNING")
    t.ctr("tasks", "rm", "-f", "c1")  # containerd was not asked: for it the task is still there
    t.equal(sorted(t.tasks()), ["c2", "p"])


@test("a pod's first container is given up: it goes when the others have gone", runc=False)
def the_pod_itself(t):
    pod(t, "c1")
    shim = t.shim_pid()
    stop(t, shim)
    t.equal(delete(t, "p")[1], 137)
    go_on(shim)
    t.equal(t.exec("c1", "echo", "on").out, "on\n")
    t.must("tasks", "rm", "-f", "c1")
    t.gone(shim, 30)
    t.until(lambda: not os.path.exists(os.path.join(t.run_root, t.tag)), "its files are gone", 10)


@test("delete of a pod's first container, whose shim answers: the others go on", runc=False)
def the_pod_itself_by_calls(t):
    pod(t, "c1")
    shim = t.shim_pid()
    t.equal(delete(t, "p")[1], 137)
    t.equal(t.exec("c1", "echo", "on").out, "on\n")
    t.equal(t.tasks()["c1"][1], "RUNNING")
    t.must("tasks", "rm", "-f", "c1")
    t.gone(shim, 30)
    t.until(lambda: not os.path.exists(os.path.join(t.run_root, t.tag)), "its files are gone", 10)
    t.ctr("tasks", "rm", "-f", "p")


@test("delete of a container that its shim still has: killed by calls, and told as it ended",
      runc=False)
def by_calls(t):
    pod(t, "c1", "c2")
    shim, (pid, _) = t.shim_pid(), t.tasks()["c1"]
    events = t.events()
    *answer, _, took = delete(t, "c1")
    t.equal(answer, [pid, 137])
    t.until(lambda: containers(t) == ["c2", "p"], "the shim has deleted it", 30)
    t.gone(pid)
    if took < ANSWER_SECONDS:  # else a busy machine's shim was passed over, and reports nothing
        t.until(lambda: t.topics(events, "c1") == ["exit", "delete"], "its end is reported", 20)
    t.equal(t.exec("c2", "sh", "-c", "exit 3").code, 3)
    t.detach(f"--label={GROUP}=p", f"--label={KIND}=container", "c3", "sh", "-c", "exit 7")
    t.await_status("c3", "STOPPED")
    ended = time.time()
    time.sleep(1.1)
    _, status, at, _ = delete(t, "c3")
    t.equal(status, 7)
    t.check(at <= ended + 0.5, f"told as ended at {at}, but it had by {ended}")
    t.equal(t.shim_pids(), [shim])
    for name in ("c1", "c3"):
        t.ctr("tasks", "rm", "-f", name)


@test("delete while QEMU hangs: the shim's calls take too long, and the VM is killed", runc=False)
def hangs(t):
    t.detach("c1", *FOREVER)
    shim, qemu, anchor = t.shim_pid(), t.qemu_pid(), t.tasks()["c1"][0]
    stop(t, qemu)
    t.equal(delete(t, "c1")[1], 137)
    nothing_left(t, shim, qemu, anchor)
    t.until(lambda: "c1" not in t.tasks(), "containerd has seen it", 20)


@test("the anchor of a stopped shim's container is killed: it ends when the shim wakes up",
      runc=False)
def anchor_killed(t):
    t.detach("c1", *FOREVER)
    shim, (anchor, _) = t.shim_pid(), t.tasks()["c1"]
    events = t.events()
    os.kill(shim, signal.SIGSTOP)
    os.kill(anchor, signal.SIGKILL)
    go_on(shim)
    t.await_status("c1", "STOPPED", 30)
    t.until(lambda: t.topics(events, "c1") == ["exit"], "its exit is reported", 20)


@test("a shim whose bundles are gone and that no client calls exits after a minute", runc=False)
def bundles_gone(t):
    t.detach("c1", *FOREVER)
    shim, qemu = t.shim_pid(), t.qemu_pid()
    t.containerd.kill()
    shutil.rmtree(t.containerd.bundle(t.tag, "c1"), ignore_errors=True)
    began = time.monotonic()
    r = t.lcow("gc")
    t.words("given up", r.err, r)
    t.words("--force", r.err, r)
    t.check(t.shim_pids() == [shim], "gc took what lives")
    t.gone(shim, 90)
    t.check(time.monotonic() - began > 50, "it did not wait")
    nothing_left(t, qemu)
    t.containerd.start()


@test("lcow gc --force ends a shim whose bundles are gone, and no other", runc=False)
def gc_force(t):
    for name in ("c1", "c2"):
        t.detach(name, *FOREVER)
    shims = set(t.shim_pids())
    stop(t, next(p for p in shims if group(p) == "c1"))
    t.containerd.kill()
    shutil.rmtree(t.containerd.bundle(t.tag, "c1"), ignore_errors=True)
    r = t.lcow("gc", "--force")
    t.equal(r.code, 0, r)
    t.match("c1.* process ", r.out)
    t.equal([group(p) for p in t.shim_pids()], ["c2"], r)
    t.equal(os.listdir(os.path.join(t.run_root, t.tag)), ["c2"])
    t.containerd.start()
    t.equal(t.tasks()["c2"][1], "RUNNING")


def group(pid):
    with open(f"/proc/{pid}/cmdline") as f:
        words = f.read().split("\0")
    return words[words.index("-id") + 1]
