"""The guest's file tree, all of which is the initramfs."""

import subprocess

# Applets that would get in the way of the agent: it is PID 1.
_NO_APPLETS = {"init", "linuxrc"}

_DIRECTORIES = """
    bin sbin lib lib/modules usr etc root mnt sysroot var run proc sys dev
""".split()

_PASSWD = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"
_GROUP = b"root:x:0:\nnogroup:x:65534:\n"


def fill(archive, release, module_files, gcs, crun, busybox, applets):
    """Puts everything into a cpio.Archive. Programs are given as bytes."""
    for path in _DIRECTORIES:
        archive.directory(path, 0o700 if path == "root" else 0o755)
    archive.directory("tmp", 0o1777)
    archive.symlink("var/run", "../run")
    archive.symlink("usr/bin", "../bin")
    archive.symlink("usr/sbin", "../sbin")
    archive.symlink("etc/machine-id", "../run/machine-id")  # /etc is read-only once the agent runs

    # Debian's kernels do not mount devtmpfs: the first process needs these before it has.
    archive.char_device("dev/console", 5, 1, 0o600)
    archive.char_device("dev/null", 1, 3, 0o666)

    archive.file("etc/passwd", _PASSWD)
    archive.file("etc/group", _GROUP)

    archive.file("bin/gcs", gcs, 0o755)
    archive.symlink("init", "bin/gcs")
    archive.file("bin/crun", crun, 0o755)
    archive.file("bin/busybox", busybox, 0o755)
    for path in applets:
        archive.symlink(path, "/bin/busybox")

    directory = f"lib/modules/{release}"
    archive.directory(directory)
    for name, data in module_files:
        archive.file(f"{directory}/{name}", data)


def list_applets(busybox):
    """Where busybox (a path) wants its applets, below /bin and /sbin only."""
    listed = subprocess.run([busybox, "--list-full"], check=True, capture_output=True, text=True)
    paths = {path.removeprefix("usr/") for path in listed.stdout.split()}
    names = {path for path in paths if path.rpartition("/")[2] not in _NO_APPLETS}
    return sorted(names - {"bin/busybox"})
