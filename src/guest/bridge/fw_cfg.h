/* fw_cfg.h - reads files that QEMU offers through its firmware configuration device, by port I/O
 * and so without a kernel module. Never waits; reading costs a few port accesses. */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct err;

/* The device's two registers, or a test's. */
struct fw_cfg_port {
    void (*select)(void *arg, uint16_t key);
    void (*read)(void *arg, void *buf, size_t len); /* of the selected item, from where it was */
    void *arg;
};

/* ERR_UNAVAILABLE: no such device (not QEMU). ERR_NOT_FOUND: no such file. ERR_INVALID: the
 * directory makes no sense, or the file is not exactly len bytes. *key, 0 at first, becomes that of
 * the file: it does not change in the life of a VM, nor from a template to its clones, and the
 * directory is 3 KB, each byte of it a port access. */
int fw_cfg_read_from(const struct fw_cfg_port *port, const char *name, uint16_t *key, void *buf,
                     size_t len, struct err *err);
/* From the real ports; needs root. Permission to use them is given back each time, since children
 * would inherit it. */
int fw_cfg_read(const char *name, uint16_t *key, void *buf, size_t len, struct err *err);
