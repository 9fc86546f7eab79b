"""VMs by themselves (lcow boot): stages, memory of the agent, wake-ups of the agent, cold start
against clone; crun in the guest beside runc on the host."""

import json
import os
import re
import subprocess

import cells  # noqa: F401  (finds the e2e modules)
import harness
import packages
from stats import summary, timed

LIMIT = 300  # seconds for any one step

# Prints "pid Rss Pss switches Anonymous" for each process of the agent. Not by VmRSS, which the
# kernel keeps only roughly.
GUEST_PS = r"""
look() {
    for p in /proc/[0-9]*; do
        case $(readlink $p/exe) in */gcs) ;; *) continue;; esac
        awk '/^Rss:/ { r = $2 } /^Pss:/ { s = $2 } /ctxt_switches/ { c += $2 }
             /^Anonymous:/ { a = $2 } END { print p, r, s, c, a }' p=${p#/proc/} $p/status $p/smaps_rollup
    done
}
"""
GUEST_IDLE = GUEST_PS + "sleep 3; look; sleep 10; look; stat -L -c %s /proc/1/exe"

# The VM's root is its initramfs, which cannot be pivoted away from: crun sees that by itself.
GUEST_CRUN = r"""
mkdir -p /mnt/b/rootfs/bin /mnt/b/rootfs/proc /mnt/b/rootfs/dev /mnt/b/rootfs/sys
cp /bin/busybox /mnt/b/rootfs/bin/true
cd /mnt/b
crun spec
sed -i 's/"terminal": true/"terminal": false/; s/"sh"/"\/bin\/true"/' config.json
for i in $(seq COUNT); do
    read t0 x </proc/uptime
    for n in x y z; do crun run $n$i </dev/null || exit 1; done
    read t1 x </proc/uptime
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
                       f"template_dir = {self.templates}\n"
                       f"scratch_mib = {harness.SCRATCH_MIB}\n")
        return {**os.environ, "LCOW_CONFIG": path}

    def boot(self, *args, template="off"):
        """One lcow boot; (its JSON, what the guest printed)."""
        path = os.path.join(self.work, "result.json")
        done = subprocess.run([self.lcow, "boot", f"--json={path}", *args], stdin=subprocess.DEVNULL,
                              capture_output=True, env=self.env(template), timeout=LIMIT,
                              check=False, text=True, errors="replace")
        if done.returncode != 0:
            raise RuntimeError(f"lcow boot {' '.join(args)[:100]} ended with {done.returncode}: "
                               + " ".join(done.stderr.split())[-600:])
        with open(path, encoding="utf-8") as text:
            return json.load(text), done.stdout

    def prove_kvm(self):
        """The first boot with KVM is always cold. What it proves holds for all cells after it."""
        self.boot("--kvm", "--", "true")
        with open(os.path.join(self.work, "run/accel"), encoding="ascii") as f:
            harness.ACCEL = f.read()

    # ------------------------------------------------------------ parts

    def boots(self, count):
        """lcow boot --repeat: so many cold ones, then as many clones of a template that is built in
        between. (results, facts); a trouble among the results if there were no clones."""
        found, _ = self.boot("--repeat", str(count), template="auto")
        cold, cloned = ([run for run in found if bool(run["clone"]) == kind]
                        for kind in (False, True))
        stages = stages_of(cold)
        result = {"stages_ms": stages, "cold_ms": stages["negotiated"], "own_ms": own(cold)}
        facts = {k: found[0][k] for k in ("emulated", "accel", "qemu_version", "kernel",
                                          "memory_mib", "cpus")}
        if not cloned:
            why = self.no_clones() or found[-1].get("cold_why") or "none was made"
            return {**result, "troubles": [f"clones: {why}"]}, facts
        stages = stages_of(cloned)
        return {**result, "clone_stages_ms": stages, "clone_ms": stages["negotiated"],
                "clone_own_ms": own(cloned)}, facts

    def agent(self):
        """Memory and wake-ups of the agent in an idle VM."""
        _, out = self.boot("--", "sh", "-c", GUEST_IDLE)
        *rows, (size,) = [[int(word) for word in line.split()] for line in out.splitlines()]
        before, after = rows[:len(rows) // 2], rows[len(rows) // 2:]
        woken = sum(r[3] for r in after) - sum(r[3] for r in before)
        return {"gcs_rss_kib": summary([sum(r[1] for r in after)]),
                "gcs_anon_kib": summary([sum(r[4] for r in after)]),
                "gcs_program_kib": summary([size / 1024]),
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
        """crun in the VM, three runs at a time since its clock ticks in 10 ms."""
        _, out = self.boot("--cold", "--memory", "512", "--", "sh", "-c", GUEST_CRUN.replace("COUNT", str(count)))
        times = [(float(end) - float(begin)) * 1000 / 3 for begin, end in
                 re.findall(r"^([\d.]+) ([\d.]+)$", out, re.MULTILINE)]
        return {"crun_in_guest_ms": summary(times)}

    # ------------------------------------------------------------ templates

    def no_clones(self):
        """Builds the template if there is none; why that cannot be done, or None."""
        done = subprocess.run([self.lcow, "template", "build"], env=self.env("auto"),
                              stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=LIMIT, check=False)
        if done.returncode != 0:
            return " ".join((done.stderr or done.stdout).split())[:300]
        return None


def stages_of(runs):
    """{stage: ms after the begin}, in their order; those that every run has."""
    names = [s["name"] for s in runs[0]["stages"]
             if all(any(o["name"] == s["name"] for o in run["stages"]) for run in runs)]
    found = {name: summary(at(run, name) for run in runs) for name in names}
    return {**found, "gone": summary(run["duration_ms"] for run in runs)}


def own(runs):
    """What is neither QEMU's start nor the guest's kernel: before QEMU runs, and from the agent's
    first connection on."""
    return summary(at(run, "spawned") + at(run, "negotiated") - at(run, "agent") for run in runs)


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
