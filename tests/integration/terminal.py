"""lcow (or another program) on a pseudo-terminal, as a person would use it."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time

import harness
from harness import BOOT_SECONDS, LCOW, Failure


def _control():
    """In the child: the terminal on fd 0 becomes the controlling one, and its end is a signal, also
    if the tests were started by nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Terminal:
    def __init__(self, t, *args, rows=24, cols=80, program=LCOW):
        self.t, self.seen, self._read_to = t, b"", 0
        self.master, self.slave = os.openpty()
        self.resize(rows, cols)
        self.before = termios.tcgetattr(self.slave)
        self.popen = subprocess.Popen(
            [program, *args], stdin=self.slave, stdout=self.slave, stderr=self.slave,
            env={**t.env, "TERM": "xterm"}, cwd=t.work, start_new_session=True, preexec_fn=_control)
        self.pid, self._done = self.popen.pid, False
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()
        t.at_end(self.close)

    def _collect(self):
        try:
            while part := os.read(self.master, 65536):
                self.seen += part
        except OSError:
            pass

    @property
    def text(self):
        return self.seen.decode(errors="replace")

    def resize(self, rows, cols):
        """As a terminal emulator does it; the kernel sends SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send(self, text):
        os.write(self.master, text.encode())

    def expect(self, pattern, seconds=BOOT_SECONDS):
        """The next match behind the last one."""
        deadline = time.monotonic() + seconds
        while True:
            m = re.compile(pattern, re.DOTALL).search(self.text, self._read_to)
            if m:
                self._read_to = m.end()
                return m
            if time.monotonic() > deadline or self.popen.poll() is not None:
                time.sleep(0.1)
                if re.compile(pattern, re.DOTALL).search(self.text, self._read_to):
                    continue
                ended = "lcow has ended" if self.popen.poll() is not None else f"{seconds} s over"
                raise Failure(f"{pattern!r} did not come ({ended}); the terminal shows:\n"
                              f"{harness.FRAME.sub('', self.text)[-3000:]!r}")
            time.sleep(0.01)

    def command(self, line, pattern, seconds=20):
        self.send(line + "\n")
        return self.expect(pattern, seconds)

    def wait(self, seconds=20):
        """The exit code. The terminal must be as it was."""
        try:
            code = self.popen.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Failure(f"no end within {seconds} s; the terminal shows:\n"
                          f"{harness.FRAME.sub('', self.text)[-3000:]!r}") from None
        if termios.tcgetattr(self.slave) != self.before:
            raise Failure("the terminal is not as it was before")
        return code

    def close(self):
        if self.popen.poll() is None:
            harness.end(self.popen)
        os.close(self.slave)
        self._reader.join(5)  # the last slave is closed: it gets EIO
        os.close(self.master)
