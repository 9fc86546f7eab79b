#include "host/control/run_file.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/offload.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RUN_FILE_MAX_BYTES (1u << 20)
#define FORSAKEN "forsaken."
#define ANCHOR_MAX_BYTES 256u

char *run_file_path(const char *dir)
{
    return str_format("%s/shim", dir);
}

void run_file_release(struct run_file *n)
{
    free(n->v);
    json_decref(n->root);
    *n = (struct run_file){ 0 };
}

/* json_pack("s") would refuse a path that is not UTF-8, and the container would be missing. */
static json_t *text_of(const char *s)
{
    return json_string_nocheck(s);
}

int run_file_write(const char *dir, const struct run_file *n, struct err *err)
{
    AUTO(json_decref)
    json_t *root = json_pack("{so,si,so,so,so,s[]}", "address", text_of(n->address), "pid", n->pid,
                             "version", text_of(n->version), "process", text_of(n->process), "home",
                             text_of(n->home), "containers");
    AUTO_FREE char *path = run_file_path(dir), *text = NULL;
    int r;

    for (size_t i = 0; i < n->n; i++)
        json_array_append_new(js_get(root, "containers"),
                              json_pack("{so,so,so,sb}", "id", text_of(n->v[i].id), "bundle",
                                        text_of(n->v[i].bundle), "anchor", text_of(n->v[i].anchor),
                                        "hidden", n->v[i].hidden));
    text = js_text(root, 0);
    r = file_replace(path, text, strlen(text), 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int read_members(const json_t *list, struct run_file *n, struct err *err)
{
    n->v = mem_zalloc((json_array_size(list) + 1) * sizeof(*n->v));
    for (; n->n < json_array_size(list); n->n++) {
        const json_t *c = json_array_get(list, n->n);
        struct run_member *m = &n->v[n->n];

        *m = (struct run_member){ "", "", "" };
        if (js_str(c, "id", &m->id, err) < 0 || js_str(c, "bundle", &m->bundle, err) < 0 ||
            js_str(c, "anchor", &m->anchor, err) < 0 || js_bool(c, "hidden", &m->hidden, err) < 0)
            return -1;
    }
    return 0;
}

int run_file_read(const char *dir, struct run_file *ret, struct err *err)
{
    AUTO_FREE char *path = run_file_path(dir), *text = NULL;
    AUTO(run_file_release)
    struct run_file n = { .address = "", .version = "", .process = "", .home = "" };
    const json_t *list = NULL;
    size_t len;
    int r = file_read_all(path, RUN_FILE_MAX_BYTES, &text, &len);

    if (r == -ENOENT)
        return err_set(err, ERR_NOT_FOUND, "%s does not exist", path);
    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    if (js_parse(text, len, RUN_FILE_MAX_BYTES, &n.root, err) < 0 ||
        js_str(n.root, "address", &n.address, err) < 0 || js_i32(n.root, "pid", &n.pid, err) < 0 ||
        js_str(n.root, "version", &n.version, err) < 0 ||
        js_str(n.root, "process", &n.process, err) < 0 ||
        js_str(n.root, "home", &n.home, err) < 0 || js_arr(n.root, "containers", &list, err) < 0 ||
        read_members(list, &n, err) < 0)
        return err_wrap(err, "%s", path);
    *ret = n;
    n = (struct run_file){ 0 };
    return 0;
}

const struct run_member *run_file_find(const struct run_file *n, const char *id)
{
    for (size_t i = 0; i < n->n; i++)
        if (str_eq(n->v[i].id, id))
            return &n->v[i];
    return NULL;
}

/* --- what containerd has given up --- */

static char *forsaken_path(const char *dir, const char *id)
{
    return str_format("%s/" FORSAKEN "%s", dir, id);
}

int run_forsake(const char *dir, const char *id, const char *anchor, struct err *err)
{
    AUTO_FREE char *path = forsaken_path(dir, id);
    int r = file_replace(path, anchor, strlen(anchor), 0600);

    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static bool run_is_forsaken(const char *dir, const char *id)
{
    AUTO_FREE char *path = forsaken_path(dir, id);

    return access(path, F_OK) == 0;
}

void run_unforsake(const char *dir, const char *id)
{
    AUTO_FREE char *path = forsaken_path(dir, id);

    (void)unlink(path);
}

static int is_forsaken(const struct dirent *d)
{
    return str_starts(d->d_name, FORSAKEN);
}

void run_each_forsaken(const char *dir, void (*fn)(void *arg, const char *id, const char *anchor),
                       void *arg)
{
    struct dirent **names;
    int n = scandir(dir, &names, is_forsaken, alphasort);

    for (int i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", dir, names[i]->d_name), *anchor = NULL;
        size_t len;

        if (file_read_all(path, ANCHOR_MAX_BYTES, &anchor, &len) == 0)
            fn(arg, names[i]->d_name + strlen(FORSAKEN), anchor);
        free(names[i]);
    }
    if (n >= 0)
        free(names);
}

struct looking {
    struct strv paths;
    bool gone;
};

static void drop_paths(void *job)
{
    strv_release(&((struct looking *)job)->paths);
}

static int look(void *job, struct err *err)
{
    struct looking *l = job;
    struct stat st;

    (void)err;
    l->gone = true;
    for (size_t i = 0; l->gone && i < l->paths.n; i++)
        l->gone = lstat(l->paths.v[i], &st) < 0 && (errno == ENOENT || errno == ENOTDIR);
    return 0;
}

int run_bundles_gone(struct ctx *ctx, const struct strv *paths, bool *ret, struct err *err)
{
    struct looking l = { 0 };

    for (size_t i = 0; i < paths->n; i++)
        strv_add(&l.paths, paths->v[i]);
    if (OFFLOAD(ctx, look, &l, 0, drop_paths, "look for bundles", err) < 0)
        return -1;
    *ret = l.gone;
    drop_paths(&l);
    return 0;
}

int run_given_up(struct ctx *ctx, const char *dir, const struct run_file *n, bool *ret,
                 struct err *err)
{
    AUTO(strv_release) struct strv kept = { 0 };
    const char *name = strrchr(n->home, '/');

    if (!n->home[0] && n->n == 0) { /* of a version that did not list them */
        *ret = false;
        return 0;
    }
    for (size_t i = 0; i < n->n; i++)
        if (!run_is_forsaken(dir, n->v[i].id))
            strv_add(&kept, n->v[i].bundle);
    if (name && !run_is_forsaken(dir, name + 1))
        strv_add(&kept, n->home);
    *ret = true;
    return kept.n > 0 ? run_bundles_gone(ctx, &kept, ret, err) : 0;
}
