"""One trace from containerd through the shim into the guest, at a collector of the test's own."""

import json
import re

import otlp
from e2e import test

PLUGINS = ("io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing")
SHIM = "containerd-shim-lcow-v2"
SERVER, CLIENT = 2, 3  # kinds


def traced(t):
    """containerd gets the settings by its environment, and passes them to its shims."""
    t.collector = otlp.Collector(t)
    t.env["OTEL_EXPORTER_OTLP_ENDPOINT"] = t.collector.url
    t.env["OTEL_EXPORTER_OTLP_PROTOCOL"] = "http/protobuf"
    return {"enable": PLUGINS}


def find(spans, service, name, kind=None, **attributes):
    return [s for s in spans if s.service == service and s.name == name and
            kind in (None, s.kind) and
            all(s.attributes.get(k) == v for k, v in attributes.items())]


def path(spans, span):
    """Names from the trace's first span to this one."""
    by_id, names = {s.id: s for s in spans}, []
    while span:
        names.insert(0, f"{span.service}:{span.name}")
        span = by_id.get(span.parent)
    return names


@test("a trace: containerd, shim and guest, with attributes and outcome, and nothing secret",
      versions=("2.1",), runc=False, prepare=traced)
def trace(t):
    c = t.collector
    t.detach("--env=TOKEN=hunter2", "c1", "sh", "-c", "echo swordfish; exec sleep 100000")
    t.fails(*t.exec_args("c1", "/missing", exec_id="e1"), pattern="missing")

    def arrived():
        """Both calls' spans, and those of containerd that they are in, which it sends later."""
        spans = c.spans()
        calls = find(spans, SHIM, "Create", SERVER, cid="c1") + find(spans, SHIM, "Start", eid="e1")
        known = {s.id for s in spans if s.service == "containerd"}
        return len(calls) > 1 and all(s.parent in known for s in calls) and spans
    spans = t.until(arrived, "spans of both calls, as children of containerd's", seconds=60)

    create = find(spans, SHIM, "Create", SERVER, cid="c1")[0]
    client = next(s for s in spans if s.id == create.parent)
    t.equal(client.trace, create.trace)
    t.match("/c1$", create.attributes["bundle"])
    t.equal(create.resource["sandbox-id"], "c1")
    t.check("code" not in create.status, "it succeeded", create.status)
    t.check("duration" in create.attributes, "its duration", create.attributes)

    crun = find(spans, "gcs", "crun create")[0]
    t.equal(path(spans, crun)[-5:], [f"{SHIM}:Create", f"{SHIM}:create container",
                                     f"{SHIM}:Create", "gcs:Create", "gcs:crun create"])
    t.check(path(spans, crun)[0].startswith("containerd:"), "it begins in containerd",
            path(spans, crun))
    call = find(spans, SHIM, "Create", CLIENT)[0]
    t.check(call.start <= crun.start <= crun.end <= call.end, "the guest's step is within the call")
    names = {s.name for s in spans if s.trace == create.trace}
    t.check({"spawn (jail)", "make scratch", "share rootfs", "negotiated"} <= names,
            "the boot is in it, too", names)

    failed = find(spans, SHIM, "Start", eid="e1")[0]
    t.equal(failed.status.get(3), 2, failed.status)
    t.match("missing", failed.status[2].decode())
    t.equal(find(spans, "gcs", "crun exec")[0].status.get(3), 2)

    # The timeline is made of the same spans.
    shown = {e["name"] for e in json.loads(t.lcow("inspect", "c1").out)["vm"]["boot"]}
    t.check({"spawn (jail)", "create container"} <= shown & names, "the timeline", shown)
    t.check(int(re.search(r"(?m)^lcow_spans_sent_total\{.* (\d+)$", t.lcow("metrics").out)[1]) > 9,
            "the metric")
    everything = b"".join(c.raw)
    for secret in (b"hunter2", b"swordfish"):
        t.check(secret not in everything, f"{secret} left the host")

    # A collector that takes the connection and never answers holds up nobody.
    c.mute = True
    t.equal(t.exec("c1", "echo", "on").out, "on\n")
    t.must("task", "kill", "-s", "KILL", "c1")
    t.await_status("c1", "STOPPED")


@test("a trace endpoint with TLS is refused by name", runc=False)
def tls(t):
    t.config(trace_endpoint="https://127.0.0.1:1")
    t.fails(*t.run_args("--rm", "c1", "true"), pattern=r"trace_endpoint.*TLS \(https://\) is not supported")
