"""What /proc tells of a process."""

import os
import re


def rollup_kib(pid):
    """{name: KiB} of all its mappings together: Pss, Pss_Anon, Pss_File, …"""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return {name: int(kib) for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", f.read(),
                                                           re.MULTILINE)}


def pss_kib(pid):
    return rollup_kib(pid)["Pss"]


def private_kib(pid, name):
    """What a process has written to in its private mappings of files whose path ends so."""
    total, ours = 0, False
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as f:
        for line in f:
            if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                ours = line.rstrip().removesuffix(" (deleted)").endswith(name)
            elif ours and line.startswith("Anonymous:"):
                total += int(line.split()[1])
    return total


def switches(pid):
    """Context switches of all its threads so far: each is a wake-up, or the end of a turn."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as f:
            total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", f.read())))
    return total
