/* mounts.h - the file systems PID 1 sets up before anything else runs (gcs-protocol.md §1.3). Leaf
 * code of the boot: called once, in this order. */
#pragma once

struct err;

/* Makes the initramfs root one that pivot_root accepts, by moving a bind mount of it over "/". */
int mounts_root(struct err *err);
/* devtmpfs on /dev and its symlinks: from here on there is a console. */
int mounts_dev(struct err *err);
/* proc, sysfs, tmpfs on /run, /tmp, /mnt and /dev/shm, devpts, cgroup2. The rest is read-only from
 * here on. */
int mounts_all(struct err *err);
