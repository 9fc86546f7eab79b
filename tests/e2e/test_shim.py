"""The shim's Task service without containerd: bad input that no client sends, codes of errors."""

import json
import os
import stat
import time

import shimcall
from e2e import CGROUP_V2, test
from shimcall import EXISTS, INVALID, NOT_FOUND, PRECONDITION, UNIMPLEMENTED, number, text

PROCESS = "types.containerd.io/opencontainers/runtime-spec/1/Process"
RESOURCES = "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources"


def running(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    shim.create()
    shim.call("Start", text(1, "c1"))
    return shim


def state(shim, *exec_id):
    return shim.call("State", text(1, "c1"), *[text(2, e) for e in exec_id])


@test("the shim's answers follow the table of states", images=())
def states(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    c1 = text(1, "c1")
    t.equal(shim.code("State", c1), NOT_FOUND)
    created = shim.create()
    t.equal(state(shim)[4], 1)
    t.check(shim.code("Pause", c1) != 0, "a created container was paused")
    shim.call("Start", c1)
    answer = state(shim)
    t.equal((answer[1], answer[3], answer[4]), (b"c1", created[1], 2))
    t.check(shim.code("Start", c1) != 0, "it started twice")
    t.check(shim.code("Delete", c1) != 0, "a running container was deleted")
    t.equal(state(shim)[4], 2)
    shim.call("Kill", c1, number(3, 9))
    t.equal(shim.call("Wait", c1)[1], 137)
    t.equal(state(shim)[4], 3)
    t.equal(shim.code("Kill", c1, number(3, 9)), NOT_FOUND)
    t.equal(shim.call("Delete", c1)[2], 137)
    t.equal(shim.code("Delete", c1), NOT_FOUND)


@test("a created container that never started can be killed and deleted", images=())
def never_started(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    shim.create()
    shim.call("Kill", text(1, "c1"), number(3, 9))
    t.equal(shim.call("Wait", text(1, "c1"))[1], 137)
    shim.call("Delete", text(1, "c1"))


@test("a second Create of the same id is refused and does the first no harm", images=(),
      runc=False)
def twice(t):
    shim = running(t)
    t.equal(creates(shim), EXISTS)
    t.equal(state(shim)[4], 2)


def creates(shim, *more, name=None):
    try:
        shim.create(*more, name=name)
        return 0
    except shimcall.Status as e:
        shim.t.note(f"Create: {e}"[:300])
        return e.code


@test("Exec: a used id, no spec, an unknown one", images=())
def bad_execs(t):
    shim = running(t)
    spec = shimcall.wrapped(7, PROCESS, b'{"cwd":"/","args":["sleep","1000"],"env":["PATH=/bin"]}')
    shim.call("Exec", text(1, "c1"), text(2, "e1"), spec)
    t.equal(shim.code("Exec", text(1, "c1"), text(2, "e1"), spec), EXISTS)
    t.check(shim.code("Exec", text(1, "c1"), text(2, "e2"),
                      shimcall.wrapped(7, PROCESS, b'{"args":')) != 0, "a broken spec was taken")
    t.equal(shim.code("State", text(1, "c1"), text(2, "unknown")), NOT_FOUND)
    t.check(shim.code("Kill", text(1, "c1"), text(2, "e1"), number(3, 9)) != 0,
            "an exec that never started was killed")
    shim.call("Delete", text(1, "c1"), text(2, "e1"))
    t.equal(shim.code("Delete", text(1, "c1"), text(2, "e1")), NOT_FOUND)


@test("CloseIO before Start is remembered: the program reads all, then the end", images=(),
      runc=False)
def early_close(t):
    shim = running(t)
    fifos = [os.path.join(t.work, name) for name in ("in", "out")]
    for path in fifos:
        os.mkfifo(path)
    ends = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in fifos]
    c1, e1 = text(1, "c1"), text(2, "e1")
    try:
        shim.call("Exec", c1, e1, text(4, fifos[0]), text(5, fifos[1]), shimcall.wrapped(
            7, PROCESS, b'{"cwd":"/","args":["cat"],"env":["PATH=/bin"]}'))
        shim.call("CloseIO", c1, e1, number(3, 1))
        os.write(ends[0], b"all of it")
        shim.call("Start", c1, e1)
        os.close(ends.pop(0))  # the last writer: the shim's own end went with CloseIO
        t.equal(shim.call("Wait", c1, e1).get(1, 0), 0)
        t.equal(os.read(ends[0], 100), b"all of it")
    finally:
        for fd in ends:
            os.close(fd)


@test("Kill with signal 99, Update with nonsense, Checkpoint: refused, no harm", images=(),
      runc=False)
def nonsense(t):
    shim = running(t)
    c1 = text(1, "c1")
    t.equal(shim.code("Kill", c1, number(3, 99)), INVALID)
    t.equal(shim.code("Update", c1, shimcall.wrapped(2, RESOURCES, b"nonsense")), INVALID)
    t.equal(shim.code("Update", c1, shimcall.wrapped(2, RESOURCES, b'{"memory":{"limit":"x"}}')),
            INVALID)
    t.equal(shim.code("Checkpoint", c1, text(2, "/tmp/x")), UNIMPLEMENTED)
    t.equal(shim.code("NoSuchMethod", c1), UNIMPLEMENTED)
    t.equal(state(shim)[4], 2)


@test("Update changes the limit that Stats shows", images=())
def update(t):
    shim = running(t)
    limit = 100 << 20
    shim.call("Update", text(1, "c1"), shimcall.wrapped(
        2, RESOURCES, b'{"memory":{"limit":%d}}' % limit))
    metrics = shimcall.fields(shimcall.fields(shim.call("Stats", text(1, "c1"))[1])[2])
    usage = shimcall.fields(metrics[4])[33]  # on cgroup v2 the limit itself
    t.equal(usage if CGROUP_V2 else shimcall.fields(usage)[1], limit)


@test("both names of the service answer", images=(), runc=False)
def both_services(t):
    shim = running(t)
    for version in ("v2", "v3"):
        answer = shim.call("State", text(1, "c1"), service=f"containerd.task.{version}.Task")
        t.equal(answer[4], 2)


def create_fails(t, prepare, *more, name="c1"):
    """Create must fail; then the id is unknown and the shim still answers. The message."""
    shim = shimcall.Shim(t, "c1")
    shim.start()
    prepare(shim)
    try:
        shim.create(*more, name=name)
    except shimcall.Status as e:
        t.note(str(e)[:300])
        t.equal(shim.code("State", text(1, name)), NOT_FOUND)
        return e
    raise shimcall.Failure("Create succeeded")


@test("no config.json: an error of start or of Create that names it", images=())
def no_spec(t):
    shim = shimcall.Shim(t, "c1")
    os.unlink(os.path.join(shim.bundle, "config.json"))
    r = shim.binary("start")
    if r.returncode != 0:
        t.match("config.json", (r.stdout + r.stderr).decode())
        return
    shim.found(r.stdout)  # a sandbox of containerd 2.x has none either
    try:
        shim.create()
    except shimcall.Status as e:
        t.match("config.json", e.message)
        t.equal(shim.code("State", text(1, "c1")), NOT_FOUND)
    else:
        raise shimcall.Failure("Create succeeded")


@test("a config.json that breaks after start: an error that names it", images=())
def broken_spec(t):
    e = create_fails(t, lambda shim: shim.spec(b'{"process": '))
    if not t.is_runc:
        t.words("config.json|spec", e.message)
    t.explains("c1", "INVALID_BUNDLE")


@test("a spec without process, root or linux: an error that names it", images=(), runc=False,
      deadline=400)
def incomplete(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    for part in ("process", "root", "linux"):
        document = shim.document()
        del document[part]
        shim.spec(document)
        try:
            shim.create()
            raise shimcall.Failure(f"Create succeeded without {part}")
        except shimcall.Status as e:
            t.equal(e.code, INVALID, e)
            t.match(part, e.message)


@test("100000 mounts: an error soon, not a crash", images=(), runc=False)
def many_mounts(t):
    def grow(shim):
        document = shim.document()
        document["mounts"] += [{"destination": f"/m/{i}", "type": "tmpfs", "source": "tmpfs"}
                               for i in range(100000)]
        shim.spec(document)
    at = time.monotonic()
    e = create_fails(t, grow)
    t.words("mounts|too many", e.message)
    t.check(time.monotonic() - at < 60, "that took too long")
    t.explains("c1", "INVALID_BUNDLE")


@test("stdout that is not a FIFO, a directory, or missing", images=(), runc=False)
def bad_stdout(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    socket = os.path.join(t.work, "socket")
    os.mknod(socket, 0o600 | stat.S_IFSOCK)
    for path in (t.work, os.path.join(t.work, "not/there"), socket, "/dev/null", "relative"):
        t.check(creates(shim, text(6, path)) != 0, f"{path} was taken")
        t.equal(shim.code("State", text(1, "c1")), NOT_FOUND)
        t.explains("c1", "STDIO_FAILED")


@test("ids with a slash, dots, blanks or 64 KiB are refused", images=(), runc=False)
def bad_ids(t):
    shim = shimcall.Shim(t, "c1")
    shim.start()
    for name in ("a/b", "..", "a b", "x" * 65536, "../../etc", "\x01"):
        t.equal(creates(shim, name=name), INVALID, name[:30])
    t.explains("c1", "INVALID_ID")


@test("garbage on the socket harms only its own connection", images=())
def garbage(t):
    shim = running(t)
    for data in (b"\xff" * 10, b"GET / HTTP/1.0\r\n\r\n", b"\0" * 9, b"\0\0\0\5\0\0\0\1\1\0hello"):
        with shim.connect() as s:
            s.sendall(data)
    held = [shim.connect() for _ in range(50)]
    t.equal(state(shim)[4], 2)
    for s in held:
        s.close()


@test("delete without a start succeeds, and its answer shows that nothing ran", images=(), runc=False)
def delete_alone(t):
    shim = shimcall.Shim(t, "c1")
    r = shim.delete()
    t.equal(r.returncode, 0, r)
    t.check(shimcall.fields(r.stdout).get(2, 0) in (137, 255, 0), r.stdout)


@test("-v and -info answer without a VM", images=(), runc=False)
def versions(t):
    shim = shimcall.Shim(t, "c1")
    t.match("lcow", shim.binary("-v").stdout.decode())
    info = shimcall.fields(shim.binary("-info").stdout)
    t.equal(info[1], b"io.containerd.lcow.v2")
    features = shimcall.fields(info[4])
    t.equal(features[1], b"types.containerd.io/opencontainers/runtime-spec/1/features/Features")
    features = json.loads(features[2])
    t.check({"rro", "ro", "rbind", "rslave"} <= set(features["mountOptions"]), features)
    t.equal(features["hooks"], ["prestart", "createRuntime", "poststart", "poststop"])
    t.check("user" in features["linux"]["namespaces"], features)
    t.check(features["linux"]["mountExtensions"]["idmap"]["enabled"], features)
    if t.version.startswith("2"):  # as containerd reads it
        r = t.must("plugins", "inspect-runtime", "--runtime", t.runtime)
        t.equal(json.loads(r.out)["Features"]["mountOptions"], features["mountOptions"])


@test("Shutdown with a container left is answered and changes nothing", images=())
def busy_shutdown(t):
    shim = running(t)
    shim.call("Shutdown", text(1, "c1"))
    t.equal(state(shim)[4], 2)
