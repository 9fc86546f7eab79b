/* cmd_layers.c - `lcow layers`: images that were made of the layers of snapshots. */
#include "base/clock.h"
#include "base/ctx.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/files/layers.h"
#include "tool/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define JSON_DOC "print one JSON value on stdout instead"
#define BUILD_NS (60 * 60 * NS_PER_S)
#define LOCK_NS (60 * NS_PER_S)

static struct layers_opts opts_of(const struct tool *t)
{
    return (struct layers_opts){ .dir = t->config.layer_dir,
                                 .max_mib = t->config.layer_images_max_mib,
                                 .free_mib = t->config.scratch_free_mib,
                                 .verity = t->config.layer_verity };
}

static json_t *info_json(const struct layers_info *i)
{
    struct err impossible = ERR_INIT;
    json_t *ret = NULL;
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    layers_info_write(i, &w, NULL);
    AUTO_FREE char *text = jsw_take(&w, &len);
    (void)js_parse(text, len, len, &ret, &impossible);
    return ret;
}

/* i NULL: the image cannot be used; *err is the cause. */
static void say(struct tool *t, const char *key, const struct layers_info *i, const struct err *err)
{
    if (t->json)
        json_array_append_new(t->json, json_pack("{so sb so}", "key", doc_string(key), "good",
                                                 i != NULL, i ? "header" : "error",
                                                 i ? info_json(i) : doc_string(err->msg)));
    else if (i)
        tool_printf(STDOUT_FILENO, "%s  %8.1f MiB  %7llu files  %s%s\n", key,
                    (double)i->size / (1 << 20), (unsigned long long)i->entries, i->path,
                    i->root_hash[0] ? "  verified" : "");
    else
        tool_printf(STDOUT_FILENO, "%s  bad: %s\n", key, err->msg);
}

/* A builder may have replaced it meanwhile: then it stays. */
static void remove_bad(struct ctx *ctx, const char *dir, const char *key)
{
    struct ctx limited = ctx_with_timeout(ctx, LOCK_NS);
    AUTO(layers_info_release) struct layers_info info = { 0 };
    struct err err = ERR_INIT;
    AUTO_FD int lock = -1;

    if (layers_lock(&limited, dir, &lock, &err) < 0 || layers_verify(dir, key, &info, &err) == 0 ||
        (err.code != ERR_DATA_LOSS && err.code != ERR_STATE))
        return; /* that it is bad was printed */
    (void)layers_remove(dir, key, &err);
}

/* Checks each key of the command line, without any all: quickly, or by reading everything. What is
 * damaged is then removed, so that it is made again. Returns the exit code. */
static int look(struct ctx *ctx, struct tool *t, bool thorough, struct err *err)
{
    AUTO(strv_release) struct strv keys = { 0 };
    const char *dir = t->config.layer_dir;
    size_t bad = 0;

    for (int i = 0; i < t->rest.n; i++)
        strv_add(&keys, t->rest.argv[i]);
    if (t->rest.n == 0 && layers_list(dir, &keys, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t i = 0; i < keys.n; i++) {
        AUTO(layers_info_release) struct layers_info info = { 0 };
        struct err why = ERR_INIT;
        int r = thorough ? layers_verify(dir, keys.v[i], &info, &why)
                         : layers_look(dir, keys.v[i], &info, &why);

        bad += r < 0;
        say(t, keys.v[i], r < 0 ? NULL : &info, &why);
        if (thorough && (why.code == ERR_DATA_LOSS || why.code == ERR_STATE))
            remove_bad(ctx, dir, keys.v[i]);
    }
    return bad ? TOOL_FAILED : TOOL_OK;
}

static int ls(struct ctx *ctx, struct tool *t, struct err *err)
{
    return look(ctx, t, false, err);
}

static int verify(struct ctx *ctx, struct tool *t, struct err *err)
{
    return look(ctx, t, true, err);
}

static int build(struct ctx *ctx, struct tool *t, struct err *err)
{
    const struct layers_opts o = opts_of(t);
    struct ctx limited = ctx_with_timeout(ctx, BUILD_NS);
    int code = TOOL_OK;

    if (t->rest.n == 0)
        return tool_fail(TOOL_USAGE, "layers build needs DIRECTORY...");
    t->json = t->opts.json ? json_array() : NULL;
    for (int i = 0; i < t->rest.n; i++) {
        AUTO(layers_info_release) struct layers_info info = { 0 };
        bool made;

        if (layers_build(&limited, &o, t->rest.argv[i], &info, &made, err) < 0) {
            code = tool_fail(TOOL_FAILED, "%s", err->msg);
            err_clear(err);
        } else {
            say(t, info.key, &info, err);
        }
    }
    return code;
}

static void pruned(void *arg, const char *key, const char *why)
{
    struct tool *t = arg;

    if (t->json)
        json_array_append_new(t->json, json_pack("{so ss}", "key", doc_string(key), "why", why));
    else
        tool_printf(STDOUT_FILENO, "%s  %s\n", key, why);
}

static int prune(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, LOCK_NS);
    struct layers_opts o = opts_of(t);
    AUTO_FD int lock = -1;

    o.now_ns = loop_wall(ctx->loop);
    t->json = t->opts.json ? json_array() : NULL;
    if (layers_lock(&limited, o.dir, &lock, err) < 0)
        return err->code == ERR_NOT_FOUND ? TOOL_OK : -1;
    return layers_prune(&o, false, pruned, t, err) < 0 ? -1 : TOOL_OK;
}

#define EXITS "1 if an image is bad or the command failed"

static const struct args_cmd ls_command = {
    .name = "layers ls",
    .summary = "List the images with the directories that they were made of.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = ls,
};
static const struct args_cmd build_command = {
    .name = "layers build",
    .summary = "Make images of directories now.",
    .synopsis = "DIRECTORY... [options]",
    .text = "DIRECTORY is a layer of a snapshot, an absolute path: what containerd passes as "
            "lowerdir (.../snapshots/N/fs). An existing good image is kept. Waits for the end of "
            "other builds.",
    .exits = EXITS,
    .takes_words = true,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = build,
};
static const struct args_cmd verify_command = {
    .name = "layers verify",
    .summary = "Read images, compare their checksums, and look for changes in their directories.",
    .synopsis = "[KEY...] [options]",
    .text = "Without KEY, all images. An image that does not match is removed; the next container "
            "that needs it has it made again.",
    .exits = EXITS,
    .takes_words = true,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = verify,
};
static const struct args_cmd prune_command = {
    .name = "layers prune",
    .summary = "Remove images that are not needed.",
    .text = "Removes images that are damaged, and those whose directory is gone or was changed. "
            "Beyond layer_images_max_mib, removes the longest unused that no VM has open. Prints "
            "their keys. Waits up to 60 s for the end of a build. Each build does the same, but "
            "keeps images that were used within the last hour.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = prune,
};
static const struct args_cmd *const subs[] = { &ls_command, &build_command, &verify_command,
                                               &prune_command, NULL };
const struct args_cmd layers_command = {
    .name = "layers",
    .summary = "Manage layer images: disks that were made of the layers of snapshots.",
    .synopsis = "ls | build DIRECTORY... | verify [KEY...] | prune [options]",
    .text = "With 'layer_images = auto', the shim makes an erofs image of each layer of the "
            "overlayfs snapshotter when a container has used it for the first time. Later "
            "containers get the images as disks that all VMs share, instead of a share of the "
            "directory. Small files are then read several times faster.",
    .examples = ARGS_EXAMPLES({ "lcow layers ls", "list the images and their layers" },
                              { "lcow layers verify", "read them all and compare checksums" }),
    .subs = subs,
};
