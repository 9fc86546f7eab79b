/* cmd_template.c - `lcow template`: saved VMs that other VMs are cloned from. */
#include "base/clock.h"
#include "base/fd.h"
#include "base/loop.h"
#include "host/template/template.h"
#include "host/vmm/vmm.h"
#include "tool/lib/image.h"
#include "tool/tool.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define JSON_DOC "print one JSON value on stdout instead"

/* --- one template --- */

static void say_time(uint64_t wall_ns, char buf[32])
{
    time_t t = (time_t)(wall_ns / NS_PER_S);
    struct tm tm;

    snprintf(buf, 32, "-");
    if (gmtime_r(&t, &tm))
        strftime(buf, 32, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static json_t *info_json(const struct template_info *i)
{
    struct err impossible = ERR_INIT;
    json_t *ret = NULL;
    struct jsw w;
    size_t len;

    jsw_init(&w, JSW_PLAIN);
    template_info_write(i, &w, NULL);
    AUTO_FREE char *text = jsw_take(&w, &len);
    (void)js_parse(text, len, len, &ret, &impossible);
    return ret;
}

/* i NULL: the template is unusable; *err is the cause. */
static void say(struct tool *t, const char *key, const struct template_info *i,
                const struct err *err)
{
    char when[32];

    if (t->json) {
        json_array_append_new(t->json, json_pack("{so sb so}", "key", doc_string(key), "good",
                                                 i != NULL, i ? "header" : "error",
                                                 i ? info_json(i) : doc_string(err->msg)));
    } else if (i) {
        say_time(i->created_ns, when);
        tool_printf(STDOUT_FILENO, "%s  %s  QEMU %s  %s  %u..%u MiB  1..%u CPUs  good\n", key, when,
                    i->vmm_version, i->emulated ? "emulated" : "KVM", i->memory_mib,
                    i->max_memory_mib, i->max_cpus);
    } else {
        tool_printf(STDOUT_FILENO, "%s  bad: %s\n", key, err->msg);
    }
}

/* Prints failed builds; returns their number. */
static size_t say_failures(struct tool *t)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(t->config.template_dir, &all);

    for (size_t i = 0; i < n; i++) {
        struct err err = ERR_INIT;
        char when[32];

        say_time(all[i].at_ns, when);
        err_set(&err, ERR_DATA_LOSS, "the last build failed at %s (%u in a row): %s", when,
                all[i].count, all[i].why);
        say(t, all[i].key, NULL, &err);
    }
    return n;
}

/* The keys of the command line; without any, all. */
static int keys_of(struct tool *t, struct strv *ret, struct err *err)
{
    AUTO_FREE char(*keys)[TEMPLATE_KEY_SIZE] = NULL;
    size_t n = 0;

    for (int i = 0; i < t->rest.n; i++)
        strv_add(ret, t->rest.argv[i]);
    if (t->rest.n == 0 && template_list(t->config.template_dir, &keys, &n, err) < 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        strv_add(ret, keys[i]);
    return 0;
}

/* Checks each key: quickly and with failed builds, or by reading everything. Returns the exit code.
 */
static int look(struct tool *t, bool thorough, struct err *err)
{
    AUTO(strv_release) struct strv keys = { 0 };
    const char *dir = t->config.template_dir;
    size_t bad = 0;

    if (keys_of(t, &keys, err) < 0)
        return -1;
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t k = 0; k < keys.n; k++) {
        struct template tpl = { .ram_fd = -1, .state_fd = -1 };
        struct err why = ERR_INIT;
        int r = thorough ? template_verify(dir, keys.v[k], &tpl.info, &why)
                         : template_open(dir, keys.v[k], &tpl, &why);

        bad += r < 0;
        say(t, keys.v[k], r < 0 ? NULL : &tpl.info, &why);
        template_close(&tpl);
    }
    if (!thorough)
        bad += say_failures(t);
    return bad ? TOOL_FAILED : TOOL_OK;
}

/* Adds keys that have only a failed build. */
static void failed_keys(struct tool *t, struct strv *ret)
{
    AUTO_FREE struct template_failure *all = NULL;
    size_t n = template_failures(t->config.template_dir, &all);

    for (size_t i = 0; i < n; i++) {
        AUTO_FREE char *path = str_format("%s/%s", t->config.template_dir, all[i].key);

        if (access(path, F_OK) < 0)
            strv_add(ret, all[i].key);
    }
}

/* --- the commands --- */

static int ls(struct ctx *ctx, struct tool *t, struct err *err)
{
    return look(t, false, err);
}

static int show(struct ctx *ctx, struct tool *t, struct err *err)
{
    struct template tpl = { .ram_fd = -1, .state_fd = -1 };

    if (t->rest.n != 1)
        return tool_fail(TOOL_USAGE, "template show needs one KEY; see: lcow template ls");
    if (template_open(t->config.template_dir, t->rest.argv[0], &tpl, err) < 0)
        return -1;
    if (t->opts.json) {
        t->json = info_json(&tpl.info);
    } else {
        say(t, tpl.info.key, &tpl.info, err);
        sbuf_addf(&t->out, "memory file %llu bytes, state file %llu bytes; made from:\n%s",
                  (unsigned long long)tpl.info.ram.size, (unsigned long long)tpl.info.state.size,
                  tpl.info.identity);
    }
    template_close(&tpl);
    return TOOL_OK;
}

static int verify(struct ctx *ctx, struct tool *t, struct err *err)
{
    return look(t, true, err);
}

static int rm(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(strv_release) struct strv keys = { 0 };
    int code = TOOL_OK;

    if ((t->rest.n > 0) == t->opts.all)
        return tool_fail(TOOL_USAGE, "template rm needs KEY... or --all");
    if (keys_of(t, &keys, err) < 0)
        return -1;
    if (t->opts.all)
        failed_keys(t, &keys);
    t->json = t->opts.json ? json_array() : NULL;
    for (size_t i = 0; i < keys.n; i++) {
        if (template_remove(t->config.template_dir, keys.v[i], err) < 0)
            code = tool_fail(TOOL_FAILED, "%s", err->msg);
        else
            json_array_append_new(t->json, doc_string(keys.v[i]));
    }
    return code;
}

static void pruned(void *arg, const char *key)
{
    struct tool *t = arg;

    if (t->json)
        json_array_append_new(t->json, doc_string(key));
    else
        tool_printf(STDOUT_FILENO, "%s\n", key);
}

static int prune(struct ctx *ctx, struct tool *t, struct err *err)
{
    const char *dir = t->config.template_dir;
    AUTO_FD int lock = -1;

    t->json = t->opts.json ? json_array() : NULL;
    if (template_lock(ctx, dir, false, &lock, err) < 0 ||
        template_prune(dir, NULL, loop_wall(t->loop), pruned, t, err) < 0)
        return -1;
    return TOOL_OK;
}

static int build(struct ctx *ctx, struct tool *t, struct err *err)
{
    AUTO(template_info_release) struct template_info info = { 0 };
    AUTO(image_free)
    struct image *image = NULL; /* loaded here because its errors are more precise */
    bool made = false;

    if (image_open(t->config.image_dir, &image, err) < 0 ||
        tool_build_template(ctx, t, &info, &made, err) < 0)
        return -1;
    if (t->opts.json)
        t->json = json_pack("{sb so}", "made", made, "template", info_json(&info));
    else
        sbuf_addf(&t->out, "%s %s\n", info.key, made ? "built" : "already exists");
    return TOOL_OK;
}

int tool_build_template(struct ctx *ctx, struct tool *t, struct template_info *ret, bool *ret_made,
                        struct err *err)
{
    const struct template_build b = { .loop = t->loop,
                                      .config = &t->config,
                                      .build = t->backend->template_build,
                                      .vmm_new = t->backend->vmm_new,
                                      .guest_new = t->backend->guest_new,
                                      .memory_mib = t->opts.memory_mib,
                                      .allow_emulation = t->opts.allow_emulation,
                                      .wait = true,
                                      .again = t->opts.again };

    return template_build(ctx, &b, ret, ret_made, err);
}

#define EXITS "1 if a template is bad or the command failed"

static const struct args_cmd ls_command = {
    .name = "template ls",
    .summary = "List the templates with their state, and failed builds.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = ls,
};
static const struct args_cmd show_command = {
    .name = "template show",
    .summary = "Print what a template was made from.",
    .synopsis = "KEY [options]",
    .exits = EXITS,
    .takes_words = true,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = show,
};
static const struct args_cmd build_command = {
    .name = "template build",
    .summary = "Build the template for VMs of this configuration.",
    .text = "An existing good template is kept. Before a new template is published, lcow starts a "
            "clone of it. If the clone's clock is off by more than 0.1 % or its kernel complains "
            "about clock or CPU, lcow discards the template.",
    .exits = EXITS,
    .opts = ARGS_OPTIONS(
        { "allow-emulation", 0, ARGS_FLAG, NULL, OPT(allow_emulation),
          "for VMs in software emulation, if KVM is not available" },
        { "again", 0, ARGS_FLAG, NULL, OPT(again), "build even if a good template exists" },
        { "memory", 'm', ARGS_NUMBER, "MIB", OPT(memory_mib),
          "for VMs of this size; one template is for VMs up to 8 GiB, another for larger ones",
          CONFIG_MEMORY_MIB_MIN, CONFIG_MEMORY_MIB_MAX, "MiB" },
        OPT_JSON(JSON_DOC)),
    .run = build,
};
static const struct args_cmd verify_command = {
    .name = "template verify",
    .summary = "Read templates and compare their checksums.",
    .synopsis = "[KEY...] [options]",
    .text = "Without KEY, all templates.",
    .exits = EXITS,
    .takes_words = true,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = verify,
};
static const struct args_cmd rm_command = {
    .name = "template rm",
    .summary = "Remove templates.",
    .synopsis = "KEY... | --all [options]",
    .text = "VMs that were cloned from them keep running.",
    .exits = EXITS,
    .takes_words = true,
    .opts =
        ARGS_OPTIONS({ "all", 0, ARGS_FLAG, NULL, OPT(all), "all templates" }, OPT_JSON(JSON_DOC)),
    .run = rm,
};
static const struct args_cmd prune_command = {
    .name = "template prune",
    .summary = "Remove unused templates.",
    .text = "Removes templates from which no VM was started for 14 days, and the longest unused if "
            "there are more than 4. Prints their keys. Each build does the same.",
    .exits = EXITS,
    .opts = TOOL_JSON_OPTS(JSON_DOC),
    .run = prune,
};
static const struct args_cmd *const subs[] = {
    &ls_command, &show_command, &build_command, &verify_command, &rm_command, &prune_command, NULL
};
const struct args_cmd template_command = {
    .name = "template",
    .summary = "Manage templates: saved VMs that other VMs are cloned from.",
    .synopsis = "ls | show KEY | build | verify [KEY...] | rm KEY... | prune [options]",
    .text = "A template is a VM that was saved when its agent was ready. A clone starts about ten "
            "times faster and shares the template's memory with other clones. After the first cold "
            "start, the shim builds a template in the background. It builds a new one when kernel, "
            "QEMU, processor or configuration have changed, and removes unused ones. 'template = "
            "off' turns templates off.",
    .examples = ARGS_EXAMPLES({ "lcow template build", "make the first pod start fast, too" },
                              { "lcow template ls", "list templates and their state" },
                              { "lcow template verify", "read them all and compare checksums" }),
    .subs = subs,
};
