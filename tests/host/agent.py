"""Runs in the emulated host: takes scripts from a virtio port, one at a time, and answers with what
they print and their exit code. A message is a length on a line of its own, and that many bytes."""
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
    script = take(line()).decode()
    child = subprocess.Popen(["/bin/bash", "-c", script], stdin=subprocess.DEVNULL,
                             stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd="/root",
                             env={**os.environ, "HOME": "/root", "LC_ALL": "C.UTF-8"})
    while part := os.read(child.stdout.fileno(), 65536):
        send(part)
    send(b"")
    send(b"%d" % child.wait())
