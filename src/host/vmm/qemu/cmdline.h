/* cmdline.h - the QEMU command line of a VM: a pure function of its document, of what is known of
 * the host. Held by golden files in tests/golden/qemu. All
 * paths are those of the jail. Never waits. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct err;
struct strv;
struct vm_doc;

/* Inside the jail. */
#define QEMU_JAIL_KERNEL "/boot/kernel"
#define QEMU_JAIL_INITRD "/boot/initrd"
#define QEMU_JAIL_FW_CFG "/boot/lcow"
#define QEMU_JAIL_SHARES "/shares"
#define QEMU_JAIL_VFIO "/dev/vfio"    /* QEMU looks nowhere else */
#define QEMU_JAIL_RAM "/boot/ram"     /* a clone's: its template's memory */
#define QEMU_JAIL_STATE "/boot/state" /* a clone's: its template's devices */

/* Descriptors that QEMU inherits. RAM: of a template, the file for its memory. */
enum {
    QEMU_FD_QMP = 3,
    QEMU_FD_CONSOLE,
    QEMU_FD_LINK,
    QEMU_FD_KERNEL,
    QEMU_FD_INITRD,
    QEMU_FD_RAM,
    QEMU_FD_STATE
};

/* Debian 6.1 with our initramfs does not come up with less. */
#define QEMU_MEMORY_MIN_MIB 128
#define QEMU_MEMORY_MAX_MIB (1024u * 1024)
#define QEMU_CPUS_MAX 64
#define QEMU_SCSI_MAX 4
/* Root ports: each takes one PCI device. Their slots are fixed, so that the guest finds the device
 * behind one by its slot: the bus number is chosen by the firmware. */
#define QEMU_PORTS_MAX 14
#define QEMU_PORT_SLOT 0x10
/* What virtio-mem deals in. Each block is a message to the guest: 2 MiB, QEMU's own choice, makes
 * 64 of them for 128 MiB. */
#define QEMU_GROW_MIB 32

/* Where the VM's memory comes from. A clone's command line is its template's but for this, so it
 * is made from the template's document. */
enum qemu_form {
    QEMU_COLD,     /* memory of its own, from nothing */
    QEMU_TEMPLATE, /* memory in a file that stays */
    QEMU_CLONE,    /* that file, copy-on-write; waits for migrate-incoming */
};

struct qemu_host {
    bool emulated;
    uint32_t tsc_khz; /* of the TSC that an emulated guest sees; 0: not to be relied on */
    enum qemu_form form;
    uint32_t cid;            /* of a VM whose link is vsock */
    uint32_t vcpus;          /* of a clone: what it will have */
    uint32_t code_cache_mib; /* as vm_doc's */
};

/* Whether the document can become a VM: ERR_INVALID names the value and its bounds. */
int qemu_doc_check(const struct vm_doc *doc, struct err *err);
/* For the guest kernel. Caller frees. */
char *qemu_kernel_args(const struct vm_doc *doc, const struct qemu_host *host);
/* argv, beginning with program. */
void qemu_cmdline(const struct vm_doc *doc, const char *program, const struct qemu_host *host,
                  struct strv *out);
