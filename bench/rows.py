"""What the table, the picture and the page show: one list of rows, and the marks of design.md §10.

Peers in the results: "lcow" (cold starts), "lcow clone" and "runc" under containerd 2.1, "runc 1.7",
"runc 1.6", "vm" (lcow boot), "host" (runc itself), "9p" (raw)."""

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
    ("run_ms", "ctr run --rm true", "ms", True),
    ("run_cpu_ms", "the same, CPU of the machine", "ms", True),
    ("exec_ms", "exec true, by the shim's service", "ms", True),
    ("ctr_exec_ms", "exec true, by ctr", "ms", True),
    ("exit_ms", "VMM (program) killed to exit event", "ms", True),
    ("stdout_mb_s", "stdio, out of the container", "MB/s", False),
    ("stdin_mb_s", "stdio, into the container", "MB/s", False),
    ("share_read_mb_s", "shared directory, read", "MB/s", False),
    ("share_write_mb_s", "shared directory, write", "MB/s", False),
    ("disk_read_mb_s", "root file system, read", "MB/s", False),
    ("disk_write_mb_s", "root file system, write and fsync", "MB/s", False),
    ("cri_pod_ms", "a pod and a container, by the CRI", "ms", True),
    ("parallel_ms", "many pods at once, until all run", "ms", True),
    ("pod20_mib", "a pod's PSS, with 20 of them", "MiB", True),
    ("pod_mib", "a pod's PSS, with as many as fit", "MiB", True),
]

VM_ROWS = [
    ("cold_ms", "cold start until the agent answers", "ms"),
    ("clone_ms", "clone until the agent answers", "ms"),
    ("own_ms", "our own part of a cold start", "ms"),
    ("bridge_us", "bridge, round trip", "us"),
    ("gcs_rss_kib", "agent, both roles, RSS", "KiB"),
    ("gcs_pss_kib", "agent, both roles, PSS", "KiB"),
    ("gcs_wakeups_s", "agent's wake-ups when idle", "/s"),
    ("crun_in_guest_ms", "crun run true, in the guest", "ms"),
    ("runc_itself_ms", "runc run true, on the host", "ms"),
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
    """One line of design.md §10. look(results) -> the measured number or None."""

    def __init__(self, what, limit, unit, look, most=True, why=""):
        self.what, self.limit, self.unit, self.look, self.most = what, limit, unit, look, most
        self.why = why  # a reason, shown while the mark is missed

    def judge(self, results):
        """(measured, met), or (None, None)."""
        found = self.look(results)
        if found is None:
            return None, None
        return found, found <= self.limit if self.most else found >= self.limit


def _median(peer, key):
    def look(results):
        found = value(results, peer, key)
        return found["median"] if found else None
    return look


def _state(results):
    r = ratio(value(results, "lcow", "state_us"), value(results, "runc", "state_us"))
    return r[0] if r else None


def _clone(results):
    r = ratio(value(results, "vm", "cold_ms"), value(results, "vm", "clone_ms"))
    return r[0] if r else None


def _stdio(results):
    both = [value(results, "lcow", k) for k in ("stdout_mb_s", "stdin_mb_s")]
    return min(b["median"] for b in both) if all(both) else None


def _idle(results):
    both = [value(results, "lcow", "wakeups_s"), value(results, "vm", "gcs_wakeups_s")]
    return sum(b["median"] for b in both) if all(both) else None


MARKS = [
    Mark("shim, PSS, idle with one container", 1536, "KiB", _median("lcow", "pss_kib")),
    Mark("more per container, with its anchor", 96, "KiB",
         _median("lcow", "pss_per_container_kib")),
    Mark("more per exec", 32, "KiB", _median("lcow", "pss_per_exec_kib")),
    Mark("agent, RSS, both roles", 1024, "KiB", _median("vm", "gcs_rss_kib"),
         why="both roles map one program, and the kernel maps 16 pages at each fault: RSS "
             "counts that twice. Their own memory is 0.2 MB; a smaller C library would do it"),
    Mark("start to address printed, CPU", 5, "ms", _median("lcow", "start_cpu_ms")),
    Mark("a parked fiber, with its call", 6, "KiB", _median("lcow", "fiber_kib")),
    Mark("a pod by clone, with 20 of them", 45, "MiB", _median("lcow clone", "pod20_mib"),
         why="under emulation up to 40 MiB of it are translated code, which KVM does not need. "
             "With 16 it is 43 MiB, but each start translates twice (docs/decisions/0011)"),
    Mark("Task.State, part of runc's median", 0.5, "", _state,
         why="one read, one write: what is left is two switches between processes, which cost the "
             "same in both; a quieter machine shows less"),
    Mark("own cost of a sandbox start", 40, "ms", _median("vm", "own_ms"),
         why="see the timeline (`lcow boot --timeline`); a busy machine adds its own"),
    Mark("template start, times faster than cold", 10, "", _clone, most=False,
         why="restoring devices and the agent's first connection decide, not the kernel's boot"),
    Mark("stdio, the slower direction", 100, "MB/s", _stdio, most=False,
         why="under emulation the guest's copies decide; `dd` and `cat` are among them"),
    Mark("VMM killed to exit event", 100, "ms", _median("lcow", "exit_ms")),
    Mark("wake-ups per second, shim and agent", 0, "/s", _idle),
]
