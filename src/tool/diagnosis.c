#include "tool/diagnosis.h"
#include "base/mem.h"
#include <stdbool.h>
#include <string.h>

struct rule {
    const char *words[3]; /* all must be in the text */
    struct diagnosis says;
};

/* The first that fits counts: the cause before the stage it showed at. */
static const struct rule rules[] = {
    { { "allow_emulation" },
      { "boot: acceleration", "this host cannot run a VM with KVM, and emulation is not allowed",
        "load kvm_intel or kvm_amd (lcow doctor tells why it is missing), or set "
        "`allow_emulation = true` in /etc/lcow/lcow.conf to try things out" } },
    { { "hardware virtualization" },
      { "boot: acceleration", "KVM was asked for and is not there",
        "see lcow doctor; `accel = auto` in /etc/lcow/lcow.conf takes what there is" } },
    { { "too old", "QEMU" },
      { "boot: VMM", "this QEMU is too old", "install the one that lcow doctor names" } },
    { { "OOM killer" },
      { "VM: memory on the host", "the host's kernel killed the VM: its cgroup had no memory left",
        "raise the pod's memory limit, or the RuntimeClass's overhead (lcow overhead measures "
        "it)" } },
    { { "user ids for VMs" },
      { "boot: user id", "all user ids for VMs are taken",
        "raise vm_uid_count in /etc/lcow/lcow.conf; lcow gc takes back those of dead shims" } },
    { { "No space left on device" },
      { "storage", "a disk of the host is full",
        "make room below scratch_dir and /run (lcow config show), then start the pod again" } },
    { { "scratch disk" },
      { "boot: scratch disk", "the VM's scratch disk could not be made or attached",
        "look at scratch_dir (lcow config show): is it writable, and is there room?" } },
    { { "kernel", "panic" },
      { "guest kernel", "the guest's kernel gave up",
        "its last words are in lcow logs; more memory for the VM helps if it ran out" } },
    { { "boot stopped before the VMM ran" },
      { "boot: before the VMM", "the host could not prepare the VM",
        "the text behind it names what failed; lcow doctor checks the host" } },
    { { "boot stopped at stage 'spawned'" },
      { "boot: firmware", "QEMU ran, but the guest's kernel did not say a word",
        "check kernel and initrd (lcow doctor); on a very slow host raise boot_timeout_s" } },
    { { "boot stopped at stage 'kernel'" },
      { "boot: guest kernel", "the guest's kernel started and did not reach the agent",
        "see lcow console for its last words; has the VM at least 128 MiB of memory?" } },
    { { "boot stopped at stage 'init'" },
      { "boot: agent", "the agent started and did not connect",
        "see lcow console; on a very slow host raise boot_timeout_s in /etc/lcow/lcow.conf" } },
    { { "boot stopped at stage 'agent'" },
      { "boot: protocol", "the agent connected and did not agree with the shim",
        "guest image and shim are of different versions: install both from one release" } },
    { { "bridge is closed" },
      { "guest", "the guest broke the protocol",
        "take the pod down: its kernel or agent cannot be trusted any more; keep lcow report's "
        "archive" } },
    { { "gcs terminated" },
      { "guest: agent", "the agent in the VM died",
        "see lcow logs --agent for its last words, and report it (lcow report)" } },
    { { "does not take a SIGKILL" },
      { "guest", "the guest hangs: it did not take a SIGKILL, so its VM was ended",
        "see lcow logs --kernel; was QEMU stopped, or the host without CPU time?" } },
    { { "guest is lost" },
      { "guest", "the guest's connection broke while its VM ran on",
        "see lcow console and lcow logs --kernel for what the guest died of" } },
    { { "killed by signal" },
      { "VM", "somebody killed QEMU",
        "see the host's kernel log for the OOM killer, and who sends signals there; the pod is "
        "started again by its controller" } },
    { { "vm exited" },
      { "VM", "the VM ended by itself", "see lcow console and lcow logs --kernel for why" } },
    { { "host", "namespace" },
      { "container: spec", "a namespace of the host was asked for, and a VM cannot have it",
        "set hostNetwork, hostPID and hostIPC to false, or use another runtime class" } },
    { { "executable file" },
      { "container: start", "the command is not in the image, or cannot be executed",
        "check command and args of the container" } },
    { { "config.json" },
      { "container: bundle", "the container's config.json cannot be read",
        "it is containerd's: look at containerd's own log" } },
    { { "mount ", "No such file or directory" },
      { "container: mounts", "the source of a mount is not there",
        "the text names the path: make it, or take the mount out of the container's spec" } },
    { { "qdisc" },
      { "network", "an interface of the pod is in use by something else",
        "which CNI plugin puts an ingress qdisc there? lcow needs it for itself" } },
    { { "netns" },
      { "network", "the pod's network namespace could not be used",
        "look at the CNI plugin's log; is the namespace still there (ip netns)?" } },
    { { "interface" },
      { "network", "an interface of the pod could not be handed to the VM",
        "docs/limits.md tells which kinds can; lcow logs --shim has the details" } },
    { { "cgroup" },
      { "cgroup", "a cgroup of the host could not be used",
        "does the parent cgroup of the pod exist, with the controllers it needs?" } },
    { { "share" },
      { "storage: shares", "a directory of the host could not be shared with the VM",
        "is the path there, and does its file system answer? A dead NFS does not" } },
    { { "rootfs" },
      { "storage: root file system", "the container's root file system could not be prepared",
        "the text names mount or layer: does the snapshotter still have it?" } },
    { { "layer" },
      { "storage: layers", "a layer of the image could not be used",
        "pull the image again; the snapshotter has lost or damaged it" } },
    { { "disk" },
      { "storage: disks", "a disk could not be attached or mounted",
        "the text names the file: is it there, whole, and used by nobody else?" } },
    { { "no longer answers" },
      { "guest", "the guest does not answer", "lcow stacks shows what it waits for" } },
    { { "deadline" },
      { "guest", "an answer did not come in time",
        "lcow stacks shows who waits for what; is the host short of CPU time?" } },
    { { "timed out" },
      { "guest", "an answer did not come in time",
        "lcow stacks shows who waits for what; is the host short of CPU time?" } },
};

const struct diagnosis diagnosis_unknown = { "unknown", "nothing that is known here",
                                             "see lcow logs, and keep what lcow report gathers" };

static bool fits(const struct rule *r, const char *text)
{
    for (size_t i = 0; i < ARRAY_LEN(r->words) && r->words[i]; i++)
        if (!strstr(text, r->words[i]))
            return false;
    return true;
}

const struct diagnosis *diagnose(const char *text)
{
    for (size_t i = 0; i < ARRAY_LEN(rules); i++)
        if (fits(&rules[i], text))
            return &rules[i].says;
    return NULL;
}
