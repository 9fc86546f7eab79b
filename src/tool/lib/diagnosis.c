#include "tool/lib/diagnosis.h"
#include "base/mem.h"
#include "base/str.h"

#define AFTERMATH .kind = DIAGNOSIS_AFTERMATH
#define ASKED .kind = DIAGNOSIS_ASKED
#define WARNED .warned = true
#define BEFORE "lcow logs shows what happened before"

static const struct diagnosis rows[REASON_COUNT] = {
    /* ---- a request that does not fit the present state */
    [REASON_NOT_FOUND] = { "a client named a container, process or sandbox that does not exist",
                           "no action is needed: the sandbox is as it was", ASKED },
    [REASON_ALREADY_EXISTS] = { "a client asked for a second container, exec or sandbox of one id",
                                "no action is needed: the first one is as it was", ASKED },
    [REASON_WRONG_STATE] = { "a request came before or after the state in which it is possible",
                             "no action is needed: the sandbox is as it was", ASKED },
    [REASON_INVALID_REQUEST] = { "a client sent a request with an invalid value",
                                 "no action is needed: the sandbox is as it was", ASKED },

    /* ---- a request that asks for something invalid or unsupported */
    [REASON_INVALID_ID] = { "the id has invalid characters or an invalid length",
                            "use letters and digits, with single . _ - between, at most 76" },
    [REASON_INVALID_BUNDLE] = { "the container's bundle or its config.json cannot be read",
                                "see the error for the part; containerd or its client wrote the "
                                "bundle: see containerd's own log" },
    [REASON_INVALID_SPEC] = { "the container's OCI specification is incomplete or invalid",
                              "see the error for the part; containerd's client asked for it" },
    [REASON_INVALID_EXEC] = { "the description of an exec's process is incomplete or invalid",
                              "see the error for the part; containerd's client asked for it" },
    [REASON_INVALID_ANNOTATION] = { "an annotation has a value that is invalid or unsupported here",
                                    "see the error for the valid values; docs/configuration.md "
                                    "lists all annotations" },
    [REASON_INVALID_OPTIONS] = { "the runtime options in containerd's configuration are invalid",
                                 "lcow config containerd prints a valid stanza" },
    [REASON_INVALID_CONFIG] = { "a configuration file of lcow has an invalid line",
                                "lcow config check shows file, line and key" },
    [REASON_UNSUPPORTED] = { "the container asks for something that lcow does not support",
                             "see the error for the part, and docs/limits.md for alternatives" },
    [REASON_HOST_NAMESPACE] = { "the container asks for a namespace of the host, which a VM cannot "
                                "have",
                                "set hostNetwork, hostPID and hostIPC to false (or leave "
                                "--net-host "
                                "out), or use another runtime class" },
    [REASON_FOREIGN_NAMESPACE] = { "the container is to join a namespace outside of its VM",
                                   "containers share namespaces within their pod only; remove "
                                   "--with-ns" },
    [REASON_INVALID_ID_MAPPING] = { "the id mappings of a user namespace (hostUsers: false) are "
                                    "invalid",
                                    "see the error for the line; the kubelet's ranges are in "
                                    "/etc/subuid, ctr's in --uidmap" },
    [REASON_USERNS_MISMATCH] = { "a container's user namespace differs from that of its pod",
                                 "give the container the mapping of its pod" },
    [REASON_USERNS_DEVICE] = { "a container with a user namespace (hostUsers: false) asks for a "
                               "disk or PCI device",
                               "use a directory instead, or set hostUsers to true" },
    [REASON_WRITABLE_SHARE_FORBIDDEN] = { "an annotation of the pod forbids writable shares, and "
                                          "the container has one",
                                          "make the mount or root file system read-only, or remove "
                                          "the annotation" },
    [REASON_VM_MEMORY_LIMIT] = { "the limits ask for more memory or vCPUs than the VM can grow to",
                                 "raise max_memory_mib or max_cpus in /etc/lcow/lcow.conf for VMs "
                                 "that start from now on" },
    [REASON_UPDATE_FAILED] = { "the container's limits could not be changed",
                               "see the error for the value; the previous limits are in force" },

    /* ---- the host */
    [REASON_NO_KVM] = { "the host cannot run VMs with KVM, and emulation is not allowed",
                        "load kvm_intel or kvm_amd (lcow doctor shows what is missing); for a "
                        "trial "
                        "set `allow_emulation = true` in /etc/lcow/lcow.conf" },
    [REASON_KVM_BROKEN] = { "KVM failed in an earlier boot, so lcow refuses to start VMs with it",
                            "lcow doctor shows when and why; lcow doctor --retest tries KVM "
                            "again" },
    [REASON_KVM_FAILED] = { "KVM failed while the VM ran or booted",
                            "see dmesg for kvm; lcow doctor --retest tries KVM; the pod's "
                            "controller starts the pod again" },
    [REASON_QEMU_MISSING] = { "QEMU is not installed",
                              "install the package that lcow doctor names, or set `qemu` in "
                              "/etc/lcow/lcow.conf" },
    [REASON_QEMU_TOO_OLD] = { "this version of QEMU is too old",
                              "install the version that lcow doctor names" },
    [REASON_QEMU_UNUSABLE] = { "QEMU cannot be executed", "check `qemu` in /etc/lcow/lcow.conf "
                                                          "(lcow config show); lcow doctor "
                                                          "runs it" },
    [REASON_IMAGE_MISSING] = { "the guest's kernel or initrd is missing",
                               "install lcow-guest again (or make image); lcow doctor checks the "
                               "image" },
    [REASON_IMAGE_DAMAGED] = { "the guest's kernel or initrd is damaged",
                               "install lcow-guest again (or make image); lcow doctor checks the "
                               "image" },
    [REASON_VERSION_MISMATCH] = { "guest image and shim are of different versions",
                                  "install both packages from one release, then start the pod "
                                  "again" },
    [REASON_DISK_FULL] = { "a disk is full or its quota is used up: a file system of the host, or "
                           "the VM's scratch disk",
                           "free space below scratch_dir and /run (lcow config show), or raise "
                           "scratch_mib or the quota; then start the pod again",
                           WARNED },
    [REASON_DISK_IO_ERROR] = { "a disk of the host failed to read or write; the guest got an I/O "
                               "error",
                               "check the host's disk and its kernel log", WARNED },
    [REASON_DISK_TRUNCATED] = { "a disk's image file was shortened while the VM used it",
                                "start the container again, and pull its image again: nothing may "
                                "change the snapshotter's files",
                                WARNED },
    [REASON_TOO_MANY_FILES] = { "the open-file or inotify-instance limit is reached",
                                "raise LimitNOFILE of containerd's unit (its shims inherit it), or "
                                "fs.inotify.max_user_instances (sysctl)" },
    [REASON_NO_MEMORY] = { "the host or the VM has no memory left",
                           "free memory on the host, or change the VM's size (memory_mib, the "
                           "pod's "
                           "limits)" },
    [REASON_HOST_OOM] = { "the host's kernel killed QEMU: the pod's cgroup had no memory left",
                          "raise the pod's memory limit, or the RuntimeClass's overhead (lcow "
                          "overhead measures it)" },
    [REASON_MODULE_MISSING] = { "the host's kernel lacks a module",
                                "load the module that the error names, and add it to "
                                "/etc/modules-load.d" },
    [REASON_JAIL_FAILED] = { "QEMU's jail or the container's process on the host could not be set "
                             "up",
                             "see the error for the step; lcow doctor checks the host; vm_uid_base "
                             "and vm_uid_count must name free user ids; sysctl vm.memfd_noexec "
                             "must be 0 or 1" },
    [REASON_CGROUP_FAILED] = { "a cgroup of the host could not be used",
                               "check that the pod's parent cgroup exists, with the controllers it "
                               "needs" },
    [REASON_NO_VM_UID] = { "all user ids for VMs are in use",
                           "raise vm_uid_count in /etc/lcow/lcow.conf; lcow gc frees those of dead "
                           "shims" },
    [REASON_START_QUEUE_FULL] = { "too many VMs were starting at once, and this one waited too "
                                  "long",
                                  "try again; parallel_starts in /etc/lcow/lcow.conf limits how "
                                  "many start at once" },

    /* ---- booting the VM */
    [REASON_BOOT_PREPARE] = { "the host could not prepare the VM",
                              "see the error for the step; lcow doctor checks the host" },
    [REASON_BOOT_FIRMWARE] = { "QEMU started, but the guest's kernel printed nothing",
                               "check kernel and initrd (lcow doctor); on a very slow host raise "
                               "boot_timeout_s" },
    [REASON_BOOT_KERNEL] = { "the guest's kernel started, but did not reach the agent",
                             "see lcow console; the VM needs at least 128 MiB of memory" },
    [REASON_BOOT_AGENT] = { "the agent in the guest started, but did not connect to the shim",
                            "see lcow console; on a very slow host raise boot_timeout_s in "
                            "/etc/lcow/lcow.conf" },
    [REASON_BOOT_PROTOCOL] = { "the agent connected, but did not agree with the shim on a protocol",
                               "install guest image and shim from one release" },
    [REASON_SCRATCH_FAILED] = { "the VM's scratch disk could not be created or attached",
                                "check scratch_dir (lcow config show): it must be writable and "
                                "have room; install e2fsprogs if mke2fs is missing" },
    [REASON_TEMPLATE_BUILD_FAILED] = { "a template to clone VMs from could not be built; VMs start "
                                       "slowly until one is",
                                       "see the error; lcow template build tries again, template = "
                                       "off does without" },
    [REASON_TEMPLATE_UNUSABLE] = { "a template could not be used, so the VM was started without it",
                                   "no action is needed: it is built again; see lcow template ls" },

    /* ---- QEMU, the VM, its guest */
    [REASON_QEMU_FAILED] = { "QEMU could not be started, or ended with an error of its own",
                             "see the error for QEMU's own words; lcow doctor checks program and "
                             "machine type" },
    [REASON_QEMU_SILENT] = { "QEMU started and did not answer",
                             "check that `qemu` (lcow config show) is a QEMU, and that the host "
                             "has "
                             "CPU time left" },
    [REASON_QEMU_KILLED] = { "a signal from outside killed QEMU",
                             "see the host's kernel log, and find out which program sends signals; "
                             "the pod's controller starts the pod again" },
    [REASON_QEMU_SECCOMP] = { "QEMU made a system call that its seccomp filter forbids, and was "
                              "killed",
                              "keep the archive of lcow report: either this QEMU was not tested, "
                              "or "
                              "the guest has broken into it" },
    [REASON_VM_STOPPED] = { "QEMU stopped the VM for good, and lcow had not asked for it",
                            "see lcow console and dmesg; the error has QEMU's status; the pod's "
                            "controller starts the pod again" },
    [REASON_GUEST_PANIC] = { "the guest's kernel panicked",
                             "see lcow logs --kernel and lcow console; give the VM more memory if "
                             "it ran out" },
    [REASON_GUEST_RESET] = { "the VM was reset from inside, without a kernel panic",
                             "find out whether a program in the VM rebooted it; if not, see the "
                             "host's kernel log for errors of KVM or of the hardware; the pod's "
                             "controller starts the pod again" },
    [REASON_GUEST_SILENT] = { "the guest is unresponsive: it did not act on SIGKILL, so its VM was "
                              "killed",
                              "see lcow logs --kernel; check whether QEMU was stopped, or the host "
                              "had no CPU time left" },
    [REASON_GUEST_PROTOCOL] = { "the guest violated the protocol, so its connection was closed",
                                "delete the pod: its kernel or agent cannot be trusted any more; "
                                "keep the archive of lcow report",
                                WARNED },
    [REASON_AGENT_DIED] = { "the agent in the guest died", "see lcow logs --agent for its last "
                                                           "words, and report it (lcow report)" },
    [REASON_GUEST_OOM] = { "the VM ran out of memory, and its kernel killed a process",
                           "raise the pod's limits, or memory_mib for pods without limits (lcow "
                           "config show)",
                           WARNED },
    [REASON_CLOCK_WRONG] = { "time in the VM passes too fast or too slowly",
                             "start the pod again: the next VM does not use the same template" },

    /* ---- starting a container */
    [REASON_COMMAND_NOT_FOUND] = { "the command or its interpreter is not in the image",
                                   "check command and args, and the script's #! line or the "
                                   "program's loader" },
    [REASON_COMMAND_NOT_EXECUTABLE] = { "the command cannot be executed",
                                        "check command and runAsUser: it must be a program with "
                                        "the x bit for this user" },
    [REASON_USER_UNKNOWN] = { "the image does not have that user or group",
                              "check runAsUser or --user: a number, or a name from the image's "
                              "/etc/passwd" },
    [REASON_SECCOMP_PROFILE] = { "the container's seccomp profile could not be loaded",
                                 "check the profile (localhost/…): system calls and actions as "
                                 "crun "
                                 "knows them" },
    [REASON_APPARMOR_PROFILE] = { "the container asks for an AppArmor profile, and the guest's "
                                  "kernel has none",
                                  "remove the profile: the VM is the boundary" },
    [REASON_CONTAINER_OOM] = { "a container reached its memory limit, and the guest's kernel "
                               "killed "
                               "a process of it",
                               "raise the container's memory limit, or let it use less", WARNED },
    [REASON_CONTAINER_LOST] = { "crun in the VM does not know the container any more",
                                "start the container again; /run in the guest was changed" },
    [REASON_CRUN_FAILED] = { "crun in the VM failed or was killed",
                             "see the error and lcow logs --agent for crun's own words; if it was "
                             "killed, lcow logs --kernel, and raise the pod's memory limit" },
    [REASON_HOOK_FAILED] = { "an OCI hook of the container failed",
                             "see the error for the hook's status and output; run it by hand" },
    [REASON_LOG_DRIVER_FAILED] = { "the log driver of the container did not start",
                                   "run the driver that the error names by hand; it must report on "
                                   "fd 5 that it is ready" },
    [REASON_STDIO_FAILED] = { "the container's input or output could not be opened",
                              "see the error for the path: it must be a FIFO or a plain file, and "
                              "its client (ctr, containerd) must be there" },

    /* ---- files, disks, images */
    [REASON_MOUNT_SOURCE_MISSING] = { "the source of a mount does not exist",
                                      "create the path that the error names, or remove the mount "
                                      "from the container's spec" },
    [REASON_MOUNT_SOURCE_INVALID] = { "the source of a mount is of a kind that cannot be used "
                                      "there",
                                      "a directory is a bind mount, an image file a virtual-disk, "
                                      "a "
                                      "block device a physical-disk; sockets do not cross the VM's "
                                      "border (docs/limits.md)" },
    [REASON_MOUNT_UNSUPPORTED] = { "file systems of that type cannot be mounted for a container",
                                   "mount it on the host and use a bind mount" },
    [REASON_MOUNT_PROPAGATION] = { "the mount is to propagate to the host, which a VM's cannot",
                                   "use HostToContainer or None as mountPropagation, or another "
                                   "runtime class" },
    [REASON_MOUNT_FAILED] = { "a mount or device of the container could not be set up",
                              "see the error for source and target; lcow logs --kernel has the "
                              "guest's view; for an emptyDir that others fill set the annotation "
                              "io.lcow.empty_dir to shared" },
    [REASON_IDMAP_UNSUPPORTED] = { "the kernel cannot map the ids of that file system, which a "
                                   "user "
                                   "namespace needs",
                                   "put the volume on ext4, xfs or btrfs, or set hostUsers to "
                                   "true" },
    [REASON_HUGE_PAGES] = { "huge pages of that size are not available", "use 2 MiB or 1 GiB" },
    [REASON_SHARE_FAILED] = { "a directory of the host could not be shared with the VM",
                              "check that the path exists and its file system answers" },
    [REASON_FILESYSTEM_DEAD] = { "the file system behind a path does not answer (FUSE, NFS)",
                                 "mount it again on the host, then start the container again" },
    [REASON_ROOTFS_FAILED] = { "the container's root file system could not be prepared",
                               "see the error for the mount or layer; if the snapshotter has lost "
                               "it, pull the image again" },
    [REASON_SNAPSHOTTER_UNSUPPORTED] = { "root file systems of this snapshotter are not supported",
                                         "use overlayfs, native, blockfile or erofs" },
    [REASON_LAYER_CHANGED] = { "the file of an image layer was replaced by something else",
                               "remove the container and pull the image again: something changed "
                               "the snapshotter's directory" },
    [REASON_DISK_IN_USE] = { "a block device is in use on the host or by another pod",
                             "unmount it there: two kernels must not write to one file system" },
    [REASON_DISK_CONFLICT] = { "one file is to be attached to the same VM in two different ways",
                               "use it in one way in all containers of the pod" },
    [REASON_DISK_NO_FILESYSTEM] = { "a disk does not hold the file system that is needed",
                                    "the guest knows ext4, xfs, erofs and squashfs; check that the "
                                    "file is not damaged or encrypted" },
    [REASON_DISK_NOT_EMPTY] = { "a disk that is to be formatted holds data",
                                "empty it first: lcow never overwrites data" },
    [REASON_DISK_NO_SLOT] = { "the VM has no slot left for one more disk",
                              "use fewer disks and layers in this pod" },
    [REASON_DISK_BUSY] = { "the guest still uses a disk that is to be detached",
                           "find the process that has files open there: lcow exec --vm ID -- sh, "
                           "then ls -l /proc/*/fd",
                           WARNED },
    [REASON_DISK_FAILED] = { "a disk could not be attached or mounted",
                             "check the file that the error names: it must exist, be whole, and "
                             "not "
                             "be used elsewhere" },
    [REASON_VERITY_MISMATCH] = { "a disk's content does not match its root hash",
                                 "pull the image again and do not trust this copy: it was changed "
                                 "or damaged" },
    [REASON_VERITY_MISSING] = { "a disk has no valid dm-verity data",
                                "build the layer again with its hashes, or remove the root hash" },
    [REASON_SCRATCH_QUOTA] = { "a quota on the scratch disk could not be set",
                               "set scratch_quota_mib = 0 with an encrypted scratch disk; one that "
                               "an older lcow formatted has no quotas" },

    /* ---- PCI devices */
    [REASON_DEVICE_NOT_ALLOWED] = { "this host does not allow that PCI device in containers",
                                    "an administrator can add it to allow_devices in "
                                    "/etc/lcow/lcow.conf" },
    [REASON_DEVICE_ADDRESS] = { "an annotation or device does not name a PCI device",
                                "give an address as lspci -D prints it: 0000:03:00.0" },
    [REASON_DEVICE_NOT_FOUND] = { "the host does not have that PCI device",
                                  "lspci -D lists its devices; check that the pod belongs on this "
                                  "node" },
    [REASON_DEVICE_NO_SLOT] = { "the VM has no slot left for one more PCI device",
                                "raise device_slots in /etc/lcow/lcow.conf for VMs that start from "
                                "now on" },
    [REASON_DEVICE_NO_IOMMU] = { "PCI devices cannot be passed to VMs on this host",
                                 "turn the IOMMU on (intel_iommu=on), load vfio-pci or iommufd" },
    [REASON_DEVICE_NOT_IN_VM] = { "the container asks for a device of the host that a VM does not "
                                  "have",
                                  "remove it from the container's devices; docs/limits.md lists "
                                  "those that are possible" },
    [REASON_DEVICE_IN_USE] = { "a driver of the host, a program or another VM has the PCI device, "
                               "or another one of its IOMMU group",
                               "bind the whole group to vfio-pci as the error says, or stop the "
                               "pod "
                               "or program that has it. A group is in one VM at a time" },
    [REASON_DEVICE_FAILED] = { "a PCI device could not be passed to the VM",
                               "see the error for device and step: it must be bound to vfio-pci, "
                               "and not be used elsewhere" },

    /* ---- the pod's network */
    [REASON_NETNS_MISSING] = { "the pod's network namespace does not exist",
                               "delete the pod and start it again: CNI did not create the "
                               "namespace, or it was removed" },
    [REASON_INTERFACE_IN_USE] = { "an interface of the pod has an ingress qdisc, which lcow needs",
                                  "find the CNI plugin that adds it" },
    [REASON_INTERFACE_UNSUPPORTED] = { "an interface of the pod is of a kind that a VM cannot have",
                                       "use Ethernet-like ones (veth, macvlan, ipvlan L2): see "
                                       "docs/limits.md" },
    [REASON_INTERFACE_MISSING] = { "an interface of the pod was not found, on the host or in the "
                                   "guest",
                                   "see the CNI plugin's log and lcow logs --kernel" },
    [REASON_NETWORK_FAILED] = { "the pod's network could not be set up in the VM",
                                "see the error and the CNI plugin's log; lcow logs --shim has the "
                                "details" },

    /* ---- the shim */
    [REASON_SHIM_CRASHED] = { "a fault in the shim ended it; containerd has cleaned up",
                              "report it: lcow report collects what is needed, with the "
                              "backtrace" },
    [REASON_SHIM_STUCK] = { "the shim's main loop hung, so that it answered no request",
                            "see the log line for the system call: a file system that does not "
                            "answer, or a host without memory",
                            AFTERMATH },
    [REASON_SHIM_KILLED] = { "the shim ended without a log line: it was killed, or it crashed",
                             "see the host's kernel log (OOM killer, segfault) and containerd's "
                             "log; the pod's controller starts the pod again, lcow gc cleans up" },
    [REASON_UPGRADE_REFUSED] = { "the shim cannot be upgraded now: a request or a change is under "
                                 "way, or it holds something that cannot be saved",
                                 "see the error for what it is; the pod keeps running with its "
                                 "present "
                                 "shim: repeat lcow upgrade later",
                                 ASKED },
    [REASON_UPGRADE_FAILED] = { "the new program could not resume the shim; the previous program "
                                "continues",
                                "see the error for why; the pod keeps running: check that the "
                                "package is "
                                "installed completely, then repeat lcow upgrade" },
    [REASON_SAVED_STATE] = { "the saved state of a shim is damaged or of an unsupported version",
                             "install a version of lcow that is closer to the shim's version, then "
                             "repeat lcow upgrade" },

    /* ---- what follows from an earlier failure */
    [REASON_VM_ENDED] = { "the VM had ended, or was being ended",
                          "delete the sandbox's containers and start it again; " BEFORE,
                          AFTERMATH },
    [REASON_GUEST_LOST] = { "the connection to the guest broke",
                            "see lcow console and lcow logs --kernel for the cause", AFTERMATH },
    [REASON_QEMU_GONE] = { "QEMU closed its monitor", BEFORE, AFTERMATH },
    [REASON_SHIM_LEAVING] = { "the shim was shutting down", "start the pod again; " BEFORE,
                              AFTERMATH },
    [REASON_CLEANUP_FAILED] = { "something on the host could not be cleaned up",
                                "Delete tries again; lcow gc does it when the shim is gone; the "
                                "error names what stays",
                                AFTERMATH },
    [REASON_SLOW_REQUEST] = { "a request has waited for longer than 30 s",
                              "lcow stacks shows what it waits for; check whether the host has CPU "
                              "time left",
                              AFTERMATH, WARNED },
    [REASON_TIMED_OUT] = { "an answer did not come in time",
                           "lcow stacks shows what waits; check whether the host has CPU time left",
                           AFTERMATH },
    [REASON_UNAVAILABLE] = { "something that the request needed had ended (the VM, the guest, a "
                             "connection)",
                             BEFORE, AFTERMATH },
    [REASON_CANCELLED] = { "the request was cancelled", "no action is needed", ASKED },
};

/* ---- without a reason: by the request's name */

#define GENERAL                                                                                    \
    "see the error; lcow logs has what happened around it, lcow doctor checks the host, and lcow " \
    "report collects all of it",                                                                   \
        DIAGNOSIS_GENERAL

static const struct {
    const char *name;
    struct diagnosis diagnosis;
} operations[] = {
    { "CreateSandbox", { "the pod could not be created", GENERAL } },
    { "StartSandbox", { "the pod's VM could not be started", GENERAL } },
    { "StopSandbox", { "the pod could not be stopped", GENERAL } },
    { "Create", { "a container could not be created", GENERAL } },
    { "Start", { "a process could not be started", GENERAL } },
    { "Exec", { "an exec could not be created", GENERAL } },
    { "Update", { "limits could not be changed", GENERAL } },
    { "Kill", { "a signal could not be sent", GENERAL } },
    { "Pause", { "a container could not be paused", GENERAL } },
    { "Resume", { "a container could not be resumed", GENERAL } },
    { "Delete", { "a container could not be deleted", GENERAL } },
};
static const struct diagnosis any_request = { "a request to the shim failed", GENERAL };
static const struct diagnosis no_request = { "the shim met an error of its own", GENERAL };

const struct diagnosis *diagnose(enum reason reason, const char *operation)
{
    if ((unsigned)reason < REASON_COUNT && rows[reason].cause)
        return &rows[reason];
    if (!operation || !operation[0])
        return &no_request;
    for (size_t i = 0; i < ARRAY_LEN(operations); i++)
        if (str_eq(operations[i].name, operation))
            return &operations[i].diagnosis;
    return &any_request;
}
