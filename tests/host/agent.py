"""Runs in the emulated host: takes scripts from a virtio port, one at a time, and answers with what
they print and their exit code (124: out of time). A message is a length on a line of its own, and that
many bytes; a script begins with a line of its own, the seconds that it may take."""
import os
import subprocess

port = open("/dev/virtio-ports/commands", "r+b", buffering=0)


def take(count):
    data = b""
    while len(data) < count:
        data += port.read(count - len(data)) or b""
    return data


def line():
    text = b""
    while not text.endswith(b"\n"):
        text += take(1)
    return int(text)


def send(data):
    data = b"%d\n" % len(data) + data
    while data:
        data = data[port.write(data):]


send(b"ready")
while True:
    seconds, _, script = take(line()).decode().partition("\n")
    child = subprocess.Popen(["timeout", "-k", "10", seconds, "/bin/bash", "-c", script], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/root",
                             env={**os.environ, "HOME": "/root", "LC_ALL": "C.UTF-8"})
    while part := os.read(child.stdout.fileno(), 65536):
        send(part)
    send(b"")
    send(b"%d" % child.wait())
