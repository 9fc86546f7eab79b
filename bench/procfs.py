"""What /proc tells of a process."""

import os
import re


def pss_kib(pid):
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as f:
        return int(re.search(r"^Pss:\s+(\d+)", f.read(), re.MULTILINE).group(1))


def switches(pid):
    """Context switches of all its threads so far: each is a wake-up, or the end of a turn."""
    total = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status", encoding="ascii") as f:
            total += sum(map(int, re.findall(r"ctxt_switches:\s+(\d+)", f.read())))
    return total
