"""docs/performance.md, made from build/bench.json: machine, versions, commit, all figures, marks."""

import record
from rows import (KVM_MARKS, MARKS, ROOT_ROWS, ROOTS, ROWS, VM_ROWS, ours, ratio_text, short, spread, steps,
                  value)

HEAD = """# Performance

Made by `make bench` from one run on one machine; do not edit. Figures depend on the machine and on
what else it does: the ratios mean more than the figures. Medians, with p10–p90 in brackets where
something was repeated; the spread of a ratio is the worst that both spreads allow.
"""

UNDER_CONTAINERD, BY_KVM = "\n## Under containerd\n", "\n## By KVM, on an emulated host\n"


def facts(result):
    m, v = result["machine"], result["versions"]
    quick = " **A quick run (`--quick`), for development only.**" if result["quick"] else ""
    return (f"\n{result['made'][:16].replace('T', ' ')} UTC, commit `{result['commit'][:12]}`"
            f"{' with changes' if result['dirty'] else ''}.{quick}\n\n"
            f"- machine: {m['cpu']}, {m['cpus']} CPUs, {m['memory_mib']} MiB, Linux {m['kernel']}, "
            f"load before the run {m['load']:.1f}\n"
            f"- VMs: QEMU {m['qemu']}, {m['accel']}{' (emulation)' if m['emulated'] else ''}, "
            f"guest kernel {m['guest_kernel']}\n"
            f"- peers: {', '.join(f'{name} {text}' for name, text in v.items())}\n"
            + "".join(f"- measured apart: {line}\n" for line in record.origins(result)))


def marks(results, wanted=MARKS):
    out = ["| what | mark | measured | |", "|---|---|---|---|"]
    for mark in wanted:
        measured, met = mark.judge(results)
        sign = "≤" if mark.most else "≥"
        verdict = "not measured" if met is None else "met" if met else "**missed**"
        why = mark.reason(results)
        verdict += f": {why}" if why else ""
        unit = f" {mark.unit}" if mark.unit else ""
        out.append(f"| {mark.what} | {sign} {short(mark.limit)}{unit} | {short(measured)}{unit} | "
                   f"{verdict} |")
    return out


def peers(results):
    names = [n for n in ("runc 1.6", "runc 1.7", "runc", "lcow", "lcow clone") if n in results]
    titles = {"runc": "runc 2.1", "lcow": "lcow, cold", "lcow clone": "lcow, clone"}
    out = [UNDER_CONTAINERD,
           "| what | unit | " + " | ".join(titles.get(n, n) for n in names) + " | lcow / runc 2.1 |",
           "|---|---|" + "---|" * (len(names) + 1)]
    for key, what, unit, _ in ROWS:
        found = [value(results, n, key) for n in names]
        if any(found):
            out.append(f"| {what} | {unit} | " + " | ".join(map(spread, found)) +
                       f" | {ratio_text(ours(results, key), value(results, 'runc', key))} |")
    execs = value(results, "lcow", "exec_ms"), value(results, "runc", "exec_ms")
    if all(execs):
        out.append(f"\nexec, p99 of {execs[0]['n']}: lcow {short(execs[0]['p99'])} ms, "
                   f"runc {short(execs[1]['p99'])} ms.")
    if value(results, "runc", "parallel"):
        out.append(f"\nMany pods at once: {value(results, 'runc', 'parallel')} of them.")
    raw = results.get("9p")
    if isinstance(raw, dict):
        out.append(f"\nA virtio-9p device without lcow around it: read "
                   f"{spread(raw['share_read_mb_s'])}, write {spread(raw['share_write_mb_s'])} "
                   "MB/s.")
    for name in names:
        if isinstance(results[name], dict) and results[name].get("fit_2gib"):
            found = results[name]
            out.append(f"\nDensity, {titles.get(name, name)}: {found['pods']} pods were started, "
                       f"{spread(found['pod_mib'])} MiB each; {found['fit_2gib']} fit into 2 GiB.")
    return out


def by_themselves(results):
    out = ["\n## By themselves\n", "| what | unit | |", "|---|---|---|"]
    for key, what, unit in VM_ROWS:
        found = value(results, "vm", key) or value(results, "host", key)
        if found:
            out.append(f"| {what} | {unit} | {spread(found)} |")
    cold, clone = (value(results, "vm", key) or {} for key in ("stages_ms", "clone_stages_ms"))
    if cold:
        out += ["\nStages of a start, ms after its begin (`lcow boot --repeat`):\n",
                "| stage | cold | clone |", "|---|---|---|"]
        out += [f"| {name} | {spread(s)} | {spread(clone.get(name))} |" for name, s in cold.items()]
        out += [f"\nBy stage, cold: {steps(results, 'stages_ms')}; clone: "
                f"{steps(results, 'clone_stages_ms')}."]
    return out


def root_kinds(results):
    if not any(peer in results for peer, _ in ROOTS):
        return []
    out = ["\n## Root file systems\n",
           "A tree of 10 000 small files and one of 64 MiB in the image's layer, read with the guest's "
           "cache empty; 256 MiB written with fsync, and read back with the cache empty, by one program "
           "that also sums up what it reads. *no lcow*: the same kernel in a VM that QEMU starts with "
           "one virtio-9p device (the same mount options and msize) and two virtio-scsi disks.\n",
           "| kind | " + " | ".join(f"{what}, {unit}" for _, what, unit in ROOT_ROWS) + " |",
           "|---|" + "---|" * len(ROOT_ROWS)]
    for peer, what in ROOTS:
        found = " | ".join(spread(value(results, peer, key)) for key, *_ in ROOT_ROWS)
        out.append(f"| {what} | {found} |")
    return out


def ratios(text):
    """What the page's table of containerd says about emulation, by row."""
    table = text.split(UNDER_CONTAINERD)[-1].split("\n## ")[0]
    rows = (line.split(" | ") for line in table.splitlines() if line.startswith("| "))
    return {cells[0].removeprefix("| "): cells[-1].removesuffix(" |") for cells in rows}


def with_kvm(text, found):
    """The page with the figures of the emulated host. Both sides of each ratio are of one place."""
    text, emulated = text.split(BY_KVM)[0], ratios(text)
    m, theirs = found["machine"], found["results"]
    out = [BY_KVM,
           "The host of `tests/host`: QEMU emulates a processor with AMD SVM, and in it lcow's VMs run by KVM's own "
           "code, beside runc's containers. Both sides pay for the emulation, so the times mean nothing; the ratio "
           "is the nearest to hardware that was measured. It does not show what an exit of a VM, a page table or an "
           "interrupt costs on hardware. The last column is the ratio of the run above, without KVM.\n",
           f"{found['made'][:16].replace('T', ' ')} UTC, commit `{found['commit'][:12]}`"
           f"{' with changes' if found['dirty'] else ''}{', a quick run' if found['quick'] else ''}; {m['cpus']} "
           f"CPU, {m['memory_mib']} MiB, Linux {m['kernel']}, QEMU {m['qemu']}, {m['accel']}.\n",
           *(f"- measured apart: {line}\n" for line in record.origins(found)), *marks(theirs, KVM_MARKS), "",
           "| what | unit | runc | lcow, cold | lcow, clone | lcow / runc, KVM (emulated host) | "
           "lcow / runc, emulation |",
           "|---|---|---|---|---|---|---|"]
    for key, what, unit, _ in ROWS:
        peers = [value(theirs, n, key) for n in ("runc", "lcow", "lcow clone")]
        if any(peers):
            out.append(f"| {what} | {unit} | " + " | ".join(map(spread, peers)) +
                       f" | {ratio_text(ours(theirs, key), value(theirs, 'runc', key))} | {emulated.get(what, '–')} |")
    for key, what, unit in VM_ROWS:
        if mine := value(theirs, "vm", key):
            out.append(f"| {what} | {unit} | – | {spread(mine)} | – | – | – |")
    if (mine := value(theirs, "vm", "clone_ms")) and (cold := value(theirs, "vm", "cold_ms")):
        out.append(f"\nA clone is ready {cold['median'] / mine['median']:.1f} times sooner than a cold start.")
    if count := value(theirs, "runc", "parallel"):
        out.append(f"\nMany pods at once: {count} of them.")
    out += [f"\nNot measured there: {trouble}" for trouble in found["troubles"]]
    return text + "\n".join(out) + "\n"


def write(result, old=""):
    """The section about the emulated host stays as it was."""
    results = result["results"]
    lines = ["\n## Marks\n", *marks(results)] + ["\n![the same as a picture](../bench/report.svg)"] + \
        peers(results) + root_kinds(results) + by_themselves(results)
    for trouble in result["troubles"]:
        lines.append(f"\nNot measured: {trouble}")
    return HEAD + facts(result) + "\n".join(lines) + "\n" + "".join(old.partition(BY_KVM)[1:])
