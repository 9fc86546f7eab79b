"""kill -9 of containerd between any two calls of a task's life, and in the middle of them."""

import os
import threading
import time

import taskapi
from e2e import test

LINES = 40000
OUTPUT = "".join(f"{i}\n" for i in range(1, LINES + 1)).encode()
SPEC = b'{"cwd":"/","args":["sh","-c","echo exec; exit 9"],"env":["PATH=/bin"]}'


class Reader:
    """Of a FIFO that it holds open itself, so that containerd's death is not the reader's."""

    def __init__(self, t, name):
        self.t, self.path, self.data = t, os.path.join(t.work, name), b""
        os.mkfifo(self.path)
        self.fd = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)
        t.at_end(os.close, self.fd)

    def some(self, size=4096):
        try:
            self.data += os.read(self.fd, size)
        except BlockingIOError:
            pass
        return self.data

    def all(self, wanted):
        self.t.until(lambda: len(self.some(1 << 20)) >= len(wanted), "all output came", 60)
        self.t.check(self.data == wanted, f"{len(self.data)} bytes of {len(wanted)}, or other ones")


def made(t, *command):
    # Without the dashes that of 1.6 takes the shell's -c for its own.
    t.must("containers", "create", "--runtime", t.runtime, "--", t.image, "c1", *command)
    return taskapi.Tasks(t)


@test("containerd dies between any two calls: each answers as if it had not", smoke=True,
      runc=False)
def between(t):
    tasks = made(t, "sh", "-c", f"seq 1 {LINES}; exec sleep 100000")
    out, exec_out = Reader(t, "out"), Reader(t, "exec_out")
    killed = []

    def then(call, *args, gives=None, status=None, **how):
        found = call(*args, **how)
        if gives is not None:
            t.equal(found, gives, f"{call.__name__}{args}")
        t.containerd.restart()
        out.some()
        if status is not None:
            t.equal(tasks.status("c1"), status, f"after {call.__name__}{args}")
        killed.append(call.__name__)
        return found
    pid = then(tasks.create, "c1", out=out.path, status=taskapi.CREATED)
    then(tasks.start, "c1", gives=pid, status=taskapi.RUNNING)
    then(tasks.exec, "c1", "e1", SPEC, out=exec_out.path, status=taskapi.RUNNING)
    then(tasks.start, "c1", "e1", status=taskapi.RUNNING)
    then(tasks.wait, "c1", "e1", gives=9)
    then(tasks.delete, "c1", "e1", gives=9, status=taskapi.RUNNING)
    then(tasks.pause, "c1", status=taskapi.PAUSED)
    then(tasks.resume, "c1", status=taskapi.RUNNING)
    exec_out.all(b"exec\n")
    out.all(OUTPUT)
    then(tasks.kill, "c1", 9)
    then(tasks.wait, "c1", gives=137, status=taskapi.STOPPED)
    then(tasks.delete, "c1", gives=137)
    t.equal(t.tasks(), {})
    t.must("containers", "rm", "c1")
    t.note(f"{len(killed)} times killed")


def in_the_middle(t, call, *args, after=0.05, **how):
    """containerd is killed while it is at it; the answer, or the error that the client gets."""
    answer = []

    def run():
        try:
            answer.append(call(*args, **how))
        except taskapi.Error as e:
            answer.append(e)
    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(after)  # somewhere in it: any moment is as good as any other
    t.containerd.kill()
    thread.join()
    t.containerd.start()
    return answer[0]


def known(tasks):
    try:
        return tasks.status("c1")
    except taskapi.Error as e:
        tasks.t.equal(e.code, "NOT_FOUND", e)
        return None


@test("containerd dies in the middle of a call: afterwards it can be done, or it was done",
      runc=False)
def in_the_midst(t):
    tasks = made(t, "sh", "-c", f"seq 1 {LINES}; exec sleep 100000")
    out = Reader(t, "out")
    in_the_middle(t, tasks.create, "c1", out=out.path, after=0.5)
    time.sleep(1)  # what was begun is finished or rolled back
    t.until(lambda: known(tasks) in (None, taskapi.CREATED), "it is there or not", 30)
    if known(tasks) is None:
        try:  # a containerd that was back at once has seen it before it was rolled back
            tasks.delete("c1")
        except taskapi.Error as e:
            t.equal(e.code, "NOT_FOUND", e)
        t.until(lambda: not t.shim_pids(), "what was begun is rolled back", 30)
        tasks.create("c1", out=out.path)
    in_the_middle(t, tasks.start, "c1", after=0.2)
    if known(tasks) == taskapi.CREATED:
        try:
            tasks.start("c1")
        except taskapi.Error as e:  # it was still at it
            t.equal(e.code, "FAILED_PRECONDITION", e)
    t.until(lambda: known(tasks) == taskapi.RUNNING, "it runs", 30)
    tasks.exec("c1", "e1", SPEC)
    waited = in_the_middle(t, tasks.start, "c1", "e1")
    t.check(isinstance(waited, (int, taskapi.Error)), waited)
    out.all(OUTPUT)
    in_the_middle(t, tasks.kill, "c1", 9, after=0.01)
    if known(tasks) == taskapi.RUNNING:
        try:
            tasks.kill("c1", 9)
        except taskapi.Error as e:  # it had arrived
            t.equal(e.code, "NOT_FOUND", e)
    t.equal(tasks.wait("c1"), 137)
    in_the_middle(t, tasks.delete, "c1", after=0.02)
    try:  # also if the shim knows it no more: containerd may have found it just before that
        t.equal(tasks.delete("c1"), 137)
    except taskapi.Error as e:  # the shim was still at it, and has done it since
        t.equal(e.code, "NOT_FOUND", e)
    t.until(lambda: not t.shim_pids(), "the shim has gone", 30)
    t.must("containers", "rm", "c1")
