"""lcow boot: a command in a VM, its stdio, its exit code, and the reports."""

import hashlib
import json
import os
import re
import signal
import subprocess
import time
import xml.etree.ElementTree

import images
from harness import BOOT_SECONDS, PATIENCE, flat, test, without_kvm

STAGES = ["spawned", "kernel", "init", "agent", "negotiated"]


@test("uname -a prints the guest's kernel")
def uname(t):
    r = t.boot("uname", "-a")
    t.equal(r.code, 0, r)
    t.match(rf"^Linux \S+ {re.escape(images.release())} .*x86_64", r.out, r)
    t.equal(r.err, "", r)


@test("without --allow-emulation and without KVM it refuses and names the setting")
def refusal(t):
    without_kvm(t)
    r = t.lcow("boot", "--", "true")
    t.equal(r.code, 125, r)
    t.words("allow_emulation", flat(r.err), r)
    t.words("--allow-emulation", flat(r.err), r)
    t.check(r.seconds < 5 * PATIENCE, "it took too long", r)


@test("allow_emulation in the configuration is as good as the flag")
def configured(t):
    t.config(allow_emulation=True)
    r = t.lcow("boot", "--", "true")
    t.equal((r.code, r.out, r.err), (0, "", ""), r)


@test("sh -c 'exit 7' exits with 7", clone=True)
def exit_code(t):
    t.equal(t.boot("sh", "-c", "exit 7").code, 7)


@test("a command that a signal ends exits with 128 and the signal's number", clone=True)
def signal_death(t):
    t.equal(t.boot("sh", "-c", "kill -KILL $$").code, 137)


@test("a command that is not there exits with 127 and is named", clone=True)
def not_found(t):
    r = t.boot("no-such-command", "x")
    t.equal(r.code, 127, r)
    t.match("no-such-command", r.err, r)


@test("a command that cannot be run exits with 126 and is named", clone=True)
def not_executable(t):
    r = t.boot("/etc/passwd")
    t.equal(r.code, 126, r)
    t.match("/etc/passwd", r.err, r)


@test("arguments arrive as they are", clone=True)
def arguments(t):
    words = ["a b", "", "ü€𝄞", "x\ny", '"', "'", "\\", "$HOME", "*", "-n", "{}<>&"]
    r = t.boot("sh", "-c", 'for w; do printf "[%s]" "$w"; done', "sh", *words)
    t.equal(r.code, 0, r)
    t.equal(r.out, "".join(f"[{w}]" for w in words), r)


@test("echo hi | lcow boot -- cat prints hi", clone=True)
def cat(t):
    r = t.boot("cat", stdin=b"hi\n")
    t.equal((r.code, r.out), (0, "hi\n"), r)


@test("64 MiB go through cat unharmed", clone=True)
def much(t):
    data = os.urandom(64 << 20)
    r = t.boot("cat", stdin=data, seconds=120)
    t.equal(r.code, 0, r.err)
    t.equal(len(r.out_bytes), len(data))
    t.equal(hashlib.sha256(r.out_bytes).hexdigest(), hashlib.sha256(data).hexdigest())
    t.note(f"64 MiB each way, boot included: {r.seconds:.1f} s")


@test("stdout and stderr stay apart and whole", clone=True)
def apart(t):
    r = t.boot("sh", "-c", "echo to-out; echo to-err >&2; head -c 100000 /dev/zero | tr '\\0' e >&2;"
                           "head -c 100000 /dev/zero | tr '\\0' o")
    t.equal(r.code, 0, r)
    t.equal(r.out, "to-out\n" + "o" * 100000)
    t.equal(r.err, "to-err\n" + "e" * 100000)


@test("stdin may be /dev/null, a file, or closed", clone=True)
def stdins(t):
    path = t.write("input", b"from a file\n" * 1000)
    r = t.boot("wc", "-c", stdin=subprocess.DEVNULL)
    t.equal((r.code, r.out.strip()), (0, "0"), r)
    with open(path, "rb") as f:
        r = t.boot("wc", "-c", stdin=f)
    t.equal((r.code, r.out.strip()), (0, "12000"), r)
    r = t.boot("wc", "-c", wrap=("sh", "-c", 'exec "$@" <&-', "sh"))
    t.equal((r.code, r.out.strip()), (0, "0"), r)


@test("a command that does not read its stdin is not held up by it", clone=True)
def unread(t):
    with open("/dev/zero", "rb") as endless:
        r = t.boot("echo", "done", stdin=endless)
    t.equal((r.code, r.out), (0, "done\n"), r)
    r = t.boot("sh", "-c", "exec <&-; sleep 1; echo later", stdin=b"x" * (8 << 20))
    t.equal((r.code, r.out), (0, "later\n"), r)


@test("a process left in the background does not hold up the end", clone=True)
def left_behind(t):
    p = t.start_boot("sh", "-c", "sleep 1000 & echo done")
    p.await_output("done")
    r = p.wait(9)  # ten seconds and more, once
    t.equal((r.code, r.out), (0, "done\n"), r)


@test("a reader that pauses for longer than lcow waits for anything loses nothing", clone=True)
def pausing_reader(t):
    r, w = os.pipe()
    p = t.start_boot("seq", "1", "300000", stdout=w)
    os.close(w)
    data = os.read(r, 1)
    time.sleep(13)
    while part := os.read(r, 1 << 20):
        data += part
    os.close(r)
    t.equal(p.wait().code, 0)
    t.check(data == b"".join(b"%d\n" % i for i in range(1, 300001)),
            f"{len(data)} bytes, or other ones")


@test("an open stdin that says nothing does not hold up the end", clone=True)
def idle_stdin(t):
    p = t.start_boot("echo", "done", stdin=subprocess.PIPE)
    r = p.wait()
    t.equal((r.code, r.out), (0, "done\n"), r)


@test("the end of stdin reaches the command while its output continues", clone=True)
def half_close(t):
    r = t.boot("sh", "-c", "wc -c; for i in 1 2 3; do sleep 0.2; echo $i; done", stdin=b"12345")
    t.equal((r.code, r.out.split()), (0, ["5", "1", "2", "3"]), r)


@test("a slow reader gets all of it", clone=True)
def slow_reader(t):
    p = t.start_boot("head", "-c", "3000000", "/dev/zero", stdout=subprocess.PIPE)
    total = 0
    while part := p.popen.stdout.read1(65536):
        total += len(part)
        time.sleep(0.02)
    p.popen.stdout.close()
    t.equal(p.wait().code, 0)
    t.equal(total, 3000000)


@test("a reader that goes away ends the command, as in any pipeline", clone=True)
def closed_reader(t):
    p = t.start_boot("yes", stdout=subprocess.PIPE)
    t.equal(p.popen.stdout.read(10), b"y\ny\ny\ny\ny\n")
    p.popen.stdout.close()
    closed = time.monotonic()
    r = p.wait(20)
    t.check(r.code in (1, 141), "neither told by SIGPIPE nor by EPIPE", r)
    t.check(time.monotonic() - closed < 10, "it took too long", r)


@test("a full disk behind stdout is reported as an error", clone=True)
def full_output(t):
    with open("/dev/full", "wb") as full:
        r = t.boot("echo", "hi", stdout=full)
    t.equal(r.code, 125, r)
    t.words("stdout.*no space", flat(r.err), r)


@test("a process that a command leaves in the VM does not keep lcow running", clone=True)
def left_running(t):
    r = t.boot("sh", "-c", "sleep 1000 & echo hi", seconds=30)
    t.equal((r.code, r.out), (0, "hi\n"), r)


@test("--json: a result that parses, with every stage in order")
def json_line(t):
    r = t.boot("echo", "hi", opts=("--json",))
    t.equal(r.code, 0, r)
    t.equal(r.out.splitlines()[0], "hi", r)
    result = json.loads(r.out.splitlines()[-1])
    t.equal(result["exit_code"], 0)
    t.equal([s["name"] for s in result["stages"]], STAGES)
    times = [s["at_ms"] for s in result["stages"]]
    t.equal(times, sorted(times))
    t.check(0 < times[0] and times[-1] < result["duration_ms"], "the times make no sense", times)
    t.equal(result["emulated"], result["accel"] == "tcg")
    t.note("stages in ms: " + ", ".join(f"{s['name']} {s['at_ms']:.0f}" for s in result["stages"]))


@test("--json=FILE reports a failed boot, too")
def json_failure(t):
    path = os.path.join(t.work, "result.json")
    images.evil(t, "exits")
    r = t.boot("true", opts=("--json=" + path,))
    t.equal(r.code, 125, r)
    with open(path) as f:
        result = json.load(f)
    t.equal(result["exit_code"], 125)
    t.equal(result["error"]["stage"], "kernel", result["error"])
    t.check(result["error"]["message"] and result["error"]["next"], "no message or no remedy",
            result["error"])


@test("--timeline is a text, or a picture that is well-formed XML")
def timeline(t):
    path = os.path.join(t.work, "boot.svg")
    r = t.boot("true", opts=("--timeline", path))
    t.equal((r.code, r.out, r.err), (0, "", ""), r)
    root = xml.etree.ElementTree.parse(path).getroot()
    t.equal(root.tag, "{http://www.w3.org/2000/svg}svg")
    words = "".join(root.itertext())
    r = t.boot("true", opts=("--timeline",))
    t.equal((r.code, r.out), (0, ""), r)
    for stage in STAGES:
        t.check(stage in words, f"the picture lacks {stage}")
        t.check(stage in r.err, f"the text lacks {stage}", r)


@test("--repeat 2 boots twice, each a VM of its own")
def repeat(t):
    r = t.boot("cat", "/proc/sys/kernel/random/boot_id", opts=("--repeat", "2", "--json"))
    t.equal(r.code, 0, r)
    ids = r.out.split("\n")[:2]
    t.check(ids[0] != ids[1], "the same VM twice", r)
    results = json.loads(r.out.splitlines()[-1])
    t.equal(len(results), 2)
    t.check(results[0]["id"] != results[1]["id"], "the same id twice", results)


@test("--repeat without --json prints a table with min, median and max")
def repeat_table(t):
    r = t.lcow("boot", "--allow-emulation", "--repeat", "2")
    t.equal(r.code, 0, r)
    for word in [*STAGES, "min", "median", "max"]:
        t.match(rf"\b{word}\b", r.out, r)


@test("--cpus 2 gives the guest two CPUs")
def cpus(t):
    r = t.boot("nproc", opts=("--cpus", "2"))
    t.equal((r.code, r.out), (0, "2\n"), r)


@test("--memory 512 gives the guest 512 MiB")
def memory(t):
    r = t.boot("sed", "-n", "s/^MemTotal: *\\([0-9]*\\) kB/\\1/p", "/proc/meminfo",
               opts=("--memory", "512"))
    t.equal(r.code, 0, r)
    t.check(400 << 10 < int(r.out) <= 512 << 10, f"MemTotal is {r.out.strip()} kB")


@test("the least memory is enough for a boot")
def least_memory(t):
    r = t.boot("echo", "hi", opts=("--memory", "128"))
    t.equal((r.code, r.out), (0, "hi\n"), r)


@test("a command that eats all memory is killed, not the VM")
def out_of_memory(t):
    # The smallest VM: without a limit of the command's own, once in a dozen runs its kernel found
    # nothing to kill, and panicked.
    r = t.boot("sh", "-c", "tail /dev/zero; echo code $?; cat /proc/self/cgroup",
               opts=("--memory", "128"), seconds=50)
    t.equal((r.code, r.out), (0, "code 137\n0::/commands\n"), r)


@test("a command that fills the VM with files is killed, not the VM")
def full_files(t):
    r = t.boot("dd", "if=/dev/zero", "of=/tmp/big", "bs=1M", opts=("--memory", "128"), seconds=50)
    t.equal(r.code, 137, r)


@test("the guest's clock is the host's, within 2 s")
def clock(t):
    before = time.time()
    r = t.boot("date", "+%s")
    t.equal(r.code, 0, r)
    t.check(before - 2 <= int(r.out) <= time.time() + 2,
            f"guest {r.out.strip()}, host {before:.0f} to {time.time():.0f}")


@test("two boots share no random number")
def random(t):
    seen = [t.boot("sh", "-c", "head -c 32 /dev/urandom | sha256sum") for _ in range(2)]
    t.equal([r.code for r in seen], [0, 0])
    t.check(seen[0].out != seen[1].out, "the same 32 bytes twice")


@test("--keep leaves the VM running until SIGTERM", clone=True)
def keep(t):
    p = t.start_boot("echo", "hi", opts=("--keep",))
    said = p.await_text(r"VM \S+ keeps running: pid (\d+), directory (\S+);")
    pid, directory = int(said.group(1)), said.group(2)
    t.check(pid in p.vmm_pids(), f"{pid} is not a VMM of this lcow")
    t.check(os.path.exists(os.path.join(directory, "ledger")), f"no ledger in {directory}")
    time.sleep(1)
    t.check(p.running and os.path.exists(f"/proc/{pid}"), "it did not stay")
    p.signal(signal.SIGTERM)
    r = p.wait(10)
    t.check(r.code in (0, 143), "another exit code", r)
    t.equal(r.out, "hi\n", r)


@test("a kept VM is in lcow ps, runs commands by lcow exec --vm, and leaves nothing", clone=True)
def keep_asked(t):
    p = t.start_boot("true", opts=("--keep", "--memory", "300"))
    said = p.await_text(r"VM (\S+) keeps running: pid (\d+), directory (\S+);")
    vm, pid, directory = said.group(1), said.group(2), said.group(3)
    r = t.lcow("ps")
    t.match(rf"(?m)^{vm} .*\(VM\) .*Running\*? +{pid} +300 MiB +1 ", r.out)
    r = t.lcow("exec", "--vm", vm, "--", "sh", "-c", "echo in $(cat /proc/1/comm); exit 7")
    t.equal((r.code, r.out), (7, "in init\n"), r)
    r = t.lcow("exec", vm, "--", "true")
    t.equal(r.code, 125, r)
    t.words("not a container", flat(r.err), r)
    t.equal(json.loads(t.lcow("inspect", vm).out)["containers"], [])
    busy = t.start("exec", "--vm", vm, "--", "sh", "-c", "echo began; sleep 1000")
    busy.await_output("began")
    p.signal(signal.SIGTERM)
    t.check(p.wait(30).code in (0, 143), "another exit code")
    t.check(busy.wait(10).code != 0, "its command ended well")
    t.check(not os.path.exists(directory), f"{directory} is left")
    t.equal(json.loads(t.lcow("ps", "--json").out), [])


@test("a kept VM whose lcow is killed is no longer listed, and lcow gc removes its socket",
      clone=True)
def keep_killed(t):
    p = t.start_boot("true", opts=("--keep",))
    directory = p.await_text(r"VM \S+ keeps running: pid \d+, directory (\S+);").group(1)
    t.until(lambda: os.path.exists(os.path.join(directory, "shim")), "the run file", 10)
    p.signal(signal.SIGKILL)
    p.wait(10)
    t.equal(json.loads(t.lcow("ps", "--json").out), [])
    t.equal(t.lcow("gc").code, 0)
    t.check(not os.path.exists(directory), f"{directory} is left")


@test("SIGUSR1 prints what every fiber waits for", clone=True)
def fibers(t):
    p = t.start_boot("sleep", "1000", progress=True)
    p.await_stage("negotiated")
    p.signal(signal.SIGUSR1)
    p.await_text(r"vm\.reap")
    p.signal(signal.SIGTERM)
    t.equal(p.wait(10).code, 143)


@test("two VMs at once do not disturb each other", clone=True)
def two(t):
    first = t.start_boot("sh", "-c", "cat; echo first", stdin=subprocess.PIPE)
    second = t.boot("echo", "second")
    t.equal((second.code, second.out), (0, "second\n"), second)
    first.popen.stdin.write(b"still here\n")
    first.popen.stdin.close()
    r = first.wait(BOOT_SECONDS)
    t.equal((r.code, r.out), (0, "still here\nfirst\n"), r)
