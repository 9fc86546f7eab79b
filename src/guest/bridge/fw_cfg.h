/* fw_cfg.h - reads a file that QEMU offers through its firmware configuration device, from the
 * kernel's module for it (qemu_fw_cfg), which asks the device again at each read. Never waits. */
#pragma once
#include <stddef.h>

struct err;

#define FW_CFG_FILES "/sys/firmware/qemu_fw_cfg/by_name"

/* dir is FW_CFG_FILES, or a test's. *fd, -1 at first, becomes the open file: it reads the new
 * content after a restore too, so that a clone finds its own. The caller closes it.
 * ERR_UNAVAILABLE: no such device (not QEMU). ERR_NOT_FOUND: no such file. ERR_INVALID: the file is
 * not exactly len bytes. */
int fw_cfg_read(const char *dir, const char *name, int *fd, void *buf, size_t len, struct err *err);
