/* reason.h - why something failed, as a name that programs may rely on. The names are an interface
 * (log field `reason`, lcow explain, lcow_failures_total): they are added, never renamed. One list
 * makes the enum and the names; src/tool/lib/diagnosis.c has the explanation and the remedy of
 * each, docs/troubleshooting.md a row (scripts/check-troubles checks both). */
#pragma once

/* clang-format off */
#define REASONS(X)                                                                                 \
    /* a request that does not fit the present state; the sandbox is well */                       \
    X(NOT_FOUND) X(ALREADY_EXISTS) X(WRONG_STATE) X(INVALID_REQUEST)                               \
    /* a request that asks for something invalid or unsupported */                                 \
    X(INVALID_ID) X(INVALID_BUNDLE) X(INVALID_SPEC) X(INVALID_EXEC) X(INVALID_ANNOTATION)          \
    X(INVALID_OPTIONS) X(INVALID_CONFIG) X(UNSUPPORTED) X(HOST_NAMESPACE) X(FOREIGN_NAMESPACE)     \
    X(INVALID_ID_MAPPING) X(USERNS_MISMATCH) X(USERNS_DEVICE) X(WRITABLE_SHARE_FORBIDDEN)          \
    X(VM_MEMORY_LIMIT) X(UPDATE_FAILED)                                                            \
    /* the host */                                                                                 \
    X(NO_KVM) X(KVM_BROKEN) X(KVM_FAILED) X(QEMU_MISSING) X(QEMU_TOO_OLD) X(QEMU_UNUSABLE)         \
    X(IMAGE_MISSING) X(IMAGE_DAMAGED) X(VERSION_MISMATCH) X(DISK_FULL)                             \
    X(DISK_IO_ERROR) X(DISK_TRUNCATED) X(TOO_MANY_FILES) X(NO_MEMORY)                              \
    X(HOST_OOM) X(MODULE_MISSING) X(JAIL_FAILED)                                                   \
    X(CGROUP_FAILED) X(NO_VM_UID) X(START_QUEUE_FULL)                                              \
    /* booting the VM */                                                                           \
    X(BOOT_PREPARE) X(BOOT_FIRMWARE) X(BOOT_KERNEL) X(BOOT_AGENT) X(BOOT_PROTOCOL)                 \
    X(SCRATCH_FAILED) X(TEMPLATE_BUILD_FAILED) X(TEMPLATE_UNUSABLE)                                \
    /* QEMU, the VM, its guest */                                                                  \
    X(QEMU_FAILED) X(QEMU_SILENT) X(QEMU_KILLED) X(QEMU_SECCOMP) X(VM_STOPPED) X(GUEST_PANIC)      \
    X(GUEST_RESET)                                                                                 \
    X(GUEST_SILENT) X(GUEST_PROTOCOL) X(AGENT_DIED) X(GUEST_OOM) X(CLOCK_WRONG)                    \
    /* starting a container */                                                                     \
    X(COMMAND_NOT_FOUND) X(COMMAND_NOT_EXECUTABLE) X(USER_UNKNOWN) X(SECCOMP_PROFILE)              \
    X(APPARMOR_PROFILE) X(CONTAINER_OOM) X(CONTAINER_LOST) X(CRUN_FAILED)                          \
    X(HOOK_FAILED) X(LOG_DRIVER_FAILED) X(STDIO_FAILED)                                            \
    /* files, disks, images */                                                                     \
    X(MOUNT_SOURCE_MISSING) X(MOUNT_SOURCE_INVALID) X(MOUNT_UNSUPPORTED) X(MOUNT_PROPAGATION)      \
    X(MOUNT_FAILED) X(IDMAP_UNSUPPORTED) X(HUGE_PAGES) X(SHARE_FAILED)                             \
    X(FILESYSTEM_DEAD) X(ROOTFS_FAILED) X(SNAPSHOTTER_UNSUPPORTED) X(LAYER_CHANGED)                \
    X(DISK_IN_USE) X(DISK_CONFLICT) X(DISK_NO_FILESYSTEM) X(DISK_NOT_EMPTY) X(DISK_NO_SLOT)        \
    X(DISK_BUSY) X(DISK_FAILED) X(VERITY_MISMATCH) X(VERITY_MISSING)                               \
    X(SCRATCH_QUOTA)                                                                               \
    /* PCI devices */                                                                              \
    X(DEVICE_NOT_ALLOWED) X(DEVICE_ADDRESS) X(DEVICE_NOT_FOUND) X(DEVICE_NO_SLOT)                  \
    X(DEVICE_NO_IOMMU) X(DEVICE_NOT_IN_VM) X(DEVICE_IN_USE) X(DEVICE_FAILED)                       \
    /* the pod's network */                                                                        \
    X(NETNS_MISSING) X(INTERFACE_IN_USE) X(INTERFACE_UNSUPPORTED) X(INTERFACE_MISSING)             \
    X(NETWORK_FAILED)                                                                              \
    /* the shim */                                                                                 \
    X(SHIM_CRASHED) X(SHIM_STUCK) X(SHIM_KILLED) X(UPGRADE_REFUSED) X(UPGRADE_FAILED)              \
    X(SAVED_STATE)                                                                                 \
    /* what follows from an earlier failure */                                                     \
    X(VM_ENDED) X(GUEST_LOST) X(QEMU_GONE) X(SHIM_LEAVING) X(CLEANUP_FAILED) X(SLOW_REQUEST)       \
    X(TIMED_OUT) X(UNAVAILABLE) X(CANCELLED)
/* clang-format on */

enum reason {
    REASON_NONE, /* not classified; its name is "UNKNOWN" */
#define REASON_MEMBER(name) REASON_##name,
    REASONS(REASON_MEMBER)
#undef REASON_MEMBER
        REASON_COUNT
};

/* "DISK_FULL"; "UNKNOWN" for REASON_NONE and what is not a reason. Static. */
const char *reason_name(enum reason reason);
/* REASON_NONE for NULL and what is not a name. */
enum reason reason_parse(const char *name);
/* The one that an errno implies wherever it comes from (ENOSPC: DISK_FULL), or REASON_NONE. */
enum reason reason_from_errno(int errnum);
