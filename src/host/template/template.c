/* template.c - the store: header, quick check, verify, list, remove; marks for bad templates and
 * failed builds; pruning. */
#include "host/template/template.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/owned.h"
#include "base/sha256.h"
#include "base/str.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT 2
#define FAILED_PREFIX "failed-"
#define TEXT_MAX 2048
#define RETRY_NS (UINT64_C(600) * 1000000000)
#define RETRY_MOST_NS (UINT64_C(24) * 3600 * 1000000000)

void template_info_release(struct template_info *i)
{
    free(TAKE_PTR(i->identity));
}

void template_close(struct template *t)
{
    fd_close(TAKE_FD(t->ram_fd));
    fd_close(TAKE_FD(t->state_fd));
    template_info_release(&t->info);
}

void template_key_of(const char *identity, char ret[TEMPLATE_KEY_SIZE])
{
    char hex[SHA256_HEX_SIZE];

    sha256_of(identity, strlen(identity), hex);
    memcpy(ret, hex, TEMPLATE_KEY_SIZE - 1);
    ret[TEMPLATE_KEY_SIZE - 1] = '\0';
}

static bool is_key(const char *s)
{
    return strspn(s, "0123456789abcdef") == TEMPLATE_KEY_SIZE - 1 && !s[TEMPLATE_KEY_SIZE - 1];
}

/* --- the header --- */

static void write_file(const struct template_file *f, const char *key, struct jsw *w)
{
    jsw_obj(w, key);
    jsw_u64(w, "size", f->size);
    jsw_u64(w, "inode", f->inode);
    jsw_u64(w, "mtime_ns", f->mtime_ns);
    jsw_str(w, "sha256", f->sha256);
    jsw_end_obj(w);
}

void template_info_write(const struct template_info *i, struct jsw *w, const char *key)
{
    jsw_obj(w, key);
    jsw_u64(w, "format", FORMAT);
    jsw_str(w, "key", i->key);
    jsw_u64(w, "created_ns", i->created_ns);
    jsw_str(w, "vmm_version", i->vmm_version);
    jsw_bool(w, "emulated", i->emulated);
    jsw_u64(w, "tsc_khz", i->tsc_khz);
    jsw_u64(w, "memory_mib", i->memory_mib);
    jsw_u64(w, "max_memory_mib", i->max_memory_mib);
    jsw_u64(w, "max_cpus", i->max_cpus);
    write_file(&i->ram, "ram", w);
    write_file(&i->state, "state", w);
    jsw_str(w, "identity", i->identity);
    jsw_end_obj(w);
}

char *template_header_format(const struct template_info *i, size_t *ret_len)
{
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    template_info_write(i, &w, NULL);
    AUTO_FREE char *body = jsw_take(&w, &len);
    return owned_seal(body, len, ret_len);
}

static int read_file(const json_t *o, const char *key, struct template_file *ret, struct err *err)
{
    const json_t *f = NULL;
    const char *hex = "";

    if (js_obj(o, key, &f, err) < 0 || !f)
        return f ? -1 : err_set(err, ERR_DATA_LOSS, "the header has no %s", key);
    if (js_u64(f, "size", &ret->size, err) < 0 || js_u64(f, "inode", &ret->inode, err) < 0 ||
        js_u64(f, "mtime_ns", &ret->mtime_ns, err) < 0 || js_str(f, "sha256", &hex, err) < 0)
        return -1;
    if (strlen(hex) != SHA256_HEX_SIZE - 1)
        return err_set(err, ERR_DATA_LOSS, "the header has no checksum of %s", key);
    memcpy(ret->sha256, hex, SHA256_HEX_SIZE);
    return 0;
}

static int read_info(const json_t *o, struct template_info *i, struct err *err)
{
    const char *key = "", *identity = "", *version = "";
    uint32_t format = 0;

    if (js_u32(o, "format", &format, err) < 0)
        return -1;
    if (format != FORMAT)
        return err_set(err, ERR_DATA_LOSS, "unsupported format %u: must be %d", format, FORMAT);
    if (js_str(o, "key", &key, err) < 0 || js_str(o, "identity", &identity, err) < 0 ||
        js_str(o, "vmm_version", &version, err) < 0 ||
        js_u64(o, "created_ns", &i->created_ns, err) < 0 ||
        js_bool(o, "emulated", &i->emulated, err) < 0 ||
        js_u32(o, "tsc_khz", &i->tsc_khz, err) < 0 ||
        js_u32(o, "memory_mib", &i->memory_mib, err) < 0 ||
        js_u32(o, "max_memory_mib", &i->max_memory_mib, err) < 0 ||
        js_u32(o, "max_cpus", &i->max_cpus, err) < 0 || read_file(o, "ram", &i->ram, err) < 0 ||
        read_file(o, "state", &i->state, err) < 0)
        return -1;
    template_key_of(identity, i->key);
    if (!str_eq(i->key, key))
        return err_set(err, ERR_DATA_LOSS, "the header belongs to another template");
    if (strlen(version) >= sizeof(i->vmm_version))
        return err_set(err, ERR_DATA_LOSS, "invalid QEMU version of %zu bytes in the header",
                       strlen(version));
    strcpy(i->vmm_version, version);
    i->identity = str_dup(identity);
    return 0;
}

int template_header_parse(const char *text, size_t len, struct template_info *ret, struct err *err)
{
    AUTO(json_decref) json_t *o = NULL;
    AUTO(template_info_release) struct template_info i = { 0 };
    const char *body = owned_unseal(text, len, &len, err);

    if (!body)
        return -1;
    if (js_parse(body, len, TEMPLATE_HEADER_MAX, &o, err) < 0 || read_info(o, &i, err) < 0) {
        err->code = ERR_DATA_LOSS;
        return -1;
    }
    *ret = i;
    i.identity = NULL;
    return 0;
}

/* --- the quick check --- */

static int check_file(const struct template_file *f, const struct stat *st, const char *name,
                      struct err *err)
{
    if (f->size != (uint64_t)st->st_size)
        return err_set(err, ERR_DATA_LOSS, "%s has %lld bytes, not %llu", name,
                       (long long)st->st_size, (unsigned long long)f->size);
    if (f->inode != st->st_ino || f->mtime_ns != owned_mtime_ns(st))
        return err_set(err, ERR_DATA_LOSS, "%s was changed after the template was made", name);
    return 0;
}

static int read_header(int dir, struct template_info *ret, struct err *err)
{
    struct stat st;
    AUTO_FD int fd = -1;

    if (owned_open(dir, "header", &st, &fd, err) < 0)
        return -1;
    if (st.st_size > TEMPLATE_HEADER_MAX)
        return err_set(err, ERR_DATA_LOSS, "invalid header of %lld bytes", (long long)st.st_size);
    size_t len = (size_t)st.st_size;
    AUTO_FREE char *text = mem_alloc(len + 1);
    ssize_t n = fd_read_full(fd, text, len);
    if (n < 0)
        return err_sys(err, (int)-n, "read header");
    return template_header_parse(text, (size_t)n, ret, err);
}

/* Why the template at this path is marked bad; NULL: it is not. Caller frees. */
static char *bad_why(const char *path)
{
    AUTO_FREE char *file = str_format("%s/bad", path), *text = NULL;
    size_t len;
    int r = file_read_all(file, TEXT_MAX, &text, &len);

    if (r == -ENOENT)
        return NULL;
    if (r < 0)
        return str_dup("the mark cannot be read");
    text[strcspn(text, "\n")] = '\0';
    return str_printable(text);
}

static int check_mark(int dir, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", dir), *why = bad_why(path);

    return why ? err_set(err, ERR_DATA_LOSS, "the template is marked bad: %s", why) : 0;
}

static int open_parts(int dir, const char *key, struct template *t, struct err *err)
{
    struct stat st;

    if (check_mark(dir, err) < 0 || read_header(dir, &t->info, err) < 0)
        return -1;
    if (!str_eq(t->info.key, key))
        return err_set(err, ERR_DATA_LOSS, "header of template %s", t->info.key);
    if (owned_open(dir, "ram", &st, &t->ram_fd, err) < 0 ||
        check_file(&t->info.ram, &st, "ram", err) < 0 ||
        owned_open(dir, "state", &st, &t->state_fd, err) < 0)
        return -1;
    return check_file(&t->info.state, &st, "state", err);
}

static int open_dir(const char *dir, const char *key, int *ret, struct err *err)
{
    AUTO_FD int store = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%s\" is not a template's key", key);
    if (store < 0)
        return err_sys(err, errno, "open %s", dir);
    if (owned_check(store, dir, S_IFDIR, &st, err) < 0)
        return -1;
    AUTO_FD int fd = openat(store, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return err_set(err, ERR_PERMISSION, "template %s is not a directory", key);
    if (fd < 0)
        return err_sys(err, errno, "template %s", key);
    if (owned_check(fd, key, S_IFDIR, &st, err) < 0)
        return -1;
    *ret = TAKE_FD(fd);
    return 0;
}

static int open_at(int fd, const char *key, struct template *ret, struct err *err)
{
    AUTO(template_close) struct template t = { .ram_fd = -1, .state_fd = -1 };

    if (open_parts(fd, key, &t, err) < 0)
        return err_wrap(err, "template %s", key);
    *ret = t;
    t = (struct template){ .ram_fd = -1, .state_fd = -1 };
    return 0;
}

int template_open(const char *dir, const char *key, struct template *ret, struct err *err)
{
    AUTO_FD int fd = -1;

    return open_dir(dir, key, &fd, err) < 0 ? -1 : open_at(fd, key, ret, err);
}

int template_open_draft(const char *path, const char *key, struct template *ret, struct err *err)
{
    AUTO_FD int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    return fd < 0 ? err_sys(err, errno, "open %s", path) : open_at(fd, key, ret, err);
}

static int check_sum(int fd, const char *want, const char *name, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", fd);
    char hex[SHA256_HEX_SIZE];
    int r = sha256_sparse_file(path, hex);

    if (r < 0)
        return err_sys(err, -r, "read %s", name);
    if (!str_eq(hex, want))
        return err_set(err, ERR_DATA_LOSS, "%s does not match its checksum", name);
    return 0;
}

int template_verify(const char *dir, const char *key, struct template_info *ret, struct err *err)
{
    AUTO(template_close) struct template t = { .ram_fd = -1, .state_fd = -1 };

    if (template_open(dir, key, &t, err) < 0)
        return -1;
    if (check_sum(t.ram_fd, t.info.ram.sha256, "ram", err) < 0 ||
        check_sum(t.state_fd, t.info.state.sha256, "state", err) < 0)
        return err_wrap(err, "template %s", key);
    *ret = t.info;
    t.info.identity = NULL;
    return 0;
}

/* --- the store as a whole --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

int template_list(const char *dir, char (**ret_keys)[TEMPLATE_KEY_SIZE], size_t *ret_n,
                  struct err *err)
{
    AUTO_FREE char(*keys)[TEMPLATE_KEY_SIZE] = mem_zalloc(TEMPLATE_LIST_MAX * sizeof(*keys));
    AUTO(closedir) DIR *d = opendir(dir);
    size_t n = 0;

    if (!d && errno != ENOENT)
        return err_sys(err, errno, "open %s", dir);
    for (struct dirent *e; d && n < TEMPLATE_LIST_MAX && (e = readdir(d));)
        if (is_key(e->d_name))
            memcpy(keys[n++], e->d_name, TEMPLATE_KEY_SIZE);
    qsort(keys, n, sizeof(*keys), by_name);
    *ret_keys = TAKE_PTR(keys);
    *ret_n = n;
    return 0;
}

static char *failure_path(const char *dir, const char *key)
{
    return str_format("%s/" FAILED_PREFIX "%s", dir, key);
}

/* Returns whether there was one. */
static bool forget_failure(const char *dir, const char *key)
{
    AUTO_FREE char *file = failure_path(dir, key);

    return unlink(file) == 0;
}

int template_remove(const char *dir, const char *key, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    struct stat st;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%s\" is not a template's key", key);
    bool failed = forget_failure(dir, key);
    if (lstat(path, &st) < 0)
        return failed && errno == ENOENT ? 0 : err_sys(err, errno, "template %s", key);
    int r = S_ISDIR(st.st_mode) ? dir_remove(path) : unlink(path) < 0 ? -errno : 0;
    return r < 0 ? err_sys(err, -r, "remove %s", path) : 0;
}

/* --- marks for bad templates, failed clones and failed builds. They are plain text, written best
 * effort: a lost mark is written again at the next failure --- */

static char *path_of(const char *dir, const char *key, const char *name)
{
    return str_format("%s/%s/%s", dir, key, name);
}

int template_mark_bad(const char *dir, const char *key, const char *why, struct err *err)
{
    AUTO_FREE char *file = path_of(dir, key, "bad"), *text = str_format("%.1000s\n", why);

    /* The first reason is kept. */
    AUTO_FD int fd = open(file, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno == EEXIST ? 0 : err_sys(err, errno, "mark template %s as bad", key);
    int r = fd_write_full(fd, text, strlen(text));
    return r < 0 ? err_sys(err, -r, "mark template %s as bad", key) : 0;
}

bool template_strike(const char *dir, const char *key, const char *why)
{
    AUTO_FREE char *file = path_of(dir, key, "strikes"), *line = str_format("%.1000s\n", why),
                   *text = NULL;
    AUTO_FD int fd = open(file, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600);
    struct err ignored = ERR_INIT;
    unsigned n = 0;
    size_t len;

    if (fd < 0 || fd_write_full(fd, line, strlen(line)) < 0 ||
        file_read_all(file, 64 * 1024, &text, &len) < 0)
        return false;
    for (const char *at = text; (at = strchr(at, '\n')); at++)
        n++;
    if (n < TEMPLATE_STRIKES)
        return false;
    AUTO_FREE char *reason = str_format("%u clones failed in a row, the last: %s", n, why);
    return template_mark_bad(dir, key, reason, &ignored) == 0;
}

void template_absolve(const char *dir, const char *key)
{
    AUTO_FREE char *file = path_of(dir, key, "strikes");

    (void)unlink(file); /* usually it does not exist */
}

/* "<wall clock in ns> <count> <reason>\n" */
static bool parse_failure(char *text, struct template_failure *ret)
{
    char *save = NULL, *at = strtok_r(text, " ", &save), *count = strtok_r(NULL, " ", &save);
    uint64_t n = 0;

    if (!at || !count || str_to_u64(at, UINT64_MAX, &ret->at_ns) < 0 ||
        str_to_u64(count, 1000, &n) < 0 || n == 0)
        return false;
    ret->count = (unsigned)n;
    save[strcspn(save, "\n")] = '\0';
    AUTO_FREE char *why = str_printable(save);
    snprintf(ret->why, sizeof(ret->why), "%s", why);
    return true;
}

bool template_failure(const char *dir, const char *key, struct template_failure *ret)
{
    AUTO_FREE char *text = file_text(TEXT_MAX, "%s/" FAILED_PREFIX "%s", dir, key);

    *ret = (struct template_failure){ 0 };
    if (!text)
        return false;
    snprintf(ret->key, sizeof(ret->key), "%s", key);
    return parse_failure(text, ret);
}

void template_remember_failure(const char *dir, const char *key, uint64_t now_ns, const char *why)
{
    struct template_failure before;
    unsigned count = template_failure(dir, key, &before) && before.count < 100 ? before.count : 0;
    AUTO_FREE char *file = failure_path(dir, key),
                   *text =
                       str_format("%llu %u %.1000s\n", (unsigned long long)now_ns, count + 1, why);

    (void)file_replace(file, text, strlen(text), 0600);
}

uint64_t template_retry_at(const struct template_failure *f)
{
    uint64_t wait = RETRY_NS;

    for (unsigned i = 1; i < f->count && wait < RETRY_MOST_NS; i++)
        wait *= 2;
    return f->at_ns + (wait < RETRY_MOST_NS ? wait : RETRY_MOST_NS);
}

size_t template_failures(const char *dir, struct template_failure **ret)
{
    struct template_failure *all = mem_zalloc(TEMPLATE_LIST_MAX * sizeof(*all));
    AUTO(closedir) DIR *d = opendir(dir);
    size_t n = 0;

    for (struct dirent *e; d && n < TEMPLATE_LIST_MAX && (e = readdir(d));) {
        const char *key = e->d_name + strlen(FAILED_PREFIX);

        if (str_starts(e->d_name, FAILED_PREFIX) && is_key(key) &&
            template_failure(dir, key, &all[n]))
            n++;
    }
    *ret = all;
    return n;
}

/* --- use. The directory's modification time is the time of the last use --- */

struct aged {
    const char *key;
    uint64_t used_ns;
};

void template_touch(const char *dir, const char *key)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);

    /* Fails in a read-only store, which this process cannot prune either. */
    (void)utimensat(AT_FDCWD, path, NULL, AT_SYMLINK_NOFOLLOW);
}

static int newest_first(const void *a, const void *b)
{
    const struct aged *x = a, *y = b;

    return (x->used_ns < y->used_ns) - (x->used_ns > y->used_ns);
}

static uint64_t used_ns(const char *dir, const char *key)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    struct stat st;

    return lstat(path, &st) < 0 ? 0 : owned_mtime_ns(&st);
}

static void prune_failures(const char *dir, uint64_t now_ns)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(dir, &all);

    for (size_t i = 0; i < n; i++)
        if (now_ns > all[i].at_ns && now_ns - all[i].at_ns > TEMPLATE_UNUSED_NS)
            (void)forget_failure(dir, all[i].key);
}

int template_prune(const char *dir, const char *keep, uint64_t now_ns,
                   void (*removed)(void *arg, const char *key), void *arg, struct err *err)
{
    AUTO_FREE char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    size_t n = 0, have = keep ? 1 : 0;

    prune_failures(dir, now_ns);
    if (template_list(dir, &keys, &n, err) < 0)
        return -1;
    AUTO_FREE struct aged *all = mem_zalloc((n + 1) * sizeof(*all));
    for (size_t i = 0; i < n; i++)
        all[i] = (struct aged){ keys[i], used_ns(dir, keys[i]) };
    qsort(all, n, sizeof(*all), newest_first);
    for (size_t i = 0; i < n; i++) {
        bool unused = now_ns > all[i].used_ns && now_ns - all[i].used_ns > TEMPLATE_UNUSED_NS;

        if (keep && str_eq(all[i].key, keep))
            continue;
        if (!unused && have < TEMPLATE_MOST) {
            have++;
            continue;
        }
        if (template_remove(dir, all[i].key, err) < 0)
            return -1;
        if (removed)
            removed(arg, all[i].key);
    }
    return 0;
}
