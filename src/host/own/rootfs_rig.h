/* rootfs_rig.h - for tests: images as parts of a root file system. */
#pragma once
#include "base/fd.h"
#include "harness/place.h"
#include "harness/tap.h"
#include "host/own/rootfs.h"

#include <fcntl.h>

/* What stands for a layer. */
static inline void rig_image(struct place *p, const char *name)
{
    ASSERT_EQ(file_write(place_path(p, name), "not even a file system", 22, 0644), 0);
}

/* How a disk of it is open: O_RDONLY, O_RDWR. */
static inline int rig_mode_of(const struct rootfs *fs, size_t i)
{
    return fcntl(fs->disks[i].fd, F_GETFL) & O_ACCMODE;
}
