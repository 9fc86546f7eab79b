"""The audit itself: each kind of thing is left behind once, and must be seen."""

import fcntl
import os
import socket
import subprocess
import time

import cell
import leaks
from harness import CACHE, HERE, LCOW, Skip, flat, test


def planted(t, kind, undo, *args):
    """Takes the plant away again, after it was or was not seen."""
    left = leaks.left(t.planted_before, t.scope, t.allowed, settle=0)
    undo(*args)
    t.check(any(line.startswith(kind + " left:") for line in left), f"no {kind} was reported",
            "\n".join(left) or "(nothing was)")
    t.equal(leaks.left(t.planted_before, t.scope, t.allowed), [])


def plants(name):
    """A test that begins with a snapshot of its own."""
    def declare(body):
        def run(t):
            t.planted_before = leaks.snapshot(t.scope)
            body(t)
        return test(name)(run)
    return declare


def end(process):
    process.kill()
    process.wait()


@plants("the audit sees a process that was left")
def process(t):
    p = subprocess.Popen(["sleep", "100"])
    planted(t, "process", end, p)


@plants("the audit sees an orphan that left its session and closed its files")
def orphan(t):
    subprocess.run(["sh", "-c", "setsid sh -c 'exec sleep 100 >/dev/null 2>&1 </dev/null' & exit"],
                   check=True, close_fds=True)
    pids = t.until(lambda: leaks.descendants(os.getpid()), "the orphan is there")
    planted(t, "process", lambda: [os.kill(pid, 9) for pid in pids])


@plants("the audit sees a process under one of the test's user ids")
def user(t):
    p = subprocess.Popen(["sleep", "100"], user=t.uid_base + 3, group=t.uid_base + 3,
                         extra_groups=[])
    t.check(leaks._uid_of(p.pid) == t.uid_base + 3, "the process has another user id")
    planted(t, "process", end, p)


@plants("the audit sees a zombie that is never reaped")
def zombie(t):
    p = subprocess.Popen(["sh", "-c", "true & exec sleep 100"])
    t.until(lambda: any(s == "Z" for pid, (parent, s, _) in leaks.parents().items()
                        if parent == p.pid), "the zombie is there")
    planted(t, "process", end, p)


@plants("the audit sees a mount that was left")
def mount(t):
    path = os.path.join(t.work, "mount")
    os.mkdir(path)
    cell.mount("left", path, "tmpfs")
    planted(t, "mount", cell.umount, path)


@plants("the audit sees a network namespace that is held by a mount")
def namespace_mount(t):
    path = t.write("netns", "")
    p = subprocess.Popen(["unshare", "-n", "sleep", "100"])
    own = os.readlink("/proc/self/ns/net")
    t.until(lambda: os.readlink(f"/proc/{p.pid}/ns/net") != own, "it has its namespace")
    cell.mount(f"/proc/{p.pid}/ns/net", path, None, cell.MS_BIND)
    end(p)
    planted(t, "network namespace", cell.umount, path)


@plants("the audit sees a network namespace that is held by a process")
def namespace_process(t):
    p = subprocess.Popen(["unshare", "-n", "sleep", "100"])
    own = os.readlink("/proc/self/ns/net")
    t.until(lambda: os.readlink(f"/proc/{p.pid}/ns/net") != own, "it has its namespace")
    planted(t, "network namespace", end, p)


@plants("the audit sees a tap interface that was left")
def tap(t):
    subprocess.run(["ip", "tuntap", "add", "left0", "mode", "tap"], check=True)
    planted(t, "interface", lambda: subprocess.run(["ip", "link", "del", "left0"], check=True))


@plants("the audit sees a cgroup that was left")
def cgroup(t):
    roots = [p for p in ("/sys/fs/cgroup/pids", "/sys/fs/cgroup/unified", "/sys/fs/cgroup")
             if os.access(p, os.W_OK) and os.path.exists(os.path.join(p, "cgroup.procs"))]
    if not roots:
        raise Skip("no cgroup hierarchy can be written here")
    path = os.path.join(roots[0], t.tag)
    os.mkdir(path)
    planted(t, "cgroup", os.rmdir, path)


@plants("the audit sees a unix socket that was left, with and without a path")
def unix_socket(t):
    a, b = socket.socketpair()
    planted(t, "unix socket", lambda: (a.close(), b.close()))
    s = socket.socket(socket.AF_UNIX)
    s.bind(os.path.join(t.work, "socket"))
    planted(t, "unix socket", s.close)


@plants("the audit sees a loop device that was left")
def loop(t):
    path = t.write("disk", b"\0" * 65536)
    made = subprocess.run(["losetup", "-f", "--show", path], capture_output=True, text=True)
    if made.returncode != 0:
        raise Skip("no loop devices here: " + made.stderr.strip())
    planted(t, "loop device",
            lambda: subprocess.run(["losetup", "-d", made.stdout.strip()], check=True))


@plants("the audit sees a file that was left in run_root, in TMPDIR and elsewhere")
def file(t):
    for path in (os.path.join(t.run_root, "left"), os.path.join(t.env["TMPDIR"], "left"),
                 "/run/left", "/dev/shm/left"):
        with open(path, "w"):
            pass
        planted(t, "file", os.unlink, path)


@plants("the audit sees a user id that is still locked")
def lock(t):
    path = os.path.join(t.run_root, "uids")
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, t.uid_base)
    planted(t, "lock", os.close, fd)


@plants("the audit sees a file descriptor that the harness forgot")
def fd(t):
    planted(t, "open fd", os.close, os.open("/dev/null", os.O_RDONLY))


@plants("the audit does not mind that an open file is renamed and removed")
def renamed(t):
    path = os.path.join(CACHE, t.tag)  # outside of the directories that are compared
    fd = os.open(path, os.O_RDONLY | os.O_CREAT)
    try:
        before = leaks.snapshot(t.scope)
        os.rename(path, path + ".1")
        os.unlink(path + ".1")
        t.equal(leaks.left(before, t.scope, t.allowed, settle=0), [])
    finally:
        os.close(fd)


@plants("the audit lets pass what lcow keeps on purpose, and nothing else")
def persistent(t):
    for name in ("uids", "accel", "tsc"):
        with open(os.path.join(t.run_root, name), "w"):
            pass
    t.equal(leaks.left(t.planted_before, t.scope, t.allowed, settle=0), [])


@test("the harness gives up waiting when lcow has ended")
def waiting(t):
    p = t.start("--version")
    start = time.monotonic()
    try:
        t.until(lambda: False, "never", 30, p)
    except Exception as e:
        t.match("lcow ended while waiting", str(e))
        t.check(time.monotonic() - start < 10, "it waited too long")
        return
    t.check(False, f"until() came back without a reason ({LCOW}, {flat(p.err)})")


@test("the audit blames no other program for what it mounts, starts, makes and removes meanwhile")
def neighbour(t):
    directory = os.path.join(CACHE, t.tag)  # outside of the cell, too
    os.makedirs(directory)
    t.at_end(os.rmdir, directory)
    r = subprocess.run(["nsenter", "--target", str(os.getppid()), "--mount", "--net",
                        os.path.join(HERE, "neighbour.py"), directory, t.tag],
                       capture_output=True, text=True, timeout=60)
    t.equal((r.returncode, r.stderr), (0, ""))
    t.equal(r.stdout.split("\n"), ["", ""])
