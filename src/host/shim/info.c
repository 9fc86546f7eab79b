/* info.c - `-info`: what this runtime is and can do. */
#include "api/types.pb-c.h"
#include "host/shim/shim_priv.h"
#include "proto/pb.h"

#define FEATURES_TYPE "types.containerd.io/opencontainers/runtime-spec/1/features/Features"

/* What crun in the guest can do with a spec that went through us. Not listed: user namespaces and
 * idmapped mounts (files come over 9p), apparmor and selinux (the guest's kernel has neither),
 * recursive read-only mounts (the host makes them of whole shares). */
const char info_features[] =
    "{\"ociVersionMin\":\"1.0.0\",\"ociVersionMax\":\"1.1.0\","
    "\"hooks\":[\"prestart\",\"createRuntime\",\"createContainer\",\"startContainer\","
    "\"poststart\","
    "\"poststop\"],"
    "\"mountOptions\":[\"bind\",\"rbind\",\"ro\",\"rw\",\"nosuid\",\"suid\",\"nodev\",\"dev\","
    "\"noexec\",\"exec\",\"noatime\",\"relatime\",\"strictatime\",\"private\",\"rprivate\","
    "\"slave\",\"rslave\",\"shared\",\"rshared\",\"unbindable\",\"runbindable\",\"sync\",\"async\","
    "\"remount\",\"tmpcopyup\"],"
    "\"linux\":{\"namespaces\":[\"cgroup\",\"ipc\",\"mount\",\"network\",\"pid\",\"uts\"],"
    "\"cgroup\":{\"v1\":false,\"v2\":true,\"systemd\":false,\"systemdUser\":false},"
    "\"seccomp\":{\"enabled\":true},\"apparmor\":{\"enabled\":false},"
    "\"selinux\":{\"enabled\":false},\"mountExtensions\":{\"idmap\":{\"enabled\":false}}}}";

void info_encode(const struct info *i, struct sbuf *out)
{
    AUTO(pb_free) RuntimeInfo *m = pb_new(&runtime_info__descriptor);

    pb_set_str(&m->name, SHIM_RUNTIME);
    m->version = pb_new(&runtime_version__descriptor);
    pb_set_str(&m->version->version, i->version);
    pb_set_str(&m->version->revision, i->revision);
    if (i->options_len > 0)
        (void)pb_unpack(&any__descriptor, (struct pb_slice){ i->options, i->options_len },
                        PB_MEM_MAX, (void **)&m->options, NULL); /* what is none is not echoed */
    if (i->features)
        pb_set_any_raw(&m->features, FEATURES_TYPE, i->features, __builtin_strlen(i->features));
    if (i->allow_mounts) {
        RuntimeInfo__AnnotationsEntry *e = pb_new(&runtime_info__annotations_entry__descriptor);

        pb_set_str(&e->key, "containerd.io/runtime-allow-mounts");
        pb_set_str(&e->value, i->allow_mounts);
        pb_add(m->annotations, m->n_annotations, e);
    }
    (void)pb_pack(m, out); /* our own text */
}
