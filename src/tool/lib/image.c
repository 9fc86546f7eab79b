#include "tool/lib/image.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/str.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MANIFEST_MAX_BYTES (4 * 1024 * 1024)
#define REMEDY "build it with `make image`, or set image_dir in the configuration"

static int parse_file(const char *name, const json_t *entry, struct image *img, struct err *err)
{
    struct image_file *f = &img->files[img->n_files];
    const char *sha = NULL;

    if (img->n_files == IMAGE_FILES_MAX)
        return err_set(err, ERR_INVALID, "more than %d files", IMAGE_FILES_MAX);
    if (!json_is_object(entry) || js_str(entry, "sha256", &sha, err) < 0 ||
        js_u64(entry, "size", &f->size, err) < 0 || !sha || strlen(sha) != SHA256_HEX_SIZE - 1)
        return err_set(err, ERR_INVALID, "file %.60s has no sha256 and size", name);
    if (strlen(name) >= sizeof(f->name) || strchr(name, '/'))
        return err_set(err, ERR_INVALID, "file %.60s: not a plain name", name);
    snprintf(f->name, sizeof(f->name), "%s", name);
    snprintf(f->sha256, sizeof(f->sha256), "%s", sha);
    img->n_files++;
    return 0;
}

static bool has_file(const struct image *img, const char *name)
{
    for (size_t i = 0; i < img->n_files; i++) {
        if (str_eq(img->files[i].name, name))
            return true;
    }
    return false;
}

int image_parse(const char *text, size_t len, struct image *img, struct err *err)
{
    AUTO(json_decref) json_t *root = NULL;
    const char *release = NULL, *name;
    const json_t *files = NULL;
    json_t *entry;

    if (js_parse(text, len, MANIFEST_MAX_BYTES, &root, err) < 0)
        return -1;
    if (!json_is_object(root) || js_str(root, "kernel_release", &release, err) < 0 ||
        js_obj(root, "files", &files, err) < 0 || !release || !files)
        return err_set(err, ERR_INVALID, "kernel_release or files are missing");
    snprintf(img->release, sizeof(img->release), "%s", release);
    json_object_foreach((json_t *)files, name, entry)
    {
        if (parse_file(name, entry, img, err) < 0)
            return -1;
    }
    if (!has_file(img, "vmlinux") || !has_file(img, "initrd.cpio"))
        return err_set(err, ERR_INVALID, "vmlinux or initrd.cpio is not among the files");
    return 0;
}

int image_open(const char *dir, struct image **ret, struct err *err)
{
    AUTO(image_free) struct image *img = mem_new(struct image);
    AUTO_FREE char *manifest = str_format("%s/manifest.json", dir), *text = NULL;
    size_t len;
    int r = file_read_all(manifest, MANIFEST_MAX_BYTES, &text, &len);

    if (r == -ENOENT || r == -ENOTDIR)
        return err_set(err, ERR_NOT_FOUND, "no guest image in %s; " REMEDY, dir);
    if (r < 0)
        return err_sys(err, -r, "read %s", manifest);
    if (image_parse(text, len, img, err) < 0) {
        struct err why = *err;

        return err_set(err, why.code, "guest image: %s is damaged: %.200s; " REMEDY, manifest,
                       why.msg);
    }
    for (size_t i = 0; i < img->n_files; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, img->files[i].name);
        struct stat st;

        if (stat(path, &st) < 0)
            return err_set(err, ERR_NOT_FOUND, "guest image: %s: %s; " REMEDY, path,
                           strerror(errno));
        if ((uint64_t)st.st_size != img->files[i].size)
            return err_set(err, ERR_DATA_LOSS,
                           "guest image: %s has %lld bytes instead of %llu; " REMEDY, path,
                           (long long)st.st_size, (unsigned long long)img->files[i].size);
    }
    img->dir = str_dup(dir);
    img->kernel = str_format("%s/vmlinux", dir);
    img->initrd = str_format("%s/initrd.cpio", dir);
    *ret = TAKE_PTR(img);
    return 0;
}

int image_verify(const struct image *img, struct err *err)
{
    for (size_t i = 0; i < img->n_files; i++) {
        AUTO_FREE char *path = str_format("%s/%s", img->dir, img->files[i].name);
        char hex[SHA256_HEX_SIZE];
        int r = sha256_file(path, hex);

        if (r < 0)
            return err_sys(err, -r, "read %s", path);
        if (!str_eq(hex, img->files[i].sha256))
            return err_set(err, ERR_DATA_LOSS,
                           "guest image: %s is not what the manifest says; " REMEDY, path);
    }
    return 0;
}

void image_free(struct image *img)
{
    if (!img)
        return;
    free(img->dir);
    free(img->kernel);
    free(img->initrd);
    free(img);
}
