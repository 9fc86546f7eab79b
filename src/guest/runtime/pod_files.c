#include "guest/runtime/pod_files.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/gate.h"
#include "base/offload.h"
#include "base/str.h"
#include "guest/runtime/rewrite.h"
#include "guest/storage/mnt.h"
#include "guest/storage/path.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define HOSTNAME_BYTES 256
#define SEARCH_MAX 6
#define SERVERS_MAX 64
#define RESOLV_MAX_BYTES (16u << 10)

int pod_files_check_hostname(const char *name, struct err *err)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");

    if (name[n] || n > 255)
        return err_set(err, ERR_INVALID,
                       "invalid host name \"%.64s\": must be 0–255 of [a-zA-Z0-9_.-]", name);
    return 0;
}

char *pod_files_hosts(const char *hostname)
{
    struct sbuf out = { 0 };
    const char *dot = strchr(hostname, '.');

    sbuf_adds(&out, "127.0.0.1 localhost\n");
    if (dot)
        sbuf_addf(&out, "127.0.0.1 %s %.*s\n", hostname, (int)(dot - hostname), hostname);
    else if (hostname[0])
        sbuf_addf(&out, "127.0.0.1 %s\n", hostname);
    sbuf_adds(&out, "\n# IPv6\n"
                    "::1 ip6-localhost ip6-loopback\n"
                    "fe00::0 ip6-localnet\n"
                    "ff00::0 ip6-mcastprefix\n"
                    "ff02::1 ip6-allnodes\n"
                    "ff02::2 ip6-allrouters\n");
    return sbuf_take(&out);
}

static bool has(const struct strv *l, const char *word)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->v[i], word) == 0)
            return true;
    return false;
}

static int split(const char *list, const char *what, size_t max, struct strv *ret, struct err *err)
{
    AUTO_FREE char *copy = str_dup(list);
    char *rest = copy, *word;

    while ((word = strsep(&rest, ","))) {
        char *end = word + strlen(word);

        while (isspace((unsigned char)*word))
            word++;
        while (end > word && isspace((unsigned char)end[-1]))
            *--end = '\0';
        for (char *c = word; *c; c++) {
            if (isspace((unsigned char)*c) || iscntrl((unsigned char)*c))
                return err_set(err, ERR_INVALID, "invalid DNS %s: contains a blank", what);
            *c = (char)tolower((unsigned char)*c);
        }
        if (!*word || has(ret, word))
            continue;
        if (ret->n == max)
            return err_set(err, ERR_INVALID, "too many DNS entries: at most %zu %ss", max, what);
        strv_add(ret, word);
    }
    return 0;
}

int pod_files_resolv(const char *search, const char *servers, char **ret, struct err *err)
{
    AUTO(strv_release) struct strv domains = { 0 }, hosts = { 0 };
    struct sbuf out = { 0 };

    if (split(search, "search domain", SEARCH_MAX, &domains, err) < 0 ||
        split(servers, "server", SERVERS_MAX, &hosts, err) < 0)
        return -1;
    for (size_t i = 0; i < domains.n; i++)
        sbuf_addf(&out, "%s%s", i ? " " : "search ", domains.v[i]);
    if (domains.n)
        sbuf_addc(&out, '\n');
    for (size_t i = 0; i < hosts.n; i++)
        sbuf_addf(&out, "nameserver %s\n", hosts.v[i]);
    *ret = sbuf_take(&out);
    return 0;
}

int pod_files_check_resolv(const char *text, struct err *err)
{
    size_t len = 0;

    for (; text[len] && len <= RESOLV_MAX_BYTES; len++)
        if (iscntrl((unsigned char)text[len]) && text[len] != '\n' && text[len] != '\t')
            return err_set(err, ERR_INVALID, "invalid resolv.conf: contains a control character");
    if (len > RESOLV_MAX_BYTES)
        return err_set(err, ERR_INVALID, "invalid resolv.conf: at most %u bytes", RESOLV_MAX_BYTES);
    return 0;
}

static const char *const files[] = { "hostname", "hosts", "resolv.conf" };
static const char *const mounts[] = { "sandboxMounts", "sandboxTmpfsMounts", "hugepages" };

static int make_dir(const char *path, mode_t mode, struct err *err)
{
    int r = dir_make(path, mode);

    if (r == 0 && chmod(path, mode) < 0)
        r = -errno;
    return r < 0 ? err_sys(err, -r, "make %s", path) : 0;
}

/* --- files --- */

static int put(const struct pod_files *f, const char *name, const char *text, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s", f->root, name);
    int r = file_write(path, text, strlen(text), 0644);

    if (r == 0 && f->uid && chown(path, f->uid, f->gid) < 0)
        r = -errno;
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static int make_files(const struct pod_files *f, struct err *err)
{
    char own[HOSTNAME_BYTES] = "";
    const char *name = f->hostname;

    if (!name[0] && gethostname(own, sizeof(own) - 1) == 0)
        name = own;
    AUTO_FREE char *line = str_format("%s\n", name), *hosts = pod_files_hosts(name), *resolv = NULL;
    if (f->resolv_conf ? pod_files_check_resolv(f->resolv_conf, err) < 0
                       : pod_files_resolv(f->dns_search, f->dns_servers, &resolv, err) < 0)
        return -1;
    if (put(f, "hostname", line, err) < 0 || put(f, "hosts", hosts, err) < 0)
        return -1;
    return put(f, "resolv.conf", f->resolv_conf ? f->resolv_conf : resolv, err);
}

/* --- directories that a pod's containers share --- */

/* A bind mount on itself makes it a shared mount point: containers that have it see what is mounted
 * in it later. */
static int share(const char *dir, struct err *err)
{
    if (mount(dir, dir, NULL, MS_BIND, NULL) < 0 ||
        mount(NULL, dir, NULL, MS_SHARED | MS_REC, NULL) < 0)
        return err_sys(err, errno, "share %s", dir);
    return 0;
}

static int make_dirs(const struct pod_files *f, struct err *err)
{
    for (size_t i = 0; i < ARRAY_LEN(mounts); i++) {
        AUTO_FREE char *dir = str_format("%s/%s", f->root, mounts[i]);
        if (make_dir(dir, 0755, err) < 0)
            return -1;
        if (strcmp(mounts[i], "sandboxTmpfsMounts") == 0 &&
            mnt_mount("tmpfs", dir, "tmpfs", 0, "mode=0755", err) < 0)
            return -1;
        if (share(dir, err) < 0)
            return -1;
    }
    AUTO_FREE char *logs = str_format("%s/logs", f->root);
    return make_dir(logs, 0777, err);
}

static int make_all(void *arg, struct err *err)
{
    const struct pod_files *f = arg;

    if (make_dir(f->root, PATH_PASSABLE, err) < 0 || make_files(f, err) < 0)
        return -1;
    return f->pod ? make_dirs(f, err) : 0;
}

int pod_files_make(struct ctx *ctx, struct pod_files *f, struct err *err)
{
    return OFFLOAD(ctx, make_all, f, 5, NULL, "files of the pod", err);
}

/* A standalone container can have mounts below these directories, too: huge pages. */
static int remove_all(void *arg, struct err *err)
{
    const char *root = ((struct pod_files *)arg)->root;

    for (size_t i = 0; i < ARRAY_LEN(mounts); i++) {
        AUTO_FREE char *dir = str_format("%s/%s", root, mounts[i]);
        if (mnt_unmount_below(dir, err) < 0 || mnt_unmount(dir, err) < 0)
            return -1;
    }
    for (size_t i = 0; i < ARRAY_LEN(files); i++) {
        AUTO_FREE char *path = str_format("%s/%s", root, files[i]);
        if (unlink(path) < 0 && errno != ENOENT)
            return err_sys(err, errno, "remove %s", path);
    }
    return 0;
}

int pod_files_remove(struct ctx *ctx, const char *root, struct err *err)
{
    struct pod_files f = { .root = root };

    return OFFLOAD(ctx, remove_all, &f, 5, NULL, "pod's mounts to go", err);
}

/* --- what a container's mounts name in its pod, made when it is first named --- */

/* The host gives the size. Memory written there is charged to the container that writes it. */
static int mount_tmpfs(const struct volume *v, struct err *err)
{
    AUTO_FREE char *data =
        v->bytes ? str_format("mode=0777,size=%lu", v->bytes) : str_dup("mode=0777");

    return mnt_mount("tmpfs", v->at, "tmpfs", 0, data, err);
}

static int make_volume_dir(const char *path, const struct volume_dir *d, bool fresh,
                           struct err *err)
{
    struct stat st;

    if (!fresh && lstat(path, &st) == 0) /* containers may have changed it: it is left as it is */
        return 0;
    if (make_dir(path, 0755, err) < 0)
        return -1;
    /* chown clears the setuid and setgid bits. */
    if (chown(path, d->uid, d->gid) < 0 || chmod(path, d->mode) < 0)
        return err_sys(err, errno, "change the owner of %s", path);
    return 0;
}

/* Containers write there: a symlink in place of a directory could lead the next mount out of the
 * pod's directories, to the VM's own files. No component of the path may be a symlink. */
static int check_symlinks(const char *path, struct err *err)
{
    struct open_how how = { .flags = O_PATH | O_CLOEXEC, .resolve = RESOLVE_NO_SYMLINKS };
    AUTO_FD int fd = (int)syscall(SYS_openat2, AT_FDCWD, path, &how, sizeof(how));

    if (fd >= 0 || errno == ENOENT) /* a missing directory is created */
        return 0;
    if (errno == ELOOP)
        return err_set(err, ERR_PERMISSION, "a container has put a symbolic link into the path %s",
                       path);
    return err_sys(err, errno, "open %s", path);
}

static int make_volume(const struct volume *v, struct err *err)
{
    bool fresh = access(v->at, F_OK) < 0;

    if (check_symlinks(v->at, err) < 0)
        return -1;
    if (fresh && make_dir(v->at, 0777, err) < 0)
        return -1;
    if (fresh && v->tmpfs && mount_tmpfs(v, err) < 0) {
        (void)rmdir(v->at); /* the next one tries again */
        return -1;
    }
    for (size_t i = 0; i < v->n; i++) {
        AUTO_FREE char *path = NULL;

        if (!v->dirs[i].path[0])
            path = str_dup(v->at);
        else if (path_below(v->at, v->dirs[i].path, &path, err) < 0 ||
                 check_symlinks(path, err) < 0)
            return -1;
        if (make_volume_dir(path, &v->dirs[i], fresh, err) < 0)
            return -1;
    }
    return 0;
}

static int make_hugepages(const char *dir, const char *size, struct err *err)
{
    AUTO_FREE char *data = str_format("pagesize=%s", size);

    if (check_symlinks(dir, err) < 0)
        return -1;
    if (access(dir, F_OK) == 0)
        return 0;
    if (make_dir(dir, 0777, err) < 0)
        return -1;
    if (mnt_mount("hugetlbfs", dir, "hugetlbfs", 0, data, err) < 0) {
        (void)rmdir(dir);
        return -1;
    }
    return 0;
}

static int make_todo(void *arg, struct err *err)
{
    const struct rewrite_todo *t = arg;

    for (size_t i = 0; i < t->n_volumes; i++)
        if (make_volume(&t->volumes[i], err) < 0)
            return err_wrap(err, "volume %s", t->volumes[i].at);
    for (size_t i = 0; i < t->dirs.n; i++)
        if (check_symlinks(t->dirs.v[i], err) < 0 ||
            (access(t->dirs.v[i], F_OK) < 0 && make_dir(t->dirs.v[i], 0777, err) < 0))
            return -1;
    for (size_t i = 0; i < t->hugepages.n; i++)
        if (make_hugepages(t->hugepages.v[i], t->sizes.v[i], err) < 0)
            return -1;
    return 0;
}

static void todo_drop(void *arg)
{
    rewrite_todo_release(arg);
}

int pod_files_make_todo(struct ctx *ctx, struct gate *gate, struct rewrite_todo *todo,
                        struct err *err)
{
    if (todo->dirs.n == 0 && todo->hugepages.n == 0 && todo->n_volumes == 0)
        return 0;

    /* The gate keeps other containers from using a volume before it is complete. */
    AUTO(gate_leave) struct gate *held = gate_enter(gate, ctx, "pod's volumes", err);
    if (!held)
        return -1;

    struct rewrite_todo job = *todo;

    *todo = (struct rewrite_todo){ 0 };
    if (OFFLOAD(ctx, make_todo, &job, 0, todo_drop, "directories of mounts", err) < 0)
        return -1;
    rewrite_todo_release(&job);
    return 0;
}
