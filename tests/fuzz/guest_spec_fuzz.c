/* Any bytes as the OCI document of a Create. What is accepted is rewritten for each kind of
 * container without a crash; what comes out is still a document that passes the same check, and no
 * mount source that named a place in the pod or on a disk is outside of it. */
#include "base/err.h"
#include "fuzz/on_fiber.h"
#include "guest/runtime/container_priv.h"
#include "guest/runtime/rewrite.h"
#include "oci/hooks.h"
#include "oci/userns.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define POD_ROOT "/run/pod"

static int find_device(void *arg, const char *path, struct rewrite_device *ret)
{
    *ret = (struct rewrite_device){ 'c', 1, 3, 0, 0 };
    return path[strlen(path) - 1] == 'x' ? -ENOENT : 0;
}

static int read_symlink(void *arg, const char *path, char **ret)
{
    *ret = str_dup("/dev/sda");
    return 0;
}

static void each_device(void *arg, void (*fn)(void *, const char *, const struct rewrite_device *),
                        void *fn_arg)
{
    fn(fn_arg, "/dev/null", &(struct rewrite_device){ 'c', 1, 3, 0, 0 });
}

static void check_dirs(const struct strv *dirs)
{
    for (size_t i = 0; i < dirs->n; i++)
        if ((!str_starts(dirs->v[i], POD_ROOT "/") &&
             !str_starts(dirs->v[i], VOLUME_DISK_DIR "/")) ||
            strstr(dirs->v[i], "/../") || str_ends(dirs->v[i], "/.."))
            abort();
}

static void rewrite(const char *text, size_t len, enum spec_kind kind)
{
    AUTO(idmap_release) struct idmap ids = { 0 };
    const struct rewrite_env env = {
        .kind = kind,
        .id = "c",
        .pod_id = "p",
        .pod_root = POD_ROOT,
        .ids = &ids,
        .find_device = find_device,
        .read_symlink = read_symlink,
        .each_device = each_device,
    };
    AUTO(spec_free) struct spec *spec = NULL, *again = NULL;
    struct rewrite_todo todo = { 0 };
    struct err err = ERR_INIT;
    struct jsw w;

    if (spec_parse(text, len, &spec, &err) < 0)
        return;
    json_t *process = json_object_get(spec_json(spec), "process");
    (void)rewrite_username(process);
    (void)resources_check(spec_json(spec), &err);
    if (userns_read(spec, &ids, &err) < 0)
        return;
    int r = rewrite_spec(spec, &env, &todo, &err);
    check_dirs(&todo.dirs);
    check_dirs(&todo.hugepages);
    if (todo.hugepages.n > todo.sizes.n + 1)
        abort();
    rewrite_todo_release(&todo);
    if (r < 0)
        return;
    jsw_init(&w, JSW_PLAIN);
    jsw_value(&w, NULL, spec_json(spec));
    AUTO_FREE char *out = jsw_take(&w, NULL);
    if (strlen(out) < SPEC_MAX_BYTES && spec_parse(out, strlen(out), &again, &err) < 0)
        abort();
}

/* On the host, which keeps them from the guest. */
static void read_hooks(const char *text, size_t len)
{
    AUTO(spec_free) struct spec *spec = NULL;
    struct hooks *h = NULL;
    struct hook hook;
    struct err err = ERR_INIT;

    if (spec_parse(text, len, &spec, &err) < 0 || hooks_read(spec, true, &h, &err) < 0 || !h)
        return;
    for (size_t i = 0; hooks_get(h, "createRuntime", i, &hook); i++) {
        if (hook.path[0] != '/' || hook.argv.n == 0)
            abort();
        hook_release(&hook);
    }
    free(hooks_state(h, "c", "/b", "creating", 1));
    hooks_free(h);
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;

    read_hooks((const char *)in->data, in->size);
    rewrite((const char *)in->data, in->size, SPEC_STANDALONE);
    rewrite((const char *)in->data, in->size, SPEC_SANDBOX);
    rewrite((const char *)in->data, in->size, SPEC_WORKLOAD);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
