"""The directory that emulated hosts see, read-only, as /share.

    deb, deb-next    the packages, and the same as a later version
    programs         build/bin and build/image (--programs)
    tree             the tests with what they need to run in the host: /root/tree there
"""
import glob
import os
import re
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path += [os.path.join(TOP, "tests/e2e"), os.path.join(TOP, "tests/integration"), os.path.join(TOP, "image")]

import archives  # noqa: E402
import cri  # noqa: E402
import harness  # noqa: E402
import inputs  # noqa: E402
import packages  # noqa: E402

import suite  # noqa: E402


def make(share, opts):
    shutil.rmtree(share, ignore_errors=True)
    os.makedirs(share)
    if opts.programs or opts.suite:
        for name in ("bin", "image"):
            copy(os.path.join(TOP, "build", name), os.path.join(share, "programs", name))
    else:
        add_packages(share)
    with packages.alone():
        packages.fetch(versions={"e2e": sorted(packages.SUITES), "bench": ["2.1"]}.get(opts.suite, ()))
        archives.make()
        cri.compile_proto()
    tree = os.path.join(share, "tree")
    for name in ("tests/e2e", "tests/integration", "tests/host", "tests/fixture", "image"):
        copy(os.path.join(TOP, name), os.path.join(tree, name))
    cache = os.path.join(tree, "build/cache/e2e")
    compile_helpers()
    copy(harness.CACHE, os.path.join(tree, "build/integration"))
    if opts.suite:
        for name in ("bench", "docs", "scripts", "api", "man"):
            copy(os.path.join(TOP, name), os.path.join(tree, name))
        debs = os.path.dirname(inputs.fetch("busybox-static").path)  # guest tests make a root of it
        for path in glob.glob(os.path.join(debs, "busybox-static*")):
            target = os.path.join(tree, "build/cache/debs", os.path.basename(debs))
            os.makedirs(target, exist_ok=True)
            link(path, os.path.join(target, os.path.basename(path)))
    if opts.suite in ("e2e", "bench"):
        copy(packages.CACHE, cache)
    else:
        for path in (cri.FOLDER, archives.FOLDER):
            copy(path, os.path.join(cache, os.path.basename(path)))


def copy(source, target):
    """Links where that is possible: what is copied is never written to."""
    os.makedirs(os.path.dirname(target), exist_ok=True)
    shutil.copytree(source, target, symlinks=True, copy_function=link,
                    ignore=shutil.ignore_patterns("__pycache__"))


def link(source, target):
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        shutil.copy2(source, target, follow_symlinks=False)


def add_packages(share):
    debs = [d for d in glob.glob(os.path.join(TOP, "build/deb/*.deb")) if "-dbgsym_" not in d]
    suite.check(len(debs) == 2, "no packages in build/deb: make deb")
    for name in ("deb", "deb-next"):
        os.mkdir(os.path.join(share, name))
    for deb in debs:
        shutil.copy(deb, os.path.join(share, "deb"))
        make_later(deb, os.path.join(share, "deb-next", os.path.basename(deb)))


def make_later(deb, out):
    """The same files as a later version. (scripts/test-deb upgrades to one that was compiled as such.)"""
    tree = out + ".tree"
    subprocess.run(["dpkg-deb", "-R", deb, tree], check=True)
    path = os.path.join(tree, "DEBIAN/control")
    with open(path) as f:
        version = re.search(r"(?m)^Version: (.*)$", text := f.read()).group(1)
    with open(path, "w") as f:
        f.write(re.sub(rf"(?m)(^Version: |\(= ){re.escape(version)}", rf"\g<0>+next", text))
    subprocess.run(["dpkg-deb", "-Znone", "-b", tree, out], check=True, stdout=sys.stderr)
    shutil.rmtree(tree)


def compile_helpers():
    """What tests compile: the host has no compiler."""
    for path in glob.glob(os.path.join(TOP, "tests/*/*.py")):
        with open(path) as f:
            for call in re.findall(r'compile_c\(((?:"[^"]*"(?:, )?)+)\)', f.read()):
                harness.compile_c(*re.findall(r'"([^"]*)"', call))
