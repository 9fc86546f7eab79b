#include "base/mem.h"
#include "base/str.h"
#include "harness/tap.h"
#include "tool/lib/diagnosis.h"

/* What a journal says when a test provokes a failure, the test, and the stage that is told. The
 * texts are the journal's own; scripts/check-troubles sees to it that each test is there. */
static const struct seen {
    const char *stage, *test, *text;
} seen[] = {
    /* ---- the host */
    { "boot: acceleration", "tests/e2e/test_bad.py: no_emulation",
      "request failed: Create: create container c1: boot the VM: create the VM: the CPU shows "
      "neither vmx nor svm (turn virtualization on in the firmware, or nested virtualization if "
      "this is a VM); software emulation is slow and no security boundary: if you want it, set "
      "'allow_emulation = true' in /etc/lcow/lcow.conf or give --allow-emulation" },
    { "boot: acceleration", "tests/integration/test_boot.py: refusal",
      "boot the VM: create the VM: hardware virtualization is asked for, but /dev/kvm is not "
      "there" },
    { "boot: VMM", "tests/integration/test_qemu.py: old",
      "boot the VM: /usr/bin/qemu-system-x86_64 is QEMU 5.2.0, which is too old (needed: 7.2)" },
    { "boot: VMM", "tests/integration/test_qemu.py: missing",
      "boot the VM: qemu-system-x86_64 is not in PATH; install the package qemu-system-x86" },
    { "boot: guest image", "tests/integration/test_input.py: no_image",
      "boot the VM: create the VM: kernel /usr/lib/lcow/vmlinux is not there; build it with 'make "
      "image'" },
    { "boot: guest image", "tests/integration/test_input.py: broken_kernel",
      "boot the VM: create the VM: kernel /x/vmlinux is damaged (17 bytes); build it again with "
      "'make image'" },
    { "boot: protocol", "src/host/bridge/bridge_test.c: another_version_is_refused_naming_both",
      "boot stopped at stage 'agent': connect to the agent: the agent speaks protocol version 5, "
      "this program version 4: use the guest image that was built with it" },
    { "VM: memory on the host", "tests/e2e/test_pod_crash.py: host_oom",
      "vm exited: qemu was killed by signal 9 (SIGKILL) by the host's OOM killer" },
    { "boot: user id", "tests/integration/test_jail.py: no_user_left",
      "boot the VM: create the VM: all 4 user ids for VMs (60000 to 60003) are taken; raise "
      "vm_uid_count in /etc/lcow/lcow.conf" },
    { "storage",
      "src/host/files/scratch_test.c: a_full_disk_is_told_with_its_directory_and_leaves_nothing",
      "request failed: Create: create container c1: boot the VM: scratch disk: write in /x: No "
      "space left on device" },
    { "storage: disks",
      "tests/vm/disk_faults_test.c: a_full_host_disk_is_an_io_error_in_the_guest_and_is_told",
      "disk I/O error on the host: write: No such device" },
    { "storage: disks",
      "tests/vm/disk_faults_test.c: an_image_that_is_cut_under_a_running_vm_does_not_stop_it",
      "the image of a disk was cut while the VM had it: the rest was read as zeros" },

    /* ---- the VM */
    { "VM: KVM", "src/host/vmm/qemu/qemu_test.c: a_stop_that_nobody_asked_for_is_the_end_of_the_vm",
      "vm exited: the VM has failed: QEMU stopped it with status internal-error: error: kvm run "
      "failed Bad address" },
    { "VM", "tests/integration/test_kvm.py: stopped",
      "vm exited: the VM has failed: QEMU stopped it with status paused" },
    { "boot: acceleration", "tests/integration/test_kvm.py: retest",
      "boot the VM: create the VM: KVM failed at 2026-11-16T15:53:23Z: error: kvm run failed Bad "
      "address (lcow doctor --retest tries it again); software emulation is slow" },
    { "boot: firmware", "tests/integration/test_kill.py: qemu_stopped",
      "request failed: Create: boot the VM: boot stopped at stage 'spawned': deadline exceeded" },
    { "boot: guest kernel", "tests/integration/test_kill.py: qemu_stopped",
      "request failed: Create: boot the VM: boot stopped at stage 'kernel': deadline exceeded" },
    { "boot: agent", "tests/integration/test_kill.py: qemu_stopped",
      "request failed: Create: boot the VM: boot stopped at stage 'init': deadline exceeded" },
    { "VM", "tests/e2e/test_crash.py: qemu_dies_at_boot",
      "request failed: Create: create container c1: boot the VM: boot stopped at stage 'spawned': "
      "start the VMM: qemu was killed by signal 9 (SIGKILL)" },
    { "VM", "tests/e2e/test_tool_look.py: explain_life",
      "vm exited: qemu was killed by signal 9 (SIGKILL)" },
    { "boot: VMM", "tests/integration/test_qemu.py: fails",
      "boot the VM: boot stopped at stage 'spawned': start the VMM: qemu exited with status 1: no "
      "machine of that name" },
    { "boot: VMM", "tests/integration/test_qemu.py: bounded",
      "boot the VM: boot stopped at stage 'spawned': start the VMM: qemu did not greet on its "
      "monitor: deadline exceeded" },
    { "guest kernel", "tests/e2e/test_tool_look.py: explain_panic",
      "vm exited: the guest kernel rebooted, as it does after a panic; see its console" },
    { "guest kernel", "tests/e2e/test_tool_look.py: explain_panic",
      "vm exited: the guest kernel panicked" },
    { "guest: protocol",
      "src/host/bridge/bridge_test.c: too_many_unanswered_calls_close_the_bridge",
      "the guest broke the protocol, its bridge is closed: a frame of 4294967295 bytes" },
    { "guest", "tests/e2e/test_crash.py: qemu_hangs",
      "the guest did not act on SIGKILL; killing its VM" },
    { "guest", "tests/e2e/test_blocked.py: stopped_qemu",
      "request failed: Start: start p1/e1: ExecuteProcess: the guest is gone: the VM was "
      "terminated" },
    { "guest", "tests/e2e/test_blocked.py: stopped_qemu",
      "request failed: Create: create container c2: share the root file system: mount share 1 "
      "(/x/c2) in the guest: ModifySettings: the guest is gone: the VM was terminated" },
    { "container: memory", "tests/e2e/test_pod.py: oom_killed",
      "Memory cgroup out of memory: Killed process 217 (tail) total-vm:80kB" },
    { "guest",
      "src/host/rpc/rpc_virtual_test.c: "
      "a_request_that_takes_too_long_is_told_once_and_a_patient_one_never",
      "request not answered yet: Pause" },

    /* ---- what was asked for */
    { "container: spec", "tests/e2e/test_network.py: net_host",
      "request failed: Create: create container c1: the host's network namespace (hostNetwork, "
      "--net-host) is not possible: a VM has a network of its own" },
    { "container: spec", "tests/e2e/test_pod_settings.py: host_namespaces",
      "request failed: Create: create container c1: the host's pid namespace (hostPID, "
      "--pid=host) is not possible: the host's processes are not in the VM" },
    { "container: spec", "tests/e2e/test_network.py: net_host",
      "request failed: Create: create container c1: the ipc namespace /proc/1/ns/ipc cannot be "
      "joined: it is the host's or another container's, outside of the VM" },
    { "container: spec", "tests/e2e/test_userns.py: refused",
      "request failed: Create: create container c1: OCI spec: linux: uidMappings[0] has size 0" },
    { "container: spec", "src/host/control/container_mounts_test.c: a_pod_has_one_user_namespace",
      "request failed: Create: create container w: container w: its user namespace (uids none, "
      "gids none) differs from that of pod p (uids 0:1:2, gids 0:1:2): a pod has one mapping" },
    { "container: spec", "src/host/control/container_mounts_test.c: a_pod_has_one_user_namespace",
      "request failed: Create: create container w: mount on /d: a container with a user namespace "
      "cannot have a disk, since its ids are not mapped; use a directory, or set hostUsers: true" },
    { "container: mounts", "tests/e2e/test_userns.py: by_hand",
      "request failed: Create: create container w: mount /proc on /v: /proc cannot be id-mapped: "
      "the kernel cannot do this for its file system, or it is id-mapped already; use another file "
      "system, such as ext4, xfs or btrfs" },
    { "container: mounts", "tests/e2e/test_mounts.py: refused",
      "request failed: Create: create container c7: mount on /d: rshared propagation "
      "(Bidirectional) is not possible: what is mounted in the VM cannot appear on the host" },
    { "container: annotations", "tests/e2e/test_options.py: annotations",
      "request failed: Create: create container c2: annotation io.lcow.cpus is \"many\": it must "
      "be from 1 to 64" },
    { "container: annotations", "tests/e2e/test_options.py: annotations",
      "request failed: Create: create container c3: annotation "
      "io.microsoft.virtualmachine.lcow.securitypolicy is \"cGFja2FnZQ==\": confidential VMs not "
      "supported" },
    { "container: mounts", "tests/e2e/test_options.py: annotations",
      "request failed: Create: create container c4: mount /x/shared: it is writable, which "
      "io.microsoft.virtualmachine.fileshares.disablewritable forbids" },
    { "container: devices", "tests/e2e/test_vpci.py: refused",
      "request failed: Create: create container c1: annotation io.lcow.device/x: PCI device "
      "test:edu (1234:11e8) is not in allow_devices of the configuration" },
    { "container: devices", "tests/e2e/test_vpci.py: refused",
      "request failed: Create: create container c2: annotation io.lcow.device/x: \"03:00.9\" is no "
      "PCI address such as 0000:03:00.0" },
    { "container: devices", "tests/e2e/test_vpci.py: refused",
      "request failed: Create: create container c2: annotation io.lcow.device/x: this host has no "
      "PCI device ffff:03:00.0" },
    { "container: devices", "tests/e2e/test_vpci.py: holders",
      "request failed: Create: create container c3: PCI device test:edu: give it to the VM: all 1 "
      "PCI ports of the VM are in use (device_slots)" },
    { "container: devices", "tests/e2e/test_mounts.py: char_devices",
      "request failed: Create: create container c2: device /dev/vhost-net: there is none in the "
      "VM" },
    { "container: bundle", "tests/e2e/test_shim.py: no_spec",
      "request failed: Create: create container c1: read /b/c1/config.json: No such file or "
      "directory" },
    { "container: bundle", "tests/e2e/test_bad.py: incomplete_specs",
      "request failed: Create: create container c1: /b/c1/config.json: OCI spec: process is "
      "missing" },
    { "container: update", "tests/e2e/test_update.py: too_much",
      "request failed: Update: update container c1: resize the VM: the VM would need 664 MiB, "
      "and max_memory_mib = 512; raise that key" },
    { "container: update", "tests/e2e/test_shim.py: nonsense",
      "request failed: Update: update container c1: ModifySettings: the guest says \"resources: "
      "memory: key \"limit\": expected an integer, got a string\" (0x80070057)" },
    { "request", "tests/e2e/test_shim.py: bad_ids",
      "request failed: Create: container id \"a/b\" is not made of letters and digits, single . _ "
      "- between them" },

    /* ---- a container's start */
    { "container: start", "tests/e2e/test_bad.py: no_command",
      "request failed: Create: create container c1: Create: the guest says \"create container c1: "
      "exec: \"/no/such/program\": executable file not found in $PATH\" (0x80004005)" },
    { "container: start", "tests/e2e/test_bad.py: no_permission",
      "request failed: Create: create container c1: Create: the guest says \"create container c1: "
      "exec: permission denied (open executable: Permission denied)\" (0x80004005)" },
    { "container: user", "tests/integration/test_guest_containers.py: bad",
      "request failed: Create: create container c1: Create: the guest says \"create container c1: "
      "no user \"nosuch\" in the image\" (0x80004005)" },
    { "container: seccomp", "tests/e2e/test_pod_settings.py: seccomp",
      "request failed: Create: create container c1: Create: the guest says \"create container c1: "
      "invalid seccomp action `SCMP_ACT_NO`\" (0x80004005)" },
    { "guest: runtime", "tests/e2e/test_tool.py: broken_crun",
      "request failed: Start: start c1/e1: ExecuteProcess: the guest says \"exec in container c1: "
      "container does not exist: error opening file `/run/crun/c1/status`: No such file or "
      "directory\" (0x80004005)" },
    { "container: output", "tests/e2e/test_io.py: no_logger",
      "request failed: Create: create container c1: stdio of c1: start log driver "
      "/no/such/program: execute /no/such/program: No such file or directory" },
    { "container: output", "tests/e2e/test_shim.py: bad_stdout",
      "request failed: Create: create container c1: stdio of c1: stdout: /dev/null is "
      "neither a FIFO nor a plain file" },
    { "container: output", "tests/e2e/test_shim.py: bad_stdout",
      "request failed: Create: create container c1: stdio of c1: stdout: open /x/there: No such "
      "file or directory" },

    /* ---- files, disks, images */
    { "container: mounts", "tests/e2e/test_bad.py: no_source",
      "request failed: Create: create container c1: mount /no/such/path on /mnt: open "
      "/no/such/path: No such file or directory" },
    { "container: mounts", "tests/e2e/test_mounts.py: physical_disk",
      "request failed: Create: create container c2: mount /dev/loop3 on /disk: /dev/loop3 is in "
      "use on the host: unmount it there before a VM gets it" },
    { "container: mounts", "tests/e2e/test_mounts.py: refused",
      "request failed: Create: create container c0: mount /x/folder on /d: /x/folder is no plain "
      "file; for a block device use physical-disk" },
    { "container: mounts", "tests/e2e/test_mounts.py: refused",
      "request failed: Create: create container c4: mount on /d: a file system of type \"nfs\" "
      "cannot be mounted in the VM: use a bind mount" },
    { "container: mounts", "tests/e2e/test_mounts.py: refused",
      "request failed: Create: create container c6: mount /x/fifo on /d: /x/fifo is no directory "
      "and no plain file: sockets, fifos and devices cannot be shared with a VM" },
    { "storage: disks", "tests/e2e/test_mounts.py: refused",
      "request failed: Create: create container c3: mount /x/plain: mount disk 0:1 partition 0 in "
      "the guest: ModifySettings: the guest says \"disk 0:1 (sdb) holds no file system that is "
      "known\" (0x80004005)" },
    { "storage: shares", "tests/e2e/test_blocked.py: dead_path",
      "request failed: Create: create container c2: root file system: root file system: open "
      "/x/tree: Transport endpoint is not connected" },
    { "storage: dm-verity",
      "tests/vm/disks_test.c: verified_disks_give_what_their_root_hash_says_or_nothing",
      "mount disk 0:1 partition 0 in the guest: the guest says \"disk 0:1: dm-verity: the root "
      "hash of the disk is aa, not bb\" (0x80004005)" },
    { "storage: disks",
      "tests/vm/disks_test.c: two_hundred_and_fifty_six_disks_are_attached_used_and_detached",
      "no free slot for disk /x: a VM takes 256 disks (4 controllers of 64), and 0 slots are "
      "lost" },
    { "storage: layers", "tests/e2e/test_layers.py: exchanged",
      "request failed: Create: create container c1: root file system: /x/snapshots/3 is a fifo, "
      "not the image file of a layer" },
    { "storage: layers", "tests/e2e/test_layers.py: exchanged",
      "request failed: Create: create container c1: root file system: "
      "/x/io.containerd.snapshotter.v1.blockfile/snapshots/2 is a device where the image file of a "
      "layer is expected" },
    { "storage: root file system", "src/host/files/rootfs_test.c: what_is_not_supported_says_so",
      "request failed: Create: create container c1: root file system: mounts of type \"zfs\" are "
      "not supported; use the overlayfs, native, blockfile or erofs snapshotter" },
    { "storage: root file system", "tests/e2e/test_layers.py: exchanged",
      "request failed: Create: create container c1: root file system: open /x/snapshots/3: No "
      "such file or directory" },
    { "storage: scratch disk", "tests/e2e/test_layers.py: quota",
      "request failed: Create: create container c3: an encrypted scratch disk keeps no quotas: "
      "with annotation io.x scratch_quota_mib must be 0, and is 32" },
    { "boot: scratch disk",
      "src/host/files/scratch_test.c: a_full_disk_is_told_with_its_directory_and_leaves_nothing",
      "request failed: Create: create container c1: boot the VM: scratch disk: open /no/such: No "
      "such file or directory" },

    /* ---- the network */
    { "network: namespace", "src/host/net/net_test.c: what_is_no_namespace_of_a_pod_is_refused",
      "request failed: Create: create container c1: network of pod p1: network of the pod: open "
      "network namespace /run/netns/x: No such file or directory" },
    { "network: namespace", "src/host/jail/anchor_test.c: what_is_no_network_namespace_is_refused",
      "request failed: Create: create container c1: /x/file is no network namespace" },
    { "network: interface", "src/host/net/net_test.c: a_failed_plug_leaves_nothing",
      "request failed: Create: create container c1: network of pod p1: interface eth0: interface "
      "eth0 in the pod's network namespace has an ingress qdisc already" },

    /* ---- what nobody has to mind */
    { "request", "tests/e2e/test_shim.py: states",
      "request failed: Delete: container c1 runs: kill it first" },
    { "request", "tests/e2e/test_shim.py: states",
      "request failed: Pause: pause container c1: container is Created, cannot pause" },
    { "request", "tests/e2e/test_bad.py: stopped", "request failed: Kill: process c1/x has ended" },
    { "request", "tests/e2e/test_bad.py: unknown", "request failed: Delete: no container c1" },
    { "request", "tests/e2e/test_pod_crash.py: qemu_killed",
      "request failed: Delete: pod p1 still has container c1" },
};

TEST(each_failure_of_a_test_has_its_stage_and_a_remedy)
{
    for (size_t i = 0; i < ARRAY_LEN(seen); i++) {
        const struct diagnosis *d = diagnose(seen[i].text);

        if (!d || !str_eq(d->stage, seen[i].stage))
            tap_fail(__FILE__, __LINE__, "%s: stage %s, expected %s: %s", seen[i].test,
                     d ? d->stage : "none", seen[i].stage, seen[i].text);
        ASSERT(d->meaning[0] && d->remedy[0]);
    }
}

TEST(what_a_caller_got_wrong_is_no_failure_of_the_sandbox)
{
    ASSERT_EQ(diagnose("request failed: Kill: process c1 has ended")->kind, DIAGNOSIS_ASKED);
    ASSERT_EQ(diagnose("request failed: Delete: no container c1")->kind, DIAGNOSIS_ASKED);
    ASSERT_EQ(diagnose("vm exited: qemu was killed by signal 9")->kind, DIAGNOSIS_CAUSE);
    ASSERT_EQ(diagnose("the connection to the guest was lost; killing its VM")->kind,
              DIAGNOSIS_AFTERMATH);
}

TEST(what_no_row_fits_has_a_general_answer_by_the_request)
{
    ASSERT(!diagnose("all is well"));
    ASSERT_STR(diagnose_operation("StartSandbox")->stage, "sandbox: start");
    ASSERT_STR(diagnose_operation("Create")->stage, "container: create");
    ASSERT_STR(diagnose_operation("Frobnicate")->stage, "request");
    ASSERT_STR(diagnose_operation(NULL)->stage, "shim");
    ASSERT_HAS(diagnose_operation("Start")->remedy, "lcow logs");
}
