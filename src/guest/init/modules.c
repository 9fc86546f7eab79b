#include "guest/init/modules.h"
#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "base/str.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

#define ORDER_MAX_BYTES (256 * 1024)
#define CHAIN_MAX 64
#define NAME_MAX_BYTES 64

/* Nothing that leaves the directory: names become file names. */
static bool name_ok(const char *s, size_t len)
{
    if (len == 0 || len > NAME_MAX_BYTES)
        return false;
    for (size_t i = 0; i < len; i++)
        if (!isalnum((unsigned char)s[i]) && s[i] != '_' && s[i] != '-')
            return false;
    return true;
}

static bool same_name(const char *a, size_t len, const char *b)
{
    if (strlen(b) != len)
        return false;
    for (size_t i = 0; i < len; i++)
        if (a[i] != b[i] && !((a[i] == '-' || a[i] == '_') && (b[i] == '-' || b[i] == '_')))
            return false;
    return true;
}

static int parse_chain(const char *at, const char *end, const char *root, struct strv *ret_names,
                       struct err *err)
{
    size_t n = 0;

    while (at < end) {
        size_t len = strcspn(at, " \t\r\n");
        if (len > 0) {
            if (!name_ok(at, len))
                return err_set(err, ERR_INVALID, "module order of %s names \"%.*s\"", root,
                               (int)(len < NAME_MAX_BYTES ? len : NAME_MAX_BYTES), at);
            if (n++ == CHAIN_MAX)
                return err_set(err, ERR_INVALID, "module order of %s is longer than %d", root,
                               CHAIN_MAX);
            strv_addf(ret_names, "%.*s", (int)len, at);
        }
        at += len + 1;
    }
    if (n == 0 ||
        !same_name(ret_names->v[ret_names->n - 1], strlen(ret_names->v[ret_names->n - 1]), root))
        return err_set(err, ERR_INVALID, "module order of %s does not end with it", root);
    return 0;
}

int modules_order(const char *text, const char *root, struct strv *ret_names, struct err *err)
{
    for (const char *line = text; *line;) {
        const char *end = strchrnul(line, '\n');
        const char *colon = memchr(line, ':', (size_t)(end - line));
        if (colon && same_name(line, (size_t)(colon - line), root))
            return parse_chain(colon + 1, end, root, ret_names, err);
        line = *end ? end + 1 : end;
    }
    return err_set(err, ERR_NOT_FOUND, "module %s is not in the image", root);
}

static int insert_file(const char *dir, const char *name,
                       int (*insert)(void *arg, int fd, const char *name), void *arg,
                       struct err *err)
{
    AUTO_FREE char *path = str_format("%s/%s.ko", dir, name);
    AUTO_FD int fd = open(path, O_RDONLY | O_CLOEXEC);

    if (fd < 0)
        return err_sys(err, errno, "open module %s", path);
    int r = insert(arg, fd, name);
    if (r < 0 && r != -EEXIST)
        return err_sys(err, -r, "load module %s", path);
    return 0;
}

int modules_load_from(const char *dir, const char *root,
                      int (*insert)(void *arg, int fd, const char *name), void *arg,
                      struct err *err)
{
    AUTO_FREE char *path = str_format("%s/order", dir), *text = NULL;
    AUTO(strv_release) struct strv names = { 0 };
    size_t len;
    int r = file_read_all(path, ORDER_MAX_BYTES, &text, &len);

    if (r < 0)
        return err_sys(err, -r, "read %s", path);
    if (modules_order(text, root, &names, err) < 0)
        return -1;
    for (size_t i = 0; i < names.n; i++)
        if (insert_file(dir, names.v[i], insert, arg, err) < 0)
            return names.n == 1 ? -1 : err_wrap(err, "for module %s", root);
    return 0;
}

/* With multipath the disk of an nvme device is not below that device, and nobody could tell whose
 * it is. */
static const char *parameters_of(const char *name)
{
    return strcmp(name, "nvme_core") == 0 || strcmp(name, "nvme-core") == 0 ? "multipath=N" : "";
}

static int insert_kernel(void *arg, int fd, const char *name)
{
    return syscall(SYS_finit_module, fd, parameters_of(name), 0) < 0 ? -errno : 0;
}

int modules_load(const char *root, struct err *err)
{
    AUTO_FREE char *dir = NULL, *present = str_format("/sys/module/%s", root);
    struct utsname u;

    for (char *c = present; *c; c++)
        if (*c == '-')
            *c = '_';
    /* Loaded, or built in with parameters. */
    if (access(present, F_OK) == 0)
        return 0;
    if (uname(&u) < 0)
        return err_sys(err, errno, "uname");
    dir = str_format("/lib/modules/%s", u.release);
    return modules_load_from(dir, root, insert_kernel, NULL, err);
}
