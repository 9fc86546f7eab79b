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
    h.run(f"test -s {CONF_FILE} && lcow cpugroup create slow 0")
    out = h.run("DEBIAN_FRONTEND=noninteractive dpkg --purge lcow lcow-guest")
    # dpkg finds what an administrator wrote before the package's script removes it.
    complaints = [line for line in out.splitlines() if "warning" in line and "'/etc/lcow" not in line]
    check(not complaints, "dpkg complains:", out)
    equal(h.run("dpkg -l | grep lcow", code=None), "", "packages")
    equal(h.run(LEFT, code=None), "", "files")
    equal(h.run("ps -eo args | grep -E '[l]cow|[q]emu-system'", code=None), "", "processes")
    equal(h.run("grep lcow /proc/self/mountinfo; find /sys/fs/cgroup -name '*lcow*' "
                "! -name 'lcow-test*'", code=None), "", "mounts and cgroups")
