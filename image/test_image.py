#!/usr/bin/python3 -B
"""Tests of the image build: same input, same bytes; a correct manifest; damage is detected.

Needs a filled cache to be quick: build an image first. TAP on standard output.
"""

import filecmp
import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile

import cpio
import guest_kernel
import inputs
import kernel
from tap import Tap


def build(image, gcs, **options):
    return subprocess.run([os.path.join(inputs.HERE, "build"), image, gcs], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def same_file(first, second, name):
    return filecmp.cmp(os.path.join(first, name), os.path.join(second, name), shallow=False)


def compile_program(path, source, *flags):
    subprocess.run(["gcc", "-x", "c", "-o", path, *flags, "-"], input=source, text=True, check=True)


def read_cpio(path):
    """An independent reader: path -> (mode, owner, group, time, data)."""
    with open(path, "rb") as archive:
        data = archive.read()
    entries, at = {}, 0
    while True:
        assert data[at:at + 6] == b"070701", f"no header at {at}"
        field = [int(data[at + 6 + 8 * i:at + 14 + 8 * i], 16) for i in range(13)]
        name = data[at + 110:at + 110 + field[11] - 1].decode()
        start = at + 110 + field[11] + 3 & ~3
        if name == "TRAILER!!!":
            return entries
        entries["/" + name] = (field[1], field[2], field[3], field[5], data[start:start + field[6]])
        at = start + field[6] + 3 & ~3


def test_build(tap, work):
    gcs, first, second = (os.path.join(work, name) for name in ("gcs", "first", "second"))
    compile_program(gcs, "int main(void) { return 0; }", "-static")

    made = build(first, gcs)
    tap.require(made.returncode == 0, "an image is built", made.stdout)
    made = build(second, gcs, umask=0o077,
                 env={**os.environ, "LC_ALL": "C.UTF-8", "TZ": "Asia/Tokyo", "HOME": "/"})
    tap.check(all(same_file(first, second, name)
                  for name in ("vmlinux", "initrd.cpio", "manifest.json")),
              "the same input gives the same bytes, whatever umask, locale and directory")

    before = os.stat(os.path.join(first, "initrd.cpio"))
    made = build(first, gcs)
    after = os.stat(os.path.join(first, "initrd.cpio"))
    tap.check(made.stdout == "image: image is up to date\n" and before.st_ino == after.st_ino,
              "a second build does nothing and reports it", made.stdout)

    with open(os.path.join(second, "initrd.cpio"), "r+b") as initrd:
        initrd.seek(5000)
        initrd.write(b"damage")
    build(second, gcs)
    tap.check(same_file(first, second, "initrd.cpio"), "a damaged image is made again")

    with open(gcs, "ab") as program:
        program.write(b"\0")
    made = build(second, gcs)
    tap.check(made.returncode == 0 and same_file(first, second, "vmlinux")
              and not same_file(first, second, "initrd.cpio"),
              "another agent gives another initramfs and the same kernel", made.stdout)
    return first


def test_contents(tap, image):
    with open(os.path.join(image, "manifest.json"), encoding="utf-8") as text:
        manifest = json.load(text)
    tap.check(manifest["schema"] == 1 and all(
        file == {"sha256": inputs.sha256_of_file(os.path.join(image, name)),
                 "size": os.path.getsize(os.path.join(image, name))}
        for name, file in manifest["files"].items()), "the manifest matches the files")

    entries = read_cpio(os.path.join(image, "initrd.cpio"))
    listed = {entry["path"]: entry["size"] for entry in manifest["contents"]}
    tap.check(listed == {path: len(entry[4]) for path, entry in entries.items()},
              "the manifest lists what is in the initramfs, with sizes")
    tap.check(all(entry[1:4] == (0, 0, 0) for entry in entries.values()),
              "all is owned by root and dated to the epoch")
    tap.check(entries["/init"][4] == b"bin/gcs" and stat.S_ISCHR(entries["/dev/console"][0])
              and hashlib.sha256(entries["/bin/gcs"][4]).hexdigest()
              == manifest["inputs"]["gcs"]["sha256"], "/init is the agent, /dev/console is there")

    directory = f"/lib/modules/{manifest['kernel_release']}/"
    order = dict(line.split(": ") for line in entries[directory + "order"][4].decode().splitlines())
    lines = {name: steps.split() for name, steps in order.items()}
    tap.check(lines["virtio_pci"][-1] == "virtio_pci" and "virtio_net" in lines
              and lines["ext4"][0] == "crc32c_generic", "the order file knows the modules of boot")
    tap.check(all(directory + step + ".ko" in entries
                  for steps in lines.values() for step in steps),
              "each module of the order file is in the image")
    tap.check(all(set(lines[step]) <= set(steps[:place + 1])
                  for steps in lines.values() for place, step in enumerate(steps)),
              "each module comes after what it needs itself")


def test_refusals(tap, work):
    image = os.path.join(work, "refused")
    dynamic, script = os.path.join(work, "dynamic"), os.path.join(work, "script")
    compile_program(dynamic, "int main(void) { return 0; }")
    with open(script, "w", encoding="ascii") as text:
        text.write("#!/bin/sh\n")
    for gcs, reason in ((dynamic, "link it with -static"), (script, "not an x86-64 program"),
                        (os.path.join(work, "nothing"), "build it first")):
        made = build(image, gcs)
        tap.check(made.returncode == 1 and reason in made.stdout and not os.path.exists(image),
                  f"refused, and nothing left: {os.path.basename(gcs)}", made.stdout)

    archive = cpio.Archive()
    try:
        archive.file("no/such/directory", b"")
        tap.check(False, "a file without its directory is refused")
    except ValueError:
        tap.check(True, "a file without its directory is refused")


def test_kernel(tap, work, image):
    with open(os.path.join(image, "vmlinux"), "rb") as file:
        vmlinux = file.read()
    tap.check(kernel.trim(vmlinux) == vmlinux, "trimming a trimmed kernel changes nothing")

    header = bytearray(0x260)
    header[0x202:0x208] = b"HdrS\x0f\x02"
    for name, data in (("not a kernel", b"\0" * 4096), ("empty", b""),
                       ("payload missing", bytes(header[:0x248]) + b"\0\0\0\0\xff\xff\0\0" * 4)):
        try:
            kernel.extract(data)
            tap.check(False, f"a bad kernel is refused: {name}")
        except kernel.KernelError:
            tap.check(True, f"a bad kernel is refused: {name}")

    kept = os.path.join(inputs.CACHE, "kernel")
    newest = max((os.path.join(kept, name) for name in os.listdir(kept)), key=os.path.getmtime)
    copy = os.path.join(work, "kernel")
    shutil.copytree(newest, copy)
    intact = guest_kernel.GuestKernel(copy).is_intact()
    with open(os.path.join(copy, "modules", "ext4.ko"), "ab") as module:
        module.write(b"damage")
    tap.check(intact and not guest_kernel.GuestKernel(copy).is_intact(),
              "a damaged module in the cache is noticed")


def test_documentation(tap):
    listed = subprocess.run([os.path.join(inputs.TOP, "scripts", "deps"), "--list"], text=True,
                            check=True, stdout=subprocess.PIPE).stdout
    packages = {line.split("|")[0].split(">=")[0].strip() for line in listed.splitlines()}
    with open(os.path.join(inputs.TOP, "docs/dependencies.md"), encoding="utf-8") as text:
        page = text.read()
    missing = sorted(name for name in packages if f"`{name}`" not in page)
    tap.check(not missing, "docs/dependencies.md names every package of scripts/deps",
              " ".join(missing))


def main():
    tap = Tap()
    with tempfile.TemporaryDirectory(prefix="lcow-image-") as work:
        image = test_build(tap, work)
        test_contents(tap, image)
        test_refusals(tap, work)
        test_kernel(tap, work, image)
    test_documentation(tap)
    return tap.finish()


if __name__ == "__main__":
    sys.exit(main())
