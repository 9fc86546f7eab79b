#include "host/config/volumes.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/sha256.h"
#include "oci/volume.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIR_NAME ".volumes"

void volumes_release(struct volumes_record *v)
{
    json_decref(v->doc);
    *v = (struct volumes_record){ 0 };
}

/* --- parsing a record --- */

static int check_path(const char *what, const char *path, struct err *err)
{
    if (strlen(path) > VOLUMES_PATH_MAX)
        return err_set(err, ERR_INVALID, "%s has %zu bytes; the maximum is %d", what, strlen(path),
                       VOLUMES_PATH_MAX);
    return volume_path_is_clean(path)
               ? 0
               : err_set(err, ERR_INVALID,
                         "%s \"%.200s\" is not an absolute path without \".\" and \"..\"", what,
                         path);
}

static int read_options(struct volumes_record *v, struct err *err)
{
    const json_t *list = NULL, *o;
    size_t i;

    if (js_arr(v->doc, "options", &list, err) < 0)
        return -1;
    if (json_array_size(list) > VOLUMES_OPTIONS_MAX)
        return err_set(err, ERR_INVALID, "%zu mount options; the maximum is %d",
                       json_array_size(list), VOLUMES_OPTIONS_MAX);
    json_array_foreach(list, i, o)
    {
        const char *word = json_is_string(o) ? json_string_value(o) : "";
        unsigned long flags = 0;

        if (volume_option(word, &flags) < 0)
            return err_set(err, ERR_INVALID,
                           "unsupported mount option \"%.64s\": " VOLUME_OPTIONS " supported",
                           word);
        v->read_only = v->read_only || flags == MS_RDONLY;
        v->options[i] = word;
    }
    return 0;
}

static int read_metadata(struct volumes_record *v, struct err *err)
{
    const json_t *metadata = NULL;
    const char *key, *group = NULL, *policy = "";
    json_t *value;
    uint64_t number;

    if (js_obj(v->doc, "metadata", &metadata, err) < 0)
        return -1;
    json_object_foreach((json_t *)metadata, key, value)
    {
        const char *text = json_is_string(value) ? json_string_value(value) : NULL;

        if (str_eq(key, "fsGroup") && text)
            group = text;
        else if (str_eq(key, "fsGroupChangePolicy") && text)
            policy = text;
        else
            return err_set(err, ERR_INVALID,
                           "unsupported metadata \"%.64s\": must be fsGroup or "
                           "fsGroupChangePolicy, with a string",
                           key);
    }
    if (policy[0] && !str_eq(policy, "Always") && !str_eq(policy, "OnRootMismatch"))
        return err_set(err, ERR_INVALID,
                       "invalid fsGroupChangePolicy \"%.64s\": must be Always or OnRootMismatch",
                       policy);
    if (!group)
        return policy[0] ? err_set(err, ERR_INVALID, "fsGroupChangePolicy needs fsGroup") : 0;
    if (str_to_u64(group, UINT32_MAX - 1, &number) < 0)
        return err_set(err, ERR_INVALID, "invalid fsGroup \"%.64s\": must be 0–4294967294", group);
    v->group = (uint32_t)number;
    v->group_policy = policy[0] ? policy : "Always";
    return 0;
}

static int read_record(struct volumes_record *v, struct err *err)
{
    const char *type = "";

    v->path = v->device = v->fstype = "";
    if (!json_is_object(v->doc))
        return err_set(err, ERR_INVALID, "the mount info is not a JSON object");
    if (js_str(v->doc, "volume-path", &v->path, err) < 0 ||
        js_str(v->doc, "device", &v->device, err) < 0 ||
        js_str(v->doc, "fstype", &v->fstype, err) < 0 ||
        js_str(v->doc, "volume-type", &type, err) < 0 ||
        check_path("the volume path", v->path, err) < 0 || check_path("device", v->device, err) < 0)
        return -1;
    if (type[0] && !str_eq(type, "block"))
        return err_set(err, ERR_INVALID, "unsupported volume-type \"%.64s\": must be block", type);
    if (!str_eq(v->fstype, "ext4") && !str_eq(v->fstype, "xfs"))
        return err_set(err, ERR_INVALID,
                       "unsupported file system type \"%.64s\": must be ext4 or xfs", v->fstype);
    return read_options(v, err) < 0 ? -1 : read_metadata(v, err);
}

int volumes_read(json_t *doc, struct volumes_record *ret, struct err *err)
{
    AUTO(volumes_release) struct volumes_record v = { .doc = doc };

    if (read_record(&v, err) < 0)
        return -1;
    *ret = v;
    v.doc = NULL;
    return 0;
}

/* --- files --- */

static char *file_of(const char *run_root, const char *path)
{
    char hex[SHA256_HEX_SIZE];

    sha256_of(path, strlen(path), hex);
    return str_format("%s/" DIR_NAME "/%s", run_root, hex);
}

/* Only root may decide which device a VM gets. */
static int check_owner(int fd, const char *name, mode_t kind, struct err *err)
{
    struct stat st;

    if (fstat(fd, &st) < 0)
        return err_sys(err, errno, "look at %s", name);
    if ((st.st_mode & S_IFMT) != kind || st.st_uid != geteuid() || (st.st_mode & 022))
        return err_set(err, ERR_PERMISSION,
                       "%s must be a %s that root owns and only root can write; find out who "
                       "created it, and remove it",
                       name, kind == S_IFDIR ? "directory" : "file");
    return 0;
}

/* Returns 0 if the record does not exist. */
static int load(const char *run_root, const char *file, struct volumes_record *ret, struct err *err)
{
    AUTO_FREE char *name = str_format("%s/" DIR_NAME, run_root), *text = NULL;
    AUTO_FD int dir = open(name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    json_t *doc = NULL;

    if (dir < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", name);
    AUTO_FD int fd = open(file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0)
        return errno == ENOENT ? 0 : err_sys(err, errno, "open %s", file);
    if (check_owner(dir, name, S_IFDIR, err) < 0 || check_owner(fd, file, S_IFREG, err) < 0)
        return -1;
    text = mem_zalloc(VOLUMES_INFO_MAX + 1);
    ssize_t n = fd_read_full(fd, text, VOLUMES_INFO_MAX + 1);
    if (n < 0)
        return err_sys(err, (int)-n, "read %s", file);
    if (js_parse(text, (size_t)n, VOLUMES_INFO_MAX, &doc, err) < 0 ||
        volumes_read(doc, ret, err) < 0)
        return err_wrap(err, "volume record %s", file);
    return 1;
}

int volumes_get(const char *run_root, const char *path, struct volumes_record *ret, bool *ret_there,
                struct err *err)
{
    AUTO_FREE char *file = file_of(run_root, path);
    int r = load(run_root, file, ret, err);

    *ret_there = r > 0;
    return r < 0 ? -1 : 0;
}

int volumes_find(const char *run_root, const char *path, struct volumes_record *ret,
                 bool *ret_there, const char **ret_below, struct err *err)
{
    AUTO_FREE char *dir = str_dup(path), *volume = NULL,
                   *all = str_format("%s/" DIR_NAME, run_root);

    *ret_there = false;
    if (access(all, F_OK) < 0)
        return 0;
    for (char *slash = dir + strlen(dir); slash && slash != dir; slash = strrchr(dir, '/')) {
        *slash = '\0';
        if (volumes_get(run_root, dir, ret, ret_there, err) < 0)
            return -1;
        if (*ret_there) {
            *ret_below = path + strlen(dir) + (path[strlen(dir)] == '/');
            return 0;
        }
    }
    *ret_below = NULL;
    return volume_is_csi_subpath(path, &volume) ? volumes_get(run_root, volume, ret, ret_there, err)
                                                : 0;
}

int volumes_put(const char *run_root, const struct volumes_record *v, struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/" DIR_NAME, run_root), *file = file_of(run_root, v->path);
    AUTO_FREE char *text = js_text(v->doc, 0);
    AUTO(volumes_release) struct volumes_record old = { 0 };
    bool there;

    if (dir_need(dir, 0700, err) < 0 || volumes_get(run_root, v->path, &old, &there, err) < 0)
        return -1;
    if (there && !json_equal(old.doc, v->doc))
        return err_set(err, ERR_EXISTS,
                       "volume %s is already recorded with device %s and other settings; remove it "
                       "first: lcow volume remove --volume-path %s",
                       v->path, old.device, v->path);
    int r = there ? 0 : file_replace(file, text, strlen(text), 0600);
    if (r == -ENOENT && dir_need(dir, 0700, err) == 0) /* removed together with its last record */
        r = file_replace(file, text, strlen(text), 0600);
    return r < 0 ? err_sys(err, -r, "write %s", file) : 0;
}

int volumes_drop(const char *run_root, const char *path, struct err *err)
{
    AUTO_FREE char *file = file_of(run_root, path), *dir = str_format("%s/" DIR_NAME, run_root);

    if (unlink(file) < 0 && errno != ENOENT)
        return err_sys(err, errno, "remove %s", file);
    (void)rmdir(dir); /* succeeds if this was the last record */
    return 0;
}

int volumes_each(const char *run_root,
                 void (*fn)(void *arg, const struct volumes_record *v, const struct err *err),
                 void *arg, struct err *err)
{
    AUTO_FREE char *dir = str_format("%s/" DIR_NAME, run_root);
    AUTO(closedir) DIR *d = opendir(dir);

    if (!d)
        return errno == ENOENT ? 0 : err_sys(err, errno, "read %s", dir);
    for (struct dirent *e; (e = readdir(d));) {
        AUTO(volumes_release) struct volumes_record v = { 0 };
        AUTO_FREE char *file = str_format("%s/%s", dir, e->d_name);
        struct err why = ERR_INIT;

        if (strlen(e->d_name) != SHA256_HEX_SIZE - 1) /* a temporary file of a writer */
            continue;
        int r = load(run_root, file, &v, &why);
        if (r != 0)
            fn(arg, &v, r < 0 ? &why : NULL);
    }
    return 0;
}
