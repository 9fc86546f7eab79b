"""Guest images that are not as they should be: copies of build/image with one thing changed."""

import hashlib
import io
import json
import os
import shutil
import sys

from harness import IMAGE, TOP, compile_c

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.join(TOP, "image"))
from cpio import Archive  # noqa: E402

KERNEL, INITRD, MANIFEST = "vmlinux", "initrd.cpio", "manifest.json"


def _manifest():
    with open(os.path.join(IMAGE, MANIFEST)) as f:
        return json.load(f)


def release():
    return _manifest()["kernel_release"]


def read(name):
    with open(os.path.join(IMAGE, name), "rb") as f:
        return f.read()


def make(t, name, honest=True, **contents):
    """A directory with the image's files; `contents` replaces some (kernel=…, initrd=…; None: it is
    missing). honest: the manifest says what is there, so that nobody notices before the guest."""
    directory = os.path.join(t.work, name)
    shutil.rmtree(directory, ignore_errors=True)
    os.mkdir(directory)
    manifest = _manifest()
    for key, file in (("kernel", KERNEL), ("initrd", INITRD)):
        path = os.path.join(directory, file)
        if key not in contents:
            os.symlink(os.path.join(IMAGE, file), path)
        elif contents[key] is not None:
            with open(path, "wb") as f:
                f.write(contents[key])
            if honest:
                manifest["files"][file] = {"size": len(contents[key]), "sha256": hashlib.sha256(
                    contents[key]).hexdigest()}
    with open(os.path.join(directory, MANIFEST), "w") as f:
        json.dump(manifest, f)
    t.config(image_dir=directory)
    return directory


def initrd_with(files={}, symlinks={}):
    """The image's initramfs with some paths replaced. The kernel unpacks archives one behind the
    other, and the last word counts."""
    extra, directories = Archive(), set()
    for path in [*files, *symlinks]:
        parts = path.split("/")[:-1]
        for i in range(1, len(parts) + 1):
            directory = "/".join(parts[:i])
            if directory not in directories:
                directories.add(directory)
                extra.directory(directory)
    for path, (data, mode) in files.items():
        extra.file(path, data, mode)
    for path, target in symlinks.items():
        extra.symlink(path, target)
    out = io.BytesIO()
    extra.write(out)
    return read(INITRD) + out.getvalue()


def module_path(name):
    return f"lib/modules/{release()}/{name}.ko"


def evil(t, deed):
    """An image whose /init does something bad (evil_guest.c)."""
    with open(compile_c("../fixture/evil_guest.c"), "rb") as f:
        program = f.read()
    make(t, deed, initrd=initrd_with({"init": (program, 0o755), "evil": (deed.encode(), 0o644)}))
