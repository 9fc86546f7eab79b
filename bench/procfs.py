"""Reads a process's figures from /proc."""

import os
import re
import time


def rollup_kib(pid):
    """{name: KiB} of all its mappings together: Pss, Pss_Anon, Pss_File, …"""
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return {name: int(kib) for name, kib in re.findall(r"^(\w+):\s+(\d+) kB", f.read(),
                                                           re.MULTILINE)}


def pss_kib(pid):
    return rollup_kib(pid)["Pss"]


def qemu_kib(pid):
    """What a QEMU's memory is made of: pages of the guest's memory that are its own, its share of
    those that are the template's, and code that emulation has translated (what can be both written
    and run)."""
    found, where = {"own": 0, "template": 0, "code": 0}, None
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as f:
        for line in f:
            begin = re.match(r"[0-9a-f]+-[0-9a-f]+ (\S{4}) ", line)
            if begin:
                name = line.rstrip().removesuffix(" (deleted)")
                where = ("ram" if name.endswith("/boot/ram") else
                         "code" if begin.group(1).startswith("rwx") else None)
            elif where and line.startswith("Pss:"):
                found["template" if where == "ram" else "code"] += int(line.split()[1])
            elif where == "ram" and line.startswith("Anonymous:"):
                found["own"] += int(line.split()[1])
                found["template"] -= int(line.split()[1])
    return found


def cpu_s(pid):
    """CPU time of all its threads so far, by its clock: /proc counts in steps of 10 ms."""
    return time.clock_gettime(~pid << 3 | 2)


def switches(pid):
    """Context switches of all its threads so far: each is a wake-up or a preemption."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as f:
            total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", f.read())))
    return total
