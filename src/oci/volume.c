#include "oci/volume.h"
#include "base/err.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#define KEY "lcow.volume"
#define MODE_MAX 07777

void volume_release(struct volume *v)
{
    for (size_t i = 0; i < v->n; i++)
        free(v->dirs[i].path);
    free(v->dirs);
    free(v->at);
    *v = (struct volume){ 0 };
}

void volume_add_dir(struct volume *v, const char *path, uint32_t mode, uint32_t uid, uint32_t gid)
{
    v->dirs = mem_grow(v->dirs, v->n, &v->cap, sizeof(*v->dirs));
    v->dirs[v->n++] = (struct volume_dir){
        .path = str_dup(path), .mode = mode & MODE_MAX, .uid = uid, .gid = gid
    };
}

/* --- in a mount --- */

void volume_clear(json_t *mount)
{
    json_object_del(mount, KEY);
}

void volume_write(const struct volume *v, const char *below, json_t *mount)
{
    AUTO_FREE char *source = str_format("%s%s%s", v->at, below[0] ? "/" : "", below);
    json_t *said = json_object(), *dirs = json_array();

    for (size_t i = 0; i < v->n; i++)
        json_array_append_new(dirs, json_pack("{s:s,s:I,s:I,s:I}", "Path", v->dirs[i].path, "Mode",
                                              (json_int_t)v->dirs[i].mode, "Uid",
                                              (json_int_t)v->dirs[i].uid, "Gid",
                                              (json_int_t)v->dirs[i].gid));
    json_object_set_new(said, "At", json_string(v->at));
    json_object_set_new(said, "Tmpfs", json_boolean(v->tmpfs));
    json_object_set_new(said, "Bytes", json_integer((json_int_t)v->bytes));
    json_object_set_new(said, "Dirs", dirs);
    json_object_set_new(mount, KEY, said);
    json_object_set_new(mount, "source", json_string(source));
}

static int read_dirs(const json_t *said, struct volume *v, struct err *err)
{
    const json_t *dirs = NULL, *d;
    size_t i;

    if (js_arr(said, "Dirs", &dirs, err) < 0)
        return -1;
    if (dirs && json_array_size(dirs) > VOLUME_DIRS_MAX)
        return err_set(err, ERR_INVALID, "too many directories: %zu, at most %d",
                       json_array_size(dirs), VOLUME_DIRS_MAX);
    json_array_foreach(dirs, i, d)
    {
        uint32_t mode = 0755, uid = 0, gid = 0;
        const char *path = "";

        if (!json_is_object(d) || js_str(d, "Path", &path, err) < 0 ||
            js_u32(d, "Mode", &mode, err) < 0 || js_u32(d, "Uid", &uid, err) < 0 ||
            js_u32(d, "Gid", &gid, err) < 0)
            return err_set(err, ERR_INVALID, "invalid Dirs[%zu]", i);
        volume_add_dir(v, path, mode, uid, gid);
    }
    return 0;
}

int volume_read(json_t *mount, struct volume *ret, bool *ret_there, struct err *err)
{
    AUTO(volume_release) struct volume v = { 0 };
    json_t *said = json_object_get(mount, KEY);
    const char *at = "";

    *ret_there = said != NULL;
    if (!said)
        return 0;
    if (!json_is_object(said) || js_str(said, "At", &at, err) < 0 ||
        js_bool(said, "Tmpfs", &v.tmpfs, err) < 0 || js_u64(said, "Bytes", &v.bytes, err) < 0 ||
        read_dirs(said, &v, err) < 0)
        return err_set(err, ERR_INVALID, "mount: " KEY " is malformed");
    v.at = str_dup(at);
    volume_clear(mount);
    *ret = v;
    v = (struct volume){ 0 };
    return 0;
}

/* --- the kubelet's paths --- */

bool volume_path_is_clean(const char *path)
{
    return path[0] == '/' && path[1] && !strstr(path, "//") && !strstr(path, "/./") &&
           !strstr(path, "/../") && !str_ends(path, "/..") && !str_ends(path, "/.");
}

/* …/pods/UID/volume-subpaths/NAME/CONTAINER/N, on which the kubelet has bound a directory of the
 * volume NAME, of any kind. */
static bool is_subpath(const char *path, const char *kind, const char *tail, char **ret_dir)
{
    static const char subpaths[] = "/volume-subpaths/";
    const char *at = strstr(path, subpaths);

    if (!at || !volume_path_is_clean(path))
        return false;
    const char *name = at + strlen(subpaths);
    size_t n = strcspn(name, "/");
    if (n == 0 || !name[n])
        return false;
    *ret_dir = str_format("%.*s/volumes/kubernetes.io~%s/%.*s%s", (int)(at - path), path, kind,
                          (int)n, name, tail);
    return true;
}

bool volume_is_csi_subpath(const char *path, char **ret_dir)
{
    return is_subpath(path, "csi", "/mount", ret_dir);
}

/* …/pods/UID/volumes/kubernetes.io~empty-dir/NAME, or a subPath. */
bool volume_is_empty_dir(const char *path, char **ret_dir)
{
    static const char kind[] = "/volumes/kubernetes.io~empty-dir/";
    const char *at = strstr(path, kind);
    size_t n;

    if (!at)
        return is_subpath(path, "empty-dir", "", ret_dir);
    at += strlen(kind);
    n = strcspn(at, "/");
    if (n == 0 || !volume_path_is_clean(path))
        return false;
    *ret_dir = str_ndup(path, (size_t)(at - path) + n);
    return true;
}

/* --- mount options --- */

int volume_option(const char *word, unsigned long *ret_flags)
{
    static const struct {
        const char *word;
        unsigned long flags;
        bool data;
    } words[] = {
        { "ro", MS_RDONLY },         { "rw", 0 },
        { "noatime", MS_NOATIME },   { "nodiratime", MS_NODIRATIME },
        { "relatime", MS_RELATIME }, { "strictatime", MS_STRICTATIME },
        { "lazytime", MS_LAZYTIME }, { "nodev", MS_NODEV },
        { "nosuid", MS_NOSUID },     { "noexec", MS_NOEXEC },
        { "sync", MS_SYNCHRONOUS },  { "dirsync", MS_DIRSYNC },
        { "discard", 0, true },      { "nodiscard", 0, true },
        { "defaults", 0 },
    };

    for (size_t i = 0; i < ARRAY_LEN(words); i++)
        if (str_eq(words[i].word, word)) {
            *ret_flags = words[i].flags;
            return words[i].data;
        }
    return -1;
}
