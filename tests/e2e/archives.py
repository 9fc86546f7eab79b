"""OCI image archives made by hand: the same input gives the same bytes, no registry is needed.

    archives.make()              # all of them, in build/cache/e2e/images; before any worker starts
    archives.path("busybox")     # for ctr images import
    archives.name("busybox")     # for ctr run
"""

import hashlib
import io
import json
import os
import stat
import subprocess
import tarfile

import packages

FOLDER = packages.folder("images")
BUSYBOX = os.path.join(packages.folder("busybox"), "bin/busybox")
STATIC = os.path.join(packages.folder("busybox-static"), "bin/busybox")
LIBC = packages.folder("libc6")
MANY_LAYERS = 130
SMALL_FILES = 2_000  # a share that is written reads about 100 a second on a busy machine

PASSWD = """root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
worker:x:1000:1000:worker:/home/worker:/bin/sh
lonely:x:1001:4711::/:/bin/sh
"""
GROUP = """root:x:0:
daemon:x:1:
tty:x:5:
audio:x:29:worker
worker:x:1000:
backup:x:34:worker,root
"""


def name(image):
    return f"localhost/lcow/{image}:1"


def path(image):
    return os.path.join(FOLDER, image + ".tar")


# ---------------------------------------------------------------- layers

class Layer:
    """A tar, entry by entry. Directories appear as they are needed."""

    def __init__(self):
        self._bytes, self._seen = io.BytesIO(), set()
        self._tar = tarfile.open(fileobj=self._bytes, mode="w", format=tarfile.PAX_FORMAT)

    def _add(self, where, kind, mode, data=b"", link="", owner=(0, 0), xattrs=None):
        parent = os.path.dirname(where)
        if parent:
            self.directory(parent)
        info = tarfile.TarInfo(where)
        info.type, info.mode, info.size, info.linkname = kind, mode, len(data), link
        info.uid, info.gid = owner
        info.pax_headers = {f"SCHILY.xattr.{k}": v for k, v in (xattrs or {}).items()}
        self._tar.addfile(info, io.BytesIO(data))
        self._seen.add(where)

    def directory(self, where, mode=0o755, owner=(0, 0)):
        if where not in self._seen:
            self._add(where, tarfile.DIRTYPE, mode, owner=owner)

    def file(self, where, data, mode=0o644, owner=(0, 0), xattrs=None):
        self._add(where, tarfile.REGTYPE, mode, data.encode() if isinstance(data, str) else data,
                  owner=owner, xattrs=xattrs)

    def hard_link(self, where, to):
        self._add(where, tarfile.LNKTYPE, 0o755, link=to)

    def symlink(self, where, to):
        self._add(where, tarfile.SYMTYPE, 0o777, link=to)

    def bytes(self):
        self._tar.close()
        return self._bytes.getvalue()


def _read(where):
    with open(where, "rb") as f:
        return f.read()


def _base(binary):
    """busybox with hard-linked applets, users and groups."""
    layer = Layer()
    for where, mode in (("tmp", 0o1777), ("root", 0o700), ("proc", 0o555), ("sys", 0o555),
                        ("dev", 0o755), ("run", 0o755), ("var", 0o755), ("etc", 0o755)):
        layer.directory(where, mode)
    layer.directory("home/worker", 0o700, owner=(1000, 1000))
    layer.symlink("var/run", "/run")
    layer.file("etc/passwd", PASSWD)
    layer.file("etc/group", GROUP)
    layer.file("bin/busybox", _read(binary), 0o755)
    out = subprocess.run([binary, "--list"], capture_output=True, text=True, check=True).stdout
    for applet in sorted(set(out.split()) - {"busybox"}):
        layer.hard_link("bin/" + applet, "bin/busybox")
    return layer


def _add_libc(layer):
    """What Debian's dynamic busybox needs."""
    source = os.path.join(LIBC, "lib/x86_64-linux-gnu")
    for lib in ("ld-linux-x86-64.so.2", "libc.so.6", "libresolv.so.2"):
        layer.file("lib/x86_64-linux-gnu/" + lib, _read(os.path.join(source, lib)), 0o755)
    layer.symlink("lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")


# ---------------------------------------------------------------- archives

def _write(image, layers, config=None):
    """layers: a list of tar bytes, lowest first."""
    blobs = {}

    def blob(data, kind):
        data = data if isinstance(data, bytes) else json.dumps(data, sort_keys=True).encode()
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": "sha256:" + digest, "size": len(data)}

    kind = "application/vnd.oci.image."
    described = [blob(data, kind + "layer.v1.tar") for data in layers]
    document = {"architecture": "amd64", "os": "linux", "created": "1970-01-01T00:00:00Z",
                "config": {"Env": ["PATH=/bin", "FROM_IMAGE=yes"], "Cmd": ["sh"],
                           "WorkingDir": "/", **(config or {})},
                "rootfs": {"type": "layers", "diff_ids": [d["digest"] for d in described]}}
    manifest = {"schemaVersion": 2, "mediaType": kind + "manifest.v1+json",
                "config": blob(document, kind + "config.v1+json"), "layers": described}
    entry = {**blob(manifest, kind + "manifest.v1+json"),
             "platform": {"architecture": "amd64", "os": "linux"},
             "annotations": {"io.containerd.image.name": name(image),
                             "org.opencontainers.image.ref.name": "1"}}
    archive = Layer()
    archive.file("oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}))
    archive.file("index.json", json.dumps({"schemaVersion": 2, "manifests": [entry],
                                           "mediaType": kind + "index.v1+json"}))
    archive.file("manifest.json", json.dumps([{     # for docker load
        "Config": "blobs/" + manifest["config"]["digest"].replace(":", "/"),
        "RepoTags": [name(image)],
        "Layers": ["blobs/" + d["digest"].replace(":", "/") for d in described]}]))
    for digest in sorted(blobs):
        archive.file("blobs/sha256/" + digest, blobs[digest])
    partial = path(image) + ".new"
    with open(partial, "wb") as f:
        f.write(archive.bytes())
    os.rename(partial, path(image))


def _one_file(where, data):
    layer = Layer()
    layer.file(where, data)
    return layer.bytes()


def _compile(source):
    out = os.path.join(FOLDER, os.path.basename(source).removesuffix(".c"))
    subprocess.run(["gcc", "-static", "-Os", "-Wall", "-Wextra", "-Werror", "-o", out, source],
                   check=True)
    os.chmod(out, stat.S_IMODE(os.stat(out).st_mode) | 0o111)
    return _read(out)


def _whiteouts(static):
    """One file and one directory deleted by an upper layer, one directory made opaque."""
    lower, upper = Layer(), Layer()
    for where in ("data/stays", "data/deleted", "tree/a/b", "opaque/below"):
        lower.file(where, "lower\n")
    upper.file("data/.wh.deleted", "")
    upper.file(".wh.tree", "")
    upper.file("opaque/.wh..wh..opq", "")
    upper.file("opaque/above", "upper\n")
    return [static, lower.bytes(), upper.bytes()]


def _linked(static):
    """An upper layer puts a link in the place of the lower one's /dev."""
    upper = Layer()
    upper.symlink("dev", "/bin")
    return [static, upper.bytes()]


def _files(static):
    """What root file systems get wrong: marks of upper layers, links, modes, attributes; and many
    small files."""
    lower, upper = Layer(), Layer()
    lower.file("bin/fsprobe", _compile(os.path.join(packages.HERE, "fsprobe.c")), 0o755)
    for where in ("data/stays", "data/deleted", "gone/a/b", "opaque/below", "again/old"):
        lower.file(where, "lower\n")
    lower.file("links/a", "linked\n")
    lower.hard_link("links/b", "links/a")
    lower.symlink("links/s", "a")
    lower.file("marks/setuid", "x", 0o4755, owner=(1000, 1000))
    lower.file("marks/setgid", "x", 0o2750, owner=(0, 34))
    lower.file("marks/attr", "x", xattrs={"user.colour": "green"})
    lower.directory("marks/sticky", 0o1777)
    for i in range(SMALL_FILES):
        lower.file(f"small/{i // 250:02}/{i % 250:03}", f"file {i}\n" * (1 + i % 97))
    upper.file("data/.wh.deleted", "")
    upper.file(".wh.gone", "")
    upper.file("opaque/.wh..wh..opq", "")
    upper.file("opaque/above", "upper\n")
    upper.file("again/.wh.old", "")
    upper.file("again/new", "upper\n")
    return [static, lower.bytes(), upper.bytes()]


def _busybox():
    layer = _base(BUSYBOX)
    _add_libc(layer)
    return [layer.bytes()]


def _pause():
    layer = Layer()
    layer.file("pause", _compile(os.path.join(packages.HERE, "pause.c")), 0o755)
    return [layer.bytes()]


def _network(static):
    layer = Layer()
    layer.file("bin/netecho", _compile(os.path.join(packages.HERE, "netecho.c")), 0o755)
    return [static, layer.bytes()]


def _roots(static):
    """What rootprobe changes."""
    layer, probe = Layer(), _compile(os.path.join(packages.HERE, "rootprobe.c"))
    layer.file("bin/rootprobe", probe, 0o755)
    layer.file("probe/setuid", probe, 0o4755)
    for where in ("probe/lower/file", "probe/gone/file"):
        layer.file(where, "lower\n")
    return [static, layer.bytes()]


def _users(static):
    """The image itself says who runs it and where."""
    return [static], {"User": "worker", "WorkingDir": "/home/worker"}


def make():
    """Only when something that they are made of has changed."""
    inputs = [BUSYBOX, STATIC, os.path.join(LIBC, "lib/x86_64-linux-gnu/libc.so.6"),
              os.path.join(packages.HERE, "pause.c"), os.path.join(packages.HERE, "netecho.c"),
              os.path.join(packages.HERE, "fsprobe.c"), os.path.join(packages.HERE, "rootprobe.c"),
              os.path.realpath(__file__)]
    stamp = hashlib.sha256(b"".join(_read(p) for p in inputs)).hexdigest()
    stamp_path = os.path.join(FOLDER, "stamp")
    if os.path.exists(stamp_path) and _read(stamp_path).decode() == stamp:
        return
    os.makedirs(FOLDER, exist_ok=True)
    static = _base(STATIC).bytes()
    _write("busybox", _busybox())
    _write("static", [static])
    _write("pause", _pause(), {"Cmd": None, "Entrypoint": ["/pause"]})
    _write("whiteouts", _whiteouts(static))
    _write("files", _files(static))
    _write("linked", _linked(static))
    _write("layers", [static] + [_one_file(f"layers/{i:03}", f"{i}\n")
                                 for i in range(1, MANY_LAYERS)])
    _write("roots", _roots(static))
    _write("users", *_users(static))
    _write("network", _network(static))
    _write("usr1", [static], {"StopSignal": "SIGUSR1"})
    _write("nothing", [])
    with open(stamp_path, "w") as f:
        f.write(stamp)
