#include "api/cgroups_v1.pb-c.h"
#include "api/cgroups_v2.pb-c.h"
#include "base/err.h"
#include "host/service/service_priv.h"
#include "proto/pb.h"
#include <string.h>

#define REPEATED_MAX 4096
#define NS_PER_USEC 1000u

static int fill(ProtobufCMessage *msg, const json_t *from, struct err *err);

static int fill_scalar(const ProtobufCFieldDescriptor *f, void *to, const json_t *from,
                       struct err *err)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_UINT64:
        return js_u64(from, f->name, to, err);
    case PROTOBUF_C_TYPE_UINT32:
        return js_u32(from, f->name, to, err);
    case PROTOBUF_C_TYPE_STRING: {
        const char *text = NULL;

        if (js_str(from, f->name, &text, err) < 0)
            return -1;
        if (text)
            pb_set_str(to, text);
        return 0;
    }
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)to = json_number_value(js_get(from, f->name)); /* not a number: 0 */
        return 0;
    default:
        return 0; /* these messages have no fields of other types */
    }
}

static int fill_repeated(ProtobufCMessage *msg, const ProtobufCFieldDescriptor *f,
                         const json_t *array, struct err *err)
{
    size_t *n = (size_t *)((char *)msg + f->quantifier_offset);
    void **to = (void **)((char *)msg + f->offset);

    if (!json_is_array(array) || json_array_size(array) > REPEATED_MAX)
        return err_set(err, ERR_INVALID, "%s is not a list of 0–%d elements", f->name,
                       REPEATED_MAX);
    if (*n > 0)
        return 0; /* known from version 1's */
    if (f->type == PROTOBUF_C_TYPE_UINT64) {
        uint64_t *numbers = mem_zalloc(json_array_size(array) * sizeof(*numbers));
        AUTO(json_decref) json_t *wrap = json_object(); /* numbers are read by their key */

        *to = numbers;
        for (; *n < json_array_size(array); ++*n) {
            json_object_set(wrap, "v", json_array_get(array, *n));
            if (js_u64(wrap, "v", &numbers[*n], err) < 0)
                return err_wrap(err, "%s", f->name);
        }
        return 0;
    }
    if (f->type != PROTOBUF_C_TYPE_MESSAGE)
        return 0;

    void **messages = mem_zalloc(json_array_size(array) * sizeof(*messages));

    *to = messages;
    for (; *n < json_array_size(array); ++*n) {
        messages[*n] = pb_new(f->descriptor);
        if (fill(messages[*n], json_array_get(array, *n), err) < 0) {
            ++*n;
            return err_wrap(err, "%s", f->name);
        }
    }
    return 0;
}

/* The field names in the message's descriptor are the JSON's keys. Most fields are absent: the JSON
 * decides which are looked at. */
static int fill(ProtobufCMessage *msg, const json_t *from, struct err *err)
{
    const char *key;
    json_t *value;

    if (!json_is_object(from))
        return err_set(err, ERR_INVALID, "%s is not an object", msg->descriptor->name);
    json_object_foreach((json_t *)from, key, value)
    {
        const ProtobufCFieldDescriptor *f =
            protobuf_c_message_descriptor_get_field_by_name(msg->descriptor, key);

        if (!f || json_is_null(value))
            continue;
        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            if (fill_repeated(msg, f, value, err) < 0)
                return -1;
        } else if (f->type == PROTOBUF_C_TYPE_MESSAGE) {
            void **inner = (void **)((char *)msg + f->offset);

            if (!*inner)
                *inner = pb_new(f->descriptor);
            if (fill(*inner, value, err) < 0)
                return err_wrap(err, "%s", f->name);
        } else if (fill_scalar(f, (char *)msg + f->offset, from, err) < 0) {
            return -1;
        }
    }
    return 0;
}

#define ENSURE(field, descriptor)                                                                  \
    do {                                                                                           \
        if (!(field))                                                                              \
            (field) = pb_new(&(descriptor));                                                       \
    } while (0)

/* "No limit" is the largest number; clients would read zero as a limit. */
static uint64_t limit_of(uint64_t limit)
{
    return limit ? limit : UINT64_MAX;
}

/* An agent of lcow does not send totals: version 2 counts with children, so they are the same. */
static void complete_memory(Cgroups1__MemoryStat *m)
{
    uint64_t *const pairs[][2] = {
        { &m->total_cache, &m->cache },
        { &m->total_rss, &m->rss },
        { &m->total_rss_huge, &m->rss_huge },
        { &m->total_mapped_file, &m->mapped_file },
        { &m->total_dirty, &m->dirty },
        { &m->total_writeback, &m->writeback },
        { &m->total_pg_fault, &m->pg_fault },
        { &m->total_pg_maj_fault, &m->pg_maj_fault },
        { &m->total_inactive_anon, &m->inactive_anon },
        { &m->total_active_anon, &m->active_anon },
        { &m->total_inactive_file, &m->inactive_file },
        { &m->total_active_file, &m->active_file },
        { &m->total_unevictable, &m->unevictable },
    };

    for (size_t i = 0; i < ARRAY_LEN(pairs); i++)
        if (*pairs[i][0] == 0)
            *pairs[i][0] = *pairs[i][1];
}

/* ctr reads these messages without checking that they are present. */
static void complete(Cgroups1__Metrics *m)
{
    ENSURE(m->pids, cgroups1__pids_stat__descriptor);
    ENSURE(m->cpu, cgroups1__cpustat__descriptor);
    ENSURE(m->cpu->usage, cgroups1__cpuusage__descriptor);
    ENSURE(m->cpu->throttling, cgroups1__throttle__descriptor);
    ENSURE(m->memory, cgroups1__memory_stat__descriptor);
    ENSURE(m->memory->usage, cgroups1__memory_entry__descriptor);
    ENSURE(m->memory->swap, cgroups1__memory_entry__descriptor);
    ENSURE(m->memory->kernel, cgroups1__memory_entry__descriptor);
    ENSURE(m->memory->kernel_tcp, cgroups1__memory_entry__descriptor);
    ENSURE(m->blkio, cgroups1__blk_iostat__descriptor);
    ENSURE(m->memory_oom_control, cgroups1__memory_oom_control__descriptor);
    complete_memory(m->memory);
    m->pids->limit = limit_of(m->pids->limit);
    m->memory->usage->limit = limit_of(m->memory->usage->limit);
    m->memory->swap->limit = limit_of(m->memory->swap->limit);
}

static void memory_to_v2(Cgroups2__MemoryStat *to, const Cgroups1__MemoryStat *from)
{
    to->anon = from->total_rss;
    to->file = from->total_cache;
    to->kernel_stack = from->kernel->usage;
    to->sock = from->kernel_tcp->usage;
    to->file_mapped = from->mapped_file;
    to->file_dirty = from->dirty;
    to->file_writeback = from->writeback;
    to->anon_thp = from->rss_huge;
    to->inactive_anon = from->inactive_anon;
    to->active_anon = from->active_anon;
    to->inactive_file = from->total_inactive_file;
    to->active_file = from->active_file;
    to->unevictable = from->unevictable;
    to->pgfault = from->total_pg_fault;
    to->pgmajfault = from->total_pg_maj_fault;
    to->usage = from->usage->usage;
    to->usage_limit = from->usage->limit;
    to->max_usage = from->usage->max;
    to->swap_usage = from->swap->usage;
    to->swap_limit = from->swap->limit;
    to->swap_max_usage = from->swap->max;
}

/* Reads and writes per device: version 1 lists them by operation. */
static void io_to_v2(Cgroups2__IOStat *to, const Cgroups1__BlkIOStat *from)
{
    const struct {
        size_t n;
        Cgroups1__BlkIOEntry **entries;
        bool bytes;
    } lists[] = { { from->n_io_service_bytes_recursive, from->io_service_bytes_recursive, true },
                  { from->n_io_serviced_recursive, from->io_serviced_recursive, false } };

    for (size_t l = 0; l < ARRAY_LEN(lists); l++)
        for (size_t i = 0; i < lists[l].n; i++) {
            const Cgroups1__BlkIOEntry *e = lists[l].entries[i];
            bool reads = strcasecmp(e->op, "read") == 0, writes = strcasecmp(e->op, "write") == 0;
            Cgroups2__IOEntry *entry = NULL;

            if (!reads && !writes)
                continue;
            for (size_t k = 0; k < to->n_usage && !entry; k++)
                if (to->usage[k]->major == e->major && to->usage[k]->minor == e->minor)
                    entry = to->usage[k];
            if (!entry) {
                entry = pb_new(&cgroups2__ioentry__descriptor);
                entry->major = e->major;
                entry->minor = e->minor;
                pb_add(to->usage, to->n_usage, entry);
            }
            *(lists[l].bytes ? (reads ? &entry->rbytes : &entry->wbytes)
                             : (reads ? &entry->rios : &entry->wios)) += e->value;
        }
}

static void network_to_v2(Cgroups2__Metrics *to, const Cgroups1__Metrics *from)
{
    for (size_t i = 0; i < from->n_network; i++) {
        const Cgroups1__NetworkStat *f = from->network[i];
        AUTO(sbuf_release) struct sbuf bytes = { 0 };
        void *n = NULL;

        /* Both versions have the same fields with the same numbers. */
        if (pb_pack(f, &bytes) < 0 ||
            pb_unpack(&cgroups2__network_stat__descriptor,
                      (struct pb_slice){ (const uint8_t *)bytes.data, bytes.len }, PB_MEM_MAX, &n,
                      NULL) < 0)
            continue;
        pb_add(to->network, to->n_network, n);
    }
}

static Cgroups2__Metrics *to_v2(const Cgroups1__Metrics *m)
{
    Cgroups2__Metrics *v2 = pb_new(&cgroups2__metrics__descriptor);

    ENSURE(v2->pids, cgroups2__pids_stat__descriptor);
    ENSURE(v2->cpu, cgroups2__cpustat__descriptor);
    ENSURE(v2->memory, cgroups2__memory_stat__descriptor);
    ENSURE(v2->io, cgroups2__iostat__descriptor);
    ENSURE(v2->memory_events, cgroups2__memory_events__descriptor);
    v2->pids->current = m->pids->current;
    v2->pids->limit = m->pids->limit;
    v2->cpu->usage_usec = m->cpu->usage->total / NS_PER_USEC;
    v2->cpu->user_usec = m->cpu->usage->user / NS_PER_USEC;
    v2->cpu->system_usec = m->cpu->usage->kernel / NS_PER_USEC;
    v2->cpu->nr_periods = m->cpu->throttling->periods;
    v2->cpu->nr_throttled = m->cpu->throttling->throttled_periods;
    v2->cpu->throttled_usec = m->cpu->throttling->throttled_time / NS_PER_USEC;
    memory_to_v2(v2->memory, m->memory);
    io_to_v2(v2->io, m->blkio);
    network_to_v2(v2, m);
    v2->memory_events->oom_kill = m->memory_oom_control->oom_kill;
    return v2;
}

int stats_from_guest(const json_t *metrics, bool v2, Any **ret, struct err *err)
{
    AUTO(pb_free) Cgroups1__Metrics *m = pb_new(&cgroups1__metrics__descriptor);
    AUTO(pb_free) Cgroups2__Metrics *m2 = NULL;

    if (fill(&m->base, metrics, err) < 0)
        return -1;
    complete(m);
    if (v2) {
        const json_t *more = js_get(metrics, "v2"); /* what version 1 has no place for */

        m2 = to_v2(m);
        if (more && fill(&m2->base, more, err) < 0)
            return err_wrap(err, "v2");
    }
    if (pb_set_any(ret, v2 ? (const void *)m2 : m) < 0)
        return err_set(err, ERR_INVALID, "the guest's metrics contain text that is not UTF-8");
    return 0;
}
