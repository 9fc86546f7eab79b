/* Any bytes as the texts that the agent reads from images, from crun and from the kernel: passwd
 * and group, crun's log, cgroup files, paths, sysctls of NICs, DNS lists. The first byte chooses.
 */
#include "base/err.h"
#include "base/json.h"
#include "fuzz/on_fiber.h"
#include "guest/net/nets_priv.h"
#include "guest/runtime/crun.h"
#include "guest/runtime/metrics.h"
#include "guest/runtime/pod_files.h"
#include "guest/runtime/rootfs.h"
#include "guest/storage/blockfs.h"
#include "guest/storage/path.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void users(const char *text)
{
    const char *rest = strchrnul(text, '\n');
    AUTO_FREE char *user = str_ndup(text, (size_t)(rest - text));
    uint32_t uid = 1, gid = 1;
    struct err err = ERR_INIT;

    if (rootfs_find_user(user, rest, rest, &uid, &gid, &err) == 0 &&
        (uid == UINT32_MAX || gid == UINT32_MAX))
        abort(); /* -1 means "as it is" to the kernel */
}

static void metrics(const char *text)
{
    const struct metrics_files f = { .memory_stat = text,
                                     .cpu_stat = text,
                                     .memory_events = text,
                                     .memory_max = text,
                                     .pids_max = text };
    AUTO_FREE char *json = metrics_json(&f, true);
    AUTO(json_decref) json_t *parsed = NULL;
    struct err err = ERR_INIT;

    if (js_parse(json, strlen(json), 65536, &parsed, &err) < 0)
        abort();
}

static void paths(const char *text)
{
    AUTO_FREE char *below = NULL, *parent = path_parent(text);
    const char *value;
    AUTO_FREE char *sysctl = nic_sysctl_path(text, "eth0", &value);
    struct err err = ERR_INIT;

    if (sysctl && (!strstr(sysctl, "/eth0/") || strstr(sysctl, "..") || value[-1] != '='))
        abort();

    if (parent && strlen(parent) > strlen(text) + 1)
        abort();
    if (path_check_run(text, "x", &err) == 0 && (strstr(text, "/../") || strstr(text, "//")))
        abort();
    if (path_below("/run/p", text, &below, &err) == 0 &&
        (path_check_run(below, "x", &err) < 0 && !strchr(below, '\n')))
        abort();
}

static void fuzz(void *arg)
{
    const struct fuzz_input *in = arg;
    AUTO_FREE char *text =
        in->size ? str_ndup((const char *)in->data + 1, in->size - 1) : str_dup("");
    AUTO_FREE char *made = NULL;
    struct err err = ERR_INIT;

    switch (in->size ? in->data[0] % 6 : 0) {
    case 0:
        users(text);
        break;
    case 1:
        made = crun_log_error(text);
        if (made && crun_error(made, &err) != -1)
            abort();
        break;
    case 2:
        metrics(text);
        break;
    case 3:
        paths(text);
        break;
    case 4:
        if (pod_files_resolv(text, text, &made, &err) == 0 && strstr(made, "\n\n"))
            abort();
        break;
    default:
        (void)blockfs_detect(text, strlen(text));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    return fuzz_on_fiber(fuzz, data, size);
}
