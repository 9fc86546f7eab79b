"""The packages: an upgrade under a running pod, and the end. Runs last: afterwards there is no lcow."""
from suite import Skip, case, check, equal
from test_boot import CONF_FILE
from test_pod import inside

ORDER = 100
LEFT = "ls -d /run/lcow /var/lib/lcow /etc/lcow /usr/lib/lcow /usr/bin/*lcow* 2>/dev/null"


def packages_only(opts):
    if opts.programs:
        raise Skip("--programs: there are no packages")


@case("the packages are upgraded under a running pod", ("kvm", "trixie"))
def upgrade(h, opts):
    packages_only(opts)
    inside(h, "upgrade")


@case("the packages are removed, and nothing of them is left", ("kvm", "trixie"))
def removal(h, opts):
    packages_only(opts)
    h.run(f"rm -f {CONF_FILE}")
    out = h.run("DEBIAN_FRONTEND=noninteractive dpkg --purge lcow lcow-guest")
    check("warning" not in out and "not empty" not in out, "dpkg complains:", out, h.run("find /etc/lcow", code=None))
    equal(h.run("dpkg -l | grep lcow", code=None), "", "packages")
    equal(h.run(LEFT, code=None), "", "files")
    equal(h.run("ps -eo args | grep -E '[l]cow|[q]emu-system'", code=None), "", "processes")
    equal(h.run("grep lcow /proc/self/mountinfo; find /sys/fs/cgroup -name '*lcow*' "
                "! -name 'lcow-test*'", code=None), "", "mounts and cgroups")
