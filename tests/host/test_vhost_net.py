"""NICs of pods with vhost-net (vhost_net = auto); inside_vhost.py has what happens in the host."""
import contextlib

from suite import case, check
from test_pod import inside

ORDER = 61
FILE = "/etc/lcow/lcow.conf.d/vhost.conf"
RULE = "/etc/modprobe.d/no-vhost.conf"


@contextlib.contextmanager
def configured(h, value):
    # Two vCPUs, so that a NIC has two queues.
    h.run(f"printf '[vm]\\ncpus = 2\\nvhost_net = {value}\\n[host]\\nlog_level = info\\n' >{FILE}")
    try:
        yield
    finally:
        h.run(f"rm {FILE}")


def doctor(h):
    return " ".join(h.run("lcow doctor", code=None).split())


@case("vhost-net: a pod's NIC with two queues; the kernel's workers move its packets", ("kvm", "trixie"), full=True)
def moves(h, opts):
    with configured(h, "auto"):
        check("NICs of pods use vhost-net" in doctor(h), "doctor:", doctor(h))
        return inside(h, "moves", file="inside_vhost.py")


@case("vhost-net: QEMU killed: the pod ends, and no worker is left", ("kvm", "trixie"), full=True)
def killed(h, opts):
    with configured(h, "auto"):
        inside(h, "killed", file="inside_vhost.py")


@case("vhost-net: without the kernel's module QEMU moves the packets, and the log says why", ("kvm", "trixie"), full=True)
def missing(h, opts):
    with configured(h, "auto"):
        h.run(f"echo 'install vhost_net /bin/false' >{RULE}; modprobe -r vhost_net")
        try:
            inside(h, "missing", file="inside_vhost.py")
            check("modprobe vhost_net" in doctor(h), "doctor:", doctor(h))
        finally:
            h.run(f"rm {RULE}")


@case("vhost-net: off by configuration, though the host has the module", ("kvm", "trixie"), full=True)
def off(h, opts):
    with configured(h, "off"):
        h.run("modprobe vhost_net")
        inside(h, "off", file="inside_vhost.py")
