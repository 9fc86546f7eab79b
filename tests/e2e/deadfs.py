"""File systems that do not answer: a process that uses them waits, as with a dead NFS.

    path = deadfs.Dead(t).path           # below it everything hangs, until the test ends
    fs = deadfs.Stalling(t, {"disk": b"…"})   # files that can be opened, read and written
    fs.stall(deadfs.FLUSH)               # from now on every close() hangs
    fs.answer()                          # all get what they waited for
    fs.serve_only(threading.get_native_id())  # everybody else hangs

A request that the server has taken and not answered cannot be interrupted, not by SIGKILL either.
"""

import errno
import os
import select
import struct
import threading

import cell

LOOKUP, FORGET, GETATTR, SETATTR, OPEN, READ, WRITE, STATFS = 1, 2, 3, 4, 14, 15, 16, 17
RELEASE, FSYNC, FLUSH, INIT, INTERRUPT, BATCH_FORGET = 18, 20, 25, 26, 36, 42
ALL = -1
ROOT, FIRST = 1, 2  # node numbers
HEADER = struct.Struct("<IIQQIIII")


class Dead:
    def __init__(self, t, options="", path=None):
        self.path = path or os.path.join(t.work, "dead")
        os.mkdir(self.path)
        self._fd = os.open("/dev/fuse", os.O_RDWR | os.O_NONBLOCK)
        cell.mount("dead", self.path, "fuse", 0,
                   f"fd={self._fd},rootmode=40000,user_id=0,group_id=0{options}")
        t.at_end(self.end)

    def end(self):
        """Everybody who waits gets an error."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            cell.umount(self.path)


class Stalling(Dead):
    def __init__(self, t, files, path=None, valid=3600):
        """valid: for so many seconds the kernel may keep what it has looked up."""
        super().__init__(t, ",allow_other", path)
        self._valid, self._only = valid, None
        self._names = list(files)
        self._data = [bytearray(data) for data in files.values()]
        self._stalled, self._held, self._lock = None, [], threading.Lock()
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._serve, args=(self._fd,), daemon=True)
        self._thread.start()

    def file(self, name):
        return os.path.join(self.path, name)

    def stall(self, operation=ALL):
        """From now on requests of this kind are taken and not answered."""
        with self._lock:
            self._stalled = operation

    def serve_only(self, thread):
        with self._lock:
            self._only = thread

    def answer(self):
        with self._lock:
            self._stalled = self._only = None
            held, self._held = self._held, []
        for request in held:
            self._reply(*request)

    def waiting(self, operation=ALL):
        """How many wait for an answer."""
        with self._lock:
            return sum(operation in (ALL, request[1]) for request in self._held)

    def end(self):
        """The server dies."""
        if self._fd >= 0:
            os.write(self._wake[1], b"x")
            self._thread.join()
            for fd in self._wake:
                os.close(fd)
        super().end()

    def _serve(self, fd):
        while self._wake[0] not in select.select([fd, self._wake[0]], [], [])[0]:
            try:
                request = os.read(fd, 1 << 18)
            except (BlockingIOError, FileNotFoundError):
                continue  # its sender is gone
            _, operation, unique, node, _, _, thread, _ = HEADER.unpack_from(request)
            if operation in (FORGET, BATCH_FORGET, INTERRUPT):
                continue
            with self._lock:
                if operation != INIT and (self._stalled in (ALL, operation) or
                                          self._only not in (None, thread)):
                    self._held.append((fd, operation, unique, node, request[HEADER.size:]))
                    continue
            self._reply(fd, operation, unique, node, request[HEADER.size:])

    def _reply(self, fd, operation, unique, node, body):
        try:
            error, data = 0, self._answer_to(operation, node, body)
        except OSError as e:
            error, data = -e.errno, b""
        try:
            os.write(fd, struct.pack("<IiQ", 16 + len(data), error, unique) + data)
        except OSError:
            pass  # nobody waits for it any more

    def _attributes(self, node):
        size = 0 if node == ROOT else len(self._data[node - FIRST])
        mode = 0o40755 if node == ROOT else 0o100666
        return struct.pack("<QQQQQQIIIIIIIIII", node, size, (size + 511) // 512, 0, 0, 0, 0, 0, 0,
                           mode, 1, 0, 0, 0, 4096, 0)

    def _answer_to(self, operation, node, body):
        if operation == INIT:
            return struct.pack("<IIIIHHIIHHI28x", 7, 31, 1 << 17, 0, 16, 12, 1 << 17, 1, 32, 0, 0)
        if operation == LOOKUP:
            name = body.split(b"\0")[0].decode()
            if name not in self._names:
                raise OSError(errno.ENOENT, name)
            found = FIRST + self._names.index(name)
            return struct.pack("<QQQQII", found, 0, self._valid, 3600, 0, 0) + self._attributes(found)
        if operation in (GETATTR, SETATTR):
            return struct.pack("<QII", 3600, 0, 0) + self._attributes(node)
        if operation == OPEN:
            return struct.pack("<QII", node, 0, 0)
        if operation == READ:
            _, offset, size = struct.unpack_from("<QQI", body)
            return bytes(self._data[node - FIRST][offset:offset + size])
        if operation == WRITE:
            _, offset, size = struct.unpack_from("<QQI", body)
            self._data[node - FIRST][offset:offset + size] = body[40:40 + size]
            return struct.pack("<II", size, 0)
        if operation == STATFS:
            return struct.pack("<QQQQQIIII24x", 1 << 20, 1 << 19, 1 << 19, 99, 9, 4096, 255, 4096, 0)
        if operation in (RELEASE, FSYNC, FLUSH):
            return b""
        raise OSError(errno.ENOSYS, str(operation))
