"""CPU of the shim while a monitor asks for statistics every second: of 100 containers of one pod, and of the
sandbox as often. A call's own time is a row of the part calls. Alone: bench/run --only stats"""

import itertools
import os
import time

import cells
import procfs
import shimcall
from rows import Mark, median
from shims import Client, group
from shimcall import text
from stats import summary

CALLS = 100    # a second
SECONDS = 20   # each a value
SANDBOX = "containerd.runtime.sandbox.v1.Sandbox"

ROWS = (("sandbox_polled_percent", "100 SandboxMetrics a second", "%", True),)  # polled_percent: rows.py
MARKS = (Mark("100 SandboxMetrics a second, shim's CPU", 1, "%",
              lambda results: median(results, "lcow", "sandbox_polled_percent")),)


def shares(shim, rounds, ask):
    """Percent of a CPU in each second. ask() is called `rounds` times in it, at equal distances."""
    found = []
    for _ in range(SECONDS):
        before, begin = procfs.cpu_s(shim), time.monotonic()
        for n in range(rounds):
            ask()
            time.sleep(max(0, begin + (n + 1) / rounds - time.monotonic()))
        found.append((procfs.cpu_s(shim) - before) / (time.monotonic() - begin) * 100)
    return summary(found)


def containers(t, count):
    """Each of `count` containers is asked CALLS / count times a second."""
    names = [f"p{i}" for i in range(count)]
    t.detach(*group("c1", "sandbox"), "c1", "sleep", "100000")
    for name in names:
        t.detach(*group("c1", "container"), name, "sleep", "100000")
    client = Client(t, "c1")

    def ask():
        for name in names:
            client.call("Stats", text(1, name))
    try:
        return {"polled_percent": shares(t.shim_pid(), CALLS // count, ask)}
    finally:
        client.socket.close()
        for name in names:
            t.ctr("tasks", "rm", "-f", name)


def sandbox(t):
    """The shim's own sandbox, without a container."""
    shim = shimcall.Shim(t, "s1")
    os.unlink(os.path.join(shim.bundle, "config.json"))
    shim.start()

    def call(method, *parts):
        return shim.call(method, text(1, "s1"), *parts, service=SANDBOX)
    call("CreateSandbox", text(2, shim.bundle))
    connection, streams = shim.connect(), itertools.count(1, 2)  # one, as containerd's

    def ask():
        shimcall.send(connection, next(streams), SANDBOX, "SandboxMetrics", text(1, "s1"), t.tag)
        shimcall.receive(connection)
    try:
        call("StartSandbox")
        return {"sandbox_polled_percent": shares(t.shim_pid(), CALLS, ask)}
    finally:
        connection.close()
        call("StopSandbox")
        call("ShutdownSandbox")


sandbox.images = ()


def measure(run, _):
    run.say(f"statistics of {run.n['polled']} containers")
    for peer, keys in (("runc", {}), ("lcow", {"template": "off"})):
        run.keep(peer, cells.run(peer, "2.1", containers, run.n["polled"], **keys))
    run.keep("lcow", cells.run("lcow", "2.1", sandbox, template="off"))
