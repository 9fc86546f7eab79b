/* image.h - the guest image on disk: kernel, initramfs and the manifest that names them with
 * their hashes. Blocks while reading; never waits. */
#pragma once
#include "base/mem.h"
#include "base/sha256.h"

struct err;
struct image;

struct image_file {
    char name[64];
    uint64_t size;
    char sha256[SHA256_HEX_SIZE];
};
#define IMAGE_FILES_MAX 8

struct image {
    char *dir, *kernel, *initrd; /* paths */
    char release[64];            /* of the kernel */
    struct image_file files[IMAGE_FILES_MAX];
    size_t n_files;
};

/* Checks that the files are there and have their sizes. Messages end with what to do. */
int image_open(const char *dir, struct image **ret, struct err *err);
/* Reads all of it and compares the hashes. */
int image_verify(const struct image *img, struct err *err);
void image_free(struct image *img);
AUTO_DEFINE(struct image *, image_free);
/* manifest.json's text. */
int image_parse(const char *text, size_t len, struct image *img, struct err *err);
