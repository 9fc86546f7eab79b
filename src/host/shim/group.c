#include "host/shim/group.h"
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/fiber.h"
#include "base/json.h"
#include "base/offload.h"
#include "host/rpc/rpc_client.h"
#include "host/rpc/rpc_sock.h"
#include "host/service/service.h"
#include "host/shim/bootstrap.h"
#include "oci/spec.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define CONNECT_LIMIT (100 * NS_PER_MS)
#define ANSWER_LIMIT NS_PER_S
#define FILE_MAX_BYTES (16u << 10)
#define SANDBOX_ID "io.kubernetes.cri.sandbox-id"

/* The value of that annotation, or NULL. Caller frees. */
static char *sandbox_of(const char *bundle)
{
    AUTO_FREE char *text = file_text(SPEC_MAX_BYTES, "%s/config.json", bundle);
    AUTO(json_decref) json_t *root = NULL;
    struct err ignored = ERR_INIT;

    /* Most specs do not contain the annotation, and then need not be parsed. */
    if (!text || !strstr(text, SANDBOX_ID) ||
        js_parse(text, strlen(text), SPEC_MAX_BYTES, &root, &ignored) < 0)
        return NULL;
    return str_dup(json_string_value(js_get(js_get(root, "annotations"), SANDBOX_ID)));
}

int group_of_bundle(const char *bundle, const char *id, char **ret, struct err *err)
{
    AUTO_FREE char *sandbox = sandbox_of(bundle);

    if (!sandbox || !sandbox[0]) {
        *ret = str_dup(id);
        return 0;
    }
    if (service_check_id("annotation " SANDBOX_ID, sandbox, err) < 0)
        return -1;
    *ret = TAKE_PTR(sandbox);
    return 0;
}

const char *group_path(const char *address)
{
    return str_starts(address, "unix://") ? address + strlen("unix://") : address;
}

bool group_join(struct ctx *ctx, const char *address)
{
    struct ctx connecting = ctx_with_timeout(ctx, CONNECT_LIMIT);
    struct ctx answering = ctx_with_timeout(ctx, ANSWER_LIMIT);
    Lcow__ExpectRequest req = LCOW__EXPECT_REQUEST__INIT;
    struct rpc_client *client;
    struct err err = ERR_INIT;

    /* A full queue belongs to a running shim, perhaps a stuck one, not to a dead one. But the
     * kernel may close the listener of a killed process late, so a connection alone does not prove
     * that it runs: then the connection closes without an answer. */
    if (rpc_client_connect(&connecting, address, &client, &err) < 0)
        return err.code == ERR_DEADLINE;
    /* A shim of an older version answers that it does not know the method: it is running. */
    (void)rpc_client_call(&answering, client, SERVICE_LCOW, "Expect", &req,
                          &lcow__expect_response__descriptor, NULL, &err);
    rpc_client_free(client);
    fiber_yield(ctx->loop); /* lets the client's reader fiber end before `start` returns */
    return err.code != ERR_UNAVAILABLE;
}

int group_mark_leaving(const char *address)
{
    return chmod(group_path(address), S_IRUSR | S_IWUSR | S_ISVTX) < 0 ? -errno : 0;
}

bool group_is_leaving(const char *address)
{
    struct stat st;

    return stat(group_path(address), &st) == 0 && S_ISSOCK(st.st_mode) && (st.st_mode & S_ISVTX);
}

int group_find_leaver(struct ctx *ctx, const char *address, struct group_leaver *ret,
                      struct err *err)
{
    struct ctx connecting = ctx_with_timeout(ctx, CONNECT_LIMIT);
    AUTO_FD int fd = -1, pidfd = -1;
    struct ucred peer;
    socklen_t len = sizeof(peer);

    *ret = (struct group_leaver){ -1, 0 };
    if (rpc_sock_connect(&connecting, address, &fd, err) < 0) {
        if (err->code != ERR_UNAVAILABLE)
            return err_wrap(err, "connect to the exiting shim");
        err_clear(err);
        return 0; /* it has exited meanwhile */
    }
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) < 0)
        return err_sys(err, errno, "find the process of the exiting shim at %s", address);
    pidfd = pidfd_open(peer.pid, 0);
    if (pidfd < 0 && errno != ESRCH)
        return err_sys(err, errno, "watch process %d, the exiting shim", peer.pid);
    /* A child between fork and exec may hold the listener of a dead shim. */
    if (pidfd >= 0 && fd_ready_now(pidfd, POLLIN) == 0)
        *ret = (struct group_leaver){ TAKE_FD(pidfd), peer.pid };
    return 0;
}

static void drop_lock(void *job)
{
    fd_close(((struct group_lock *)job)->fd);
}

/* One attempt. 1: locked. 0: the last holder removed the file meanwhile. */
static int lock_once(struct group_lock *l, int flags, struct err *err)
{
    struct stat mine, there;

    fd_close(TAKE_FD(l->fd));
    l->fd = open(l->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (l->fd < 0)
        return err_sys(err, errno, "open lock %s", l->path);
    while (flock(l->fd, LOCK_EX | flags) < 0)
        if (errno != EINTR)
            return err_sys(err, errno, "lock %s", l->path);
    return fstat(l->fd, &mine) == 0 && stat(l->path, &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

static int lock_blocking(void *job, struct err *err)
{
    int r;

    while ((r = lock_once(job, 0, err)) == 0)
        ;
    return r < 0 ? -1 : 0;
}

int group_lock(struct ctx *ctx, const char *address, struct group_lock *ret, struct err *err)
{
    AUTO_FREE char *path = str_format("%s.lock", group_path(address));
    struct group_lock l = { .path = path, .fd = -1 };
    int r;

    while ((r = lock_once(&l, LOCK_NB, err)) == 0)
        ;
    if (r < 0 && err->sys != EWOULDBLOCK) {
        fd_close(l.fd);
        return -1;
    }
    if (r < 0 && OFFLOAD(ctx, lock_blocking, &l, 1, drop_lock, "group lock", err) < 0)
        return err_wrap(err, "wait for the lock of %s", address);
    *ret = (struct group_lock){ .path = TAKE_PTR(path), .fd = l.fd };
    return 0;
}

void group_unlock(struct group_lock *l)
{
    if (!l->path)
        return;
    (void)unlink(l->path); /* while it is locked: a waiting process sees the removal and creates a
                              new file */
    fd_close(l->fd);
    free((char *)l->path);
}

int group_write_address(const char *bundle, const char *address, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/address", bundle);
    int r = file_replace(path, address, strlen(address), 0644);

    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

/* --- the file for `delete` --- */

#define AT(f) offsetof(struct group_file, f)
static const struct {
    const char *key;
    size_t offset;
} texts[] = {
    { "group", AT(group) },       { "address", AT(address) },
    { "run_root", AT(run_root) }, { "scratch_dir", AT(scratch_dir) },
    { "shim", AT(shim) },         { "home", AT(home) },
};

static char **text_of(const struct group_file *n, size_t i)
{
    return (char **)((char *)n + texts[i].offset);
}

int group_write_file(const char *bundle, const struct group_file *n, struct err *err)
{
    AUTO_FREE char *path = str_format("%s/" GROUP_FILE, bundle), *text = NULL;
    AUTO(json_decref)
    json_t *all = json_pack("{sI, sI, sI}", "pid", (json_int_t)n->pid, "exit_status",
                            (json_int_t)n->exit_status, "exited_at", (json_int_t)n->exited_wall_ns);
    int r;

    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        json_object_set_new(all, texts[i].key, json_string(*text_of(n, i)));
    text = js_text(all, 0);
    r = file_replace(path, text, strlen(text), 0600);
    return r < 0 ? err_sys(err, -r, "write %s", path) : 0;
}

static char *small_file(const char *bundle, const char *name)
{
    char *text = file_text(FILE_MAX_BYTES, "%s/%s", bundle, name);

    for (size_t len = text ? strlen(text) : 0; len > 0 && strchr(" \t\r\n", text[len - 1]);)
        text[--len] = '\0';
    return text;
}

static void read_own_file(const char *bundle, struct group_file *n)
{
    AUTO_FREE char *text = small_file(bundle, GROUP_FILE);
    AUTO(json_decref) json_t *root = NULL;
    struct err ignored = ERR_INIT;

    if (!text || js_parse(text, strlen(text), FILE_MAX_BYTES, &root, &ignored) < 0 ||
        js_u32(root, "pid", &n->pid, &ignored) < 0 ||
        js_u32(root, "exit_status", &n->exit_status, &ignored) < 0 ||
        js_u64(root, "exited_at", &n->exited_wall_ns, &ignored) < 0)
        return;
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        *text_of(n, i) = str_dup(json_string_value(js_get(root, texts[i].key)));
}

int group_read_file(const char *bundle, const char *containerd, const char *ns, const char *id,
                    struct group_file *ret, struct err *err)
{
    AUTO(group_file_release) struct group_file n = { 0 };

    read_own_file(bundle, &n);
    if (!n.group)
        n.group = small_file(bundle, "sandbox");
    if (!n.group && group_of_bundle(bundle, id, &n.group, err) < 0)
        return -1;
    if (service_check_id("sandbox id", n.group, err) < 0)
        return -1;
    if (!n.address)
        n.address = small_file(bundle, "address");
    if (!n.address && bootstrap_address(NULL, containerd, ns, n.group, &n.address, err) < 0)
        return -1;
    *ret = n;
    n = (struct group_file){ 0 };
    return 0;
}

void group_file_release(struct group_file *n)
{
    for (size_t i = 0; i < ARRAY_LEN(texts); i++)
        free(*text_of(n, i));
    *n = (struct group_file){ 0 };
}
