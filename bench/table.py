"""The results on a terminal, in 80 columns."""

import record
from rows import MARKS, ROOT_ROWS, ROOTS, ROWS, VM_ROWS, ours, ratio_text, short, value

WIDTH = 80


def show(result):
    results = result["results"]
    machine = result["machine"]
    print(f"{machine['cpu']}, {machine['cpus']} CPUs, {machine['memory_mib']} MiB; "
          f"QEMU {machine['qemu']}, {machine['accel']}; commit {result['commit'][:10]}"[:WIDTH])
    print(f"\n{'containerd 2.1, medians':<42}{'runc':>8}{'lcow':>8}  ratio (p10–p90)")
    for key, what, unit, _ in ROWS:
        mine, theirs = ours(results, key), value(results, "runc", key)
        if not mine and not theirs:
            continue
        line = (f"{what[:35]:<35}{unit:>6} "
                f"{short(theirs and theirs['median']):>8}{short(mine and mine['median']):>8}  "
                f"{ratio_text(mine, theirs)}")
        print(line[:WIDTH])
    print(f"\n{'by themselves':<42}{'median':>8}  p10–p90")
    for key, what, unit in VM_ROWS:
        found = value(results, "vm", key) or value(results, "host", key)
        if found:
            print(f"{what[:35]:<35}{unit:>6} {short(found['median']):>8}  "
                  f"{short(found['p10'])}–{short(found['p90'])}")
    show_roots(results)
    print("\nmarks")
    for mark in MARKS:
        measured, met = mark.judge(results)
        verdict = "not measured" if met is None else "met" if met else "MISSED"
        sign = "≤" if mark.most else "≥"
        print(f"  {mark.what[:40]:<40} {short(measured):>8} {sign} {short(mark.limit):<6}"
              f"{mark.unit:<5} {verdict}")
    for line in record.origins(result):
        print(f"\n{line}"[:WIDTH])
    for trouble in result["troubles"]:
        print(f"\nnot measured: {trouble}"[:400])


def show_roots(results):
    if not any(peer in results for peer, _ in ROOTS):
        return
    print(f"\n{'root file systems, medians':<27}" + "".join(f"{what:>10}"
                                                           for _, what, _ in ROOT_ROWS))
    print(f"{'':<27}" + "".join(f"{unit:>10}" for *_, unit in ROOT_ROWS))
    for peer, what in ROOTS:
        found = [value(results, peer, key) for key, *_ in ROOT_ROWS]
        print(f"{what:<27}" + "".join(f"{short(s and s['median']):>10}" for s in found))
