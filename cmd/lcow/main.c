/* lcow - the operator's tool. This file only selects its backend. */
#include "base/str.h"
#include "host/bridge/bridge.h"
#include "host/service/service.h"
#include "host/vmm/qemu/accel.h"
#include "host/vmm/qemu/qemu.h"
#include "tool/tool.h"

static enum tool_accel look_at_accel(const char *run_root, char **ret_text)
{
    AUTO_FREE char *state = str_format("%s/accel", run_root);
    struct accel_env env = accel_env_of_host(state);
    enum accel_state found;

    *ret_text = accel_describe(&env, &found);
    return found == ACCEL_WORKS      ? TOOL_ACCEL_WORKS
           : found == ACCEL_UNPROVEN ? TOOL_ACCEL_UNTRIED
           : found == ACCEL_BROKEN   ? TOOL_ACCEL_BROKEN
                                     : TOOL_ACCEL_NONE;
}

static int forget_accel(const char *run_root)
{
    AUTO_FREE char *state = str_format("%s/accel", run_root);
    struct accel_env env = accel_env_of_host(state);

    return accel_forget(&env);
}

static struct service *serve(struct loop *loop, struct registry *r, struct rpc_server *server)
{
    struct service *s = service_new(&(struct service_opts){ .loop = loop, .registry = r });

    service_add_diag(s, server);
    return s;
}

int main(int argc, char **argv)
{
    static const struct tool_backend backend = { .vmm_new = qemu_vmm_new,
                                                 .guest_new = bridge_new,
                                                 .accel = look_at_accel,
                                                 .accel_forget = forget_accel,
                                                 .template_build = qemu_template_build,
                                                 .serve = serve,
                                                 .unserve = service_free };

    return argc > 0 ? tool_main(&backend, argv) : TOOL_USAGE;
}
