"""The audit: what there is before a test must be what there is after it.

    before = leaks.snapshot(scope)
    …
    left = leaks.left(before, scope, allowed)     # a list of sentences; empty: nothing is left

A snapshot is taken inside a worker's cell (cell.py), where mounts, interfaces, sockets and files
are the worker's own. What the kernel keeps for the whole machine (cgroups, loop devices, uids) is
filtered by the test's private directory, its tag and its range of user ids.
"""

import os
import re
import subprocess
import time

import cell

SETTLE_SECONDS = 1  # the kernel takes namespaces and interfaces apart behind our back


class Scope:
    """What belongs to one test."""

    def __init__(self, directory, tag, uid_base=0, uid_count=0):
        self.directory, self.tag = directory, tag
        self.uids = range(uid_base, uid_base + uid_count)


def _read(path):
    try:
        with open(path, "rb") as f:
            return f.read()
    except OSError:
        return b""


# ---------------------------------------------------------------- one function per kind of thing

def parents():
    """pid -> (parent's pid, state, start time) of everything that runs."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            fields = _read(f"/proc/{name}/stat").rpartition(b")")[2].split()
            if len(fields) > 19:
                table[int(name)] = (int(fields[1]), fields[0].decode(), fields[19].decode())
    return table


def descendants(root, table=None):
    table = table or parents()
    children = {}
    for pid, (parent, _, _) in table.items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        for pid in children.get(queue.pop(), ()):
            found.append(pid)
            queue.append(pid)
    return found


def _uid_of(pid):
    m = re.search(rb"^Uid:\s+(\d+)", _read(f"/proc/{pid}/status"), re.MULTILINE)
    return int(m.group(1)) if m else -1


def _describe(pid):
    words = _read(f"/proc/{pid}/cmdline").replace(b"\0", b" ").decode(errors="replace").strip()
    name = _read(f"/proc/{pid}/comm").decode(errors="replace").strip()
    return f"{pid} ({words[:100] or '[' + name + ']'})"


def processes(scope):
    """Descendants of this worker, orphans included; and processes that name the private directory or
    runs under one of the test's user ids."""
    table, needle, found = parents(), scope.directory.encode(), {}
    ours = set(descendants(os.getpid(), table))
    for pid in table:
        if pid == os.getpid():
            continue
        if pid in ours or _uid_of(pid) in scope.uids or needle in _read(
                f"/proc/{pid}/cmdline") or needle in _read(f"/proc/{pid}/environ"):
            found[f"{pid}@{table[pid][2]}"] = _describe(pid)
    return found


def mounts(scope):
    found = {}
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        fields = line.split()
        found[fields[0]] = f"{fields[4]} ({line.partition(' - ')[2]})"
    return found


def net_namespaces(scope):
    """Kept alive by a process of ours, by a mount or by a name in /run/netns."""
    found = {}
    for pid in [os.getpid()] + descendants(os.getpid()):
        try:
            found[os.readlink(f"/proc/{pid}/ns/net")] = f"of process {_describe(pid)}"
        except OSError:
            pass
    for line in _read("/proc/self/mountinfo").decode(errors="replace").splitlines():
        fields = line.split()
        if fields[3].startswith("net:["):
            found[fields[3]] = f"mounted on {fields[4]}"
    for name in os.listdir("/run/netns") if os.path.isdir("/run/netns") else ():
        found["/run/netns/" + name] = f"/run/netns/{name}"
    return found


def interfaces(scope):
    """Of this worker's network namespace; /sys belongs to the machine's, so netlink it is."""
    out = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    return {name: name for name in re.findall(r"^\d+: ([^:@]+)", out, re.MULTILINE)}


def cgroups(scope):
    """Ours by name, with the test's tag: other programs and tests make cgroups, too."""
    found = {}
    for top, dirs, _ in os.walk("/sys/fs/cgroup"):
        for name in dirs:
            path = os.path.join(top, name)
            if scope.tag in path:
                found[path] = path
    return found


def unix_sockets(scope):
    """inode -> path or kind. The file belongs to a network namespace, that is to this worker."""
    found = {}
    for line in _read("/proc/net/unix").decode(errors="replace").splitlines()[1:]:
        fields = line.split(None, 7)
        found[fields[6]] = fields[7] if len(fields) > 7 else "(no name)"
    return found


def loop_devices(scope):
    found = {}
    for name in os.listdir("/sys/block"):
        backing = _read(f"/sys/block/{name}/loop/backing_file").decode(errors="replace").strip()
        if backing and scope.directory in backing:
            found[name] = f"{name} on {backing}"
    return found


def files(scope):
    """Everything below the directories that were empty when the worker began."""
    found = {}
    for root in cell.EMPTY_DIRS:
        for top, dirs, names in os.walk(root):
            # What a shim that erred leaves for `lcow explain` is bounded, and meant to stay.
            dirs[:] = [d for d in dirs if os.path.join(top, d) not in cell.KEPT
                       and d != ".journal"]
            for name in dirs + names:
                path = os.path.join(top, name)
                found[path] = path
    return found


def uid_locks(scope):
    """Locks on files of the private directory: a user id is held by one."""
    inodes = {}
    for top, _, names in os.walk(scope.directory):
        for name in names:
            try:
                st = os.lstat(os.path.join(top, name))
            except OSError:
                continue
            key = f"{os.major(st.st_dev):02x}:{os.minor(st.st_dev):02x}:{st.st_ino}"
            inodes[key] = os.path.join(top, name)
    found = {}
    for line in _read("/proc/locks").decode(errors="replace").splitlines():
        fields = line.split()
        where = next((f for f in fields if f in inodes), None)
        if where:
            found[" ".join(fields[1:])] = f"{inodes[where]} ({' '.join(fields[1:4])})"
    return found


def own_fds(scope):
    """Of the worker itself: the harness may not leak either."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            target, st = os.readlink(f"/proc/self/fd/{name}"), os.fstat(int(name))
        except OSError:
            continue  # the directory we have just listed
        # Not by its path: the reader of our output may rename or remove that file.
        found[f"{name} {st.st_dev}:{st.st_ino}"] = f"fd {name} -> {target}"
    return found


KINDS = {"process": processes, "mount": mounts, "network namespace": net_namespaces,
         "interface": interfaces, "cgroup": cgroups, "unix socket": unix_sockets,
         "loop device": loop_devices, "file": files, "lock": uid_locks, "open fd": own_fds}


# ---------------------------------------------------------------- before = after

def snapshot(scope):
    return {kind: look(scope) for kind, look in KINDS.items()}


def reap():
    """Orphans that have ended are ours to bury. Only called when no test runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def reap_orphans(*known):
    """The same while a test runs: children that somebody else waits for are left alone."""
    keep = {p.pid for p in known}
    for pid, (parent, state, _) in parents().items():
        if parent == os.getpid() and state == "Z" and pid not in keep:
            try:
                os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                pass


def _difference(before, after, allowed):
    for kind, things in after.items():
        for key, text in things.items():
            if key not in before[kind] and not (kind == "file" and allowed(key)):
                yield f"{kind} left: {text}"
    for kind, things in before.items():
        for key, text in things.items():
            if key not in after[kind] and kind in ("mount", "interface", "file"):
                yield f"{kind} gone that was there before: {text}"


def left(before, scope, allowed=lambda path: False, settle=SETTLE_SECONDS):
    """What is there and was not, after a moment for what is going away by itself."""
    deadline = time.monotonic() + settle
    while True:
        reap()
        found = sorted(set(_difference(before, snapshot(scope), allowed)))
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)
