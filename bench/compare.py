"""The figures in docs/comparison.md: what is between its two marks is replaced after each run."""

import lines
import record
from rows import ratio_text, short, spread, value

BEGIN, END = "<!-- figures: made by bench/run, do not edit -->\n", "<!-- end of figures -->\n"
PEERS = (("runc 1.6", "runc, 1.6"), ("runc 1.7", "runc, 1.7"), ("runc", "runc, 2.1"),
         ("lcow", "lcow, cold"), ("lcow clone", "lcow, clone"))
# key, what, unit, the peer of ours that the ratio is of
FIGURES = (
    ("pss_kib", "shim with one idle container, PSS", "KiB", "lcow"),
    ("pss_per_container_kib", "more for each container", "KiB", "lcow"),
    ("wakeups_s", "shim's wake-ups when idle", "/s", "lcow"),
    ("start_ms", "`start` until the address is printed", "ms", "lcow"),
    ("start_cpu_ms", "the same, CPU", "ms", "lcow"),
    ("state_us", "Task.State", "us", "lcow"),
    ("connect_us", "Task.Connect", "us", "lcow"),
    ("stats_us", "Task.Stats", "us", "lcow"),
    ("exec_ms", "exec of `true`", "ms", "lcow"),
    ("run_ms", "`ctr run --rm … true`", "ms", "lcow clone"),
    ("cri_pod_ms", "a pod and its container, by the CRI", "ms", "lcow clone"),
    ("parallel_ms", "many pods at once by the CRI, until all run", "ms", "lcow clone"),
    ("pod20_mib", "all that a pod costs, PSS, at 20 pods", "MiB", "lcow clone"),
)
# what, the mark's row here (peer, key, unit), what was published, by whom
PUBLISHED = (
    ("shim, PSS", ("lcow", "pss_kib", "KiB"), "Kata: about 18 MB", "lcow's design, §10"),
    ("stdio out of the container", ("lcow", "stdout_mb_s", "MB/s"),
     "Kata: 17 MB/s, on hardware", "lcow's design, §10"),
)


def measured(results):
    peers = [(peer, title) for peer, title in PEERS if peer in results]
    out = ["| what | unit | " + " | ".join(title for _, title in peers) + " | lcow / runc, 2.1 |",
           "|---|---|" + "---|" * (len(peers) + 1)]
    for key, what, unit, ours in FIGURES:
        found = [value(results, peer, key) for peer, _ in peers]
        if any(found):
            out.append(f"| {what} | {unit} | " + " | ".join(map(spread, found)) + " | "
                       + ratio_text(value(results, ours, key), value(results, "runc", key)) + " |")
    if value(results, "runc", "parallel"):
        out.append(f"\nMany pods at once: {value(results, 'runc', 'parallel')} of them.")
    runtimes = [value(results, peer, key) for peer, key in
                (("vm", "crun_in_guest_ms"), ("host", "runc_itself_ms"))]
    if all(runtimes):
        out.append("\nOne container without any shim, `run … true`: crun in the VM {} ms, "
                   "runc on the host {} ms.".format(*map(spread, runtimes)))
    return out


def published(results):
    out = ["\n### Published by others\n", "Not measured here, not on this machine, not by the same "
           "method: no ratio can be taken from these.\n",
           "| what | lcow, this run | published | where |", "|---|---|---|---|"]
    for what, (peer, key, unit), words, where in PUBLISHED:
        found = value(results, peer, key)
        out.append(f"| {what} | {short(found and found['median'])} {unit} | {words} | {where} |")
    return out


def size():
    rooms = lines.count()
    ours = sum(n for _, _, n in rooms[lines.OURS])
    return ["\n### Lines of code\n", "By `bench/lines.py`: neither blank nor only comment; generated "
            "code is not counted.\n", "| what | files | lines |", "|---|---|---|",
            *(f"| {what} | {files} | {short(n)} |" for what, files, n in rooms),
            f"| **what is installed** (without tests) | | **{short(ours)}** |"]


def figures(result):
    results, m = result["results"], result["machine"]
    head = [f"{result['made'][:10]}, commit `{result['commit'][:12]}`"
            f"{' with changes' if result['dirty'] else ''}, {m['cpu']}, {m['cpus']} CPUs, VMs by "
            f"{m['accel']}{' (emulation)' if m['emulated'] else ''}."
            + (" **A quick run, for development only.**" if result["quick"] else ""),
            *(f"Measured apart: {line}." for line in record.origins(result)), ""]
    return "\n".join(head + measured(results) + published(results) + size()) + "\n"


def update(text, result):
    """The page with the figures of this run. ValueError if it has no place for them."""
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    return text[:begin] + "\n" + figures(result) + "\n" + text[end:]
