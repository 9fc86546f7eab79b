"""The host itself, lcow on it, and VMs by KVM without containerd."""
import json

from suite import case, check, equal

ORDER = 0
HOSTS = ("kvm", "v1", "trixie")
CONF_FILE = "/etc/lcow/lcow.conf.d/test.conf"
CONF = """[vm]
boot_timeout_s = 120
"""


@case("the host has KVM and systemd", HOSTS, setup=True)
def surroundings(h, opts):
    h.run("modprobe kvm_amd; modprobe tun; modprobe loop; test -c /dev/kvm")
    check("running" in h.run("systemctl is-system-running --wait", code=None), "systemd:",
          h.run("systemctl --failed", code=None))
    kind = h.run("stat -f -c %T /sys/fs/cgroup").strip()
    equal(kind, "tmpfs" if h.variant.name == "v1" else "cgroup2fs", "file system of /sys/fs/cgroup")


@case("lcow is installed", HOSTS, setup=True, needs_kvm=False)
def installed(h, opts):
    h.run("cp -a /share/tree /root/tree")
    if opts.programs:
        h.run("cp -r /share/programs/* /root/tree/build/ && ln -s /root/tree/build/bin/* /usr/local/bin/ && "
              "mkdir -p /usr/lib/lcow && ln -s /root/tree/build/image /usr/lib/lcow/image")
    else:
        out = h.run("dpkg -i /share/deb/*.deb")
        check("warning" not in out, "dpkg complains:", out)
    h.run(f"mkdir -p $(dirname {CONF_FILE}) && printf '{CONF}' >{CONF_FILE}")
    h.run("lcow config check")


@case("a cold boot by KVM, which doctor then says works", HOSTS)
def cold(h, opts):
    out = h.run("lcow boot --kvm --cold --json -- uname -r")
    check(out.startswith("6."), "no kernel version:", out)
    doctor, version = h.run("lcow doctor"), 1 if h.variant.name == "v1" else 2
    check("KVM works" in doctor and f"version {version}" in doctor, "lcow doctor:", doctor)


@case("a template is built, and clones start from it", HOSTS)
def clones(h, opts):
    h.run("lcow template build && lcow template verify")
    # Cold and cloned, that many each.
    starts = json.loads(h.run("lcow boot --kvm --repeat 2 --json 2>/dev/null").splitlines()[-1])
    check([s["clone"] for s in starts] == [False] * 2 + [True] * 2 and
          not any(s["emulated"] for s in starts), "starts:", starts)
    return "seconds: " + ", ".join(f"{s['duration_ms'] / 1000:.1f}" for s in starts)
