"""Commands to a QEMU that its owner did not give: through the owner's own end of the monitor.

The monitor is a socket pair between the owner (lcow, or a shim) and QEMU. As root a test can take a
copy of the owner's end (pidfd_getfd) and write a command of its own; QEMU answers to the owner.
"""

import ctypes
import os
import re
import socket
import subprocess

SYS_PIDFD_GETFD = 438
QMP_FD = 3  # in QEMU (src/host/vmm/qemu/qemu_priv.h)

_libc = ctypes.CDLL(None, use_errno=True)


def _inode(pid, fd):
    m = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
    return int(m.group(1)) if m else None


def _peer_of(inode):
    text = subprocess.run(["ss", "-xanH"], capture_output=True, text=True, check=True).stdout
    m = re.search(rf"\* {inode} +\* (\d+)", text)
    if not m:
        raise LookupError(f"ss knows no peer of socket {inode}")
    return int(m.group(1))


def _fd_of(pid, inode):
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            if _inode(pid, fd) == inode:
                return int(fd)
        except OSError:
            pass  # closed meanwhile
    raise LookupError(f"process {pid} does not have socket {inode}")


def command(owner, vmm, text):
    """owner, vmm: pids. Waits for nothing."""
    fd = _fd_of(owner, _peer_of(_inode(vmm, QMP_FD)))
    pidfd = os.pidfd_open(owner)
    try:
        copy = _libc.syscall(SYS_PIDFD_GETFD, pidfd, fd, 0)
        if copy < 0:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
        with socket.socket(fileno=copy) as s:
            s.sendall(text.encode() + b"\n")
    finally:
        os.close(pidfd)


def stop(owner, vmm):
    """The VM's processors stop, as after an error of KVM, and nobody has asked for it."""
    command(owner, vmm, '{"execute":"stop"}')
