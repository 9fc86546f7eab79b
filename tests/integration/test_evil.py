"""A hostile guest: evil_guest.c as /init. Whatever it does, lcow ends with a true error in time, its
memory stays bounded, and nothing is left."""

import re
import signal
import time

import images
from harness import TooSlow, cpu_seconds, flat, test

STAGES = ("kernel", "init", "agent", "negotiated")
MEMORY_KIB = 64 << 10
CPU_SHARE = 0.15  # of one processor, for a guest that floods; 0.2 to 0.7 without a bound


def hostile(deed, sentence, *patterns, waits=False):
    """waits: only the boot's deadline ends it."""
    def attempt(t, limit):
        r = t.boot("true", seconds=limit + 60)
        stage = re.search(r"error at .*?'(\w+)'", flat(r.err))
        if waits and stage and at(stage.group(1)) != patterns[0]:
            raise TooSlow(f"at stage {stage.group(1)} when the time was over\n{r}")
        t.equal(r.code, 125, r)
        t.note(flat(r.err)[:300])
        for pattern in patterns:
            (t.match if pattern in map(at, STAGES) else t.words)(pattern, flat(r.err), r)
        t.check("the host answered" not in r.err, "the host answered it", r)

    def run(t):
        if not waits:
            images.evil(t, deed)
            return attempt(t, 0)

        def limited(seconds):
            images.evil(t, deed)
            attempt(t, seconds)
        t.with_short_boot_timeout(limited)
    test(sentence)(run)


def at(stage):
    return f"'{stage}'"


hostile("exits", "init exits at once: the kernel's panic is shown", at("kernel"),
        "attempted to kill init")
hostile("says-nothing", "init says nothing: the deadline ends it", at("kernel"),
        "deadline exceeded", waits=True)
hostile("never-dials", "the agent never dials: the deadline ends it", at("init"),
        "deadline exceeded", "try: ", waits=True)
hostile("wrong-token", "an agent with a wrong token is never heard", at("init"),
        "deadline exceeded", waits=True)
hostile("wrong-port", "an agent that dials ports that are not open gets no connection", at("init"),
        "deadline exceeded", waits=True)
hostile("no-preface", "500 connections without a preface change nothing", at("init"),
        "deadline exceeded", waits=True)
hostile("wrong-version", "an agent that refuses our protocol version: told with the remedy",
        at("agent"), "does not speak protocol version 4", "make")
hostile("other-version", "an agent of another protocol version: told with the remedy",
        at("agent"), "version 7", "make")
hostile("frame-zero", "a frame of length 0 ends the bridge", at("agent"), "bad frame.*size 0: ")
hostile("frame-huge", "a frame of length 2^32-1 ends the bridge", at("agent"),
        "bad frame.*size 4294967295: ")
hostile("frame-truncated", "a truncated frame ends the bridge", at("agent"),
        "ended after 9 of 184 bytes")
hostile("frame-stops", "a frame that stops half way: the deadline ends it", at("agent"),
        "deadline exceeded", waits=True)
hostile("frame-garbage", "a frame that is not JSON ends the bridge", at("agent"),
        "NegotiateProtocol is unreadable.*JSON")
hostile("bridge-silent", "a bridge that never answers: the deadline ends it", at("agent"),
        "deadline exceeded", waits=True)
hostile("bridge-closes", "a bridge that closes at once is an error", at("agent"),
        "the guest is gone")
hostile("dies-before-dial", "the agent killed before it dials: its end is reported", at("init"),
        "powered off", "agent died: killed by signal 9")
hostile("dies-after-dial", "the agent killed after it dialled: its end is reported", at("agent"),
        "powered off", "agent died: killed by signal 9")
hostile("exec-garbage", "an answer to ExecuteProcess that is not an object is an error",
        "ExecuteProcess is unreadable")
hostile("exec-unasked", "an unrequested answer ends the bridge", "a call that was not made")
hostile("exec-closes", "a bridge that closes on ExecuteProcess is an error", "the guest is gone")


def interrupted(deed, sentence):
    """Two signals end it, however deaf the guest."""
    def run(t):
        images.evil(t, deed)
        p = t.start_boot("true", progress=True)
        p.await_stage("negotiated")
        time.sleep(0.5)
        p.signal(signal.SIGINT)
        time.sleep(0.5)
        p.signal(signal.SIGINT)
        r = p.wait(10)  # 5 s are given to an attempt to end the process in the guest
        t.equal(r.code, 130, r)
    test(sentence)(run)


interrupted("exec-silent", "an agent that never answers ExecuteProcess can be interrupted")
interrupted("exec-no-stdio", "a process whose stdio never comes can be interrupted")


def most_memory(pid):
    try:
        with open(f"/proc/{pid}/status") as f:
            m = re.search(r"VmHWM:\s+(\d+)", f.read())
        return int(m.group(1)) if m else 0
    except OSError:
        return 0


def floods(deed, sentence, why=None):
    """why: what the host says when it has had enough."""
    def run(t):
        images.evil(t, deed)
        p = t.start_boot("true", progress=True)
        p.await_stage("negotiated")
        # The first second is for what may come at once.
        most, begin, used, cpu = 0, time.monotonic(), None, 0
        while time.monotonic() < begin + 5 and p.running:
            most = max(most, most_memory(p.pid))
            if used is None and time.monotonic() > begin + 1:
                used = cpu_seconds(p.pid)
            elif used is not None:
                cpu = max(cpu, cpu_seconds(p.pid) - used)
            time.sleep(0.05)
        if p.running:  # else it drew its own conclusion from the flood
            p.signal(signal.SIGTERM)
            time.sleep(0.5)
        if p.running:
            p.signal(signal.SIGTERM)
        r = p.wait(10)
        t.check(r.code in (143, 125), "another end", flat(r.err)[-2000:])
        t.note(f"lcow's memory: {most} KiB, stderr: {len(r.err)} bytes, CPU time: {cpu:.2f} s in 4 s")
        t.check(0 < most < MEMORY_KIB, f"lcow had {most} KiB")
        t.check(len(r.err) < 8 << 20, f"{len(r.err)} bytes on stderr: nothing held them back")
        t.check(cpu < 4 * CPU_SHARE, f"lcow took {cpu:.2f} s of CPU time in 4 s")
        if why:
            t.match(why, flat(r.err), r.err[-2000:])
    test(sentence)(run)


floods("floods-log", "a flood on the log port: lcow's memory stays bounded, and it still ends")
floods("floods-line", "a log line without end: lcow's memory stays bounded, and it still ends")
floods("floods-console", "a flood on the console: lcow's memory stays bounded, and it still ends")
floods("floods-bridge", "a flood on the bridge: lcow's memory stays bounded, and it still ends")
floods("floods-bytes", "a flood of notifications, each as large as it may be: lcow needs little CPU")
floods("floods-notifications", "a notification of 1 MiB ends the bridge before it is read",
       "a notification of 1048576 bytes: at most 4096")
floods("floods-connections", "a flood of connections: lcow needs little CPU, and it still ends")


@test("a command that floods console and kernel log does not hold up its own end")
def noisy_command(t):
    r = t.boot("sh", "-c", "yes console >/dev/console & yes '<1>kernel' >/dev/kmsg & sleep 2; "
                           "echo done; kill %1 %2; exit 4")
    t.equal((r.code, r.out), (4, "done\n"), r.out + r.err[-1000:])


@test("control characters from the guest's console do not reach the terminal")
def control_characters(t):
    r = t.boot("sh", "-c", "printf '\\033[2J\\033]0;owned\\007\\202x\\n' >/dev/console; "
                           "sleep 0.3; echo c >/proc/sysrq-trigger; sleep 100")
    t.equal(r.code, 125, r)
    bad = [c for c in r.err if ord(c) < 32 and c not in "\n\t" or 0x7f <= ord(c) < 0xa0]
    t.equal(bad, [], repr(r.err[-1000:]))
