"""Pods below a slice of systemd, as a kubelet with cgroupDriver systemd makes them; inside_cgroup.py
has what happens in the host."""
import test_pod
from suite import case

HOSTS = ("kvm", "trixie")  # v1: plain directories, as in test_pod.py


def inside(h, name):
    return test_pod.inside(h, name, file="inside_cgroup.py")


@case("a pod of systemd's cgroup driver is a scope, also after a daemon-reload; nothing is left", HOSTS)
def scope(h, opts):
    return inside(h, "scope")


@case("metrics are cgroup v2's and complete", HOSTS, full=True)
def metrics(h, opts):
    inside(h, "metrics")


@case("the pod slice's memory limit holds for QEMU: OOMKilled, and the limit is named", HOSTS, full=True)
def limit(h, opts):
    return inside(h, "limit")


@case("the shim killed: its scopes end, and nothing is left", HOSTS, full=True)
def killed(h, opts):
    inside(h, "killed")
