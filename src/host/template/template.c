/* template.c - reading the store: header, cheap look, verify, list, remove. */
#include "host/template/template.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/json.h"
#include "base/sha256.h"
#include "base/str.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT 2
#define CHECK_LINE (64 + 1) /* the checksum in hexadecimal, and the line's end */

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
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, identity, strlen(identity));
    sha256_hex(&s, hex);
    memcpy(ret, hex, TEMPLATE_KEY_SIZE - 1);
    ret[TEMPLATE_KEY_SIZE - 1] = '\0';
}

static bool is_key(const char *s)
{
    return strlen(s) == TEMPLATE_KEY_SIZE - 1 &&
           strspn(s, "0123456789abcdef") == TEMPLATE_KEY_SIZE - 1;
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

static void sum(const char *text, size_t len, char hex[SHA256_HEX_SIZE])
{
    struct sha256 s;

    sha256_init(&s);
    sha256_add(&s, text, len);
    sha256_hex(&s, hex);
}

char *template_header_format(const struct template_info *i, size_t *ret_len)
{
    AUTO_FREE char *body = NULL;
    struct jsw w;
    char hex[SHA256_HEX_SIZE];
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    template_info_write(i, &w, NULL);
    body = jsw_take(&w, &len);
    sum(body, len, hex);
    *ret_len = CHECK_LINE + len;
    return str_format("%s\n%s", hex, body);
}

static int read_file(const json_t *o, const char *key, struct template_file *ret, struct err *err)
{
    const json_t *f = NULL;
    const char *hex = "";

    if (js_obj(o, key, &f, err) < 0 || !f)
        return f ? -1 : err_set(err, ERR_DATA_LOSS, "header without %s", key);
    if (js_u64(f, "size", &ret->size, err) < 0 || js_u64(f, "inode", &ret->inode, err) < 0 ||
        js_u64(f, "mtime_ns", &ret->mtime_ns, err) < 0 || js_str(f, "sha256", &hex, err) < 0)
        return -1;
    if (strlen(hex) != SHA256_HEX_SIZE - 1)
        return err_set(err, ERR_DATA_LOSS, "header without a checksum of %s", key);
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
        return err_set(err, ERR_DATA_LOSS, "format %u, not %d", format, FORMAT);
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
        return err_set(err, ERR_DATA_LOSS, "header of another template");
    if (strlen(version) >= sizeof(i->vmm_version))
        return err_set(err, ERR_DATA_LOSS, "version of %zu bytes", strlen(version));
    strcpy(i->vmm_version, version);
    i->identity = str_dup(identity);
    return 0;
}

int template_header_parse(const char *text, size_t len, struct template_info *ret, struct err *err)
{
    AUTO(json_decref) json_t *o = NULL;
    AUTO(template_info_release) struct template_info i = { 0 };
    char hex[SHA256_HEX_SIZE];

    if (len < CHECK_LINE || text[CHECK_LINE - 1] != '\n')
        return err_set(err, ERR_DATA_LOSS, "header cut at %zu bytes", len);
    sum(text + CHECK_LINE, len - CHECK_LINE, hex);
    if (memcmp(hex, text, CHECK_LINE - 1) != 0)
        return err_set(err, ERR_DATA_LOSS, "header does not match its checksum");
    if (js_parse(text + CHECK_LINE, len - CHECK_LINE, TEMPLATE_HEADER_MAX, &o, err) < 0 ||
        read_info(o, &i, err) < 0) {
        err->code = ERR_DATA_LOSS;
        return -1;
    }
    *ret = i;
    i.identity = NULL;
    return 0;
}

/* --- the cheap look --- */

/* Ours alone, and what it says it is. */
static int check_owner(int fd, const char *what, mode_t kind, struct stat *st, struct err *err)
{
    if (fstat(fd, st) < 0)
        return err_sys(err, errno, "look at %s", what);
    if ((st->st_mode & S_IFMT) != kind)
        return err_set(err, ERR_DATA_LOSS, "%s is no %s", what,
                       kind == S_IFDIR ? "directory" : "plain file");
    if (st->st_uid != geteuid())
        return err_set(err, ERR_PERMISSION, "%s belongs to user %u", what, st->st_uid);
    if (st->st_mode & 022)
        return err_set(err, ERR_PERMISSION, "%s can be written by others (mode %03o)", what,
                       st->st_mode & 0777);
    return 0;
}

static int open_part(int dir, const char *name, struct stat *st, int *ret, struct err *err)
{
    AUTO_FD int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);

    if (fd < 0 && errno == ELOOP)
        return err_set(err, ERR_PERMISSION, "%s is a symbolic link", name);
    if (fd < 0)
        return err_set(err, ERR_DATA_LOSS, "%s cannot be opened: %s", name, strerrordesc_np(errno));
    if (check_owner(fd, name, S_IFREG, st, err) < 0)
        return -1;
    *ret = TAKE_FD(fd);
    return 0;
}

static uint64_t mtime_ns(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000 + (uint64_t)st->st_mtim.tv_nsec;
}

static int check_file(const struct template_file *f, const struct stat *st, const char *name,
                      struct err *err)
{
    if (f->size != (uint64_t)st->st_size)
        return err_set(err, ERR_DATA_LOSS, "%s has %lld bytes, not %llu", name,
                       (long long)st->st_size, (unsigned long long)f->size);
    if (f->inode != st->st_ino || f->mtime_ns != mtime_ns(st))
        return err_set(err, ERR_DATA_LOSS, "%s was changed after it was made", name);
    return 0;
}

static int read_header(int dir, struct template_info *ret, struct err *err)
{
    struct stat st;
    AUTO_FD int fd = -1;

    if (open_part(dir, "header", &st, &fd, err) < 0)
        return -1;
    if (st.st_size > TEMPLATE_HEADER_MAX)
        return err_set(err, ERR_DATA_LOSS, "header has %lld bytes", (long long)st.st_size);
    size_t len = (size_t)st.st_size;
    AUTO_FREE char *text = mem_alloc(len + 1);
    ssize_t n = fd_read_full(fd, text, len);
    if (n < 0)
        return err_sys(err, (int)-n, "read header");
    return template_header_parse(text, (size_t)n, ret, err);
}

static int check_mark(int dir, struct err *err)
{
    AUTO_FREE char *path = str_format("/proc/self/fd/%d", dir), *why = template_bad_why(path);

    return why ? err_set(err, ERR_DATA_LOSS, "it is marked bad: %s", why) : 0;
}

static int open_parts(int dir, const char *key, struct template *t, struct err *err)
{
    struct stat st;

    if (check_mark(dir, err) < 0)
        return -1;
    if (read_header(dir, &t->info, err) < 0)
        return -1;
    if (!str_eq(t->info.key, key))
        return err_set(err, ERR_DATA_LOSS, "header of template %s", t->info.key);
    if (open_part(dir, "ram", &st, &t->ram_fd, err) < 0 ||
        check_file(&t->info.ram, &st, "ram", err) < 0 ||
        open_part(dir, "state", &st, &t->state_fd, err) < 0 ||
        check_file(&t->info.state, &st, "state", err) < 0)
        return -1;
    return 0;
}

static int open_dir(const char *dir, const char *key, int *ret, struct err *err)
{
    AUTO_FD int store = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%s\" is no template's key", key);
    if (store < 0)
        return err_sys(err, errno, "open %s", dir);
    if (check_owner(store, dir, S_IFDIR, &st, err) < 0)
        return -1;
    AUTO_FD int fd = openat(store, key, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return err_set(err, ERR_PERMISSION, "template %s is no directory", key);
    if (fd < 0)
        return err_sys(err, errno, "template %s", key);
    if (check_owner(fd, key, S_IFDIR, &st, err) < 0)
        return -1;
    *ret = TAKE_FD(fd);
    return 0;
}

static int open_at(int fd, const char *key, struct template *ret, struct err *err)
{
    struct template t = { .ram_fd = -1, .state_fd = -1 };

    if (open_parts(fd, key, &t, err) < 0) {
        template_close(&t);
        return err_wrap(err, "template %s", key);
    }
    *ret = t;
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
    struct template t;

    if (template_open(dir, key, &t, err) < 0)
        return -1;
    int r = check_sum(t.ram_fd, t.info.ram.sha256, "ram", err);
    if (r == 0)
        r = check_sum(t.state_fd, t.info.state.sha256, "state", err);
    if (r == 0) {
        *ret = t.info;
        t.info.identity = NULL;
    }
    template_close(&t);
    return r < 0 ? err_wrap(err, "template %s", key) : 0;
}

/* --- the store as a whole --- */

static int by_name(const void *a, const void *b)
{
    return strcmp(a, b);
}

int template_list(const char *dir, char (**ret_keys)[TEMPLATE_KEY_SIZE], size_t *ret_n,
                  struct err *err)
{
    char(*keys)[TEMPLATE_KEY_SIZE] = mem_zalloc(TEMPLATE_LIST_MAX * sizeof(*keys));
    DIR *d = opendir(dir);
    size_t n = 0;

    if (!d && errno != ENOENT) {
        free(keys);
        return err_sys(err, errno, "open %s", dir);
    }
    for (struct dirent *e; d && n < TEMPLATE_LIST_MAX && (e = readdir(d));)
        if (is_key(e->d_name))
            memcpy(keys[n++], e->d_name, TEMPLATE_KEY_SIZE);
    if (d)
        closedir(d);
    qsort(keys, n, sizeof(*keys), by_name);
    *ret_keys = keys;
    *ret_n = n;
    return 0;
}

int template_remove(const char *dir, const char *key, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", dir, key);
    struct stat st;

    if (!is_key(key))
        return err_set(err, ERR_INVALID, "\"%s\" is no template's key", key);
    bool failed = template_forget_failure(dir, key);
    if (lstat(path, &st) < 0)
        return failed && errno == ENOENT ? 0 : err_sys(err, errno, "template %s", key);
    int r = S_ISDIR(st.st_mode) ? dir_remove(path) : unlink(path) < 0 ? -errno : 0;
    return r < 0 ? err_sys(err, -r, "remove %s", path) : 0;
}
