#!/usr/bin/python3 -B
"""Another program on the same machine, and an audit in a cell beside it.

    neighbour.py DIR TAG

Run outside of every cell, with root. It mounts, starts a process and makes a network namespace, a
cgroup, a loop device and a lock. An audit of a test named TAG begins in a cell; then it takes all
of these away and makes others. What the audit says is left is printed, one thing per line.
"""

import fcntl
import os
import subprocess
import sys

import cell
import leaks


class Things:
    """One of each kind, with names that no test has."""

    def __init__(self, directory, name):
        self.mount = os.path.join(directory, f"mount-{name}")
        self.disk = os.path.join(directory, f"disk-{name}")
        self.name = f"neighbour-{os.getpid()}-{name}"
        # A VM's id, as those that another lcow on this machine has.
        self.cgroup = f"/sys/fs/cgroup/{hierarchy()}lcow-{self.name}/b-0123abcd"

    def make(self):
        os.mkdir(self.mount)
        cell.mount("neighbour", self.mount, "tmpfs")
        self.lock = open(os.path.join(self.mount, "lock"), "w")
        fcntl.lockf(self.lock, fcntl.LOCK_EX)
        os.makedirs(self.cgroup)
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        self.process = subprocess.Popen(["ip", "netns", "exec", self.name, "sleep", "1000"])
        with open(self.disk, "wb") as f:
            f.truncate(65536)
        self.loop = subprocess.run(["losetup", "-f", "--show", self.disk], capture_output=True,
                                   text=True).stdout.strip()

    def remove(self):
        if self.loop:
            subprocess.run(["losetup", "-d", self.loop], check=True)
        os.unlink(self.disk)
        self.process.kill()
        self.process.wait()
        subprocess.run(["ip", "netns", "del", self.name], check=True)
        os.removedirs(self.cgroup)
        self.lock.close()
        cell.umount(self.mount)
        os.rmdir(self.mount)  # detaches every copy of the mount in other namespaces


def hierarchy():
    """"pids/" or the like on a host with version 1 of cgroups."""
    v2 = os.path.exists("/sys/fs/cgroup/cgroup.procs")
    return "" if v2 else "pids/"


def audit(tag, keep, ready, go):
    """In a process and a cell of its own, as a worker's."""
    cell.enter(keep)
    scope = leaks.Scope(os.path.join("/tmp", tag), tag)
    before = leaks.snapshot(scope)
    os.write(ready, b"!")
    os.read(go, 1)
    print("\n".join(leaks.left(before, scope)), flush=True)


def main():
    directory, tag = sys.argv[1:]
    earlier, later = Things(directory, "earlier"), Things(directory, "later")
    ready, go = os.pipe(), os.pipe()
    earlier.make()
    child = os.fork()
    if child == 0:
        earlier.lock.close()  # ours, not the audit's
        audit(tag, [os.path.dirname(os.path.realpath(__file__))], ready[1], go[0])
        os._exit(0)
    os.read(ready[0], 1)
    earlier.remove()
    later.make()
    os.write(go[1], b"!")
    status = os.waitpid(child, 0)[1]
    later.remove()
    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
