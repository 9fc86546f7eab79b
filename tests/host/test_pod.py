"""Pods by the CRI of Debian's own containerd; inside.py has what happens in the host."""
from suite import case

HOSTS = ("kvm", "v1", "trixie")


def inside(h, *names, file="inside.py"):
    return h.run(f"python3 -B /root/tree/tests/host/{file} {' '.join(names)}")


@case("a pod runs by KVM: kernel, address, exec, logs, exit codes; nothing is left", HOSTS)
def life(h, opts):
    return inside(h, "life")


@case("out of memory: the container is OOMKilled, and the pod keeps running", HOSTS)
def oom(h, opts):
    inside(h, "oom")


@case("vCPUs 1, 2, 1 and memory up and down under a running container", HOSTS)
def resize(h, opts):
    return inside(h, "resize")


@case("containerd restarted and killed: the pod keeps running", HOSTS)
def restart(h, opts):
    inside(h, "restart")


@case("QEMU killed: the pod ends with an error, and nothing is left", HOSTS)
def qemu_killed(h, opts):
    inside(h, "qemu_killed")


@case("the shim killed: the pod ends with an error, and nothing is left", HOSTS)
def shim_killed(h, opts):
    inside(h, "shim_killed")
