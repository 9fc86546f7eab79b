#include "tool/lib/image.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "base/str.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MANIFEST_MAX_BYTES (4 * 1024 * 1024)
#define REMEDY                                                                                     \
    "install lcow-guest or build it with `make image`, or set image_dir in the configuration"

static int check_file(const char *name, const json_t *entry, struct err *err)
{
    const char *sha = NULL;
    uint64_t size = 0;

    if (!json_is_object(entry) || js_str(entry, "sha256", &sha, err) < 0 ||
        js_u64(entry, "size", &size, err) < 0 || !sha || strlen(sha) != SHA256_HEX_SIZE - 1)
        return err_set(err, ERR_INVALID, "file %.60s has no sha256 and size", name);
    if (strchr(name, '/'))
        return err_set(err, ERR_INVALID, "file %.60s: invalid name: must not contain a directory",
                       name);
    return 0;
}

static int parse(const char *text, size_t len, struct image *img, struct err *err)
{
    const json_t *files = NULL;
    const char *name;
    json_t *entry;

    if (js_parse(text, len, MANIFEST_MAX_BYTES, &img->manifest, err) < 0)
        return -1;
    if (!json_is_object(img->manifest) ||
        js_str(img->manifest, "kernel_release", &img->release, err) < 0 ||
        js_obj(img->manifest, "files", &files, err) < 0 || !img->release || !files)
        return err_set(err, ERR_INVALID, "kernel_release or files are missing");
    json_object_foreach((json_t *)files, name, entry)
    {
        if (check_file(name, entry, err) < 0)
            return -1;
    }
    if (!json_object_get(files, "vmlinux") || !json_object_get(files, "initrd.cpio"))
        return err_set(err, ERR_INVALID, "vmlinux or initrd.cpio is not among the files");
    return 0;
}

int image_open(const char *dir, struct image **ret, struct err *err)
{
    AUTO(image_free) struct image *img = mem_new(struct image);
    AUTO_FREE char *manifest = str_format("%s/manifest.json", dir), *text = NULL;
    const char *name;
    json_t *entry;
    size_t len;
    int r = file_read_all(manifest, MANIFEST_MAX_BYTES, &text, &len);

    if (r == -ENOENT || r == -ENOTDIR)
        return err_because(err, REASON_IMAGE_MISSING, ERR_NOT_FOUND,
                           "no guest image in %s; " REMEDY, dir);
    if (r < 0)
        return err_sys(err, -r, "read %s", manifest);
    if (parse(text, len, img, err) < 0) {
        struct err why = *err;

        return err_because(err, REASON_IMAGE_DAMAGED, why.code,
                           "guest image: %s is damaged: %.200s; " REMEDY, manifest, why.msg);
    }
    json_object_foreach(json_object_get(img->manifest, "files"), name, entry)
    {
        AUTO_FREE char *path = str_format("%s/%s", dir, name);
        json_int_t size = json_integer_value(json_object_get(entry, "size"));
        struct stat st;

        if (stat(path, &st) < 0)
            return err_because(err, REASON_IMAGE_MISSING, ERR_NOT_FOUND,
                               "guest image: %s: %s; " REMEDY, path, strerror(errno));
        if (st.st_size != size)
            return err_because(err, REASON_IMAGE_DAMAGED, ERR_DATA_LOSS,
                               "guest image: %s has %lld bytes instead of %lld; " REMEDY, path,
                               (long long)st.st_size, (long long)size);
    }
    img->dir = str_dup(dir);
    img->kernel = str_format("%s/vmlinux", dir);
    img->initrd = str_format("%s/initrd.cpio", dir);
    *ret = TAKE_PTR(img);
    return 0;
}

int image_verify(const struct image *img, struct err *err)
{
    const char *name;
    json_t *entry;

    json_object_foreach(json_object_get(img->manifest, "files"), name, entry)
    {
        AUTO_FREE char *path = str_format("%s/%s", img->dir, name);
        char hex[SHA256_HEX_SIZE];
        int r = sha256_file(path, hex);

        if (r < 0)
            return err_sys(err, -r, "read %s", path);
        if (!str_eq(hex, json_string_value(json_object_get(entry, "sha256"))))
            return err_because(err, REASON_IMAGE_DAMAGED, ERR_DATA_LOSS,
                               "guest image: %s does not match its hash in the manifest; " REMEDY,
                               path);
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
    json_decref(img->manifest);
    free(img);
}
