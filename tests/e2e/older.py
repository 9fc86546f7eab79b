"""An older version of the shim, with its agent in a guest image, made from the history of this repository.

    older.build()            # once, before any worker starts; kept in build/cache/e2e
    older.SHIM, older.IMAGE  # what it made
"""

import os
import shutil
import subprocess
import tempfile

import packages

COMMIT = "d8e47a4f"  # of main; those before it refuse keys of the configuration that they do not know
FOLDER = packages.folder(f"older-{COMMIT}")
SHIM = os.path.join(FOLDER, "bin/containerd-shim-lcow-v2")
IMAGE = os.path.join(FOLDER, "image")
TARGETS = ("cmd/gcs/gcs", "cmd/shim/containerd-shim-lcow-v2")


def run(*argv, **how):
    r = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **how)
    if r.returncode != 0:
        raise SystemExit(f"Bail out! the older version {COMMIT}: {' '.join(argv)}: "
                         f"{r.stdout.decode(errors='replace')[-2000:]}")


def is_there():
    """False in a shallow clone, and in a tree that is not a clone."""
    return subprocess.run(["git", "-C", packages.TOP, "cat-file", "-e", COMMIT + "^{commit}"],
                          stderr=subprocess.DEVNULL).returncode == 0


def build():
    """Takes a minute of processor time. Where the commit is missing nothing is made, and the test is skipped."""
    if os.path.exists(FOLDER) or not is_there():
        return
    with tempfile.TemporaryDirectory(prefix="older.", dir=packages.CACHE) as tree:
        run("sh", "-c", f"git -C {packages.TOP} archive {COMMIT} | tar -x -C {tree}")
        run("meson", "setup", "build/gcc", cwd=tree, env={**os.environ, "CC": "gcc"})
        run("ninja", "-C", "build/gcc", *TARGETS, cwd=tree)
        made = os.path.join(tree, "made")
        os.makedirs(os.path.join(made, "bin"))
        for target in TARGETS:
            shutil.copy(os.path.join(tree, "build/gcc", target), os.path.join(made, "bin"))
        run("image/build", "made/image", "made/bin/gcs", cwd=tree,
            env={**os.environ, "LCOW_CACHE": os.path.dirname(packages.CACHE)})
        os.rename(made, FOLDER)
