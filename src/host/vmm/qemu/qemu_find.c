/* qemu_find.c - where QEMU is and which one. */
#include "base/child.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/str.h"
#include "base/stream.h"
#include "host/vmm/qemu/qemu.h"
#include "host/vmm/qemu/qemu_priv.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int qemu_find(const char *name, char **ret_path, struct err *err)
{
    const char *path = getenv("PATH");

    if (!name)
        name = QEMU_PROGRAM;
    if (strchr(name, '/')) {
        if (name[0] != '/')
            return err_set(err, ERR_INVALID, "%s: a program's path must be absolute", name);
        if (access(name, X_OK) < 0)
            return err_set(err, ERR_NOT_FOUND, "%s cannot be run (%s); " QEMU_REMEDY, name,
                           strerrordesc_np(errno));
        *ret_path = str_dup(name);
        return 0;
    }
    if (!path || !*path)
        path = "/usr/sbin:/usr/bin:/sbin:/bin";
    for (const char *p = path; *p; p += strcspn(p, ":"), p += *p == ':') {
        AUTO_FREE char *candidate = str_format("%.*s/%s", (int)strcspn(p, ":"), p, name);
        if (candidate[0] == '/' && access(candidate, X_OK) == 0) {
            *ret_path = TAKE_PTR(candidate);
            return 0;
        }
    }
    return err_set(err, ERR_NOT_FOUND, "%s is not in PATH; " QEMU_REMEDY, name);
}

bool qemu_version_is(const char *version, unsigned major, unsigned minor)
{
    unsigned has_major = 0, has_minor = 0;

    sscanf(version, "%u.%u", &has_major, &has_minor);
    return has_major > major || (has_major == major && has_minor >= minor);
}

int qemu_check_version(const char *program, const char *version, struct err *err)
{
    if (qemu_version_is(version, QEMU_VERSION_MIN_MAJOR, QEMU_VERSION_MIN_MINOR))
        return 0;
    return err_set(err, ERR_STATE, "%s is QEMU %s, which is too old (needed: %d.%d); " QEMU_REMEDY,
                   program, version, QEMU_VERSION_MIN_MAJOR, QEMU_VERSION_MIN_MINOR);
}

static int check_text(const char *path, const char *text, char ret[64], struct err *err)
{
    const char *at = strstr(text, "version ");
    unsigned major, minor, micro = 0;

    if (!at || sscanf(at, "version %u.%u.%u", &major, &minor, &micro) < 2)
        return err_set(err, ERR_STATE, "%s does not tell its version; " QEMU_REMEDY, path);
    snprintf(ret, 64, "%u.%u.%u", major, minor, micro);
    return qemu_check_version(path, ret, err);
}

int qemu_version(struct ctx *ctx, const char *path, char ret[64], struct err *err)
{
    const char *const argv[] = { path, "-version", NULL };
    struct ctx limited = ctx_with_timeout(ctx, 10 * NS_PER_S);
    AUTO(child_free) struct child *child = NULL;
    char text[512];
    size_t len = 0, n = 1;
    int fds[2];

    if (pipe2(fds, O_CLOEXEC) < 0)
        return err_sys(err, errno, "pipe");
    AUTO(stream_free) struct stream *out = stream_from_fd(ctx->loop, fds[0]);
    AUTO_FD int write_end = fds[1];
    const struct child_fd to = { write_end, 1 };
    if (child_spawn(&limited,
                    &(struct child_opts){
                        .path = path, .argv = argv, .fds = &to, .n_fds = 1, .die_with_us = true },
                    &child, err) < 0)
        return -1;
    fd_close(TAKE_FD(write_end));
    while (n > 0 && len < sizeof(text) - 1) {
        if (stream_read(&limited, out, text + len, sizeof(text) - 1 - len, &n, err) < 0)
            return err_wrap(err, "run %s -version", path);
        len += n;
    }
    text[len] = '\0';
    return check_text(path, text, ret, err);
}
