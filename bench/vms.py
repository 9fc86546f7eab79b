"""VMs by themselves (lcow boot): stages, memory of the agent, wake-ups of the agent, cold start
against clone; crun in the guest beside runc on the host."""

import json
import os
import re
import subprocess

import packages
from stats import summary, timed

LIMIT = 300  # seconds for any one step

# Prints "pid VmRSS Pss switches" for each process of the agent.
GUEST_PS = r"""
look() {
    for p in /proc/[0-9]*; do
        case $(readlink $p/exe) in */gcs) ;; *) continue;; esac
        awk '/^VmRSS:/ { r = $2 } /^Pss:/ { s = $2 } /ctxt_switches/ { c += $2 }
             END { print p, r, s, c }' p=${p#/proc/} $p/status $p/smaps_rollup
    done
}
"""
GUEST_IDLE = GUEST_PS + "sleep 3; look; sleep 10; look"

GUEST_CRUN = r"""
mkdir -p /run/b/rootfs/bin /run/b/rootfs/proc /run/b/rootfs/dev /run/b/rootfs/sys
cp /bin/busybox /run/b/rootfs/bin/true
cd /run/b
crun spec
sed -i 's/"terminal": true/"terminal": false/; s/"sh"/"\/bin\/true"/' config.json
for i in $(seq COUNT); do
    t0=$(cut -d' ' -f1 /proc/uptime); crun run x$i </dev/null || exit 1
    crun run y$i </dev/null; crun run z$i </dev/null; t1=$(cut -d' ' -f1 /proc/uptime)
    echo $t0 $t1
done"""


class Vms:
    def __init__(self, work, lcow, image):
        self.work, self.lcow = work, lcow
        self.templates = os.path.join(work, "templates")
        self.image = image

    def env(self, template):
        path = os.path.join(self.work, f"{template}.conf")
        with open(path, "w", encoding="ascii") as conf:
            conf.write(f"[vm]\nallow_emulation = true\nimage_dir = {self.image}\n"
                       f"template = {template}\n"
                       f"[host]\nrun_root = {self.work}/run\nscratch_dir = {self.work}\n"
                       f"template_dir = {self.templates}\n")
        return {**os.environ, "LCOW_CONFIG": path}

    def boot(self, *args, template="off"):
        """One lcow boot; (its JSON, what the guest printed)."""
        path = os.path.join(self.work, "result.json")
        done = subprocess.run([self.lcow, "boot", f"--json={path}", *args],
                              stdin=subprocess.DEVNULL, capture_output=True,
                              env=self.env(template), timeout=LIMIT, check=False, text=True,
                              errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"lcow boot {' '.join(args)[:100]} ended with {done.returncode}: "
                               + " ".join(done.stderr.split())[-600:])
        with open(path, encoding="utf-8") as text:
            return json.load(text), done.stdout

    # ------------------------------------------------------------ parts

    def stages(self, boots):
        found, _ = self.boot("--repeat", str(boots))
        names = [s["name"] for s in found[0]["stages"]]
        result = {name: summary(at(run, name) for run in found) for name in names}
        result["gone"] = summary(run["duration_ms"] for run in found)
        own = summary(at(run, "spawned") + at(run, "negotiated") - at(run, "agent")
                      for run in found)
        facts = {k: found[0][k] for k in ("emulated", "accel", "qemu_version", "kernel",
                                          "memory_mib", "cpus")}
        return {"stages_ms": result, "cold_ms": result["negotiated"], "own_ms": own}, facts

    def agent(self):
        """Memory and wake-ups of the agent in an idle VM."""
        _, out = self.boot("--", "sh", "-c", GUEST_IDLE)
        rows = [[int(word) for word in line.split()] for line in out.splitlines()]
        before, after = rows[:len(rows) // 2], rows[len(rows) // 2:]
        woken = sum(r[3] for r in after) - sum(r[3] for r in before)
        return {"gcs_rss_kib": summary([sum(r[1] for r in after)]),
                "gcs_pss_kib": summary([sum(r[2] for r in after)]),
                "gcs_wakeups_s": summary([woken / 10])}

    def bridge(self, calls):
        found, _ = self.boot("--bench-bridge", str(calls))
        found = found["bridge"]
        return {"bridge_us": {"n": found["calls"], "median": found["median_us"],
                              "p10": found["min_us"], "p90": found["p99_us"],
                              "p99": found["p99_us"], "min": found["min_us"],
                              "max": found["p99_us"]}}

    def crun(self, count):
        """crun run in the VM, three at a time since its clock ticks in 10 ms."""
        _, out = self.boot("--memory", "512", "--", "sh", "-c",
                           GUEST_CRUN.replace("COUNT", str(count)))
        pairs = [tuple(map(float, line.split())) for line in out.splitlines()
                 if re.fullmatch(r"[\d.]+ [\d.]+", line)]
        return {"crun_in_guest_ms": summary((b - a) * 1000 / 3 for a, b in pairs)}

    # ------------------------------------------------------------ templates

    def can_clone(self):
        """Builds the template; why not, or None."""
        done = subprocess.run([self.lcow, "template", "build"], env=self.env("auto"),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        if done.returncode != 0:
            return " ".join((done.stderr or done.stdout).split())[:300]
        return None

    def clones(self, boots):
        """A string: why there were none."""
        found = [self.boot("--", "true", template="auto")[0] for _ in range(boots)]
        cloned = [run for run in found if run["clone"]]
        if not cloned:
            return f"clones: {found[-1].get('cold_why') or 'none was made'}"
        return {"clone_ms": summary(at(run, "negotiated") for run in cloned)}


def at(run, name):
    return next(s["at_ms"] for s in run["stages"] if s["name"] == name)


def runc_itself(work, count):
    """runc run on the host, without any shim."""
    bundle = os.path.join(work, "runc")
    os.makedirs(os.path.join(bundle, "rootfs/bin"))
    runc = os.path.join(packages.folder("runc"), "usr/sbin/runc")
    busybox = os.path.join(packages.folder("busybox-static"), "bin/busybox")
    subprocess.run(["cp", busybox, os.path.join(bundle, "rootfs/bin/true")], check=True)
    subprocess.run([runc, "spec"], cwd=bundle, check=True)
    path = os.path.join(bundle, "config.json")
    with open(path, encoding="utf-8") as f:
        spec = json.load(f)
    spec["process"]["terminal"] = False
    spec["process"]["args"] = ["/bin/true"]
    with open(path, "w", encoding="utf-8") as f:
        json.dump(spec, f)

    def one(i):
        subprocess.run([runc, "--root", os.path.join(work, "runc-state"), "run", f"bench{i}"],
                       cwd=bundle, check=True, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL)
    return {"runc_itself_ms": summary(timed(lambda n=i: one(n)) for i in range(count))}
