"""gRPC, as little of it as a client of containerd needs: one unary call, or one stream of answers,
per connection to a unix socket. No threads, nothing that outlives a call.

Why not grpcio: it keeps threads and descriptors for the life of a process, and the audit after each
test compares descriptors. HTTP/2 is a frame header of nine bytes; the packed headers of the answer
are read by Debian's python3-hpack.
"""

import os
import socket
import struct
import sys
import time
import urllib.parse

import packages

sys.path.append(os.path.join(packages.folder("python3-hpack"), "usr/lib/python3/dist-packages"))

DATA, HEADERS, RST_STREAM, SETTINGS, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = \
    0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, ACK, END_HEADERS, PADDED, PRIORITY = 1, 1, 4, 8, 32
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
WINDOW = 0x7fffffff
MAX_REQUEST = 60000  # fits the first window: nothing here needs more

CODES = ("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND",
         "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
         "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS",
         "UNAUTHENTICATED")


class Error(Exception):
    """code: a name of CODES; message: what the server said."""

    def __init__(self, code, message):
        super().__init__(f"{code}: {message}")
        self.code, self.message = code, message


def _frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


class Call:
    """One method called; messages() yields the answers, then raises Error or ends."""

    def __init__(self, address, method, request, seconds, metadata=()):
        import hpack
        self._deadline = time.monotonic() + seconds
        self._headers, self._ended, self._data = {}, False, b""
        self._decoder, self._block = hpack.Decoder(), b""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        if len(request) > MAX_REQUEST:
            raise ValueError(f"a request of {len(request)} bytes")
        try:
            self._socket.settimeout(seconds)
            self._socket.connect(address)
            self._send(method, request, seconds, metadata)
        except OSError as e:
            self.close()
            raise Error("UNAVAILABLE", str(e)) from None

    def _send(self, method, request, seconds, metadata):
        import hpack
        headers = hpack.Encoder().encode([
            (":method", "POST"), (":scheme", "http"), (":path", method),
            (":authority", "localhost"), ("te", "trailers"), ("content-type", "application/grpc"),
            ("grpc-timeout", f"{int(seconds * 1000)}m"), *metadata], huffman=False)
        self._socket.sendall(
            PREFACE + _frame(SETTINGS, 0, 0, struct.pack(">HIHI", 2, 0, 4, WINDOW)) +
            _frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", WINDOW - 65535)) +
            _frame(HEADERS, END_HEADERS, 1, headers) +
            _frame(DATA, END_STREAM, 1, struct.pack(">BI", 0, len(request)) + request))

    def close(self):
        self._socket.close()

    def _read(self, size):
        data = b""
        while len(data) < size:
            left = self._deadline - time.monotonic()
            if left <= 0:
                raise Error("DEADLINE_EXCEEDED", "no answer in time")
            self._socket.settimeout(left)
            try:
                part = self._socket.recv(size - len(data))
            except TimeoutError:
                continue
            except OSError as e:
                raise Error("UNAVAILABLE", str(e)) from None
            if not part:
                raise Error("UNAVAILABLE", "the server closed the connection")
            data += part
        return data

    def _step(self):
        head = self._read(9)
        size, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        payload = self._read(size)
        if kind in (DATA, HEADERS) and flags & PADDED:
            payload = payload[1:len(payload) - payload[0]]
        if kind == DATA:
            self._data += payload
        elif kind in (HEADERS, CONTINUATION):
            self._block += payload[5:] if kind == HEADERS and flags & PRIORITY else payload
            if flags & END_HEADERS:
                self._headers.update(self._decoder.decode(self._block))
                self._block = b""
        elif kind in (SETTINGS, PING) and not flags & ACK:
            try:
                self._socket.sendall(_frame(kind, ACK, 0, payload if kind == PING else b""))
            except OSError as e:
                raise Error("UNAVAILABLE", str(e)) from None
        elif kind == RST_STREAM:
            raise Error("UNAVAILABLE", f"stream reset ({int.from_bytes(payload, 'big')})")
        elif kind == GOAWAY:
            raise Error("UNAVAILABLE", "the server goes away")
        if kind in (DATA, HEADERS) and flags & END_STREAM:
            self._ended = True

    def _check(self):
        if self._headers.get(":status", "200") != "200":
            raise Error("UNKNOWN", f"HTTP status {self._headers[':status']}")
        code = int(self._headers.get("grpc-status", 2))
        if code:
            message = urllib.parse.unquote(self._headers.get("grpc-message", ""))
            raise Error(CODES[code] if code < len(CODES) else str(code), message)

    def messages(self):
        try:
            while True:
                while len(self._data) >= 5:
                    size = int.from_bytes(self._data[1:5], "big")
                    if len(self._data) < 5 + size:
                        break
                    message, self._data = self._data[5:5 + size], self._data[5 + size:]
                    yield message
                if self._ended:
                    self._check()
                    return
                self._step()
        finally:
            self.close()


def unary(address, method, request, seconds, metadata=()):
    """The bytes of the answer, or Error."""
    answers = list(Call(address, method, request, seconds, metadata).messages())
    if len(answers) != 1:
        raise Error("INTERNAL", f"{len(answers)} answers to a call of one")
    return answers[0]
