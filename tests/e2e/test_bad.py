"""Bad input through ctr: a clear error, soon, and nothing left."""

import json
import os
import re

import shimcall
import taskapi
from e2e import test
from harness import Skip, without_kvm

FOREVER = ("sleep", "100000")


@test("a command that is not there: an error at once that names it", smoke=True)
def no_command(t):
    r = t.fails(*t.run_args("--rm", "c1", "/no/such/program"), pattern="/no/such/program")
    t.words("no such file|not found", r.err, r)
    t.equal(t.tasks(), {})
    t.explains("c1", "COMMAND_NOT_FOUND")


@test("a command that cannot be run: an error at once that says why")
def no_permission(t):
    t.fails(*t.run_args("--rm", "c1", "/etc/passwd"), pattern="permission denied")
    t.equal(t.tasks(), {})
    t.explains("c1", "COMMAND_NOT_EXECUTABLE")


@test("exec of a command that is not there does the container no harm", smoke=True)
def exec_no_command(t):
    t.detach("c1", *FOREVER)
    r = t.exec("c1", "/no/such/program")
    t.check(r.code != 0, "it worked", r)
    t.words("no such file|not found", r.err, r)
    t.equal(t.exec("c1", "echo", "well").out, "well\n")
    t.explains("c1", "COMMAND_NOT_FOUND")


@test("an image without layers: a clear error", images=("nothing",))
def no_layers(t):
    r = t.fails(*t.run_args("--rm", "c1", "true"))
    t.words("not found|no such file|layers|parent snapshot|empty", r.err, r)


@test("an image whose /dev is a link: an error that names it, nothing left", images=("linked",),
      runc=False)
def linked_dev(t):
    t.fails(*t.run_args("--rm", "c1", "true"), pattern="/dev of the image is a symbolic link to "
            "/bin: .*; make it a directory in the image")
    t.equal(t.tasks(), {})


@test("signal 99 is refused and does no harm")
def signal_99(t):
    t.detach("c1", *FOREVER)
    t.fails("tasks", "kill", "-s", "99", "c1", pattern="signal|invalid")
    t.equal(t.exec("c1", "echo", "well").out, "well\n")


@test("an exec id in use is refused, the first exec continues")
def exec_id_in_use(t):
    t.detach("c1", *FOREVER)
    p = t.start_ctr(*t.exec_args("c1", "sh", "-c", "echo up; sleep 1000", exec_id="twice"))
    p.await_output("up")
    r = t.exec("c1", "true", exec_id="twice")
    t.check(r.code != 0, "it worked", r)
    t.words("exists|already", r.err, r)
    t.check(p.running, "the first has ended")


@test("a container id in use is refused, the first container continues")
def id_in_use(t):
    t.detach("c1", *FOREVER)
    t.fails(*t.run_args("--rm", "c1", "true"), pattern="exists")
    t.equal(t.exec("c1", "echo", "well").out, "well\n")


@test("everything on a stopped task is an error that says so")
def stopped(t):
    t.detach("c1", "true")
    t.await_status("c1", "STOPPED")
    t.fails("tasks", "kill", "-s", "SIGTERM", "c1", pattern="not found|finished|stopped|ended")
    t.check(t.exec("c1", "true").code != 0, "exec worked")
    t.fails("tasks", "pause", "c1")


@test("everything on an unknown task is: not found")
def unknown(t):
    for args in (("kill", "no"), ("pause", "no"), ("rm", "no"), ("metrics", "no"),
                 ("exec", "--exec-id", "e", "no", "true")):
        t.fails("tasks", *args, pattern="not found")


def spec(t, change):
    """The spec that ctr would make, changed, as a file."""
    t.must("containers", "create", "--runtime", t.runtime, t.image, "template", "true")
    document = json.loads(t.must("containers", "info", "--spec", "template").out)
    t.must("containers", "rm", "template")
    change(document)
    return t.write("spec.json", json.dumps(document))


@test("a spec without process, root or linux: an error that names it, nothing left",
      runc=False)  # runc's shim leaves a bundle
def incomplete_specs(t):
    for part in ("process", "root", "linux"):
        path = spec(t, lambda d, p=part: d.pop(p))
        t.fails("run", "--rm", "--runtime", t.runtime, "--config", path, "c1", pattern=part)
        t.explains("c1", "INVALID_SPEC")
        t.equal(t.tasks(), {})
        t.ctr("containers", "rm", "c1")


@test("a mount from a path that is not there: an error that names it")
def no_source(t):
    t.fails(*t.run_args("--rm", "--mount=type=bind,src=/no/such/path,dst=/mnt,options=rbind:ro",
                        "c1", "true"), pattern="/no/such/path")
    t.explains("c1", "MOUNT_SOURCE_MISSING")


@test("after a Create that failed the next with its id works at once, twenty times", deadline=300,
      runc=False)
def again_at_once(t):
    source = os.path.join(t.work, "source")
    t.must("containers", "create", "--runtime", t.runtime,
           f"--mount=type=bind,src={source},dst=/mnt,options=rbind:ro", t.image, "c1", "true")
    tasks = taskapi.Tasks(t)  # ctr takes its time, and so the shim has it, too
    for _ in range(20):
        try:
            tasks.create("c1")
            t.check(False, "a mount of nothing was made")
        except taskapi.Error as e:
            t.match(source, e.message)
        os.mkdir(source)
        tasks.create("c1")
        tasks.delete("c1")
        os.rmdir(source)


@test("a working directory that is not there is made or refused, not forgotten")
def no_directory(t):
    r = t.run("--rm", "--cwd=/not/there", "c1", "pwd")
    t.check(r.code != 0 or r.out == "/not/there\n", "it ran elsewhere", r)


@test("a container's id with bad characters is refused")
def bad_ids(t):
    for name in ("a/b", "..", "a b", "x" * 1000, "-x"):
        r = t.ctr("run", "--rm", "--runtime", t.runtime, "--", t.image, name, "true")
        t.check(r.code != 0, f"{name[:20]!r} was taken", r)


@test("the runtime's options name a configuration that is not there: an error", runc=False)
def no_options_file(t):
    t.fails(*t.run_args("--rm", "--runtime-config-path=/no/such.conf", "c1", "true"),
            pattern="/no/such.conf")


def with_options(t, body):
    """c1, whose runtime options carry that text as containerd's CRI writes it."""
    tasks = taskapi.Tasks(t)
    t.must("containers", "create", t.image, "like", "sleep", "100000")
    tasks.container("c1", "like", t.runtime, "runtimeoptions.v1.Options",
                    shimcall.text(3, body))
    return tasks


@test("the runtime's options carry TOML, as the CRI sends it: the VM is made by it", runc=False)
def toml_options(t):
    tasks = with_options(t, "memory_mib = 333\ncpus = 2\n")
    tasks.create("c1", rootfs_of="like")
    tasks.start("c1")
    r = t.exec("c1", "sh", "-c", "nproc; grep MemTotal /proc/meminfo")
    cpus, mib = re.match(r"(\d+)\nMemTotal:\s+(\d+) kB", r.out).groups()
    t.equal(cpus, "2", r)
    t.check(333 * 3 // 4 < int(mib) // 1024 <= 333, "the VM has another size", r)
    tasks.kill("c1", 9)
    t.equal(tasks.wait("c1"), 137)
    tasks.delete("c1")


@test("the runtime's options carry nonsense: an error that names it, nothing left", runc=False)
def toml_nonsense(t):
    for body, word in (("memory_mib = ", "options:1"), ("memory_mbi = 3\n", "memory_mib"),
                       ("cpus = 100000\n", "cpus"), ("[" * 1000, "option")):
        tasks = with_options(t, body)
        try:
            tasks.create("c1", rootfs_of="like")
            t.check(False, f"{body[:20]!r} was taken")
        except taskapi.Error as e:
            t.words(word, e.message)
        t.equal(t.tasks(), {})
        for name in ("c1", "like"):
            t.ctr("containers", "rm", name)


@test("a user that the image does not have: an error that names it, nothing left")
def unknown_user(t):
    if t.version == "1.6":
        raise Skip("that ctr has no --user")
    t.fails(*t.run_args("--rm", "--user=nosuch", "c1", "true"), pattern="nosuch|no users")
    t.equal(t.tasks(), {})


@test("no emulation allowed and no KVM: an error that names the setting", runc=False)
def no_emulation(t):
    without_kvm(t)
    t.config(allow_emulation=False)
    t.fails(*t.run_args("--rm", "c1", "true"), pattern="allow_emulation")
    t.explains("c1", "NO_KVM")


@test("a broken configuration: an error that names file and line", runc=False)
def broken_config(t):
    t.write("lcow.conf", "[vm]\nmemory_mbi = 7\n")
    t.fails(*t.run_args("--rm", "c1", "true"), pattern="lcow.conf")
    t.config()
