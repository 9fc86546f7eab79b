"""A cell for one worker: its own mount and network namespace, empty /tmp, /run, /var/tmp and
/dev/shm, and every orphan of its tests as its own child.

What a test leaves behind is therefore this worker's and nobody else's: mounts, interfaces, sockets
and files can be compared before and after, whatever else runs on the machine.

A mount namespace begins as a copy of all mounts, those of other programs included, and the kernel
detaches a copy when its owner removes the mount point. So the copies that a test does not need are
detached when the cell is entered.
"""

import ctypes
import os

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
CLONE_NEWNS, CLONE_NEWNET = 0x00020000, 0x40000000
MS_NOSUID, MS_NODEV, MS_BIND = 0x2, 0x4, 0x1000
MS_REC, MS_PRIVATE = 0x4000, 0x40000
MNT_DETACH = 2

EMPTY_DIRS = ("/tmp", "/run", "/var/tmp", "/dev/shm")
KEPT = []  # directories below those that are shown as they are
SYSTEM_DIRS = ("/proc", "/sys", "/dev")  # their mounts are the machine's, not a program's

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name, *args):
    if getattr(_libc, name)(*args) < 0:
        errno = ctypes.get_errno()
        raise OSError(errno, f"{name}{args}: {os.strerror(errno)}")


def _bytes(text):
    return text.encode() if text is not None else None


def mount(source, target, kind, flags=0, data=None):
    _call("mount", _bytes(source), _bytes(target), _bytes(kind), ctypes.c_ulong(flags),
          _bytes(data))


def umount(target):
    _call("umount2", _bytes(target), MNT_DETACH)


def adopt_orphans():
    _call("prctl", PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(signo):
    _call("prctl", PR_SET_PDEATHSIG, int(signo), 0, 0, 0)
    if os.getppid() == 1:
        os.kill(os.getpid(), signo)


def mount_points():
    """Of this mount namespace, the newest last."""
    with open("/proc/self/mountinfo") as f:
        return [line.split()[4].encode().decode("unicode_escape") for line in f]


def _is_needed(path, keep):
    """The root, its directories (/usr may be a disk of its own), the kernel's file systems, and
    what the kept paths lie on."""
    return path.count("/") == 1 or any(path.startswith(d + "/") for d in SYSTEM_DIRS) or any(
        (k + "/").startswith(path + "/") for k in keep)


def _detach_mounts_of_others(keep):
    for path in reversed(mount_points()):
        if not _is_needed(path, keep):
            try:
                umount(path)
            except OSError:
                pass  # it lies below one that is gone by now


def enter(keep=()):
    """For good: the process that calls this lives in its cell until it ends. What is below one of
    the emptied directories and in keep (a build tree in /tmp, say) stays visible."""
    os.umask(0o022)  # whatever the caller has
    _call("unshare", CLONE_NEWNS | CLONE_NEWNET)
    mount(None, "/", None, MS_REC | MS_PRIVATE)
    keep = [os.path.realpath(path) for path in keep]
    _detach_mounts_of_others(keep)
    held = {path: os.open(path, os.O_PATH) for path in keep
            if path.startswith(tuple(d + "/" for d in EMPTY_DIRS))}
    for path in EMPTY_DIRS:
        if os.path.islink(path) or not os.path.isdir(path):
            continue  # /var/tmp may be a link to /tmp
        mount("lcow-test", path, "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777")
    for path, fd in held.items():
        os.makedirs(path)
        mount(f"/proc/self/fd/{fd}", path, None, MS_BIND)
        os.close(fd)
        KEPT.append(path)
    adopt_orphans()


def join_namespace(fd):
    _call("setns", fd, 0)
