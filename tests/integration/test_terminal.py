"""lcow boot -t, through a pseudo-terminal."""

import os
import re
import signal

import leaks
from harness import test
from terminal import Terminal

PROMPT = r"/ # "


@test("without a command there is a shell with prompt, echo and exit code", clone=True)
def shell(t):
    tty = Terminal(t, "boot", "--allow-emulation")
    tty.expect(PROMPT)
    tty.send("echo $((6*7))-sum\n")
    tty.expect(r"echo \$\(\(6\*7\)\)-sum")  # what is typed is shown once
    tty.expect("42-sum")
    tty.expect(PROMPT)
    tty.send("exit 5\n")
    t.equal(tty.wait(), 5)


@test("stty size follows the window", clone=True)
def size(t):
    tty = Terminal(t, "boot", "--allow-emulation", "-t", "--", "sh", rows=33, cols=101)
    tty.expect(PROMPT)
    tty.command("stty size", "33 101")
    tty.resize(50, 132)
    # The new size travels behind the line that asks for it: ask until it is there.
    for _ in range(20):
        if "50 132" in tty.command("stty size", r"\d+ \d+\r\n").group():
            break
    else:
        t.check(False, "the size did not follow", repr(tty.text[-1000:]))
    tty.send("exit\n")
    t.equal(tty.wait(), 0)


@test("Ctrl-C reaches the foreground command, not the shell and not lcow", clone=True)
def interrupt(t):
    tty = Terminal(t, "boot", "--allow-emulation", "-t", "--", "sh")
    tty.expect(PROMPT)
    # Not before the command runs: until then the shell itself has the terminal, without signals.
    tty.command("sh -c 'echo star\"\"ted; exec sleep 1000'", "started\r\n")
    tty.send("\x03")
    tty.expect(PROMPT, 10)
    tty.command("echo code $?", "code 130")
    tty.expect(PROMPT + r"\x1b\[6n")  # the shell has asked where the cursor is: it reads keys now
    tty.send("\x04")  # end of input
    t.equal(tty.wait(), 0)


@test("with -t the command has a terminal and one output", clone=True)
def is_terminal(t):
    tty = Terminal(t, "boot", "--allow-emulation", "-t", "--", "sh", "-c",
                   "test -t 0 && test -t 1 && test -t 2 && echo all three; echo err >&2; exit 3")
    tty.expect("all three\r\n")
    tty.expect("err\r\n")
    t.equal(tty.wait(), 3)


@test("the terminal is restored when QEMU is killed under a shell", clone=True)
def killed(t):
    tty = Terminal(t, "boot", "--allow-emulation")
    tty.expect(PROMPT)
    own = os.readlink("/proc/self/ns/pid")
    for pid in leaks.descendants(tty.pid):
        if os.readlink(f"/proc/{pid}/ns/pid") != own:
            os.kill(pid, signal.SIGKILL)
    t.equal(tty.wait(10), 125)
    tty.expect("error")


@test("the terminal is restored when SIGTERM ends lcow under a shell", clone=True)
def terminated(t):
    tty = Terminal(t, "boot", "--allow-emulation")
    tty.expect(PROMPT)
    os.kill(tty.pid, signal.SIGTERM)  # an interactive shell ignores it
    tty.command("echo alive", "alive\r\n")
    os.kill(tty.pid, signal.SIGTERM)
    t.equal(tty.wait(10), 143)


@test("a long output on a terminal arrives whole", clone=True)
def long_output(t):
    tty = Terminal(t, "boot", "--allow-emulation", "-t", "--", "seq", "1", "20000")
    t.equal(tty.wait(40), 0)
    tty._reader.join(1)
    t.check("\n20000\r\n" in tty.text and "\n10000\r\n" in tty.text, "lines are missing",
            repr(tty.text[-200:]))
    numbers = re.findall(r"(?:\n|\x1b\[K)(\d+)(?=\r\n)", tty.text)
    t.equal(numbers, [str(i) for i in range(1, 20001)])
