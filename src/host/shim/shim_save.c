/* shim_save.c - the whole shim as a document. Not saved, because the new program makes it again:
 * the event loop, the publisher's connection, the journal's descriptor, the watcher for a stuck
 * loop. */
#include "base/saved.h"
#include "host/control/events.h"
#include "host/control/registry.h"
#include "host/jail/cgroup.h"
#include "host/rpc/rpc_server.h"
#include "host/shim/serve_priv.h"
#include "host/shim/shim_priv.h"
#include "host/shim/tracer.h"
#include "host/shim/watch.h"
#include <stdlib.h>

static void names_saved(struct saved *sv, const struct shim *s)
{
    AUTO_FREE char *ns = str_dup(s->args->ns), *id = str_dup(s->args->id);

    saved_str(sv, 1, &ns);
    saved_str(sv, 2, &id);
    if (!str_eq(ns, s->args->ns) || !str_eq(id, s->args->id))
        saved_fail(sv, "the document is of sandbox %s/%s", ns ? ns : "", id ? id : "");
}

/* As it was when the VM was made, and not as the files say now. */
static void config_saved(struct saved *sv, struct config *c)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };
    struct err err = ERR_INIT;

    if (!saved_reads(sv))
        config_print(c, NULL, false, &text);
    saved_sbuf(sv, 3, &text);
    saved_strv(sv, 4, &c->default_annotations);
    if (saved_reads(sv) && saved_check(sv, &err) == 0 &&
        config_parse_saved(c, "the saved configuration", text.data ? text.data : "", text.len,
                           &err) < 0)
        saved_fail(sv, "%s", err.msg);
}

static void options_saved(struct saved *sv, struct bootstrap *b)
{
    saved_bool(sv, 1, &b->params);
    saved_str(sv, 2, &b->ttrpc_address);
    saved_str(sv, 3, &b->grpc_address);
    saved_str(sv, 4, &b->socket_dir);
    saved_bool(sv, 5, &b->has_log_level);
    SAVED_ENUM(sv, 6, b->log_level, LOG_OFF + 1);
    saved_str(sv, 7, &b->config_path);
    saved_str(sv, 8, &b->config_body);
    saved_str(sv, 9, &b->shim_cgroup);
    saved_str(sv, 10, &b->image_dir);
    saved_u32(sv, 11, &b->memory_mib);
    saved_u32(sv, 12, &b->cpus);
    saved_bool(sv, 13, &b->has_scrub_logs);
    saved_bool(sv, 14, &b->scrub_logs);
    saved_strv(sv, 15, &b->annotations);
    saved_strv(sv, 16, &b->notes);
}

static void group_file_saved(struct saved *sv, struct group_file *f)
{
    saved_str(sv, 1, &f->group);
    saved_str(sv, 2, &f->address);
    saved_str(sv, 3, &f->run_root);
    saved_str(sv, 4, &f->scratch_dir);
    saved_str(sv, 5, &f->shim);
    saved_str(sv, 6, &f->home);
}

static void upgrade_saved(struct saved *sv, struct upgrade *u)
{
    saved_u64(sv, 1, &u->token);
    saved_text(sv, 2, u->from, sizeof(u->from));
    saved_u64(sv, 3, &u->begun_ns);
}

void shim_saved_head(struct saved *sv, struct shim *s)
{
    uint64_t ino = s->socket.st_ino, dev = s->socket.st_dev;

    names_saved(sv, s);
    config_saved(sv, &s->config);
    if (saved_open(sv, 5)) {
        options_saved(sv, &s->options);
        saved_close(sv);
    }
    if (saved_open(sv, 6)) {
        group_file_saved(sv, &s->file);
        saved_close(sv);
    }
    saved_fd(sv, 7, "the address", &s->address_fd);
    saved_u64(sv, 8, &ino);
    saved_u64(sv, 9, &dev);
    s->socket.st_ino = ino;
    s->socket.st_dev = dev;
    cgroup_saved(sv, 10, NULL, &s->home);
    saved_bool(sv, 11, &s->erred);
    if (saved_open(sv, 12)) {
        upgrade_saved(sv, &s->upgrade);
        saved_close(sv);
    }
}

void shim_saved_body(struct saved *sv, struct shim *s)
{
    if (saved_open(sv, 20)) {
        events_saved(sv, s->events);
        saved_close(sv);
    }
    if (saved_open(sv, 21)) {
        registry_saved(sv, s->registry);
        saved_close(sv);
    }
    if (saved_open(sv, 22)) {
        service_saved(sv, s->service);
        saved_close(sv);
    }
    if (saved_open(sv, 23)) {
        watch_saved(sv, s->watch);
        saved_close(sv);
    }
    if (saved_open(sv, 24)) {
        rpc_server_saved(sv, s->server);
        saved_close(sv);
    }
    if (s->tracer && saved_open(sv, 25)) {
        tracer_saved(sv, s->tracer);
        saved_close(sv);
    }
}
