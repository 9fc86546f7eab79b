"""Bad input: command lines, configuration, image files, a full disk. Each ends with 125 or 2, says
what is wrong and what to do, in time, and leaves nothing."""

import os
import time

import cell
import images
from harness import flat, test

KERNEL_MAGIC = b"\x7fELF"


def usage(t, *args, shows=()):
    """A wrong command line: 2 at once, a message that names it and the way to the help."""
    r = t.lcow(*args, seconds=5)
    t.equal((r.code, r.out), (2, ""), r)
    for pattern in (*shows, "--help"):
        t.words(pattern, flat(r.err), r)


@test("unknown flags and commands are refused, with the nearest one that exists")
def unknown(t):
    usage(t, "boot", "--alow-emulation", shows=["--alow-emulation", "--allow-emulation"])
    usage(t, "boot", "--no-such-flag", "--", "true", shows=["--no-such-flag"])
    usage(t, "bot", shows=["bot", "boot"])
    usage(t, "frobnicate", shows=["frobnicate"])
    usage(t, "gc", "--dryrun", shows=["--dry-run"])
    usage(t, "doctor", "more", shows=["more"])
    usage(t, shows=["boot"])
    usage(t, "--no-such-flag", shows=["--no-such-flag"])


@test("a command without -- is refused and the right way is shown")
def without_dashes(t):
    usage(t, "boot", "uname", "-a", shows=["uname", "--"])


@test("numbers beyond their limits, or none at all, are refused with the limits")
def numbers(t):
    usage(t, "boot", "--memory", "1", shows=["memory", "128"])
    usage(t, "boot", "--memory", "abc", shows=["memory", "abc"])
    usage(t, "boot", "--memory", "", shows=["memory"])
    usage(t, "boot", "--memory", "-5", shows=["memory"])
    usage(t, "boot", "--memory", "99999999999999999999", shows=["memory"])
    usage(t, "boot", "--memory", shows=["memory"])
    usage(t, "boot", "--cpus", "0", shows=["cpus"])
    usage(t, "boot", "--cpus", "1000", shows=["cpus", "64"])
    usage(t, "boot", "--repeat", "0", shows=["repeat"])


@test("more memory than the machine has is an error that says so, if it does not work")
def too_much_memory(t):
    r = t.boot("true", opts=("--memory", "1048576"), seconds=60)
    t.check(r.code in (0, 125), "neither refused nor run", r)  # memory is only reserved
    if r.code == 125:
        t.words("memory", flat(r.err), r)


@test("--keep with --repeat is refused")
def exclusive(t):
    r = t.lcow("boot", "--keep", "--repeat", "2", seconds=5)
    t.equal(r.code, 2, r)
    t.words("--keep.*--repeat", flat(r.err), r)


@test("help and version go to stdout with exit code 0")
def helps(t):
    for args in (("--help",), ("help",), ("boot", "--help"), ("doctor", "--help"),
                 ("gc", "--help")):
        r = t.lcow(*args, seconds=5)
        t.equal((r.code, r.err), (0, ""), r)
        t.match("usage: lcow", r.out, r)
        t.check(all(len(line) <= 80 for line in r.out.splitlines()), "lines beyond 80 columns", r)
    r = t.lcow("--version", seconds=5)
    t.match(r"^lcow \d+\.\d+", r.out, r)
    t.equal(r.code, 0, r)


# ---------------------------------------------------------------- configuration

def wrong_config(t, text, *shows):
    path = t.write("lcow.conf", text)
    r = t.boot("true", seconds=5)
    t.equal((r.code, r.out), (2, ""), r)
    for pattern in (os.path.basename(path), *shows):
        t.words(pattern, flat(r.err), r)


@test("an unknown key is refused with file, line and the nearest match")
def unknown_key(t):
    wrong_config(t, "[vm]\n\nmemory_mb = 256\n", r"lcow\.conf:3", "memory_mb", "memory_mib")
    wrong_config(t, "[vm]\nrun_root = /run/x\n", r"lcow\.conf:2", r"\[host\]")
    wrong_config(t, "[mv]\nmemory_mib = 256\n", r"lcow\.conf:", r"\[mv\]|\[vm\]")


@test("a value that is not allowed is refused with file, line and what is")
def wrong_value(t):
    wrong_config(t, "[vm]\nmemory_mib = lots\n", r"lcow\.conf:2", "lots", "128")
    wrong_config(t, "[vm]\nmemory_mib = 1\n", r"lcow\.conf:2", "128")
    wrong_config(t, "[vm]\nallow_emulation = perhaps\n", r"lcow\.conf:2", "true or false")
    wrong_config(t, "[host]\nrun_root = relative/path\n", r"lcow\.conf:2", "absolute")
    wrong_config(t, "[host]\nlog_level = loud\n", r"lcow\.conf:2", "debug")


@test("a configuration that is not text is refused with its position")
def garbage_config(t):
    wrong_config(t, b"\x00\x01\x02\xff" * 100, r"lcow\.conf:1")
    wrong_config(t, "what is this\n", r"lcow\.conf:1")
    wrong_config(t, "[vm]\n" + "x" * 5000 + "\n", r"lcow\.conf:2")


@test("a named configuration must exist and must not be a directory")
def missing_config(t):
    r = t.lcow("boot", "--config", "/no/such/file", "--", "true", seconds=5)
    t.equal(r.code, 2, r)
    t.match("/no/such/file", r.err, r)
    r = t.lcow("boot", "--config", t.work, "--", "true", seconds=5)
    t.equal(r.code, 2, r)


# ---------------------------------------------------------------- the image

@test("no image: refused at once, with the way to build one")
def no_image(t):
    t.config(image_dir=os.path.join(t.work, "nothing"))
    t.boot_fails("nothing", "make image", "image_dir", seconds=5)


@test("a manifest that is garbage, empty or cut off is refused by name")
def bad_manifest(t):
    directory = images.make(t, "image")
    path = os.path.join(directory, "manifest.json")
    with open(path, "rb") as f:
        text = f.read()
    for content in (b"", b"{", text[:len(text) // 2], b"\xff" * 1000, b"[]", b"{}", b"[" * 100000,
                    b'{"kernel_release": 7, "files": []}'):
        with open(path, "wb") as f:
            f.write(content)
        t.boot_fails("manifest", "make image", seconds=5)


@test("a kernel or initrd that is missing is refused by name")
def missing_file(t):
    images.make(t, "no-kernel", kernel=None)
    t.boot_fails("vmlinux", "make image", seconds=5)
    images.make(t, "no-initrd", initrd=None)
    t.boot_fails(r"initrd\.cpio", "make image", seconds=5)


@test("a kernel or initrd of another size than the manifest says is refused by name")
def wrong_size(t):
    images.make(t, "empty-kernel", honest=False, kernel=b"")
    t.boot_fails("vmlinux", "0 bytes", "make image", seconds=5)
    images.make(t, "cut-initrd", honest=False, initrd=images.read(images.INITRD)[:-4096])
    t.boot_fails(r"initrd\.cpio", "bytes", "make image", seconds=5)


@test("a directory in the kernel's place is refused by name")
def directory_kernel(t):
    directory = images.make(t, "image")
    os.unlink(os.path.join(directory, "vmlinux"))
    os.mkdir(os.path.join(directory, "vmlinux"))
    t.boot_fails("vmlinux", seconds=5)


@test("a kernel that is empty, no program, or cut off: an error with stage and remedy")
def broken_kernel(t):
    kernel = images.read(images.KERNEL)
    t.equal(kernel[:4], KERNEL_MAGIC)
    for name, content in (("empty", b""), ("text", b"no kernel\n" * 1000),
                          ("cut", kernel[:len(kernel) // 2]), ("header", kernel[:64])):
        images.make(t, name, kernel=content)
        t.config(boot_timeout_s=5)
        t.boot_fails("error", "try: |make image", seconds=15)


@test("a kernel with flipped bits that the manifest does not know: the damage is named")
def flipped_kernel(t):
    kernel = bytearray(images.read(images.KERNEL))
    middle = len(kernel) // 3
    kernel[middle:middle + 4000000] = bytes(4000000)
    images.make(t, "flipped", honest=False, kernel=bytes(kernel))
    t.config(boot_timeout_s=5)
    t.boot_fails("vmlinux", "manifest", "make image", seconds=15)


@test("an initrd that is empty or no archive is refused by name, with a remedy")
def broken_initrd(t):
    for name, content in (("empty", b""), ("garbage", os.urandom(100000)),
                          ("text", b"no archive\n" * 1000)):
        images.make(t, name, initrd=content)
        t.boot_fails(r"initrd\.cpio", "make image", seconds=10)


@test("an initrd that is cut off: an error with stage, remedy and the kernel's last words")
def cut_initrd(t):
    initrd = images.read(images.INITRD)
    for part in (3, 2):
        images.make(t, f"cut-{part}", initrd=initrd[:len(initrd) // part])
        r = t.boot_fails("error", "try: |make image")
        if "error at" in flat(r.err):  # the VM had started
            t.match("console", r.err, r)


@test("a damaged initrd that the manifest does not know: the damage is named")
def flipped_initrd(t):
    initrd = bytearray(images.read(images.INITRD))
    initrd[4 << 20:8 << 20] = os.urandom(4 << 20)
    images.make(t, "flipped", honest=False, initrd=bytes(initrd))
    t.config(boot_timeout_s=30)
    t.boot_fails(r"initrd\.cpio", "manifest", "make image")


@test("a corrupt network module: the agent says which, the boot fails at stage init")
def corrupt_module(t):
    path = images.module_path("virtio_net")
    images.make(t, "corrupt", initrd=images.initrd_with({path: (os.urandom(20000), 0o644)}))
    t.boot_fails("stage 'init'", "virtio_net")


@test("an empty network module: the agent says which, the boot fails at stage init")
def empty_module(t):
    path = images.module_path("virtio_net")
    images.make(t, "empty", initrd=images.initrd_with({path: (b"", 0o644)}))
    t.boot_fails("stage 'init'", "virtio_net")


@test("a missing network module: the agent says which, the boot fails at stage init")
def missing_module(t):
    path = images.module_path("virtio_net")
    images.make(t, "missing", initrd=images.initrd_with(symlinks={path: "/nowhere"}))
    t.boot_fails("stage 'init'", "virtio_net")


# ---------------------------------------------------------------- disk

def tiny_run_root(t, size):
    """run_root on a file system of that many bytes."""
    root = os.path.join(t.work, "tiny")
    os.mkdir(root)
    cell.mount("tiny", root, "tmpfs", 0, f"size={size},nr_inodes=64,mode=0755")
    t.at_end(cell.umount, root)
    t.config(run_root=root)
    return root


def fill(root, name="filler"):
    fd = os.open(os.path.join(root, name), os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(fd, b"x" * 4096)
    except OSError:
        os.close(fd)


@test("a full disk under run_root: refused with the reason, nothing is left there")
def full_disk(t):
    root = tiny_run_root(t, 256 << 10)
    fill(root)
    r = t.boot_fails("no space|full|exhausted", seconds=10)
    t.match(root.rsplit("/", 1)[-1], flat(r.err).replace(" ", ""), r)
    left = [n for n in os.listdir(root) if n not in ("filler", "uids", "accel", "tsc", "boot")]
    t.equal(left, [])
    t.equal(os.listdir(os.path.join(root, "boot")) if os.path.exists(os.path.join(root, "boot"))
            else [], [])


@test("no inode left under run_root: refused with the reason")
def no_inodes(t):
    root = tiny_run_root(t, 1 << 20)
    for i in range(100):
        try:
            os.mkdir(os.path.join(root, f"d{i}"))
        except OSError:
            break
    t.boot_fails("no space|full|exhausted", seconds=10)


@test("run_root on a read-only file system, a file, or not absolute: refused by name")
def bad_run_root(t):
    path = t.write("file", "")
    t.config(run_root=os.path.join(path, "below"))
    t.boot_fails("file", seconds=10)
    root = os.path.join(t.work, "ro")
    os.mkdir(root)
    cell.mount("ro", root, "tmpfs", 1)
    t.at_end(cell.umount, root)
    t.config(run_root=os.path.join(root, "x"))
    t.boot_fails("read-only", seconds=10)


@test("few file descriptors: an error, not a hang")
def few_fds(t):
    for limit in (8, 12, 16, 20, 24, 28, 32):
        start = time.monotonic()
        r = t.boot("true", wrap=("prlimit", f"--nofile={limit}:{limit}"), seconds=30)
        t.check(r.code in (0, 125), f"with {limit} descriptors", r)
        if r.code == 125:
            t.match("error: ", r.err, r)
        t.check(time.monotonic() - start < 20, f"with {limit} descriptors it took long", r)
