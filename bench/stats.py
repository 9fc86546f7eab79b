"""Figures with their spread. Everything that is measured ends as such a dictionary."""

import statistics
import time


def at(values, share):
    """The value below which this fraction of the values lies."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def summary(values):
    values = list(values)
    return {"n": len(values), "median": statistics.median(values), "p10": at(values, 0.1),
            "p90": at(values, 0.9), "p99": at(values, 0.99), "min": min(values),
            "max": max(values)}


def ratio(ours, theirs):
    """(middle, low, high): low and high are the extremes that p10 and p90 of both allow."""
    if not ours or not theirs or min(theirs["median"], theirs["p10"], theirs["p90"]) <= 0:
        return None
    return (ours["median"] / theirs["median"], ours["p10"] / theirs["p90"],
            ours["p90"] / theirs["p10"])


def timed(call):
    """Milliseconds that call() takes."""
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1000


def busy_ms():
    """CPU time of the whole machine so far. On a quiet machine, its growth is the cost of the measured
    work, in whichever process."""
    with open("/proc/stat", encoding="ascii") as f:
        user, nice, system, _, _, irq, softirq = map(int, f.readline().split()[1:8])
    return (user + nice + system + irq + softirq) * 10


def busy_cpus(seconds):
    """CPUs in use on average during that time: before and after a measurement, those of others."""
    before = busy_ms()
    time.sleep(seconds)
    return (busy_ms() - before) / seconds / 1000


def timed_both(call):
    """(wall, CPU) in milliseconds."""
    before = busy_ms()
    wall = timed(call)
    return wall, busy_ms() - before
