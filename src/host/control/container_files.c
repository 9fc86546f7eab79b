/* container_files.c - what a container sees of the host beside its root file system
 * (container_rootfs.c): its mounts. Opened while the VM comes up, shared with it when it is there.
 */
#include "base/fd.h"
#include "base/str.h"
#include "host/bridge/guest.h"
#include "host/control/plan9.h"
#include "host/control/registry_priv.h"
#include "oci/document.h"
#include <stdlib.h>

void files_release(struct files *f)
{
    root_release(&f->root);
    for (size_t i = 0; i < f->n; i++) {
        fd_close(f->mounts[i].tree.fd);
        free(f->mounts[i].source);
    }
    free(f->mounts);
}

/* Without a pause container nobody on the host makes these files; containerd 1.7 then names
 * directories that it made in their place. The guest has the real ones. */
static bool is_no_file(const struct container *c, const json_t *mount, const struct tree *tree)
{
    static const char *const files[] = { "/etc/hosts", "/etc/hostname", "/etc/resolv.conf" };
    const char *to = json_string_value(js_get(mount, "destination"));
    bool known = false;

    for (size_t i = 0; i < ARRAY_LEN(files); i++)
        known = known || str_eq(to, files[i]);
    return known && !tree->name[0] && c->r->sandbox && c->kind == SPEC_WORKLOAD;
}

static int open_mounts(struct ctx *ctx, struct container *c, struct spec *spec, struct files *f,
                       struct err *err)
{
    json_t *mounts = js_get(spec_json(spec), "mounts"), *m;
    size_t i;

    json_array_foreach(mounts, i, m)
    {
        struct file_mount now = { .mount = m, .tree = { .fd = -1 } };
        enum document_mount kind;
        const char *source;

        if (document_mount(m, &kind, &source, &now.read_only, &now.recursive, err) < 0)
            return -1;
        if (kind == DOCUMENT_MOUNT_GUEST)
            continue;

        const struct tree_opts opts = { now.read_only, now.recursive };

        if (c->r->host->tree_open(ctx, source, &opts, &now.tree, err) < 0)
            return err_wrap(err, "mount %s", source);
        if (is_no_file(c, m, &now.tree)) {
            fd_close(now.tree.fd);
            json_array_remove(mounts, i--);
            continue;
        }
        now.source = str_dup(source);
        f->mounts = mem_grow(f->mounts, f->n, &f->cap, sizeof(*f->mounts));
        f->mounts[f->n++] = now;
    }
    return 0;
}

int files_open(struct ctx *ctx, struct container *c, struct spec *spec,
               const struct registry_create *rc, bool shared, struct files *f, struct err *err)
{
    int span = box_span_begin(c->r->box, "open files");
    int r = root_open(ctx, c, spec, rc, shared, &f->root, err);

    if (r == 0)
        r = open_mounts(ctx, c, spec, f, err);
    box_span_end(c->r->box, span);
    return r;
}

static int share_tree(struct ctx *ctx, struct container *c, const struct plan9_share *share,
                      char **ret_path, struct err *err)
{
    struct ctx limited = ctx_with_timeout(ctx, CONTAINER_SHARE_LIMIT);
    struct box *b = c->r->box;
    uint64_t id;

    if (box_enter(b, "share a mount", err) < 0)
        return -1;

    int r = plan9_reserve(&limited, b->plan9, share, &id, err);

    if (r == 0) {
        c->shares = mem_grow(c->shares, c->n_shares, &c->shares_cap, sizeof(*c->shares));
        c->shares[c->n_shares++] = id;
        c->writes_host = c->writes_host || !share->read_only;
        r = plan9_map(&limited, b->plan9, id, ret_path, err);
    }
    box_leave(b);
    return r;
}

static int share_mount(struct ctx *ctx, struct container *c, struct file_mount *m, struct err *err)
{
    const struct plan9_share share = { .host_path = m->source,
                                       .tree_fd = m->tree.fd,
                                       .read_only = m->read_only,
                                       .unique = m->recursive || m->tree.name[0] };
    AUTO_FREE char *path = NULL;

    if (share_tree(ctx, c, &share, &path, err) < 0)
        return err_wrap(err, "mount %s", m->source);

    AUTO_FREE char *guest_path =
        m->tree.name[0] ? str_format("%s/%s", path, m->tree.name) : TAKE_PTR(path);

    json_object_set_new(m->mount, "source", json_string(guest_path));
    return 0;
}

static int share_mounts(struct ctx *ctx, struct container *c, struct files *f, struct err *err)
{
    int span = f->n ? box_span_begin(c->r->box, "share mounts") : -1, r = 0;

    for (size_t i = 0; i < f->n && r == 0; i++)
        r = share_mount(ctx, c, &f->mounts[i], err);
    box_span_end(c->r->box, span);
    return r;
}

/* --- all its files, in the guest --- */

/* The layers need the scratch disk, the mounts do not: each waits for its own. */
int files_share(struct ctx *ctx, struct container *c, struct files *f, struct err *err)
{
    struct err second = ERR_INIT;

    if (root_share(ctx, c, &f->root, err) < 0)
        return -1;

    int r = share_mounts(ctx, c, f, err);
    int combined = root_wait(c, &f->root, &second);

    if (r == 0 && combined < 0) {
        *err = second;
        r = -1;
    }
    return r;
}
