"""Programs that open many small files: how long `ctr run --rm` takes for each, from a layer image and
from the share, beside runc's overlay. The image has three layers: busybox, Python and Node of Debian with
their modules, ten thousand small files. "first": there are no layer images yet; "second": they exist.
Alone: bench/run --only files"""

import multiprocessing
import os
import shutil
import subprocess

import cells
import archives
import packages
import roots
import shims
from stats import summary, timed

IMAGE = "programs"
TREE = packages.folder("programs")
SUITE = "bookworm"
DEBS = ("python3.11-minimal", "libpython3.11-minimal", "libpython3.11-stdlib", "libexpat1", "libffi8",
        "nodejs", "libnode108", "node-acorn", "node-busboy", "node-cjs-module-lexer", "node-undici",
        "node-xtend", "node-lodash", "libicu72", "libuv1", "libc-ares2", "libbrotli1", "libnghttp2-14",
        "libssl3", "zlib1g", "libstdc++6", "libgcc-s1", "libc6")
UNUSED = ("usr/share/doc", "usr/share/man", "usr/share/lintian", "usr/share/locale", ".debs")
PYTHON = """import importlib
for name in ("argparse asyncio concurrent.futures csv dataclasses decimal difflib email.mime.multipart "
             "fractions html.parser http.client http.server imaplib inspect json logging.config "
             "logging.handlers mailbox multiprocessing.pool optparse pickletools pydoc smtplib "
             "statistics tarfile tempfile tracemalloc unittest.mock urllib.request uuid venv wsgiref.simple_server "
             "xml.dom.minidom xml.etree.ElementTree xml.sax.expatreader xmlrpc.client zipfile").split():
    importlib.import_module(name)
"""
NODE = """const fs = require('fs');
const dir = '/usr/share/nodejs/lodash/';
let n = 0;
for (const name of fs.readdirSync(dir))
    if (/^\\w+\\.js$/.test(name) && name !== 'fp.js') n += !!require(dir + name);
if (n < 500) throw new Error('only ' + n + ' modules');
"""
# key, what, command
PROGRAMS = (("true", "true", ("true",)),
            ("small", "1,000 of 10,000 files", ("fsprobe", "tree", "/small/0")),
            ("python", "Python, 290 modules", ("python3.11", "/app/many.py")),
            ("node", "Node, 600 modules", ("node", "/app/many.js")))
WHEN = (("first", "first"), ("second", "second"), ("share", "share again"))
ROWS = tuple((f"{key}_{when}_ms", f"{what}: {words}", "ms", True)
             for key, what, _ in PROGRAMS for when, words in WHEN)
ROUNDS, WITHIN_ROUNDS = 20, 3
WAIT = 120  # seconds for layer images
PATIENCE = 120  # seconds for a run


# ---------------------------------------------------------------- the image

def compile_modules():
    """As dpkg does when it installs them. The files' times are not compared, since a layer changes them."""
    lib = os.path.join(TREE, "usr/lib")
    subprocess.run([os.path.join(TREE, "usr/bin/python3.11"), "-I", "-m", "compileall", "-q",
                    "--invalidation-mode", "unchecked-hash", "-s", TREE, os.path.join(lib, "python3.11")],
                   env={"PYTHONHOME": os.path.join(TREE, "usr")}, check=True)


def add_tree(layer, top):
    for where, names, files in os.walk(top):
        at = os.path.relpath(where, top)
        names[:] = [n for n in names if os.path.normpath(os.path.join(at, n)) not in UNUSED]
        for name in sorted(files) + [n for n in names if os.path.islink(os.path.join(where, n))]:
            path, inside = os.path.join(where, name), os.path.normpath(os.path.join(at, name))
            if os.path.islink(path):
                layer.symlink(inside, os.readlink(path))
            else:
                layer.file(inside, archives._read(path), os.stat(path).st_mode & 0o777)


def make_image():
    roots.make_image()
    with open(os.path.realpath(__file__), "rb") as f:
        source = f.read()
    stamp = archives.path(IMAGE) + ".source"
    if os.path.exists(archives.path(IMAGE)) and os.path.exists(stamp) and archives._read(stamp) == source:
        return
    for package in DEBS:
        subprocess.run([os.path.join(packages.TOP, "scripts/fetch-deb"), package, SUITE, TREE],
                       stdout=subprocess.DEVNULL, check=True)
    compile_modules()
    base, programs, small = archives._base(archives.STATIC), archives.Layer(), archives.Layer()
    base.file("bin/fsprobe", archives._read(roots.PROBE), 0o755)
    add_tree(programs, TREE)
    programs.file("app/many.py", PYTHON)
    programs.file("app/many.js", NODE)
    for i, (path, content) in enumerate(roots.small_files()):
        small.file(f"small/{i // 1000}/{path}", content)
    archives._write(IMAGE, [base.bytes(), programs.bytes(), small.bytes()],
                    {"Env": ["PATH=/bin:/usr/bin", "HOME=/root"]})
    with open(stamp, "wb") as f:
        f.write(source)


# ---------------------------------------------------------------- in a cell

def one_round(t, n, command, layers, found):
    """A run of each kind, in turns. Without layers, runc's three are the same."""
    def run(when):
        took = timed(lambda: t.must(*t.run_args("--rm", "--snapshotter=overlayfs", f"{when}{n}", *command),
                                    seconds=PATIENCE))
        found.setdefault(when, []).append(took)

    def built():
        names = os.listdir(layers) if os.path.isdir(layers) else []
        return len(names) == 3 and not any(n.startswith(".") for n in names)
    if layers:
        t.config(layer_images="off")
    run("share")
    if layers:
        shutil.rmtree(layers, ignore_errors=True)
        t.config(layer_images="auto")
    run("first")
    if layers:
        t.until(built, "three layer images", WAIT)
    run("second")


def measure_program(t, key, command, rounds, turn, others):
    local = () if t.version.startswith("1") else ("--local",)
    t.must("images", "import", *local, "--snapshotter=overlayfs", archives.path(IMAGE))
    t.image = archives.name(IMAGE)
    layers = None if t.is_runc else os.path.join(t.work, "layers")
    one_round(t, "w", command, layers, {})  # what only the very first run on a node does
    found, count = {}, iter(range(rounds))
    shims.take_turns(rounds, lambda: one_round(t, next(count), command, layers, found), turn, others)
    return {f"{key}_{when}_ms": summary(times) for when, times in found.items()}


measure_program.images = ()


def measure(run, vm):
    make_image()
    peer, keys = run.as_pods_start(vm)
    rounds = 2 if run.facts["quick"] else WITHIN_ROUNDS if run.within else ROUNDS
    for key, what, command in PROGRAMS:
        run.say(f"files: {what}, by runc and lcow in turns")
        runc, lcow = multiprocessing.Semaphore(1), multiprocessing.Semaphore(0)
        both = {"runc": cells.begin("runc", "2.1", measure_program, key, command, rounds, runc, lcow),
                peer: cells.begin("lcow", "2.1", measure_program, key, command, rounds, lcow, runc,
                                  rootfs="scratch", **keys)}
        for name, begun in both.items():
            run.keep(name, cells.finish(begun))
