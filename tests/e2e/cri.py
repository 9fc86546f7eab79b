"""A client of the CRI, v1: every method of both services by its name.

    c = cri.Client(address)
    c.RunPodSandbox(config={"metadata": {"name": "p1", …}}, runtime_handler="lcow").pod_sandbox_id

A request is written as keywords, nested messages as dicts and lists, enums by number; the answer is
a protobuf message. The messages come from Debian's copy of the CRI's api.proto, compiled once.
"""

import functools
import importlib
import os
import re
import subprocess
import sys
import tempfile

import grpcwire
import packages
from grpcwire import Error  # noqa: F401

SECONDS = 120  # for one call, which may boot a VM on a busy machine
PROTO = os.path.join(packages.folder("golang-k8s-cri-api-dev"),
                     "usr/share/gocode/src/k8s.io/cri-api/pkg/apis/runtime/v1/api.proto")
FOLDER = packages.folder("cri")

# Enums of the CRI, as the tests say them.
POD, CONTAINER, NODE, TARGET = range(4)                     # NamespaceMode
RUNTIME_DEFAULT, UNCONFINED, LOCALHOST = range(3)           # SecurityProfile.ProfileType
READY, NOTREADY = range(2)                                  # PodSandboxState
CREATED, RUNNING, EXITED, UNKNOWN = range(4)                # ContainerState
PROPAGATION_PRIVATE, PROPAGATION_HOST_TO_CONTAINER, PROPAGATION_BIDIRECTIONAL = range(3)


def compile_proto():
    """Before any worker starts. bookworm's protoc does not know one option of that file."""
    out = os.path.join(FOLDER, "api_pb2.py")
    if os.path.exists(out) and os.path.getmtime(out) > os.path.getmtime(PROTO):
        return
    os.makedirs(FOLDER, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FOLDER) as private, open(PROTO) as f:
        with open(os.path.join(private, "api.proto"), "w") as known:
            known.write(re.sub(r"\s*\[\s*debug_redact\s*=\s*true\s*\]", "", f.read()))
        subprocess.run(["protoc", f"--proto_path={private}", f"--python_out={private}",
                        "api.proto"], check=True)
        os.rename(os.path.join(private, "api_pb2.py"), out)


@functools.lru_cache
def messages():
    """The module of the CRI's messages."""
    os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
    path = os.path.join(packages.folder("python3-protobuf"), "usr/lib/python3/dist-packages")
    sys.path[:0] = [path, FOLDER]
    try:
        return importlib.import_module("api_pb2")
    finally:
        del sys.path[:2]


@functools.lru_cache
def methods():
    """name -> (path, class of the request, class of the answer)"""
    api, found = messages(), {}
    for service in api.DESCRIPTOR.services_by_name.values():
        for m in service.methods:
            found[m.name] = (f"/{service.full_name}/{m.name}", getattr(api, m.input_type.name),
                             getattr(api, m.output_type.name))
    return found


class Client:
    def __init__(self, address):
        self.address = address

    def stream(self, name, seconds, **fields):
        """The answers of a method that gives many, as they come; then Error when time is up."""
        path, request, answer = methods()[name]
        call = grpcwire.Call(self.address, path, request(**fields).SerializeToString(), seconds)
        for data in call.messages():
            yield answer.FromString(data)

    def __getattr__(self, name):
        path, request, answer = methods()[name]

        def call(seconds=SECONDS, **fields):
            data = grpcwire.unary(self.address, path, request(**fields).SerializeToString(),
                                  seconds)
            return answer.FromString(data)
        return call
