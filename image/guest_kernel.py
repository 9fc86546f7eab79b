"""The guest's kernel and modules, made once per kernel package and kept in the cache.

A directory of the cache holds vmlinux, the modules (one flat directory, see README.md) and a record
of their hashes, to detect damage.
"""

import json
import os
import shutil

import inputs
import kernel
import modules

_SOURCES = ("guest_kernel.py", "kernel.py", "modules.py", "modules.list")
_RECORD = "record.json"


class GuestKernel:
    def __init__(self, directory):
        self._directory = directory
        with open(os.path.join(directory, _RECORD), encoding="ascii") as text:
            record = json.load(text)
        self.release = record["release"]
        self.hashes = record["files"]
        self.vmlinux = os.path.join(directory, "vmlinux")

    def is_intact(self):
        return all(inputs.sha256_of_file(os.path.join(self._directory, name)) == expected
                   for name, expected in self.hashes.items())

    def module_files(self):
        """(name, data) of all that belongs in /lib/modules/RELEASE."""
        for name in sorted(self.hashes):
            if name.startswith("modules/"):
                with open(os.path.join(self._directory, name), "rb") as data:
                    yield os.path.basename(name), data.read()


def prepare(package, progress):
    """The GuestKernel of a kernel package; from the cache if it is there and intact. The caller
    holds the cache's lock."""
    key = inputs.sha256_of(package.sha256, inputs.recipe(*_SOURCES))[:16]
    directory = os.path.join(inputs.CACHE, "kernel", f"{package.version}-{key}")
    try:
        found = GuestKernel(directory)
        if found.is_intact():
            return found
        progress.note(f"{directory} is damaged: building it again")
    except FileNotFoundError:
        pass
    # A fixed name: what an interrupted build left is removed.
    work = os.path.join(inputs.CACHE, "kernel.work")
    shutil.rmtree(work, ignore_errors=True)
    new = os.path.join(work, "new")
    os.makedirs(work)
    _make(package, os.path.join(work, "package"), new, progress)
    shutil.rmtree(directory, ignore_errors=True)
    os.makedirs(os.path.dirname(directory), exist_ok=True)
    os.rename(new, directory)
    shutil.rmtree(work)
    return GuestKernel(directory)


def _make(package, tree, new, progress):
    with progress.step(f"{package.name} unpacked"):
        inputs.unpack(package, tree)
    release, = os.listdir(os.path.join(tree, "lib", "modules"))
    os.makedirs(os.path.join(new, "modules"))

    with progress.step("vmlinux extracted and trimmed"):
        with open(os.path.join(tree, "boot", "vmlinuz-" + release), "rb") as bzimage:
            vmlinux = kernel.trim(kernel.extract(bzimage.read()))
        with open(os.path.join(new, "vmlinux"), "wb") as out:
            out.write(vmlinux)

    with progress.step("modules picked and stripped"):
        roots = modules.read_list(os.path.join(inputs.HERE, "modules.list"))
        modules.make_directory(modules.Tree(tree, release), roots, os.path.join(new, "modules"))

    files = ["vmlinux", *("modules/" + name for name in os.listdir(os.path.join(new, "modules")))]
    record = {"release": release, "files": {
        name: inputs.sha256_of_file(os.path.join(new, name)) for name in sorted(files)}}
    with open(os.path.join(new, _RECORD), "w", encoding="ascii") as out:
        json.dump(record, out, indent=1)
