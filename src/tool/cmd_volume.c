/* cmd_volume.c - `lcow volume`: volumes of CSI drivers that are a disk with a file system. A node
 * plugin records the device of a path; the shim reads the record when a container's mount names the
 * path (host/config/volumes.h). Size and usage come from the VM that has the disk. */
#include "api/lcow.pb-c.h"
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "host/config/volumes.h"
#include "host/rpc/rpc_client.h"
#include "tool/lib/exec.h"
#include "tool/tool.h"
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define RESIZE_LIMIT (60 * NS_PER_S)
#define STALL_LIMIT (60 * NS_PER_S)
#define ANSWER_MAX 256

/* --- the volume --- */

/* For a directory that was removed: resolves the part of its path that still exists, so that the
 * result is the path that was recorded. */
static char *resolve_gone(const char *given)
{
    AUTO_FREE char *path = str_dup(given), *head = NULL;

    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = '\0';
    head = str_dup(path);
    for (char *cut; (cut = strrchr(head, '/')) && cut != head;) {
        *cut = '\0';
        AUTO_FREE char *base = realpath(head, NULL);
        if (base)
            return str_format("%s%s", base, path + (cut - head));
    }
    return TAKE_PTR(path);
}

/* The path without symlinks, as clients of containerd name it. Caller frees. */
static int volume_path(struct tool *t, bool need, char **ret, struct err *err)
{
    const char *given = t->opts.volume_path;
    struct stat st;

    if (!given)
        return err_set(err, ERR_INVALID, "--volume-path is missing");
    if (given[0] != '/' || strlen(given) > VOLUMES_PATH_MAX)
        return err_set(err, ERR_INVALID,
                       "--volume-path must be an absolute path of at most %d bytes",
                       VOLUMES_PATH_MAX);
    *ret = realpath(given, NULL);
    if (need && (!*ret || stat(*ret, &st) < 0))
        return err_sys(err, errno, "volume path %s: create the directory first", given);
    if (need && !S_ISDIR(st.st_mode))
        return err_set(err, ERR_INVALID, "volume path %s is not a directory", given);
    if (!*ret)
        *ret = resolve_gone(given);
    return 0;
}

static int recorded(struct tool *t, struct volumes_record *ret, struct err *err)
{
    AUTO_FREE char *path = NULL;
    bool there;

    if (volume_path(t, false, &path, err) < 0 ||
        volumes_get(t->config.run_root, path, ret, &there, err) < 0)
        return -1;
    return there ? 0
                 : err_set(err, ERR_NOT_FOUND,
                           "volume %s is not recorded; see: lcow volume ls, lcow volume add", path);
}

/* The disk of that volume in a shim's document, or NULL. */
static const json_t *find_disk(const struct shim *s, const char *path)
{
    const json_t *d;
    size_t i;

    json_array_foreach(js_get(js_get(s->doc, "vm"), "disks"), i, d)
    {
        if (str_eq(doc_text(d, "path"), path) && str_eq(doc_text(d, "state"), "Attached"))
            return d;
    }
    return NULL;
}

static const struct shim *find_user(const struct tool *t, const char *path, const json_t **ret_disk)
{
    for (size_t i = 0; i < t->shims.n; i++) {
        *ret_disk = find_disk(&t->shims.v[i], path);
        if (*ret_disk)
            return &t->shims.v[i];
    }
    return NULL;
}

/* Connects to the shim whose VM has the volume. *ret_mount: its path in the VM; borrowed. */
static int connect_user(struct ctx *ctx, struct tool *t, const char *path, const char **ret_mount,
                        struct err *err)
{
    const json_t *disk = NULL;

    if (tool_list(ctx, t, err) < 0)
        return -1;
    t->shim = find_user(t, path, &disk);
    if (!t->shim)
        return err_set(err, ERR_STATE,
                       "no running VM has volume %s: it is attached only while a container mounts "
                       "it; see: lcow volume ls",
                       path);
    *ret_mount = doc_text(json_array_get(js_get(disk, "mounts"), 0), "path");
    return shim_connect(ctx, t->shim, &t->client, err);
}

static int run_in_vm(struct ctx *ctx, struct tool *t, const char *const *argv, int out,
                     struct err *err)
{
    AUTO_FD int null = open("/dev/null", O_RDWR | O_CLOEXEC);
    const struct exec_what what = { .argv = (char *const *)argv,
                                    .fds = { null, out < 0 ? null : out, STDERR_FILENO },
                                    .stall_ns = STALL_LIMIT };
    struct ctx limited = ctx_with_timeout(ctx, RESIZE_LIMIT);
    int code = 0;

    if (exec_run(&limited, t->client, &what, &code, err) < 0)
        return -1;
    return code == 0 ? 0
                     : err_set(err, ERR_STATE, "%s failed in VM %s/%s (exit status %d)", argv[0],
                               t->shim->ns, t->shim->id, code);
}

/* --- add, remove, ls --- */

static int given_info(struct tool *t, json_t **ret, struct err *err)
{
    const struct tool_opts *o = &t->opts;

    if (o->mount_info) {
        if (o->device || o->fs_type || o->options || o->fs_group || o->fs_group_policy)
            return err_set(err, ERR_INVALID,
                           "--mount-info cannot be used together with --device, --fs-type, "
                           "--options and --fs-group…");
        if (js_parse(o->mount_info, strlen(o->mount_info), VOLUMES_INFO_MAX, ret, err) < 0)
            return err_wrap(err, "--mount-info");
        return json_is_object(*ret)
                   ? 0
                   : err_set(err, ERR_INVALID, "--mount-info is not a JSON object");
    }
    if (!o->device || !o->fs_type)
        return err_set(err, ERR_INVALID, "%s is missing", o->device ? "--fs-type" : "--device");

    AUTO_FREE char *words = str_dup(o->options ? o->options : "");
    json_t *options = json_array(), *metadata = json_object();

    for (char *rest = words, *word; *words && (word = strsep(&rest, ","));)
        json_array_append_new(options, doc_string(word));
    if (o->fs_group)
        json_object_set_new(metadata, "fsGroup", doc_string(o->fs_group));
    if (o->fs_group_policy)
        json_object_set_new(metadata, "fsGroupChangePolicy", doc_string(o->fs_group_policy));
    *ret = json_pack("{ss so so so so}", "volume-type", "block", "device", doc_string(o->device),
                     "fstype", doc_string(o->fs_type), "options", options, "metadata", metadata);
    return 0;
}

static int check_device(const char *device, struct err *err)
{
    struct stat st;

    if (stat(device, &st) < 0)
        return err_sys(err, errno, "device %s", device);
    if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
        return err_set(err, ERR_INVALID, "device %s is neither a block device nor an image file",
                       device);
    return 0;
}

static int add(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    AUTO_FREE char *path = NULL;
    json_t *doc = NULL;

    if (volume_path(t, true, &path, err) < 0)
        return -1;
    if (given_info(t, &doc, err) < 0) {
        json_decref(doc);
        return -1;
    }
    json_object_set_new(doc, "volume-path", doc_string(path));
    if (t->opts.read_only) {
        if (!json_is_array(js_get(doc, "options")))
            json_object_set_new(doc, "options", json_array());
        json_array_append_new(js_get(doc, "options"), json_string("ro"));
    }
    if (volumes_read(doc, &v, err) < 0 || check_device(v.device, err) < 0)
        return err_wrap(err, "volume %s", path);
    if (!str_eq(v.path, path)) /* JSON cannot hold the path, so no client can name it */
        return err_set(err, ERR_INVALID, "volume path %s is not UTF-8", path);
    return volumes_put(t->config.run_root, &v, err) < 0 ? -1 : TOOL_OK;
}

static int drop(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO_FREE char *path = NULL;

    if (volume_path(t, false, &path, err) < 0)
        return -1;
    return volumes_drop(t->config.run_root, path, err) < 0 ? -1 : TOOL_OK;
}

static void list_one(void *arg, const struct volumes_record *v, const struct err *why)
{
    struct tool *t = arg;
    const json_t *disk;
    const struct shim *user = why ? NULL : find_user(t, v->path, &disk);
    AUTO_FREE char *vm = user ? str_format("%s/%s", user->ns, user->id) : str_dup("-");

    if (why)
        tool_fail(TOOL_FAILED, "%s", why->msg);
    else if (t->json)
        json_array_append_new(t->json, json_pack("{sO so}", "record", v->doc, "vm",
                                                 user ? doc_string(vm) : json_null()));
    else
        sbuf_addf(&t->out, "%s\t%s\t%s\t%s\t%s\n", v->path, v->device, v->fstype,
                  v->read_only ? "ro" : "rw", vm);
}

static int ls(struct ctx *ctx, struct tool *t, struct err *err)
{
    if (tool_list(ctx, t, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    return volumes_each(t->config.run_root, list_one, t, err) < 0 ? -1 : TOOL_OK;
}

/* --- stats, resize --- */

/* The format of CSI's NodeGetVolumeStats; unit 1 is bytes, 2 is inodes. */
static json_t *usage(int unit, uint64_t total, uint64_t unused, uint64_t available)
{
    return json_pack("{sI sI sI si}", "available", (json_int_t)available, "total",
                     (json_int_t)total, "used", (json_int_t)(total - unused), "unit", unit);
}

/* Parses the guest's answer: six numbers, of which no part may exceed its total. */
static int read_stats(int fd, json_t **ret, struct err *err)
{
    char text[ANSWER_MAX + 1] = "";
    ssize_t n = pread(fd, text, ANSWER_MAX, 0);
    uint64_t v[6], limit = INT64_MAX;
    char *rest = text;

    for (size_t i = 0; i < ARRAY_LEN(v); i++) {
        char *word = rest ? strsep(&rest, " \n") : NULL;

        if (n <= 0 || !word || str_to_u64(word, limit, &v[i]) < 0)
            return err_set(err, ERR_INVALID, "the guest's answer is not six numbers");
    }
    /* block size, blocks: all, free, for users; inodes: all, free */
    if (v[0] == 0 || v[1] > limit / v[0] || v[2] > v[1] || v[3] > v[1] || v[5] > v[4])
        return err_set(err, ERR_INVALID, "the guest's answer is not consistent");
    *ret = json_pack("{s[oo]}", "usage", usage(1, v[0] * v[1], v[0] * v[2], v[0] * v[3]),
                     usage(2, v[4], v[5], v[5]));
    return 0;
}

static int stats(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    /* The file has a fixed size, since the guest's answer may be endless. */
    AUTO_FD int out = memfd_create("lcow-stats", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const char *mount = NULL;

    if (out < 0 || ftruncate(out, ANSWER_MAX) < 0 ||
        fcntl(out, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) < 0)
        return err_sys(err, errno, "create a file in memory");
    if (recorded(t, &v, err) < 0 || connect_user(ctx, t, v.path, &mount, err) < 0)
        return -1;

    const char *const argv[] = { "/bin/busybox",      "stat", "-f", "-c",
                                 "%S %b %f %a %c %d", mount,  NULL };

    if (run_in_vm(ctx, t, argv, out, err) < 0 || read_stats(out, &t->json, err) < 0)
        return err_wrap(err, "volume %s", v.path);
    return TOOL_OK;
}

static int resize(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(volumes_release) struct volumes_record v = { 0 };
    AUTO(pb_free) Lcow__ResizeDiskResponse *resp = NULL;
    Lcow__ResizeDiskRequest req = LCOW__RESIZE_DISK_REQUEST__INIT;
    const char *mount = NULL;
    uint64_t wanted = 0;

    if (t->opts.size && str_to_u64(t->opts.size, INT64_MAX, &wanted) < 0)
        return err_set(err, ERR_INVALID, "invalid --size %s: must be a number of bytes",
                       t->opts.size);
    if (recorded(t, &v, err) < 0)
        return -1;
    if (v.read_only)
        return err_set(err, ERR_STATE, "volume %s is read-only, so its file system cannot grow",
                       v.path);
    if (connect_user(ctx, t, v.path, &mount, err) < 0)
        return -1;
    req.path = v.path;
    if (shim_call(ctx, t->client, RESIZE_LIMIT, &lcow__shim__descriptor, "ResizeDisk", &req,
                  (void **)&resp, err) < 0)
        return -1;
    if (resp->bytes < wanted)
        return err_set(err, ERR_STATE,
                       "volume %s: device %s has %" PRIu64 " bytes, less than %" PRIu64
                       "; grow it on the host first",
                       v.path, v.device, resp->bytes, wanted);

    const char *const argv[] = { "/bin/gcs", "grow", mount, NULL };

    return run_in_vm(ctx, t, argv, -1, err) < 0 ? err_wrap(err, "volume %s", v.path) : TOOL_OK;
}

#define EXITS "1 if it failed"
#define PATH_OPT                                                                                   \
    {                                                                                              \
        "volume-path", 0, ARGS_STR, "PATH", OPT(volume_path),                                      \
            "the path in containers' mounts: a CSI driver's target_path"                           \
    }

static const struct args_cmd add_command = {
    .name = "volume add",
    .summary = "Record the device of a path.",
    .text = "PATH must be a directory; lcow resolves symlinks. The device must already have a file "
            "system. If a container mounts PATH or a directory in it, the device is attached to "
            "its VM as a disk and mounted there. Records do not survive a reboot.",
    .exits = EXITS,
    .opts = ARGS_OPTIONS(
        PATH_OPT, { "device", 0, ARGS_STR, "FILE", OPT(device), "a block device or an image file" },
        { "fs-type", 0, ARGS_STR, "TYPE", OPT(fs_type), "ext4 or xfs" },
        { "options", 0, ARGS_STR, "WORDS", OPT(options), "mount options, separated by commas" },
        { "read-only", 0, ARGS_FLAG, NULL, OPT(read_only), "attach it read-only" },
        { "fs-group", 0, ARGS_STR, "GID", OPT(fs_group),
          "set the group of its files, like the kubelet with a pod's fsGroup" },
        { "fs-group-change-policy", 0, ARGS_STR, "WORD", OPT(fs_group_policy),
          "Always (default), or OnRootMismatch: only if the volume's root has another group" },
        { "mount-info", 0, ARGS_STR, "JSON", OPT(mount_info),
          "all of these except --read-only, in the format of kata-runtime direct-volume" }),
    .run = add,
};
static const struct args_cmd remove_command = {
    .name = "volume remove",
    .summary = "Remove the record of a volume.",
    .text = "Succeeds if there is no record. A VM that has the disk keeps it until its pod stops.",
    .exits = EXITS,
    .opts = ARGS_OPTIONS(PATH_OPT),
    .run = drop,
};
static const struct args_cmd stats_command = {
    .name = "volume stats",
    .summary = "Print size and usage of a volume as JSON.",
    .text = "Prints bytes (unit 1) and inodes (unit 2) from the VM, in the format of CSI's "
            "NodeGetVolumeStats.",
    .exits = EXITS,
    .opts = ARGS_OPTIONS(PATH_OPT),
    .run = stats,
};
static const struct args_cmd resize_command = {
    .name = "volume resize",
    .summary = "Grow a volume's file system to the size of its device.",
    .text = "Grow the device on the host first. The file system grows while it is in use.",
    .exits = EXITS,
    .opts = ARGS_OPTIONS(
        PATH_OPT, { "size", 0, ARGS_STR, "BYTES", OPT(size), "fail if the device has less" }),
    .run = resize,
};
static const struct args_cmd ls_command = {
    .name = "volume ls",
    .summary = "List the volumes with device, type, access and VM.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS("print one JSON array on stdout instead"),
    .run = ls,
};
static const struct args_cmd *const subs[] = { &add_command,    &remove_command, &stats_command,
                                               &resize_command, &ls_command,     NULL };
const struct args_cmd volume_command = {
    .name = "volume",
    .summary = "Manage volumes of CSI drivers that are disks instead of shares.",
    .synopsis = "add | remove | stats | resize | ls [options]",
    .text = "For node plugins, like kata-runtime's direct-volume.",
    .examples = ARGS_EXAMPLES(
        { "lcow volume add --volume-path /var/lib/kubelet/pods/UID/volumes/kubernetes.io~csi/pv1/"
          "mount --device /dev/vg/pv1 --fs-type ext4 --fs-group 2000",
          "in NodePublishVolume, instead of a mount" },
        { "lcow volume stats --volume-path PATH", "in NodeGetVolumeStats" },
        { "lcow volume resize --volume-path PATH", "in NodeExpandVolume" },
        { "lcow volume remove --volume-path PATH", "in NodeUnpublishVolume" }),
    .subs = subs,
};
