"""A client of containerd's streaming server: exec, attach and port-forward over WebSocket, with the
sub-protocol v4.channel.k8s.io: each message begins with the number of its channel.

    s = streaming.Stream(url)           # what the CRI's Exec or Attach answered
    s.send(b"ls\\n"); s.resize(40, 120)
    s.expect("\\\\$ ")                     # in what has come on stdout
    s.wait()                            # the exit code
"""

import base64
import json
import os
import re
import socket
import struct
import threading
import time
import urllib.parse

from harness import Failure

PROTOCOL = "v4.channel.k8s.io"
STDIN, STDOUT, STDERR, ERROR, RESIZE = range(5)
TEXT, BINARY, CLOSE, PING, PONG = 1, 2, 8, 9, 10


class WebSocket:
    """Frames of RFC 6455 over a connection of our own."""

    def __init__(self, url, seconds=30):
        parts = urllib.parse.urlsplit(url)
        self._socket = socket.create_connection((parts.hostname, parts.port), seconds)
        self._socket.settimeout(None)
        key = base64.b64encode(os.urandom(16)).decode()
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        self._socket.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: Upgrade\r\n"
            f"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {key}\r\n"
            f"Sec-WebSocket-Protocol: {PROTOCOL}\r\n\r\n".encode())
        self._data = b""
        while b"\r\n\r\n" not in self._data:
            part = self._socket.recv(4096)
            if not part:
                break
            self._data += part
        head, _, self._data = self._data.partition(b"\r\n\r\n")
        if b" 101 " not in head.split(b"\r\n")[0]:
            self.close()
            raise Failure(f"no WebSocket at {url}: {head!r} {self._data!r}")

    def close(self):
        self._socket.close()

    def hang_up(self):
        """As a client that dies; wakes the reader."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, payload, kind=BINARY):
        mask, size = os.urandom(4), len(payload)
        length = struct.pack(">B", 0x80 | size) if size < 126 else \
            struct.pack(">BH", 0x80 | 126, size) if size < 65536 else \
            struct.pack(">BQ", 0x80 | 127, size)
        masked = bytes(b ^ mask[i % 4] for i, b in enumerate(payload))
        self._socket.sendall(bytes([0x80 | kind]) + length + mask + masked)

    def _read(self, size):
        while len(self._data) < size:
            part = self._socket.recv(65536)
            if not part:
                return None
            self._data += part
        data, self._data = self._data[:size], self._data[size:]
        return data

    def _read_frame(self):
        head = self._read(2)
        if not head:
            return None, False, b""
        size = head[1] & 127
        if size > 125:
            wide = self._read(2 if size == 126 else 8)
            size = int.from_bytes(wide or b"", "big")
        return head[0] & 15, bool(head[0] & 0x80), self._read(size) or b""

    def receive(self):
        """One message, or None at the end."""
        message = b""
        while True:
            kind, last, payload = self._read_frame()
            if kind is None or kind == CLOSE:
                return None
            if kind == PING:
                self.send(payload, PONG)
                continue
            message += payload
            if last and kind != PONG:
                return message


class Channels:
    """Collects each channel's bytes in a thread that ends with the connection."""

    def __init__(self, t, url):
        self.t, self.ended = t, False
        self._socket, self._channels, self._read_to = WebSocket(url), {}, {}
        self._thread = threading.Thread(target=self._collect, daemon=True)
        self._thread.start()
        t.at_end(self.close)

    def _collect(self):
        try:
            while (message := self._socket.receive()) is not None:
                if message:
                    channel = message[0]
                    self._channels[channel] = self._channels.get(channel, b"") + message[1:]
        except OSError:
            pass
        self.ended = True

    def close(self):
        self._socket.hang_up()
        self._thread.join(10)
        self._socket.close()

    def bytes(self, channel):
        return self._channels.get(channel, b"")

    def send(self, data, channel=STDIN):
        for at in range(0, len(data), 32768):
            self._socket.send(bytes([channel]) + data[at:at + 32768])

    def expect(self, pattern, channel=STDOUT, seconds=60):
        """The next match behind the last one."""
        deadline = time.monotonic() + seconds
        while True:
            text = self.bytes(channel).decode(errors="replace")
            m = re.compile(pattern, re.DOTALL).search(text, self._read_to.get(channel, 0))
            if m:
                self._read_to[channel] = m.end()
                return m
            if time.monotonic() > deadline or self.ended and \
                    text == self.bytes(channel).decode(errors="replace"):
                raise Failure(f"no {pattern} on channel {channel}: {text[-2000:]!r}; "
                              f"error channel: {self.bytes(ERROR)!r}")
            time.sleep(0.01)


class Stream(Channels):
    """An exec or an attach."""

    def resize(self, rows, cols):
        self.send(json.dumps({"Width": cols, "Height": rows}).encode(), RESIZE)

    @property
    def out(self):
        return self.bytes(STDOUT).decode(errors="replace")

    @property
    def err(self):
        return self.bytes(STDERR).decode(errors="replace")

    def wait(self, seconds=60):
        """The exit code, from the status that comes last."""
        self.t.until(lambda: self.ended, f"the stream ends: {self.out[-500:]}", seconds)
        status = json.loads(self.bytes(ERROR) or b'{"status": "none"}')
        if status["status"] == "Success":
            return 0
        for cause in status.get("details", {}).get("causes", ()):
            if cause.get("reason") == "ExitCode":
                return int(cause["message"])
        raise Failure(f"the stream ended with {status}")


class Forward(Channels):
    """One forwarded port: channel 0 its bytes, 1 its errors; each begins with the port's number."""

    def __init__(self, t, url, port):
        super().__init__(t, url)
        for channel in (0, 1):
            t.until(lambda: len(self.bytes(channel)) >= 2 or self.ended, "the port's number", 30)
            t.equal(self.bytes(channel)[:2], struct.pack("<H", port))
        self._read_to = {}

    def received(self):
        return self.bytes(0)[2:]

    @property
    def error(self):
        return self.bytes(1)[2:].decode(errors="replace")
