/* image.h - the guest image on disk: kernel, initramfs and the manifest that names them with
 * their hashes. Blocks while reading; never waits. */
#pragma once
#include "base/json.h"

struct err;

struct image {
    char *dir, *kernel, *initrd; /* paths */
    const char *release;         /* of the kernel; in manifest */
    json_t *manifest;
};

/* Checks that the files exist and have their sizes. Messages end with a remedy. */
int image_open(const char *dir, struct image **ret, struct err *err);
/* Reads all files and compares the hashes. */
int image_verify(const struct image *img, struct err *err);
void image_free(struct image *img);
AUTO_DEFINE(struct image *, image_free);
