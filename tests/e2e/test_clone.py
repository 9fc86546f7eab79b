"""Templates as pods use them: built in the background after the first cold start, then cloned."""

import json
import os

import shimcall
from e2e import test
from shimcall import text

COLD = "why=\"there is no template"


def templates(directory):
    return [n for n in os.listdir(directory) if len(n) == 32] if os.path.isdir(directory) else []


def is_clone(t):
    with open(f"/proc/{t.qemu_pid()}/cmdline", "rb") as f:
        return b"-incoming" in f.read().split(b"\0")


def clock(t, name):
    return json.loads(t.lcow("inspect", name).out)["vm"]["clock"]["state"]


@test("the first cold start has a template built; the next container's VM is a clone", runc=False,
      deadline=400)
def in_the_background(t):
    directory = os.path.join(t.work, "templates")
    t.config(template="auto", template_dir=directory)
    r = t.run("--rm", "c1", "echo", "cold")  # its shim is gone long before the builder is done
    t.equal((r.code, r.out), (0, "cold\n"), r)
    t.until(lambda: templates(directory), "the template is built", seconds=200)
    t.until(lambda: not os.path.exists(os.path.join(t.run_root, "template")), "its builder is gone",
            seconds=60)
    t.detach("c2", "sleep", "1000")
    t.check(is_clone(t), "no clone", t.containerd.log[-3000:])
    t.equal(t.exec("c2", "echo", "alive").out, "alive\n")
    t.until(lambda: clock(t, "c2") == "good", "its clock is compared with the host's", seconds=180)
    t.equal(t.containerd.log.count(COLD), 1, "cold starts")
    t.must("tasks", "kill", "-s", "SIGKILL", "c2")
    t.await_status("c2", "STOPPED")


@test("a template is built as the runtime options say, not only as the file does", runc=False,
      images=(), deadline=400)
def by_options(t):
    ours, files = (os.path.join(t.work, name) for name in ("ours", "files"))
    t.config(template="auto", template_dir=files)
    body = f'[host]\ntemplate_dir = "{ours}"\n'
    shim = shimcall.Shim(t, "s1")
    r = shim.binary("start", stdin=text(1, "runtimeoptions.v1.Options") + text(2, text(3, body)))
    t.equal(r.returncode, 0, r)
    shim.found(r.stdout)
    shim.create()
    t.until(lambda: templates(ours) or templates(files), "the template is built", seconds=200)
    t.check(templates(ours) and not templates(files), "it is not where the options say")
    t.until(lambda: not os.path.exists(os.path.join(t.run_root, "template")), "its builder is gone",
            seconds=60)


@test("template = off: no clone, and nothing is built", runc=False)
def off(t):
    directory = os.path.join(t.work, "templates")
    t.config(template="off", template_dir=directory)
    t.detach("c1", "sleep", "1000")
    t.check(not is_clone(t), "a clone")
    t.check(not os.path.exists(directory), "there is a store")
    t.equal(t.containerd.log.count(COLD), 0, "it was not asked for")
