"""Where output goes and input comes from: slow and vanishing readers, log programs, terminals."""

import hashlib
import os
import random
import time

from e2e import test
from members import pss_kib, told

# Not a multiple of any page: what is lost, doubled or swapped shows in the sum.
PIECE = (4 << 20) + 4099


def slow_reader(t, pieces, burst, pause):
    """Reads bursts at full speed, with pauses in between in which the shim's memory is looked at.
    (cat of a file instead of yes: an emulated processor makes few bytes of its own.)"""
    data = random.Random(4).randbytes(PIECE)
    path, h = t.write("data", data), hashlib.sha256()
    for _ in range(pieces):
        h.update(data)
    r, w = os.pipe()
    p = t.start_run("--rm", f"--mount=type=bind,src={path},dst=/data,options=bind:ro", "c1", "sh",
                    "-c", f"cat /data >/copy; i=0; while [ $i -lt {pieces} ]; do cat /copy; "
                    "i=$((i+1)); done", stdout=w)
    os.close(w)
    got, pauses, taken, start = hashlib.sha256(), 0, [], time.monotonic()
    size = 0
    try:
        while part := os.read(r, 1 << 20):
            got.update(part)
            size += len(part)
            if size // burst > pauses:
                pauses = size // burst
                time.sleep(pause)
                taken.append(pss_kib(t.shim_pid()))
                if pauses % 8 == 0:
                    told(f"{size >> 20} MiB in {time.monotonic() - start:.0f} s, "
                         f"shim's PSS {taken[-1]} KiB")
    finally:
        os.close(r)
    t.equal(p.wait().code, 0)
    t.equal(size, pieces * PIECE)
    t.equal(got.hexdigest(), h.hexdigest())
    t.note(f"{size >> 20} MiB in {time.monotonic() - start:.0f} s with {len(taken)} pauses of "
           f"{pause} s; shim's PSS: {taken[0]} KiB in the first, {max(taken)} at most")
    t.check(max(taken) <= taken[0] + 128, f"the shim grew from {taken[0]} to {max(taken)} KiB",
            taken)


@test("a reader in bursts: 64 MiB arrive right and the shim keeps none of them", runc=False)
def bursts(t):
    slow_reader(t, 16, 4 << 20, 0.2)


@test("soak: 1 GiB through a slow reader: right to the byte, the shim's memory flat", full=True,
      runc=False, deadline=1200)
def gibibyte(t):
    slow_reader(t, 256, 16 << 20, 0.25)
