"""The same figures by KVM: bench/run inside the host that tests/host emulates, lcow beside runc."""

import argparse
import json
import os
import sys

import cells
import part_files

PARTS = ("shims", "calls", "stats", "inpod", "vms", "clones", "cri", "parallel", "density", "network", "files")
SECONDS = 2 * 3600  # a ceiling for a busy machine


def measure(quick, parts, say):
    """What bench/run wrote in there. parts: those of PARTS, if none are named."""
    sys.path.insert(0, os.path.join(cells.TOP, "tests/host"))  # before image/, which has a test_boot.py too
    import host
    import suite
    import tree
    work = os.path.join(cells.TOP, "build/host-bench")
    opts = argparse.Namespace(programs=True, suite="bench")
    suite.load()
    if "files" in (parts or PARTS):
        part_files.make_image()
    share = os.path.join(work, "share")
    tree.make(share, opts)
    with host.Host("kvm", share, os.path.join(work, "kvm")) as h:
        for case in suite.CASES:
            if case.setup and "kvm" in case.variants:
                case.function(h, opts)
        say("the emulated host is up")
        only = " ".join(f"--only {part}" for part in parts or PARTS)
        h.run(f"cd /root/tree && {suite.ENV} bench/run --within {'--quick' if quick else ''} {only} "
              "--out /root/bench.json", code=None, seconds=SECONDS, show=sys.stderr.buffer.write)
        return json.loads(h.run("cat /root/bench.json"))
