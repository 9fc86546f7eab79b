"""Writes a cpio archive in the "newc" format, the one the kernel unpacks as initramfs.

The bytes depend on nothing but the entries: they are sorted by path, owned by root, dated to the
epoch and numbered in order. Umask, locale, clock and the building user play no part.
"""

import os
import stat

_MAGIC = b"070701"
_ALIGN = 4
_TRAILER = "TRAILER!!!"


class Archive:
    def __init__(self):
        self._entries = {}  # path without leading slash -> (mode, data, device)

    def directory(self, path, mode=0o755):
        self._add(path, stat.S_IFDIR | mode)

    def file(self, path, data, mode=0o644):
        self._add(path, stat.S_IFREG | mode, data)

    def symlink(self, path, target):
        self._add(path, stat.S_IFLNK | 0o777, target.encode())

    def char_device(self, path, major, minor, mode):
        self._add(path, stat.S_IFCHR | mode, device=(major, minor))

    def listing(self):
        """(path, kind, size, target) of each entry, in the order of the archive."""
        kinds = {stat.S_IFDIR: "directory", stat.S_IFREG: "file",
                 stat.S_IFLNK: "symlink", stat.S_IFCHR: "device"}
        for path, (mode, data, _) in sorted(self._entries.items()):
            kind = kinds[stat.S_IFMT(mode)]
            yield path, kind, len(data), data.decode() if kind == "symlink" else None

    def write(self, out):
        """Writes the archive to a binary file; the kernel wants parents before children."""
        for number, (path, entry) in enumerate(sorted(self._entries.items()), start=1):
            self._write_entry(out, number, path, *entry)
        self._write_entry(out, 0, _TRAILER, 0, b"", (0, 0))

    def _add(self, path, mode, data=b"", device=(0, 0)):
        path = path.strip("/")
        parent = os.path.dirname(path)
        if path in self._entries:
            raise ValueError(f"{path} is in the archive already")
        if parent and not stat.S_ISDIR(self._entries.get(parent, (0,))[0]):
            raise ValueError(f"{path}: its directory {parent} is not in the archive")
        self._entries[path] = (mode, data, device)

    @staticmethod
    def _write_entry(out, number, path, mode, data, device):
        name = path.encode() + b"\0"
        links = 2 if stat.S_ISDIR(mode) else 1
        # inode, mode, uid, gid, links, mtime, size, device of the file system (two fields),
        # device of the node (two fields), length of the name, checksum (unused)
        fields = (number, mode, 0, 0, links, 0, len(data), 0, 0, *device, len(name), 0)
        header = _MAGIC + b"".join(b"%08X" % field for field in fields)
        for part in (header + name, data):
            out.write(part)
            out.write(b"\0" * (-len(part) % _ALIGN))
