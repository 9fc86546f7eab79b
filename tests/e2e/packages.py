"""containerd, runc and busybox from Debian's suites, in build/cache/e2e: the system is not touched.

    packages.fetch()                 # downloads what is not there yet; before any worker starts
    packages.program("2.1", "ctr")   # a path
"""

import contextlib
import fcntl
import os
import subprocess

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
CACHE = os.path.join(os.environ.get("LCOW_CACHE", os.path.join(TOP, "build/cache")), "e2e")
BIN = os.environ.get("LCOW_TEST_BIN", os.path.join(
    TOP, os.environ.get("LCOW_TEST_SCRAMBLED", "build"), "bin"))

SUITES = {"1.6": "bookworm", "1.7": "trixie", "2.1": "forky"}  # containerd's version -> suite
OTHERS = ("runc", "busybox", "busybox-static", "libc6", "containernetworking-plugins",
          "python3-protobuf", "python3-hpack", "erofs-utils")   # all of bookworm
DOCKER = ("docker.io", "docker-cli", "tini-static")            # of forky, as containerd 2.1 is
IPTABLES = ("iptables", "libxtables12", "libnftnl11", "libmnl0", "libip4tc2", "libip6tc2",
            "libnetfilter-conntrack3", "libnfnetlink0")        # of bookworm; dockerd runs it
CRI_API = ("golang-k8s-cri-api-dev", "forky")                  # api.proto
SHIM = os.path.join(BIN, "containerd-shim-lcow-v2")


def folder(name):
    return os.path.join(CACHE, name)


def program(version, name):
    return os.path.join(folder(f"containerd-{version}"), "usr/bin", name)


def search_path(version):
    """Ours first, then containerd's own shims, runc and the system."""
    return ":".join([BIN, os.path.dirname(program(version, "ctr")),
                     os.path.join(folder("runc"), "usr/sbin"),
                     os.path.join(folder("erofs-utils"), "usr/bin"),
                     "/usr/sbin", "/usr/bin", "/sbin", "/bin"])


@contextlib.contextmanager
def alone():
    """Several runs may share a cache: one at a time puts things there."""
    os.makedirs(CACHE, exist_ok=True)
    with open(folder("lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def fetch(versions=tuple(SUITES)):
    wanted = [("containerd", SUITES[v], f"containerd-{v}") for v in versions]
    wanted += [(name, "bookworm", name) for name in OTHERS] + [(*CRI_API, CRI_API[0])]
    wanted += [(name, "forky", "docker") for name in DOCKER]
    wanted += [(name, "bookworm", "iptables") for name in IPTABLES]
    for package, suite, where in wanted:
        r = subprocess.run([os.path.join(TOP, "scripts/fetch-deb"), package, suite, folder(where)],
                           capture_output=True, text=True)
        if r.returncode != 0:
            raise SystemExit(f"Bail out! no package {package} of {suite}: {r.stderr.strip()}")
