"""containerd's configuration for pods: the CRI with one handler per way to run a pod.

    handler        runtime                  sandbox by
    lcow           io.containerd.lcow.v2    a pause container
    lcow-shim      io.containerd.lcow.v2    the shim's Sandbox service (containerd 2.1)
    lcow-stream    as lcow-shim, with streaming IO
    runc           io.containerd.runc.v2    a pause container: what fails there is the harness
"""

import archives

PLUGINS = ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images",
           "io.containerd.cri.v1.runtime")  # which the other tests do without

HANDLERS = {"lcow": ("io.containerd.lcow.v2", "podsandbox", ""),
            "runc": ("io.containerd.runc.v2", "podsandbox", ""),
            "lcow-shim": ("io.containerd.lcow.v2", "shim", ""),
            "lcow-stream": ("io.containerd.lcow.v2", "shim", "io_type = 'streaming'\n")}

V2 = """
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "{pause}"
disable_apparmor = true
restrict_oom_score_adj = true
stream_server_address = "127.0.0.1"
stream_server_port = "0"
enable_unprivileged_ports = false
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "{cni.bin_dir}"
conf_dir = "{cni.conf_dir}"
max_conf_num = 0
[plugins."io.containerd.grpc.v1.cri".containerd]
default_runtime_name = "{default}"
"""
V2_HANDLER = """
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{name}]
runtime_type = "{type}"
privileged_without_host_devices = true
pod_annotations = ["io.lcow.*"]
container_annotations = ["io.lcow.*"]
"""

V3 = """
[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = '{pause}'
[plugins.'io.containerd.grpc.v1.cri']
stream_server_address = '127.0.0.1'
stream_server_port = '0'
[plugins.'io.containerd.cri.v1.runtime']
cdi_spec_dirs = ['{cni.conf_dir}/cdi']
disable_apparmor = true
restrict_oom_score_adj = true
enable_unprivileged_ports = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ['{cni.bin_dir}']
conf_dir = '{cni.conf_dir}'
max_conf_num = 0
setup_serially = true
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = '{default}'
"""
V3_HANDLER = """
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}]
runtime_type = '{type}'
sandboxer = '{sandboxer}'
privileged_without_host_devices = true
pod_annotations = ['io.lcow.*']
container_annotations = ['io.lcow.*']
{more}"""


def text(version, cni, default):
    new = version.startswith("2")
    lines = [(V3 if new else V2).format(pause=archives.name("pause"), cni=cni, default=default)]
    for name, (kind, sandboxer, more) in HANDLERS.items():
        if new or sandboxer == "podsandbox":
            lines.append((V3_HANDLER if new else V2_HANDLER).format(
                name=name, type=kind, sandboxer=sandboxer, more=more))
    return "".join(lines)
