#!/usr/bin/python3 -B
"""Root file systems of each kind of snapshotter in a VM: how long a container takes to start, how
fast ten thousand small files and a large one are read, and much is written and read back; beside
the raw disk below. Prints one line for each.

    bench/roots.py [RUNS]
"""

import os
import re
import sys
import time

import cells  # first: it knows where the others are
import archives
import packages
import test_layers
from stats import summary

KINDS = test_layers.KINDS
LARGE = 64 << 20
WRITE_MIB = 128
RAW = ("read a x </proc/uptime; dd if=/dev/sda of=/dev/null bs=1M count={} 2>/dev/null; "
       "read b x </proc/uptime; echo $a $b")
IMAGE = "bulk"


def make_image():
    """static, fsprobe, ten thousand small files and one large one, in one layer."""
    if os.path.exists(archives.path(IMAGE)):
        return
    layer = archives._base(archives.STATIC)
    layer.file("bin/fsprobe", archives._compile(os.path.join(packages.HERE, "fsprobe.c")), 0o755)
    for i in range(archives.SMALL_FILES):
        layer.file(f"small/{i // 250:02}/{i % 250:03}", f"file {i}\n" * (1 + i % 97))
    layer.file("large", os.urandom(1 << 20) * (LARGE >> 20))
    archives._write(IMAGE, [layer.bytes()])


def probe(t, container, *args):
    r = t.exec(container, "fsprobe", *args)
    t.equal(r.code, 0, r)
    found = dict(re.findall(r"(\w+)=(\w+)", r.out))
    return int(found["files"]), int(found["bytes"]), int(found["us"])


def cold(t, container):
    t.lcow("exec", "--vm", container, "--", "sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches")


def one(t, kind, name):
    """A VM of its own."""
    began = time.monotonic()
    t.detach(f"--snapshotter={kind}", name, *test_layers.FOREVER)
    found = {"start_ms": (time.monotonic() - began) * 1e3}
    cold(t, name)
    files, _, us = probe(t, name, "tree", "/small")
    found["files_s"] = files / us * 1e6
    cold(t, name)
    _, size, us = probe(t, name, "read", "/large")
    found["read_mb_s"] = size / us
    _, size, us = probe(t, name, "write", "/new", str(WRITE_MIB))
    found["write_mb_s"] = size / us
    cold(t, name)
    _, size, us = probe(t, name, "read", "/new")
    found["read_back_mb_s"] = size / us
    cold(t, name)
    r = t.lcow("exec", "--vm", name, "--", "sh", "-c", RAW.format(WRITE_MIB))
    began, ended = map(float, r.out.split())
    found["raw_disk_mb_s"] = (WRITE_MIB << 20) / max(ended - began, 0.01) / 1e6
    test_layers.end(t, name)
    t.must("containers", "rm", name)
    return found


def measure(t, runs):
    """{kind.figure: summary}; the kinds take turns."""
    values = {}
    for kind in KINDS:
        test_layers.unpack(t, kind, IMAGE)
    for n in range(runs):
        for kind in KINDS:
            for key, value in one(t, kind, f"{kind}{n}").items():
                values.setdefault(f"{kind}_{key}", []).append(value)
    return {key: summary(v) for key, v in values.items()}


measure.images = ()
measure.prepare = test_layers.prepare


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    cells.prepare(["2.1"])
    make_image()
    result = cells.run("lcow", "2.1", measure, runs, template="off", scratch_mib=2048)
    if isinstance(result, str):
        sys.exit(f"bench: error: {result}")
    figures = ("start_ms", "files_s", "read_mb_s", "write_mb_s", "read_back_mb_s",
               "raw_disk_mb_s")
    print("".join(f"{name:>16}" for name in ("", *figures)))
    for kind in KINDS:
        print(f"{kind:>16}" + "".join(f"{result[f'{kind}_{name}']['median']:16.0f}"
                                      for name in figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
