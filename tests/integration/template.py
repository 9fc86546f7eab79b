"""The template that the tests' VMs are cloned from, built before the first of them: a boot under
emulation takes seconds, a clone a tenth of that.

LCOW_E2E_TEMPLATE=off   each VM boots on its own
LCOW_E2E_TEMPLATE=DIR   the template is there, or is made there; build/e2e-template without it
"""

import os
import subprocess
import tempfile

import harness

CONFIG = """[vm]
allow_emulation = true
boot_timeout_s = 120
image_dir = {image}
template = auto
[host]
run_root = {run_root}
template_dir = {directory}
scratch_mib = {scratch_mib}
"""


def build():
    """The directory, or "off" if this machine cannot."""
    directory = os.environ.get("LCOW_E2E_TEMPLATE",
                               os.path.join(harness.TOP, "build/e2e-template"))
    if directory == "off":
        return "off"
    with tempfile.TemporaryDirectory(prefix="lcow-e2e-template.", dir="/tmp") as private:
        path = os.path.join(private, "lcow.conf")
        with open(path, "w") as f:
            f.write(CONFIG.format(image=os.path.realpath(harness.IMAGE), directory=directory,
                                  scratch_mib=harness.SCRATCH_MIB,
                                  run_root=os.path.join(private, "run")))
        r = subprocess.run([harness.LCOW, "template", "build"], capture_output=True, text=True,
                           env={**os.environ, "LCOW_CONFIG": path}, timeout=600)
        accel = os.path.join(private, "run/accel")
        if r.returncode == 0 and os.path.exists(accel):
            with open(accel) as f:
                harness.ACCEL = f.read()
    if r.returncode != 0:
        print(f"# no template, each VM boots on its own: {' '.join(r.stderr.split())}", flush=True)
        return "off"
    return directory
