"""What the table, the picture and the page show: one list of rows, and the marks (docs/design.md §10).

Peers in the results: "lcow" (cold starts), "lcow clone" and "runc" under containerd 2.1, "runc 1.7",
"runc 1.6", "vm" (lcow boot), "host" (runc itself), "9p" (raw); of root file systems the kinds of
snapshotters, "raw 9p", "raw ext4" and "raw disk"."""

from stats import ratio

# key, what, unit, smaller is better. bench/part_*.py add theirs to these lists.
ROWS = [
    ("pss_kib", "shim with one idle container, PSS", "KiB", True),
    ("pss_per_container_kib", "more for each container of a pod", "KiB", True),
    ("pss_per_exec_kib", "more for each exec", "KiB", True),
    ("fiber_kib", "more for each call that waits", "KiB", True),
    ("wakeups_s", "shim's wake-ups when idle", "/s", True),
    ("start_ms", "start to address printed", "ms", True),
    ("start_cpu_ms", "start to address printed, CPU", "ms", True),
    ("state_us", "Task.State", "us", True),
    ("connect_us", "Task.Connect", "us", True),
    ("stats_us", "Task.Stats", "us", True),
    ("polled_percent", "100 of them a second, shim's CPU", "%", True),
    ("run_ms", "ctr run --rm true", "ms", True),
    ("run_cpu_ms", "the same, CPU of the machine", "ms", True),
    ("run_in_pod_ms", "ctr run, in a pod that runs", "ms", True),
    ("run_in_pod_cpu_ms", "in such a pod, CPU of the machine", "ms", True),
    ("exec_ms", "exec true, by the shim's service", "ms", True),
    ("exec_p99_ms", "the same, p99", "ms", True),
    ("ctr_exec_ms", "exec true, by ctr", "ms", True),
    ("exit_ms", "VMM (program) killed to exit event", "ms", True),
    ("upgrade_ms", "upgrade of the shim, pause", "ms", True),
    ("upgrade_p99_ms", "the same, 99th percentile", "ms", True),
    ("stdout_mb_s", "stdio, out of the container", "MB/s", False),
    ("stdin_mb_s", "stdio, into the container", "MB/s", False),
    ("share_read_mb_s", "shared directory, read", "MB/s", False),
    ("share_write_mb_s", "shared directory, write", "MB/s", False),
    ("disk_read_mb_s", "root file system, read", "MB/s", False),
    ("disk_write_mb_s", "root file system, write and fsync", "MB/s", False),
    ("cri_pod_ms", "a pod and a container, by the CRI", "ms", True),
    ("parallel_ms", "many pods at once, until all run", "ms", True),
    ("parallel_each_ms", "one of them, until it runs", "ms", True),
    ("parallel_cpu_ms", "all of them, CPU of the machine", "ms", True),
    ("pod20_mib", "a pod's PSS, with 20 of them", "MiB", True),
    ("pod_mib", "a pod's PSS, with as many as fit", "MiB", True),
]

VM_ROWS = [
    ("cold_ms", "cold start until the agent answers", "ms"),
    ("clone_ms", "clone until the agent answers", "ms"),
    ("own_ms", "our own part of a cold start", "ms"),
    ("clone_own_ms", "our own part of a clone's start", "ms"),
    ("bridge_us", "bridge, round trip", "us"),
    ("gcs_rss_kib", "agent, both roles, RSS", "KiB"),
    ("gcs_pss_kib", "agent, both roles, PSS", "KiB"),
    ("gcs_anon_kib", "agent, both roles, own memory", "KiB"),
    # Which its RSS does not tell: an idle agent unmaps it.
    ("gcs_program_kib", "agent's program, in the initramfs", "KiB"),
    ("gcs_wakeups_s", "agent's wake-ups when idle", "/s"),
    ("crun_in_guest_ms", "crun run true, in the guest", "ms"),
    ("runc_itself_ms", "runc run true, on the host", "ms"),
]

# Root file systems: the peers, and what is measured of each.
ROOTS = [
    ("overlayfs", "overlayfs (share)"),
    ("overlayfs images", "overlayfs, layer images"),
    ("native", "native (share)"),
    ("blockfile", "blockfile (disk)"),
    ("erofs", "erofs (disk per layer)"),
    ("raw 9p", "virtio-9p, no lcow"),
    ("raw ext4", "ext4 on a disk, no lcow"),
    ("raw disk", "raw disk, no lcow"),
]
ROOT_ROWS = [
    ("root_files_s", "small files", "files/s"),
    ("root_read_mb_s", "read", "MB/s"),
    ("root_write_mb_s", "write", "MB/s"),
    ("root_back_mb_s", "read back", "MB/s"),
    ("root_start_ms", "start", "ms"),
]


def value(results, peer, key):
    """The summary, or None."""
    found = results.get(peer)
    return found.get(key) if isinstance(found, dict) else None


def ours(results, key):
    """lcow as it is by default: a clone where that was measured."""
    return value(results, "lcow clone", key) or value(results, "lcow", key)


def short(number):
    """Three figures at most; thousands without point."""
    if number is None:
        return "–"
    if abs(number) >= 100:
        return f"{number:,.0f}".replace(",", " ")
    return f"{number:.1f}" if abs(number) >= 10 else f"{number:.2g}" if number else "0"


def spread(s):
    if not s:
        return "–"
    if s["n"] == 1:
        return short(s["median"])
    return f"{short(s['median'])} ({short(s['p10'])}–{short(s['p90'])})"


def ratio_text(ours, theirs):
    r = ratio(ours, theirs)
    return f"{r[0]:.2f} ({r[1]:.2f}–{r[2]:.2f})" if r else "–"


# ---------------------------------------------------------------- marks

class Mark:
    """One line of docs/design.md §10, or of what an issue must show. look(results) -> the measured
    number or None. why(results) -> what it is made of, as measured, and what would do it: shown
    while the mark is missed."""

    def __init__(self, what, limit, unit, look, most=True, why=None):
        self.what, self.limit, self.unit, self.look, self.most = what, limit, unit, look, most
        self.why = why

    def judge(self, results):
        """(measured, met), or (None, None)."""
        found = self.look(results)
        if found is None:
            return None, None
        return found, found <= self.limit if self.most else found >= self.limit

    def reason(self, results):
        return self.why(results) if self.why and self.judge(results)[1] is False else ""


def median(results, peer, key):
    found = value(results, peer, key)
    return found["median"] if found else None


def _median(peer, key):
    return lambda results: median(results, peer, key)


def words(text, results, *places):
    """text with the medians of (peer, key)… in it; without those that were not measured it says
    nothing rather than something wrong."""
    found = [median(results, *place) for place in places]
    return text.format(*map(short, found)) if None not in found else ""


def _ratio(ours, theirs):
    """Of the medians of two (peer, key)."""
    def look(results):
        r = ratio(value(results, *ours), value(results, *theirs))
        return r[0] if r else None
    return look


def _stdio(results):
    both = [value(results, "lcow", k) for k in ("stdout_mb_s", "stdin_mb_s")]
    return min(b["median"] for b in both) if all(both) else None


def _idle(results):
    both = [value(results, "lcow", "wakeups_s"), value(results, "vm", "gcs_wakeups_s")]
    return sum(b["median"] for b in both) if all(both) else None


def steps(results, key):
    """"a 12, b 34": how long each stage took, from the times at which they were reached."""
    stages = value(results, "vm", key)
    if not stages:
        return ""
    took, before = [], 0
    for name, s in stages.items():
        if name != "gone":
            took.append(f"{name} {short(s['median'] - before)}")
            before = s["median"]
    return ", ".join(took)


def _why_shim(results):
    return words("own memory {} KiB, pages of program and libraries {} KiB, which more shims would "
                 "share", results, ("lcow", "pss_anon_kib"), ("lcow", "pss_file_kib"))


def _why_container(results):
    return words("{} KiB of it are the anchor's", results, ("lcow", "anchor_kib"))


def _why_exec(results):
    return words("runc's shim grows by {} KiB for each", results, ("runc", "pss_per_exec_kib"))


def _why_start(results):
    return words("{} ms of the clock; runc's shim: {} ms, {} ms of CPU", results,
                 ("lcow", "start_ms"), ("runc", "start_ms"), ("runc", "start_cpu_ms"))


def _why_exit(results):
    return words("the exit of a runc container, which is not a VM, is reported after {} ms", results,
                 ("runc", "exit_ms"))


def _why_idle(results):
    return words("shim {}, agent {} /s", results, ("lcow", "wakeups_s"), ("vm", "gcs_wakeups_s"))


def _why_fiber(results):
    return words("a fiber alone takes {} KiB, with the call that waits in it {} KiB", results,
                 ("lcow", "parked_kib"), ("lcow", "fiber_kib"))


def _why_agent(results):
    return words("{} KiB are its own memory, the rest pages of its program ({} KiB with the C library "
                 "in it), which the VM's initramfs holds in any case; a smaller program would do it",
                 results, ("vm", "gcs_anon_kib"), ("vm", "gcs_program_kib"))


def _why_state(results):
    text = words("the same client's exchange with a process that only sends a ready answer takes "
                 "{} us, lcow {}, runc {}", results, ("lcow", "echo_us"), ("lcow", "state_us"),
                 ("runc", "state_us"))
    floor, mine, theirs = (median(results, *place) for place in
                           (("lcow", "echo_us"), ("lcow", "state_us"), ("runc", "state_us")))
    if text and floor > theirs / 2:
        text += "; that floor alone is more than half of runc's: nothing in the shim would do it"
    elif text and theirs > floor:
        text += f"; beyond that floor it is {short(max(mine - floor, 0) / (theirs - floor))} of runc's"
    return text


def _why_own(results):
    return f"ms by stage of a cold start: {steps(results, 'stages_ms')}; all but kernel, init and " \
           "agent is ours"


def _fastest_cold(results):
    """Its mark was taken as the best of some on a machine like this (docs/reference/qemu-uvm.md)."""
    found = value(results, "vm", "cold_ms")
    return found["min"] if found else None


def _why_cold(results):
    return f"ms by stage, medians: {steps(results, 'stages_ms')}"


def _why_clone(results):
    return f"ms by stage, cold: {steps(results, 'stages_ms')}; clone: " \
           f"{steps(results, 'clone_stages_ms')}"


def _why_stdio(results):
    return words("out {}, in {}; the same programs through one pipe that does not leave the "
                 "container: {} MB/s", results, ("lcow", "stdout_mb_s"), ("lcow", "stdin_mb_s"),
                 ("lcow", "pipe_mb_s"))


def _why_pod(results):
    keys = ("qemu", "own", "template", "code", "rest")
    return words("QEMU {} MiB, in which the guest's own pages are {}, its share of the template's {} and "
                 "translated code {}; shim and anchor {}. Translated code is emulation's, which KVM "
                 "does without (docs/decisions/0020)", results,
                 *(("lcow clone", f"pod20_{key}_mib") for key in keys))


def _why_run(results):
    return words("until the agent answers {} ms, and crun alone takes {} ms in the guest where runc "
                 "takes {} on the host. It is translating the guest's code that takes the time: the same in a "
                 "pod that runs takes {} ms, runc {} (docs/decisions/0020)", results,
                 ("vm", "clone_ms"), ("vm", "crun_in_guest_ms"), ("host", "runc_itself_ms"),
                 ("lcow", "run_in_pod_ms"), ("runc", "run_in_pod_ms"))


def _why_stats(results):
    return words("beyond the {} us of a round trip to the agent, what the emulated agent takes to read "
                 "and write the cgroup's numbers", results, ("vm", "bridge_us"))


def _why_polled(results):
    return words("runc's shim: {} %. A third of it are system calls on two sockets, the rest reading the "
                 "guest's JSON and writing containerd's message", results, ("runc", "polled_percent"))


def _why_in_pod(results):
    return words("it takes {} ms of CPU, runc {}: crun alone takes {} ms in the emulated guest where runc "
                 "takes {} on the host (docs/decisions/0020)", results, ("lcow", "run_in_pod_cpu_ms"),
                 ("runc", "run_in_pod_cpu_ms"), ("vm", "crun_in_guest_ms"), ("host", "runc_itself_ms"))


def _why_pods(results):
    return words("the CPUs are what is short: {} ms of CPU for all, runc {}. A clone takes {} ms until its "
                 "agent answers, and crun runs twice in each pod, {} ms each (docs/decisions/0020)", results,
                 ("lcow clone", "parallel_cpu_ms"), ("runc", "parallel_cpu_ms"), ("vm", "clone_ms"),
                 ("vm", "crun_in_guest_ms"))


MARKS = [
    Mark("shim, PSS, idle with one container", 1536, "KiB", _median("lcow", "pss_kib"),
         why=_why_shim),
    Mark("more per container, with its anchor", 96, "KiB",
         _median("lcow", "pss_per_container_kib"), why=_why_container),
    Mark("more per exec", 32, "KiB", _median("lcow", "pss_per_exec_kib"), why=_why_exec),
    Mark("a parked fiber", 6, "KiB", _median("lcow", "parked_kib"), why=_why_fiber),
    Mark("a call that waits: fiber and request", 6, "KiB", _median("lcow", "fiber_kib"),
         why=_why_fiber),
    Mark("agent, RSS, both roles, idle", 1024, "KiB", _median("vm", "gcs_rss_kib"), why=_why_agent),
    Mark("start to address printed, CPU", 5, "ms", _median("lcow", "start_cpu_ms"),
         why=_why_start),
    Mark("Task.State, part of runc's median", 0.5, "",
         _ratio(("lcow", "state_us"), ("runc", "state_us")), why=_why_state),
    Mark("Task.Stats, times runc's", 2, "", _ratio(("lcow", "stats_us"), ("runc", "stats_us")),
         why=_why_stats),
    Mark("100 Task.Stats a second, shim's CPU", 1, "%", _median("lcow", "polled_percent"),
         why=_why_polled),
    Mark("own cost of a sandbox start", 40, "ms", _median("vm", "own_ms"), why=_why_own),
    Mark("cold start to the agent, the fastest", 2450, "ms", _fastest_cold, why=_why_cold),
    Mark("template start, times faster than cold", 10, "",
         _ratio(("vm", "cold_ms"), ("vm", "clone_ms")), most=False, why=_why_clone),
    Mark("ctr run by clone, times runc's", 4, "",
         _ratio(("lcow clone", "run_ms"), ("runc", "run_ms")), why=_why_run),
    Mark("ctr run in a pod that runs, times runc's", 1.5, "",
         _ratio(("lcow", "run_in_pod_ms"), ("runc", "run_in_pod_ms")), why=_why_in_pod),
    Mark("a pod and a container, times runc's", 8, "",
         _ratio(("lcow clone", "cri_pod_ms"), ("runc", "cri_pod_ms")), why=_why_pods),
    Mark("many pods at once, times runc's", 12, "",
         _ratio(("lcow clone", "parallel_ms"), ("runc", "parallel_ms")), why=_why_pods),
    Mark("a pod by clone, with 20 of them", 45, "MiB", _median("lcow clone", "pod20_mib"),
         why=_why_pod),
    Mark("stdio, the slower direction", 150, "MB/s", _stdio, most=False, why=_why_stdio),
    Mark("VMM killed to exit event", 100, "ms", _median("lcow", "exit_ms"), why=_why_exit),
    Mark("upgrade of the shim under a pod, pause", 50, "ms", _median("lcow", "upgrade_ms")),
    Mark("wake-ups per second, shim and agent", 0, "/s", _idle, why=_why_idle),
]

# By KVM, on the emulated host.
KVM_MARKS = [
    Mark("ctr run in a pod that runs, times runc's", 1.5, "",
         _ratio(("lcow", "run_in_pod_ms"), ("runc", "run_in_pod_ms"))),
    Mark("a pod and a container, times runc's", 3, "",
         _ratio(("lcow clone", "cri_pod_ms"), ("runc", "cri_pod_ms"))),
    Mark("many pods at once, times runc's", 4, "",
         _ratio(("lcow clone", "parallel_ms"), ("runc", "parallel_ms"))),
    Mark("a pod by clone, with 20 of them", 30, "MiB", _median("lcow clone", "pod20_mib"),
         why=lambda results: words("QEMU {} MiB, in which the guest's own pages are {} and its share of the template's {}; "
                                   "shim and anchor {}", results, *(("lcow clone", f"pod20_{key}_mib") for key in
                                                                    ("qemu", "own", "template", "rest")))),
]
