"""What the image is made from, fetched by scripts/fetch-deb and image/build-crun."""

import dataclasses
import hashlib
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.realpath(__file__))
TOP = os.path.dirname(HERE)
CACHE = os.environ.get("LCOW_CACHE") or os.path.join(TOP, "build", "cache")
SUITE = "bookworm"

_KERNEL_META = "linux-image-amd64"  # depends on the newest generic kernel of the suite
# Kernels of Debian that a guest must not have, and the newest one before each (docs/limits.md).
_BROKEN_KERNELS = {
    # 6.1.192-1: ext4_mb_load_buddy_gfp() reads through NULL once a block group's buddy page was
    # reclaimed: a process that removes a file after drop_caches or under memory pressure is
    # killed.
    "linux-image-6.1.0-55-amd64": "linux-image-6.1.0-54-amd64",
}


class InputError(Exception):
    """An input of the image is missing or unusable; the message names the remedy."""


@dataclasses.dataclass
class Input:
    name: str
    version: str
    sha256: str
    path: str


def gather(refresh):
    """Kernel package, busybox and crun; from the cache unless damaged, or refresh is set."""
    meta, kernel = kernel_of(SUITE, refresh)
    return {
        "newest": meta,  # listed in the manifest, so that a newer one is noticed
        "kernel": kernel,
        "busybox": fetch("busybox-static", SUITE, refresh),
        "crun": _fetch("image/build-crun", refresh),
    }


def fetch(package, suite=SUITE, refresh=False):
    return _fetch("scripts/fetch-deb", refresh, package, suite)


def kernel_of(suite, refresh=False):
    """A suite's kernel: the package that names the newest, and the kernel's own."""
    meta = fetch(_KERNEL_META, suite, refresh)
    return meta, fetch(_kernel_package(meta), suite, refresh)


def unpack(package, directory):
    subprocess.run(["dpkg-deb", "-x", package.path, directory], check=True)


def is_superseded(name, sha256):
    """Whether the cache holds another version of this input (after a refresh elsewhere)."""
    if name == "crun":
        record = os.path.join(CACHE, "crun", "record")
    else:
        record = os.path.join(CACHE, "debs", SUITE, name + ".sha256")
    try:
        with open(record, encoding="ascii") as text:
            return sha256 not in text.read().split()
    except FileNotFoundError:
        return False


def sha256_of(*parts):
    """One hash over byte strings and texts, each framed by its length."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(b"%d:" % len(data))
        digest.update(data)
    return digest.hexdigest()


def sha256_of_file(path):
    with open(path, "rb") as data:
        return hashlib.file_digest(data, "sha256").hexdigest()


def recipe(*names):
    """One hash over files of this directory and the tools that write into the image."""
    strip = subprocess.run(["strip", "--version"], check=True, capture_output=True, text=True)
    texts = [strip.stdout.splitlines()[0]]
    for name in sorted(names):
        with open(os.path.join(HERE, name), encoding="utf-8") as text:
            texts += [name, text.read()]
    return sha256_of(*texts)


def check_program(path, role):
    """The guest has no C library: what runs there must be a static x86-64 program."""
    try:
        with open(path, "rb") as program:
            data = program.read()
    except OSError as error:
        raise InputError(f"cannot read {role} {path}: {error.strerror}; build it first") from error
    if data[:5] != b"\x7fELF\x02" or data[18:20] != b"\x3e\0":
        raise InputError(f"{role} {path} is not an x86-64 program")
    headers = subprocess.run(["readelf", "-lW", path], check=True, capture_output=True, text=True)
    if re.search(r"^\s+INTERP\s", headers.stdout, re.MULTILINE):
        raise InputError(f"{role} {path} is linked dynamically, but the guest has no C library; "
                         "link it with -static")
    return data


def _fetch(script, refresh, *args):
    """Both scripts print: NAME VERSION SHA256 FILE. Their progress goes to standard error."""
    sys.stdout.flush()
    command = [os.path.join(TOP, script), *(["--refresh"] if refresh else []), *args]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True,
                            env={**os.environ, "LCOW_CACHE": CACHE})
    if result.returncode != 0:
        raise InputError(f"{script} {' '.join(args)} failed; its reason is above")
    return Input(*result.stdout.strip().split(maxsplit=3))


def _kernel_package(meta):
    depends = subprocess.run(["dpkg-deb", "-f", meta.path, "Depends"], check=True,
                             capture_output=True, text=True).stdout
    found = re.search(r"\blinux-image-[0-9][^ ,]*-amd64\b", depends)
    if not found:
        raise InputError(f"{meta.name} {meta.version} names no kernel package: {depends.strip()}")
    return _BROKEN_KERNELS.get(found.group(), found.group())
