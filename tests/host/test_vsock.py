"""The agent over kernel vsock (link = vsock), which only a host with vhost has."""
import base64
import json
import re

from suite import case, check, equal
from test_pod import inside

ORDER = 60
FILE = "/etc/lcow/lcow.conf.d/vsock.conf"
# A process of the host with another CID than the VM, but with the VM's port and token.
INTRUDER = """
import socket, sys
port, preface = int(sys.argv[1]), bytes.fromhex(sys.argv[2])
s = socket.socket(socket.AF_VSOCK)
s.settimeout(60)
s.connect((2, port))
try:
    s.sendall(preface)
    print("heard" if s.recv(1) else "refused")
except OSError:
    print("refused")
"""
BLOCK = "/sys/firmware/qemu_fw_cfg/by_name/opt/lcow/boot/raw"


class Link:
    """With link = vsock, until the end of the block."""

    def __init__(self, h):
        self.h = h

    def __enter__(self):
        self.h.run(f"modprobe vhost_vsock && printf '[vm]\\nlink = vsock\\n' >{FILE}")

    def __exit__(self, *why):
        self.h.run(f"rm {FILE}")


def starts(h, *opts):
    """What lcow boot says of each."""
    return json.loads(h.run(f"lcow boot --kvm --json {' '.join(opts)} 2>/dev/null").splitlines()[-1])


@case("vsock: doctor finds it; a VM boots over it, without a NIC", full=True)
def boots(h, opts):
    with Link(h):
        check("kernel vsock" in h.run("lcow doctor"), "doctor:", h.run("lcow doctor"))
        out = h.run("lcow boot --kvm --cold -- sh -c 'cat /proc/cmdline; ls /sys/class/net'")
        check("lcow.host=vsock" in out and out.split()[-1] == "lo", "not over vsock:", out)
        equal(h.run("echo there and back | lcow boot --kvm --cold -- cat"), "there and back\n", "stdio")


@case("vsock: a template of its own, clones with CIDs of their own, two at once", full=True)
def clones(h, opts):
    with Link(h):
        h.run("lcow template build && lcow template verify")
        check(starts(h, "--", "true")["clone"], "no clone")
        out = h.run("for i in 1 2; do lcow boot --kvm -- sleep 30 & done; "
                    "until [ $(pgrep -fc [v]hostfd=) = 2 ]; do sleep 0.2; done; "
                    "cat /proc/$(pgrep -o -f [v]hostfd=)/cmdline /proc/$(pgrep -n -f [v]hostfd=)/cmdline | tr '\\0' '\\n'; wait")
        cids = re.findall(r"vhostfd=\d+,guest-cid=(\d+)", out)
        check(len(set(cids)) == 2, "not two CIDs:", cids)
        equal(h.run("lcow boot --kvm -- sh -c 'exit 7'", code=7), "", "output")


@case("vsock: a process with another CID is refused, even with port and token", full=True)
def intruder(h, opts):
    with Link(h):
        h.run("modprobe vsock_loopback")
        h.run(f"lcow boot --kvm --log-level warn -- sh -c 'base64 {BLOCK}; sleep 100000' >/tmp/block 2>/tmp/boot.err & "
              "until grep -q = /tmp/block; do sleep 0.2; done")
        try:
            block = base64.b64decode(h.run("cat /tmp/block"))
            token, port = block[16:48], int.from_bytes(block[118:122], "little")
            preface = b"LCW1" + token + (0x40000000).to_bytes(4, "little")
            h.run(f"cat >/tmp/intruder.py <<'END'\n{INTRUDER}\nEND")
            equal(h.run(f"python3 /tmp/intruder.py {port} {preface.hex()}"), "refused\n", "the intruder")
        finally:
            h.run("pkill -INT -x lcow; while pgrep -x lcow; do sleep 0.2; done", code=None)
        said = h.run("cat /tmp/boot.err")
        check("from another CID" in said, "refused for another reason:", said)


@case("vsock: pods by the CRI run over it, from creation to removal", full=True)
def pods(h, opts):
    with Link(h):
        inside(h, "life")
        inside(h, "qemu_killed")


@case("vsock: without the kernel's module lcow names it", full=True, needs_kvm=False)
def missing(h, opts):
    rule = "/etc/modprobe.d/no-vsock.conf"
    with Link(h):
        h.run(f"echo 'install vhost_vsock /bin/false' >{rule}; modprobe -r vhost_vsock")
        try:
            out = h.run("lcow boot --kvm --cold -- true", code=125)
            check("modprobe vhost_vsock" in " ".join(out.split()), "no remedy:", out)
            doctor = h.run("lcow doctor", code=1)
            check("modprobe vhost_vsock, or set link = tcp" in " ".join(doctor.split()), "doctor:", doctor)
        finally:
            h.run(f"rm {rule}")


def figures(h):
    """Seconds to ready by cold start and clone, MB/s out and in, microseconds of a call."""
    s = starts(h, "--repeat 5")
    ready = {kind: sorted(x["stages"][-1]["at_ms"] for x in s if x["clone"] == kind)[2] / 1000
             for kind in (False, True)}
    data = "dd if=/dev/zero bs=1M count=200 2>/dev/null"
    rates = []
    for stream, script in (("stdout", f"lcow boot --kvm --json -- sh -c '{data}; echo' | tail -n 1"),
                           ("stdin", f"{data} | lcow boot --kvm --json -- sh -c 'cat >/dev/null'")):
        flow = json.loads(h.run(script).splitlines()[-1])[stream]
        rates.append(flow["bytes"] / flow["ms"] / 1000)
    call = starts(h, "--bench-bridge 500")["bridge"]["median_us"]
    return (f"cold {ready[False]:.2f} s, clone {ready[True]:.2f} s, out {rates[0]:.0f} MB/s, "
            f"in {rates[1]:.0f} MB/s, call {call:.0f} us")


@case("vsock: figures beside those of TCP", full=True)
def measured(h, opts):
    h.run("lcow template build")
    tcp = figures(h)
    with Link(h):
        h.run("lcow template build")
        vsock = figures(h)
    return f"tcp: {tcp}\nvsock: {vsock}"
