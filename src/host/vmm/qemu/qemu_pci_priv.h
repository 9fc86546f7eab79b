/* qemu_pci_priv.h - for qemu_pci*.c only. */
#pragma once
#include "host/vmm/qemu/qemu_priv.h"

#define QEMU_PCI_ID_MAX 32

enum qemu_pci_kind { QEMU_PCI_VFIO, QEMU_PCI_EDU, QEMU_PCI_NVME };

struct qemu_pci {
    struct list node;
    char id[QEMU_PCI_ID_MAX + 1];
    char *address;
    enum qemu_pci_kind kind;
    unsigned port;
    bool inside;   /* an add or a remove works on it */
    bool attached; /* all of it is there */
    bool has_fd, has_fdset, has_node, has_device;
    bool deserted; /* the guest has not let go */
    bool deleted;  /* the event came */
    struct waitq deleted_q;
};

/* Each step is noted before it is asked for. */
int qemu_pci_make(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err);
/* All but the device itself, which is gone. Repeatable. */
int qemu_pci_unmake(struct ctx *ctx, struct qemu *q, struct qemu_pci *p, struct err *err);
void qemu_pci_device_args(struct jsw *w, const void *pci);
void qemu_pci_id_args(struct jsw *w, const void *pci);
