"""Streaming exec, attach and port-forward, through containerd's streaming server."""

import os
import random
import re
import threading

import cri
import streaming
from pod import FOREVER, pod_test


def exec_stream(t, c, *command, tty=False, stdin=True):
    answer = t.cri.Exec(container_id=c.id, cmd=command, tty=tty, stdin=stdin, stdout=True,
                        stderr=not tty)
    return streaming.Stream(t, answer.url)


def attach(t, c, tty=False, stdin=True):
    answer = t.cri.Attach(container_id=c.id, tty=tty, stdin=stdin, stdout=True, stderr=not tty)
    return streaming.Stream(t, answer.url)


@pod_test("streaming exec: input, both outputs, exit code; with a terminal that is resized")
def exec_streams(t):
    c = t.pod("p1").run("c1", *FOREVER)
    s = exec_stream(t, c, "sh", "-c", "read x; echo got $x; echo err >&2; exit 9")
    s.send(b"line\n")
    t.equal(s.wait(), 9)
    t.equal((s.out, s.err), ("got line\n", "err\n"))

    s = exec_stream(t, c, "sh", tty=True)
    s.expect("# ")
    s.resize(33, 111)
    s.send(b"stty size; tty\n")
    s.expect(r"(33 111).*/dev/(pts/\d+|console)")
    s.resize(44, 122)
    s.send(b"sleep 0.2; stty size\n")
    s.expect("44 122")
    s.send(b"exit 4\n")
    t.equal(s.wait(), 4)
    t.equal(exec_stream(t, c, "true", stdin=False).wait(), 0)
    t.equal(c.state, cri.RUNNING)


@pod_test("streaming exec: a megabyte in and out, none missing; a client that hangs up")
def exec_much(t):
    c = t.pod("p1").run("c1", *FOREVER)
    data = random.Random(3).randbytes(1 << 20)
    s = exec_stream(t, c, "sh", "-c", f"head -c {len(data)}")
    feeder = threading.Thread(target=s.send, args=(data,), daemon=True)
    feeder.start()
    t.equal(s.wait(120), 0)
    feeder.join(10)
    t.check(s.bytes(streaming.STDOUT) == data, f"{len(s.bytes(streaming.STDOUT))} bytes came back")
    s = exec_stream(t, c, "sh", "-c", "echo up; sleep 4711")
    s.expect("up")
    s.close()
    t.equal(c.sh("echo well"), "well\n")


@pod_test("attach: output as it comes, input to the program; with a terminal and its size",
          smoke="one")
def attaches(t):
    pod = t.pod("p1")
    c = pod.run("plain", "sh", "-c", "while read x; do echo got $x; echo err >&2; done",
                stdin=True)
    s = attach(t, c)
    s.send(b"one\n")
    s.expect("got one\n")
    s.expect("err\n", channel=streaming.STDERR)
    s.close()
    s = attach(t, c)   # a second one, behind the first
    s.send(b"two\n")
    s.expect("got two\n")
    t.match("got one\ngot two\n", c.out)

    c = pod.run("tty", "sh", stdin=True, tty=True)
    s = attach(t, c, tty=True)
    s.resize(31, 99)
    s.send(b"\n")
    s.expect("# ")
    s.send(b"sleep 0.2; stty size\n")
    s.expect("31 99")
    s.send(b"exit 6\n")
    c.await_exit(6)


@pod_test("a container whose input is closed after the first client ends with it")
def stdin_once(t):
    c = t.pod("p1").run("c1", "cat", stdin=True, stdin_once=True)
    s = attach(t, c)
    s.send(b"all there is\n")
    s.expect("all there is\n")
    s.close()
    c.await_exit(0)


@pod_test("port-forward: to a server on the pod's loopback, many bytes, several at a time; "
          "a port without a listener", smoke="one")
def port_forward(t):
    t.load("network")
    pod = t.pod("p1")
    for name, address, port in (("a", "127.0.0.1", "8080"), ("b", "::", "9090")):
        pod.run(name, "netecho", "serve", address, port, image="network").await_log("up")

    def forward(port):
        answer = t.cri.PortForward(pod_sandbox_id=pod.id, port=[port])
        return streaming.Forward(t, answer.url, port)
    data = random.Random(4).randbytes(1 << 20)
    f = forward(8080)
    feeder = threading.Thread(target=f.send, args=(data, 0), daemon=True)
    feeder.start()
    t.until(lambda: len(f.received()) == len(data) or f.ended, "all came back", 120)
    feeder.join(10)
    t.check(f.received() == data, f"{len(f.received())} bytes came back; {f.error}")
    f.close()
    several = [forward(9090) for _ in range(4)]
    for i, g in enumerate(several):
        g.send(f"to {i}".encode(), 0)
    for i, g in enumerate(several):
        t.until(lambda: g.received() == f"to {i}".encode(), f"an answer: {g.error}", 30)
    nobody = forward(7)
    t.until(lambda: nobody.error, "an error is reported", 30)
    t.match("(?i)refused|reset", nobody.error)  # a VM's is known only after accept
    t.equal(pod.state, cri.READY)


# ---------------------------------------------------------------- io_type = "streaming"

NUMBERS = 1500000  # 10 MB of them
COUNT = "i=0; while :; do i=$((i+1)); echo line $i; done"


def connections(t):
    """Open sockets of the shim."""
    folder = f"/proc/{t.shim_pid()}/fd"

    def is_socket(fd):
        try:
            return os.readlink(os.path.join(folder, fd)).startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            return False
    return sum(map(is_socket, os.listdir(folder)))


def streamed_execs(t, c):
    r = c.exec("sh", "-c", "echo out; echo err >&2; exit 3")
    t.equal((r.code, r.out, r.err), (3, "out\n", "err\n"))
    t.equal(len(c.sh("head -c 10485760 /dev/zero | tr '\\0' x")), 10 << 20)
    s = exec_stream(t, c, "sh", "-c", "cat; echo end >&2; exit 9")
    data = random.Random(5).randbytes(1 << 20)
    feeder = threading.Thread(target=s.send, args=(data,), daemon=True)
    feeder.start()
    t.until(lambda: len(s.bytes(streaming.STDOUT)) == len(data), "all came back", 120)
    t.check(s.bytes(streaming.STDOUT) == data, "as it was sent")
    s.close()  # cat sees the end of its input
    s = exec_stream(t, c, "sh", tty=True)
    s.expect("# ")
    s.resize(33, 111)
    s.send(b"stty size; tty\n")
    s.expect(r"(33 111).*/dev/(pts/\d+|console)")
    s.send(b"exit 4\n")
    t.equal(s.wait(), 4)
    s = exec_stream(t, c, "sh", "-c", "echo up; sleep 4711")
    s.expect("up")
    s.close()
    before = connections(t)
    for _ in range(8):
        t.equal(c.sh("echo well"), "well\n")
    t.until(lambda: connections(t) <= before, "the streams of ended execs are closed")


def streamed_restart(t, pod):
    """What the container writes while containerd is away waits; what containerd had received and not
    written into the log is lost, 128 KiB at most."""
    c = pod.run("counts", "sh", "-c", COUNT)
    reader = pod.run("reads", "sh", "-c", "while read x; do echo got $x; done", stdin=True)
    c.await_log("line 1000\n")
    t.containerd.kill()
    t.containerd.start()
    t.until(t.serves, "the CRI serves", 60)
    t.equal(c.state, cri.RUNNING)
    size = os.path.getsize(c.log_path)
    t.until(lambda: os.path.getsize(c.log_path) > size + (1 << 20), "the log grows again", 60)
    s = attach(t, reader)
    s.send(b"word\n")
    s.expect("got word\n")
    s.close()
    t.equal(c.sh("echo well"), "well\n")
    c.stop()
    numbers = [int(n) for n in re.findall(r"(?m)^line (\d+)$", c.out)]
    gaps = [(a, b) for a, b in zip(numbers, numbers[1:]) if b != a + 1]
    t.note(f"{len(numbers)} lines, gaps {gaps}")
    t.check(len(gaps) <= 2, f"one gap, and the line that was cut: {gaps}")
    t.check(sum(b - a for a, b in gaps) * 12 <= 128 << 10, f"no more than was granted: {gaps}")


@pod_test("streaming I/O: logs, 10 MB, exec, terminal, attach, the end of input, clients that hang "
          "up, containerd killed", sandboxers=("shim",), both=True, deadline=600)
def streaming_io(t):
    pod = t.pod("p1", handler="lcow-stream")
    c = pod.run("big", "sh", "-c", f"echo to stderr >&2; seq 1 {NUMBERS} | tr '\\n' ' '")
    c.await_exit(0)
    t.check(c.out == "".join(f"{i} " for i in range(1, NUMBERS + 1)), "10 MB of output are whole")
    t.equal(c.err, "to stderr\n")
    c = pod.run("once", "cat", stdin=True, stdin_once=True)
    s = attach(t, c)
    s.send(b"all there is\n")
    s.expect("all there is\n")
    s.close()
    c.await_exit(0)
    c = pod.run("tty", "sh", stdin=True, tty=True)
    s = attach(t, c, tty=True)
    s.resize(31, 99)
    s.send(b"\n")
    s.expect("# ")
    s.send(b"sleep 0.2; stty size\n")
    s.expect("31 99")
    s.send(b"exit 6\n")
    c.await_exit(6)
    streamed_execs(t, pod.run("c1", *FOREVER))
    streamed_restart(t, pod)
    pod.stop()
