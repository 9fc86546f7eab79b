/* pod_save.c - what the containers of a pod have in common. Not saved: which containers it has and
 * which of them holds it, which the containers say; the DNS of its sandbox, which the sandbox sets
 * again. */
#include "base/json.h"
#include "base/saved.h"
#include "host/control/pod_priv.h"
#include "host/control/registry.h"
#include "host/control/vm.h"

static void volume_saved(struct saved *s, struct pod_volume *v)
{
    saved_str(s, 1, &v->dir);
    saved_str(s, 2, &v->key);
    saved_bool(s, 3, &v->local);
    if (!v->dir || !v->key)
        saved_fail(s, "a volume has no directory");
}

static void disk_saved(struct saved *s, struct pod_disk *d)
{
    AUTO(json_decref) json_t *doc = json_incref(d->v.doc);
    struct err err = ERR_INIT;

    json_saved(s, 1, &doc);
    saved_fd(s, 2, "a volume", &d->fd);
    if (!saved_reads(s))
        return;
    if (!doc || d->fd < 0)
        saved_fail(s, "a volume has no device");
    else if (volumes_read(TAKE_PTR(doc), &d->v, &err) < 0)
        saved_fail(s, "%s", err.msg);
}

static struct pod_disk *disk_new(void)
{
    struct pod_disk *d = mem_new(struct pod_disk);

    d->fd = -1;
    return d;
}

static void volumes_saved(struct saved *s, struct pod *pod)
{
    for (size_t i = saved_count(s, 20, 0); i > 0; i--)
        list_append(&pod->volumes, &mem_new(struct pod_volume)->node);
    LIST_FOR (struct pod_volume, v, &pod->volumes, node) {
        if (!saved_open(s, 20))
            return;
        volume_saved(s, v);
        saved_close(s);
    }
    for (size_t i = saved_count(s, 21, 0); i > 0; i--)
        list_append(&pod->disks, &disk_new()->node);
    LIST_FOR (struct pod_disk, d, &pod->disks, node) {
        if (!saved_open(s, 21))
            return;
        disk_saved(s, d);
        saved_close(s);
    }
}

void pod_saved(struct saved *s, struct registry *r, struct pod **ret)
{
    struct pod *pod = saved_reads(s) ? pod_empty(r) : *ret;
    bool in_vm = pod->vm != NULL;

    *ret = pod;
    saved_str(s, 1, &pod->id);
    saved_str(s, 2, &pod->guest_id);
    saved_bool(s, 3, &in_vm);
    saved_bool(s, 4, &pod->takes_workloads);
    saved_bool(s, 5, &pod->hidden);
    saved_bool(s, 6, &pod->shares_empty_dirs);
    saved_bool(s, 7, &pod->has_scratch);
    saved_str(s, 8, &pod->ids.uid);
    saved_str(s, 9, &pod->ids.gid);
    saved_str(s, 10, &pod->netns);
    volumes_saved(s, pod);
    if (!pod->id || !pod->guest_id || (in_vm && !r->vm) || (pod->vm && pod->vm != r->vm))
        saved_fail(s, "pod %s is not in the VM", pod->id ? pod->id : "");
    else if (in_vm) {
        pod_set_vm(pod, r->vm);

        const struct network_opts o = pod_network_opts(pod);

        network_saved(s, 11, &o, &pod->network);
    }
}
