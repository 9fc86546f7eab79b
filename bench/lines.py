#!/usr/bin/env -S python3 -B
"""How much code lcow is: lines that are neither blank nor only comment, by room. Also alone:

    bench/lines.py
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# what, which files of git's list, in this order; a file counts where it is found first
ROOMS = (
    ("unit tests, beside what they test", r"^(src|cmd)/.*_test\.[ch]$"),
    ("base: fibers, loop, streams, JSON, errors", r"^src/base/.*\.[ch]$"),
    ("protocols and OCI (`proto`, `oci`)", r"^src/(proto|oci)/.*\.[ch]$"),
    ("the shim (`host`)", r"^src/host/.*\.[ch]$"),
    ("the agent (`guest`)", r"^src/guest/.*\.[ch]$"),
    ("the tool, and the three programs' main", r"^(src/tool|cmd)/.*\.[ch]$"),
    ("fixtures, simulation, integration, end to end, fuzzing", r"^tests/.*\.(c|h|py)$"),
)
OURS = slice(1, 6)  # the rooms that are installed
# A quoted text is not a comment, even with a path like "/sys/*" in it.
QUOTED_OR_COMMENT = re.compile(r'''("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')|/\*[\s\S]*?\*/|//.*''')


def code_lines(text, python):
    if python:
        text = re.sub(r'"""[\s\S]*?"""', "", text)
        return sum(1 for line in text.splitlines() if line.split("#")[0].strip())
    text = QUOTED_OR_COMMENT.sub(lambda m: m.group(1) or "", text)
    return sum(1 for line in text.splitlines() if line.strip())


def count():
    """[(what, files, lines)] in the order of ROOMS; [] outside a checkout."""
    done = subprocess.run(["git", "ls-files"], cwd=TOP, capture_output=True, text=True,
                          check=False)
    found = [[what, 0, 0] for what, _ in ROOMS]
    for path in done.stdout.split("\n"):
        for row, (_, pattern) in zip(found, ROOMS):
            if re.match(pattern, path) and os.path.isfile(os.path.join(TOP, path)):
                with open(os.path.join(TOP, path), encoding="utf-8", errors="replace") as f:
                    row[1:] = row[1] + 1, row[2] + code_lines(f.read(), path.endswith(".py"))
                break
    return [tuple(row) for row in found] if done.returncode == 0 else []


def main():
    for what, files, lines in count():
        print(f"{lines:8}  {files:4}  {what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
