"""Runs in the emulated host: NICs of pods with vhost-net (0038), which only a host with the module has.

    python3 -B inside_vhost.py moves …    # cases of this file; lcow's configuration is the caller's
"""
import functools
import glob
import hashlib
import http.server
import os
import sys
import threading
import time
import urllib.request

import inside
from inside import check, note, pod, programs, sh

DEVICE = "/dev/vhost-net"
BYTES = 4 << 20
GATEWAY = "10.88.76.1"
FALLBACK = "no vhost-net for an interface"


def opened(pid):
    """Descriptors of vhost-net that a process has. (Their links name no path: the shim opens it elsewhere.)"""
    number = os.stat(DEVICE).st_rdev if os.path.exists(DEVICE) else None
    return sum(os.stat(path).st_rdev == number for path in glob.glob(f"/proc/{pid}/fd/*"))


def workers(qemu):
    """Threads of vhost for this QEMU: of the kernel, or since Linux 6.4 of QEMU itself."""
    found = []
    for path in glob.glob("/proc/[0-9]*/comm") + glob.glob(f"/proc/{qemu}/task/*/comm"):
        try:
            with open(path) as f:
                if f.read().strip() == f"vhost-{qemu}":
                    found.append(os.path.dirname(path))
        except OSError:
            pass  # gone
    return found


def cpu_ns(worker):
    with open(f"{worker}/schedstat") as f:
        return int(f.read().split()[0])


def transfer(p, c):
    """The same bytes from the pod and into it, by HTTP through CNI's bridge."""
    c.sh(f"mkdir /w && head -c {BYTES} /dev/urandom >/w/out && httpd -p 80 -h /w")
    wanted = c.sh("md5sum </w/out").split()[0]
    out = urllib.request.urlopen(f"http://{p.ip}/out", timeout=inside.SECONDS).read()
    inside.check(hashlib.md5(out).hexdigest() == wanted, "other bytes came out of the pod")
    os.makedirs("/tmp/served", exist_ok=True)
    with open("/tmp/served/in", "wb") as f:
        f.write(out)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory="/tmp/served")
    with http.server.ThreadingHTTPServer((GATEWAY, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        got = c.sh(f"wget -qO- http://{GATEWAY}:{server.server_port}/in | md5sum").split()[0]
        server.shutdown()
    check(got == wanted, "other bytes came into the pod")


def said(since):
    return sh(f"journalctl -q -o cat -u containerd --since @{since}")


def running(n):
    since = int(time.time())
    p = n.pod("p1")
    c = p.run("c1", *pod.FOREVER)
    qemu, = programs("qemu-system")
    return p, c, qemu, since


def moves(n):
    """With vhost-net: one device and one worker for each queue, which move the packets."""
    p, c, qemu, since = running(n)
    vcpus = int(c.sh("grep -c ^processor /proc/cpuinfo"))
    n.equal(vcpus, 2, "vCPUs")
    n.equal(opened(qemu), vcpus, "devices of vhost-net that QEMU has")
    n.equal([opened(s) for s in inside.shims()], [0], "devices of vhost-net that the shim has")
    n.equal(c.sh("ls /sys/class/net/eth0/queues | grep -c rx-").strip(), str(vcpus), "queues in the guest")
    check(len(workers(qemu)) >= 1, "no vhost worker:", sh("ps -eLo pid,tid,comm"))
    before = sum(map(cpu_ns, workers(qemu)))
    transfer(p, c)
    used = sum(map(cpu_ns, workers(qemu))) - before
    check(used > 1000000, f"the workers ran for {used} ns only: QEMU moved the packets")
    check("vhost=true" in said(since) and FALLBACK not in said(since), "the log:", said(since))
    note(f"{len(workers(qemu))} workers for {vcpus} queues, {used / 1e6:.0f} ms of CPU time for {2 * BYTES >> 20} MiB")


def killed(n):
    """QEMU killed: its end is noticed, though the kernel worked for it."""
    p, c, qemu, _ = running(n)
    check(opened(qemu) > 0, "without vhost-net")
    os.kill(qemu, 9)
    check(c.await_exit().exit_code != 0, "exit code 0:", c.status())
    n.until(lambda: not workers(qemu) and not programs("qemu-system"), "VM and workers are gone")


def without(n, words):
    p, c, qemu, since = running(n)
    n.equal((opened(qemu), workers(qemu)), (0, []), "vhost-net of QEMU")
    n.equal(c.sh("ls /sys/class/net/eth0/queues | grep -c rx-").strip(), "2", "queues in the guest")
    transfer(p, c)
    log = said(since)
    check((FALLBACK in log) == bool(words) and words in log, "the log:", log)


def missing(n):
    """Configured, but the kernel has no such module: the pod runs, and the log says why."""
    without(n, "modprobe vhost_net")


def off(n):
    """Not configured: neither used nor mentioned, though the module is there."""
    without(n, "")


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with inside.node() as node:
            globals()[name](node)
