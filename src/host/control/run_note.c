#include "host/control/run_note.h"
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

#define NOTE_MAX_BYTES (1u << 20)
#define FORSAKEN "forsaken."
#define ANCHOR_MAX_BYTES 256u

char *run_note_path(const char *dir)
{
    return str_format("%s/shim", dir);
}

void run_note_add(struct run_note *n, struct run_member m)
{
    n->v = mem_grow(n->v, n->n, &n->cap, sizeof(*n->v));
    n->v[n->n++] = m;
}

void run_note_release(struct run_note *n)
{
    for (size_t i = 0; i < n->n; i++) {
        free(n->v[i].id);
        free(n->v[i].bundle);
        free(n->v[i].anchor);
    }
    free(n->v);
    free(n->address);
    free(n->version);
    free(n->process);
    free(n->home);
    *n = (struct run_note){ 0 };
}

int run_note_write(const char *dir, const struct run_note *n, struct err *err)
{
    AUTO_FREE char *path = run_note_path(dir);
    AUTO(jsw_release) struct jsw w;
    int r;

    jsw_init(&w, JSW_PLAIN);
    jsw_obj(&w, NULL);
    jsw_str(&w, "address", n->address);
    jsw_i64(&w, "pid", n->pid);
    jsw_str(&w, "version", n->version);
    jsw_str(&w, "process", n->process);
    jsw_str(&w, "home", n->home);
    jsw_arr(&w, "containers");
    for (size_t i = 0; i < n->n; i++) {
        jsw_obj(&w, NULL);
        jsw_str(&w, "id", n->v[i].id);
        jsw_str(&w, "bundle", n->v[i].bundle);
        jsw_str(&w, "anchor", n->v[i].anchor);
        jsw_bool(&w, "hidden", n->v[i].hidden);
        jsw_end_obj(&w);
    }
    jsw_end_arr(&w);
    jsw_end_obj(&w);
    r = file_replace(path, w.out.data, w.out.len, 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int read_members(const json_t *list, struct run_note *n, struct err *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *c = json_array_get(list, i);
        const char *id = "", *bundle = "", *anchor = "";
        bool hidden = false;

        if (js_str(c, "id", &id, err) < 0 || js_str(c, "bundle", &bundle, err) < 0 ||
            js_str(c, "anchor", &anchor, err) < 0 || js_bool(c, "hidden", &hidden, err) < 0)
            return -1;
        run_note_add(n,
                     (struct run_member){ str_dup(id), str_dup(bundle), str_dup(anchor), hidden });
    }
    return 0;
}

int run_note_read(const char *dir, struct run_note *ret, struct err *err)
{
    AUTO_FREE char *path = run_note_path(dir), *text = NULL;
    AUTO(json_decref) json_t *root = NULL;
    AUTO(run_note_release) struct run_note n = { 0 };
    const char *address = "", *version = "", *process = "", *home = "";
    const json_t *list = NULL;
    size_t len;
    int r = file_read_all(path, NOTE_MAX_BYTES, &text, &len);

    if (r == -ENOENT)
        return err_set(err, ERR_NOT_FOUND, "there is no %s", path);
    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    if (js_parse(text, len, NOTE_MAX_BYTES, &root, err) < 0 ||
        js_str(root, "address", &address, err) < 0 || js_i32(root, "pid", &n.pid, err) < 0 ||
        js_str(root, "version", &version, err) < 0 || js_str(root, "process", &process, err) < 0 ||
        js_str(root, "home", &home, err) < 0 || js_arr(root, "containers", &list, err) < 0 ||
        read_members(list, &n, err) < 0)
        return err_wrap(err, "%s", path);
    n.address = str_dup(address);
    n.version = str_dup(version);
    n.process = str_dup(process);
    n.home = str_dup(home);
    *ret = n;
    n = (struct run_note){ 0 };
    return 0;
}

const struct run_member *run_note_find(const struct run_note *n, const char *id)
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

bool run_is_forsaken(const char *dir, const char *id)
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

static void looking_drop(void *arg)
{
    strv_release(&((struct looking *)arg)->paths);
}

static int look(void *arg, struct err *err)
{
    struct looking *l = arg;
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
    if (OFFLOAD(ctx, look, &l, 0, looking_drop, "look for bundles", err) < 0)
        return -1;
    *ret = l.gone;
    looking_drop(&l);
    return 0;
}

int run_given_up(struct ctx *ctx, const char *dir, const struct run_note *n, bool *ret,
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
