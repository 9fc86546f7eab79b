"""ctr run in its forms: what goes in, what comes out, what the program finds around it."""

import os
import random
import re
import subprocess

from e2e import test


def feed(t, process, container, data):
    """Some versions of ctr never tell of an end of stdin that came before the task did."""
    t.await_status(container, "RUNNING")
    process.popen.stdin.write(data)
    process.popen.stdin.close()


@test("run --rm prints what the program writes and leaves nothing", smoke=True)
def output(t):
    r = t.run("--rm", "c1", "echo", "hello")
    t.equal((r.code, r.out), (0, "hello\n"), r)
    t.equal(t.must("containers", "ls", "-q").out, "")
    t.equal(t.tasks(), {})


@test("the program's exit code is ctr's", smoke=True)
def exit_code(t):
    t.equal(t.run("--rm", "c1", "sh", "-c", "exit 7").code, 7)


@test("a program that dies of a signal exits with 128 and the signal")
def died_of_signal(t):
    p = t.start_run("--rm", "c1", "sleep", "1000")
    t.await_status("c1", "RUNNING")
    t.must("tasks", "kill", "-s", "SIGKILL", "c1")
    t.equal(p.wait().code, 137)


@test("stdout and stderr are separate", smoke="one")
def two_streams(t):
    r = t.run("--rm", "c1", "sh", "-c", "echo out; echo err >&2")
    t.equal((r.out, r.err.strip()), ("out\n", "err"), r)


@test("stdin reaches the program, and so does its end", smoke="one")
def stdin(t):
    p = t.start_run("--rm", "c1", "cat", stdin=subprocess.PIPE)
    data = b"".join(b"line %d\n" % i for i in range(100000))
    feed(t, p, "c1", data)
    r = p.wait()
    t.equal(r.code, 0, r)
    t.check(r.out_bytes == data, f"{len(r.out_bytes)} bytes came back of {len(data)}")


@test("run -t gives a terminal of the right size, which follows", smoke="one")
def terminal(t):
    tty = t.terminal(*t.run_args("--rm", "-t", "c1", "sh"), rows=33, cols=101)
    tty.expect("# ")
    tty.command("test -t 0 && test -t 1 && echo is''tty", "istty")
    t.until(lambda: asks_size(tty, "33 101"), "the first size is there", 20)
    tty.resize(40, 120)
    t.until(lambda: asks_size(tty, "40 120"), "the new size is there", 20)
    tty.send("exit 5\n")
    t.equal(tty.wait(60), 5)


def asks_size(tty, wanted):
    return tty.command("stty size; echo si''ze", r"(\d+ \d+)\r+\nsize").group(1) == wanted


@test("^C on the terminal interrupts the program and not ctr")
def interrupt(t):
    tty = t.terminal(*t.run_args("--rm", "-t", "c1", "sh"))
    tty.expect("# ")
    tty.command("trap 'echo cau''ght' INT; sh -c 'echo rea\"\"dy; exec sleep 1000'", "ready")
    tty.send("\x03")
    tty.expect("caught")
    tty.send("exit 3\n")
    t.equal(tty.wait(60), 3)


@test("the image's and the caller's environment, directory and user are the program's")
def surroundings(t):
    user = () if t.version == "1.6" else ("--user=worker",)  # that ctr has no such option
    r = t.run("--rm", "--env=ADDED=here", "--cwd=/var", *user, "c1", "sh", "-c",
              "echo $FROM_IMAGE $ADDED; pwd; id -u; id -g")
    number = "1000" if user else "0"
    t.equal((r.code, r.out), (0, f"yes here\n/var\n{number}\n{number}\n"), r)


@test("the image says who runs it and where", images=("users",))
def image_user(t):
    r = t.run("--rm", "c1", "sh", "-c", "id -un; pwd; touch mine && stat -c %u mine")
    t.equal((r.code, r.out), (0, "worker\n/home/worker\n1000\n"), r)


@test("a file deleted in an upper layer stays deleted", smoke="one", images=("whiteouts",))
def whiteouts(t):
    r = t.run("--rm", "c1", "sh", "-c", "ls data opaque; ls -d tree 2>&1 | grep -c 'No such'")
    t.equal((r.code, r.out), (0, "data:\nstays\n\nopaque:\nabove\n1\n"), r)


@test("an image of 130 layers runs", images=("layers",))
def many_layers(t):
    r = t.run("--rm", "c1", "sh", "-c", "ls layers | wc -l; cat layers/001 layers/129")
    t.equal((r.code, r.out.split()), (0, ["129", "1", "129"]), r)


@test("writes go to the container, not to its image", images=("static",))
def writes(t):
    script = "test ! -e /new && echo x >/new && rm /etc/group && test -e /new && echo done"
    for container in ("c1", "c2"):
        r = t.run("--rm", container, "sh", "-c", script)
        t.equal((r.code, r.out), (0, "done\n"), r)


@test("a read-only root file system is one")
def read_only(t):
    r = t.run("--rm", "--read-only", "c1", "sh", "-c", "touch /new; echo $?")
    t.match("read-only file system", r.err.lower(), r)
    t.equal(r.out, "1\n", r)


@test("bind mounts of a directory and of a file; read-only means it")
def binds(t):
    shared = os.path.join(t.work, "shared")
    os.mkdir(shared)
    t.write("shared/there", "from the host\n")
    single = t.write("single", "one file\n")
    r = t.run("--rm", f"--mount=type=bind,src={shared},dst=/mnt,options=rbind:rw",
              f"--mount=type=bind,src={shared},dst=/ro,options=rbind:ro",
              f"--mount=type=bind,src={single},dst=/single,options=bind:ro", "c1", "sh", "-c",
              "cat /mnt/there /single; echo back >/mnt/new; touch /ro/no 2>/dev/null; echo $?")
    t.equal((r.code, r.out), (0, "from the host\none file\n1\n"), r)
    with open(os.path.join(shared, "new")) as f:
        t.equal(f.read(), "back\n")


@test("the program is confined: namespaces, capabilities, seccomp")
def confined(t):
    r = t.run("--rm", "--seccomp", "c1", "sh", "-c",
              "echo pid $$; grep -E 'CapBnd|Seccomp:|NoNewPrivs' /proc/self/status; "
              "mount -t tmpfs x /tmp 2>/dev/null; echo mount $?; cat /proc/kcore | wc -c; "
              "echo 1 >/proc/sysrq-trigger; echo sysrq $?")
    t.match(r"pid 1\n", r.out, r)
    bound = int(re.search(r"CapBnd:\s+(\w+)", r.out).group(1), 16)
    t.equal(bound >> 21 & 1, 0, "CAP_SYS_ADMIN is there")
    t.match(r"NoNewPrivs:\s+1\n", r.out, r)
    t.match(r"Seccomp:\s+2\n", r.out, r)
    t.check("mount 0" not in r.out and "sysrq 0" not in r.out, "not confined", r)
    t.match(r"\n0\n", r.out, r)  # kcore is masked


@test("the default limit of open files is the program's")
def rlimits(t):
    r = t.run("--rm", "c1", "sh", "-c", "ulimit -n")
    t.equal((r.code, r.out.strip()), (0, "1024"), r)


@test("64 MiB of output arrive complete, and in order")
def much_output(t):
    data = random.Random(1).randbytes(64 << 20)  # made here: an emulated processor is slow
    path = t.write("data", data)
    r = t.run("--rm", f"--mount=type=bind,src={path},dst=/data,options=bind:ro", "c1",
              "cat", "/data", seconds=250)
    t.equal(r.code, 0, r.err)
    t.check(r.out_bytes == data, f"{len(r.out_bytes)} bytes of {len(data)}, or other ones")


@test("the program begins with no signal blocked or ignored, also on a terminal")
def clean_signals(t):
    script = "grep -E 'Sig(Blk|Ign)' /proc/self/status; cat /proc/self/stat"
    for number, opts in enumerate(((), ("-t",))):
        if opts:
            tty = t.terminal(*t.run_args("--rm", *opts, f"c{number}", "sh", "-c", script))
            tty.wait(120)
            out = tty.text
        else:
            out = t.run("--rm", f"c{number}", "sh", "-c", script).out
        masks = dict(re.findall(r"Sig(Blk|Ign):\s+(\w+)", out))
        # 32 and 33 are the C library's own.
        t.equal({k: int(v, 16) & ~(3 << 31) for k, v in masks.items()}, {"Blk": 0, "Ign": 0}, out)
        if opts:  # session, terminal and its foreground group: fields 6 to 8
            session, device, group = re.search(r"\(cat\) \w (?:\d+ ){2}(\d+) (-?\d+) (-?\d+)",
                                               out).groups()
            t.check(device != "0" and group != "-1", "no controlling terminal", out)
