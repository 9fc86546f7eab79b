/* mnt.h - mounting and unmounting, as leaf code that blocks in the kernel (call it through
 * base/offload), and the rules of docs/reference/gcs-protocol.md §4.12. */
#pragma once
#include <stdbool.h>

struct err;

/* mount(2) with an error that names both ends. data may be NULL. */
int mnt_mount(const char *source, const char *target, const char *type, unsigned long flags,
              const char *data, struct err *err);
/* The same source on target, and read-only if asked for. */
int mnt_bind(const char *source, const char *target, bool read_only, struct err *err);
/* All mounts stacked on path, at most 5. Success for a missing path and for one that is not a mount
 * point. */
int mnt_unmount(const char *path, struct err *err);
/* Everything mounted below dir (not on it), last first. */
int mnt_unmount_below(const char *dir, struct err *err);
/* True if something is mounted on it. */
bool mnt_is_mounted(const char *path);
