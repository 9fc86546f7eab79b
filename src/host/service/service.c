/* service.c - the object behind the services, and code that their handlers share. */
#include "base/clock.h"
#include "base/loop.h"
#include "base/saved.h"
#include "base/str.h"
#include "host/control/container.h"
#include "host/control/forsaken.h"
#include "host/rpc/rpc_server.h"
#include "host/service/service_priv.h"
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT_LIMIT (30 * NS_PER_S) /* containerd calls as soon as `start` has answered */

struct service *service_new(const struct service_opts *o)
{
    struct service *s = mem_new(struct service);

    s->opts = *o;
    list_init(&s->diag_runs);
    return s;
}

void service_free(struct service *s)
{
    free(s);
}

void service_add_to(struct service *s, struct rpc_server *server)
{
    s->server = server;
    service_add_task(s, server);
    service_add_sandbox(s, server);
    service_add_streaming(s, server);
    service_add_diag(s, server);
}

void service_saved(struct saved *sv, struct service *s)
{
    saved_u32(sv, 1, &s->expected);
    saved_u64(sv, 2, &s->expected_until);
    saved_u64(sv, 3, &s->asked_to_leave);
}

void service_refuse(struct service *s)
{
    s->refusing = true;
}

uint64_t service_asked_to_leave(const struct service *s)
{
    return s->asked_to_leave;
}

bool service_busy(const struct service *s)
{
    return s->creating > 0 || service_expects(s) > 0;
}

bool service_idle(const struct service *s)
{
    return !service_busy(s) && registry_idle(s->opts.registry);
}

bool service_given_up(const struct service *s)
{
    return !service_busy(s) && forsaken_all(s->opts.registry);
}

uint64_t service_expects(const struct service *s)
{
    uint64_t now = loop_now(s->opts.loop);

    return s->expected > 0 && s->expected_until > now ? s->expected_until - now : 0;
}

void service_expect(struct service *s)
{
    if (service_expects(s) == 0)
        s->expected = 0; /* earlier announced ones did not arrive in time */
    s->expected++;
    s->expected_until = loop_now(s->opts.loop) + EXPECT_LIMIT;
    service_changed(s);
}

void service_came(struct service *s)
{
    if (s->expected > 0)
        s->expected--;
}

uint64_t service_calls(const struct service *s)
{
    return rpc_server_stats(s->server).used;
}

void service_changed(struct service *s)
{
    if (s->opts.on_change)
        s->opts.on_change(s->opts.arg);
}

struct container *service_container(struct service *s, const char *id, struct err *err)
{
    if (service_check_id("container id", id, err) < 0)
        return NULL;
    return registry_find(s->opts.registry, id, err);
}

struct process *service_process(struct service *s, const char *id, const char *exec_id,
                                struct container **ret_container, struct err *err)
{
    struct container *c = service_container(s, id, err);

    if (!c || (exec_id[0] && service_check_id("exec id", exec_id, err) < 0))
        return NULL;
    if (ret_container)
        *ret_container = c;
    return container_process(c, exec_id, err);
}

int service_check_id(const char *what, const char *id, struct err *err)
{
    return registry_check_id(what, id, SERVICE_ID_MAX, err);
}

int service_options_type(const char *type_url, enum options_type *ret, struct err *err)
{
    static const struct {
        const char *name;
        enum options_type type;
    } known[] = {
        { "", OPTIONS_NONE },
        { "google.protobuf.Empty", OPTIONS_NONE }, /* ctr sandboxes run */
        { "runtimeoptions.v1.Options", OPTIONS_RUNTIME },
        { "containerd.runc.v1.Options", OPTIONS_RUNC },
        { "containerd.runhcs.v1.Options", OPTIONS_RUNHCS },
    };
    const char *slash = strrchr(type_url, '/'), *name = slash ? slash + 1 : type_url;

    for (size_t i = 0; i < ARRAY_LEN(known); i++) {
        if (str_eq(name, known[i].name)) {
            *ret = known[i].type;
            return 0;
        }
    }
    /* Options of runc's first shim, and bytes that are not an Any, whose first field is not a type.
     */
    if (str_starts(name, "containerd.linux.runc.") || !strchr(name, '.')) {
        *ret = OPTIONS_NONE;
        return 0;
    }
    return err_because(err, REASON_INVALID_OPTIONS, ERR_INVALID,
                       "unsupported runtime options of type \"%.100s\": must be "
                       "runtimeoptions.v1.Options or containerd.runhcs.v1.Options",
                       type_url);
}

int service_take_options(struct service *s, const Any *options, struct err *err)
{
    enum options_type type;

    if (service_options_type(options->type_url, &type, err) < 0)
        return -1;
    return s->opts.on_options && type != OPTIONS_NONE
               ? s->opts.on_options(s->opts.arg, options, err)
               : 0;
}
