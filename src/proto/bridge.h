/* bridge.h - the GCS bridge protocol: frames and every message, bytes <-> structs
 * (docs/reference/gcs-protocol.md §2, §3, §10). Pure codec for both ends, byte for byte as hcsshim
 * and its guest write it. No I/O, never waits.
 *
 * Host:  fill a struct bridge_request, bridge_request_encode(), send; read 16 bytes,
 *        bridge_header_decode(), read the payload, bridge_response_decode() with the type of the
 *        request that has this id; bridge_err() turns a result that is not 0 into an err.
 * Guest: bridge_header_decode(), bridge_request_decode(), dispatch on type; bridge_response_for(),
 *        fill or bridge_response_fail(), bridge_response_encode().
 *
 * Memory: what is decoded belongs to the struct until its _release(); strings in it are borrowed.
 * A decoded string, list or array is never NULL ("" or empty instead). For encoding, all pointers
 * are borrowed from the caller and NULL means empty. {0} is a good start. Lists of strings end
 * with NULL. */
#pragma once
#include "base/str.h"
#include "proto/settings.h"
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct err;
struct bridge_mem;

#define BRIDGE_NULL_ID "00000000-0000-0000-0000-000000000000" /* the VM itself; an empty GUID */
#define BRIDGE_VERSION 4                                      /* the only one both ends speak */
#define BRIDGE_WAIT_FOREVER UINT32_MAX

/* --- frames ---------------------------------------------------------------------------------- */

#define BRIDGE_HEADER_BYTES 16
/* Limits for bridge_header.size, header included. */
#define BRIDGE_MAX_REQUEST (16u << 20)  /* lcow's guest accepts it; seccomp and policy are large */
#define BRIDGE_MAX_RESPONSE (64u << 10) /* what hcsshim accepts, so the guest sends no more */
#define BRIDGE_MAX_RECEIVE                                                                         \
    (1u << 20) /* what the shim accepts: a long dump must not end the bridge */

struct bridge_header {
    uint32_t type; /* kind << 28 | category << 20 | number << 8 | version */
    uint32_t size; /* header and payload */
    uint64_t id;   /* the host's; 0 in notifications */
};

enum bridge_side {
    BRIDGE_SIDE_HOST,
    BRIDGE_SIDE_GUEST,
};

void bridge_header_encode(const struct bridge_header *h, uint8_t out[BRIDGE_HEADER_BYTES]);
/* -1 with ERR_INVALID if the size is not 16 … max, or if `receiver` must not get such a frame:
 * the host accepts responses and container notifications only, the guest accepts everything (it
 * answers unknown requests with an error). After an error the stream is lost. */
int bridge_header_decode(const uint8_t in[BRIDGE_HEADER_BYTES], enum bridge_side receiver,
                         uint32_t max, struct bridge_header *ret, struct err *err);

enum bridge_kind {
    BRIDGE_KIND_REQUEST = 1,
    BRIDGE_KIND_RESPONSE = 2,
    BRIDGE_KIND_NOTIFICATION = 3,
};

/* Request types; the name alone stands for the message. */
enum bridge_type {
    BRIDGE_CREATE = 0x10100101,
    BRIDGE_START = 0x10100201,
    BRIDGE_SHUTDOWN_GRACEFUL = 0x10100301,
    BRIDGE_SHUTDOWN_FORCED = 0x10100401,
    BRIDGE_EXECUTE_PROCESS = 0x10100501,
    BRIDGE_WAIT_FOR_PROCESS = 0x10100601,
    BRIDGE_SIGNAL_PROCESS = 0x10100701,
    BRIDGE_RESIZE_CONSOLE = 0x10100801,
    BRIDGE_GET_PROPERTIES = 0x10100901,
    BRIDGE_MODIFY_SETTINGS = 0x10100a01,
    BRIDGE_NEGOTIATE_PROTOCOL = 0x10100b01,
    BRIDGE_DUMP_STACKS = 0x10100c01,
    BRIDGE_DELETE_CONTAINER_STATE = 0x10100d01,
    BRIDGE_UPDATE_CONTAINER = 0x10100e01,        /* no Linux guest has it */
    BRIDGE_LIFECYCLE_NOTIFICATION = 0x10100f01,  /* no Linux guest has it */
    BRIDGE_MODIFY_SERVICE_SETTINGS = 0x10200101, /* Windows guests */
};
#define BRIDGE_CONTAINER_NOTIFICATION 0x30100101u

static inline unsigned bridge_kind(uint32_t type)
{
    return type >> 28;
}
/* 0x1… and whatever else is answered: the top nibble becomes 2. */
static inline uint32_t bridge_response_type(uint32_t request_type)
{
    return (request_type & 0x0fffffffu) | (uint32_t)BRIDGE_KIND_RESPONSE << 28;
}
/* "ExecuteProcess" for request and response, "ContainerNotification", else "unknown". Static. */
const char *bridge_message_name(uint32_t type);

/* --- results --------------------------------------------------------------------------------- */

#define BRIDGE_HR_OK 0u
#define BRIDGE_HR_NOT_IMPLEMENTED 0x80004001u    /* unknown type, before or after negotiation */
#define BRIDGE_HR_FAIL 0x80004005u               /* everything without a code of its own */
#define BRIDGE_HR_INVALID_ARGUMENT 0x80070057u   /* a bad container id */
#define BRIDGE_HR_NOT_FOUND 0x80070490u          /* unknown pid, unknown network namespace */
#define BRIDGE_HR_INVALID_STATE 0x80370105u      /* container not stopped */
#define BRIDGE_HR_HOST_INVALID_STATE 0xC0370105u /* what the host means by it */
#define BRIDGE_HR_TIMEOUT 0xC0370109u            /* WaitForProcess */
#define BRIDGE_HR_UNKNOWN_MESSAGE 0xC037010Bu
#define BRIDGE_HR_UNSUPPORTED_VERSION 0xC037010Cu
#define BRIDGE_HR_INVALID_JSON 0xC037010Du /* also: schema version below 2.1 */
#define BRIDGE_HR_NO_CONTAINER 0xC037010Eu
#define BRIDGE_HR_CONTAINER_EXISTS 0xC037010Fu
#define BRIDGE_HR_NOT_RUNNING 0xC0370110u /* shutdown after exit */

/* "HRESULT: 0xc037010e" */
#define BRIDGE_HR_TEXT_SIZE 24
void bridge_hr_text(uint32_t hr, char buf[BRIDGE_HR_TEXT_SIZE]);

/* An err that carries its HRESULT: the number goes into err.sys (as a negative int, so it is never
 * an errno), the code follows from it (NO_CONTAINER: ERR_NOT_FOUND, TIMEOUT: ERR_DEADLINE …).
 * err_wrap() keeps it. Returns -1. */
int bridge_err(struct err *err, uint32_t hr, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* The HRESULT an err carries, else FAIL, as the real guest answers. */
uint32_t bridge_hr(const struct err *err);

/* --- requests, host to guest ------------------------------------------------------------------ */

struct bridge_negotiate {
    uint32_t minimum, maximum;
};

struct bridge_schema_version {
    uint32_t major, minor;
};

struct bridge_create {
    struct bridge_schema_version schema; /* 2.1 at least: the decoder refuses less */
    const char *bundle_path;
    json_t *spec; /* OciSpecification, an object; the decoder refuses its absence */
    const char *scratch_path;
    bool privileged, holder; /* lcow's own */
};

struct bridge_stdio_ports {
    uint32_t in, out, err; /* 0: none */
};

struct bridge_exec {
    const char *command_line;
    const char *const *args; /* CommandArgs; wins over command_line */
    const char *cwd;
    const char *const *env; /* "KEY=value"; the whole environment. Written sorted by key */
    bool terminal;          /* EmulateConsole; a container's is in oci_process */
    bool want_in, want_out, want_err;
    bool in_vm;          /* CreateInUtilityVM; so is container_id == BRIDGE_NULL_ID */
    json_t *oci_process; /* NULL: start the container's init */
    struct bridge_stdio_ports ports;
};

struct bridge_wait {
    uint32_t pid, timeout_ms;
};

struct bridge_signal {
    uint32_t pid;
    int32_t signal; /* 0 means SIGKILL */
};

struct bridge_resize {
    uint32_t pid;
    uint16_t rows, cols;
};

#define BRIDGE_PROPERTY_PROCESS_LIST "ProcessList"
#define BRIDGE_PROPERTY_STATISTICS "Statistics"
/* lcow's own, with statistics: without the values "total_…", which are always those without it. */
#define BRIDGE_PROPERTY_SHORT "Short"
/* lcow's own, with statistics: what the container uses of the scratch disk. */
#define BRIDGE_PROPERTY_SCRATCH "Scratch"
/* lcow's own, asked for alone: answered when the OOM killer has killed a process of the container,
 * or when the container is gone. */
#define BRIDGE_PROPERTY_OUT_OF_MEMORY "OutOfMemory"
/* lcow's own, asked of the VM alone: CLOCK_MONOTONIC at this moment. */
#define BRIDGE_PROPERTY_CLOCK "Clock"
struct bridge_query {
    const char *const *types;
};

enum bridge_resource {
    BRIDGE_RES_MAPPED_VIRTUAL_DISK,
    BRIDGE_RES_SCSI_DEVICE,
    BRIDGE_RES_VPMEM_DEVICE,
    BRIDGE_RES_MAPPED_DIRECTORY,
    BRIDGE_RES_COMBINED_LAYERS,
    BRIDGE_RES_NETWORK,
    BRIDGE_RES_VPCI_DEVICE,
    BRIDGE_RES_CONTAINER_CONSTRAINTS,
    BRIDGE_RES_SECURITY_POLICY,
    BRIDGE_RES_SECURITY_POLICY_FRAGMENT,
    BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT,
    BRIDGE_RES_CONTAINER_FREEZER, /* lcow's own, unknown to the original guest … */
    BRIDGE_RES_CLOCK,
    BRIDGE_RES_PORT_FORWARD, /* … up to here */
    BRIDGE_RES_COUNT
};
const char *bridge_resource_name(enum bridge_resource r);

enum bridge_action {
    BRIDGE_ADD,
    BRIDGE_REMOVE,
    BRIDGE_UPDATE,
    BRIDGE_PRE_ADD,
    BRIDGE_ACTION_COUNT
};

struct bridge_scsi_device {
    uint8_t controller, lun;
};

struct bridge_layer {
    const char *path;
};
struct bridge_layers { /* CombinedLayers */
    const char *container_id, *root_path;
    struct bridge_layer *layers;
    size_t n_layers;
    const char *scratch_path;
    /* lcow's own: */
    uint64_t scratch_quota;        /* bytes; 0: none */
    const char *uid_map, *gid_map; /* of the container's user namespace (base/idmap.h); "": none */
    bool map_layers;               /* its layers have the ids of inside */
};

struct bridge_neighbour { /* lcow's own */
    const char *address, *mac;
};
struct bridge_network {
    const char *namespace_id, *id;
    const char *mac;        /* 00-15-5D-0A-14-1E */
    const char *dns_search; /* DNSSuffix: comma-separated search list */
    const char *dns_servers;
    uint16_t encap_overhead;
    bool vpci_assigned;
    const struct guest_ip *ips;
    size_t n_ips;
    const struct guest_route *routes;
    size_t n_routes;
    bool policy_routing, low_metric;
    /* lcow's own: */
    const char *name; /* of the interface in the pod */
    uint32_t mtu;
    struct bridge_neighbour *neighbours;
    size_t n_neighbours;
    const struct guest_rule *rules;
    size_t n_rules;
    const char *const *sysctls; /* "ipv4.conf.rp_filter=2"; ends with NULL */
};

/* The guest connects to this port in a pod's namespace (loopback first, then its addresses), dials
 * the host's port and joins the two. */
struct bridge_forward {
    const char *namespace_id;
    bool ipv6;
    uint16_t port;
    uint32_t host_port;
};

struct bridge_vpci {
    const char *vmbus_guid;
};

struct bridge_constraints {
    json_t *linux_resources; /* OCI LinuxResources; NULL when decoded: none sent */
};

struct bridge_policy {
    const char *policy; /* base64; "": none */
};

struct bridge_freezer { /* on the container's id */
    bool frozen;
};

struct bridge_clock { /* on the VM's */
    uint64_t wall_ns;
};

/* Settings: the member that belongs to resource. The decoder refuses an unknown resource or
 * action, or an action the resource does not have, with HR_FAIL, missing settings with
 * HR_INVALID_JSON. */
struct bridge_modify {
    enum bridge_action action;
    enum bridge_resource resource;
    union {
        struct guest_disk disk;
        struct bridge_scsi_device scsi_device;
        struct guest_share share;
        struct bridge_layers layers;
        struct bridge_network network;
        struct bridge_vpci vpci;
        struct bridge_constraints constraints;
        struct bridge_policy policy;
        struct bridge_freezer freezer;
        struct bridge_clock clock;
        struct bridge_forward forward;
    };
};

struct bridge_request {
    uint32_t type; /* enum bridge_type; kinds and numbers we do not know too, when decoded */
    const char *container_id;
    const char *activity_id;  /* encoded as BRIDGE_NULL_ID if NULL */
    const char *const *trace; /* otsc, W3C trace context: "traceparent=…", "tracestate=…" */
    union {                   /* the others have the base only */
        struct bridge_negotiate negotiate;
        struct bridge_create create;
        struct bridge_exec exec;
        struct bridge_wait wait;
        struct bridge_signal signal;
        struct bridge_resize resize;
        struct bridge_query query;
        struct bridge_modify modify;
    };
    struct bridge_mem *mem; /* private; NULL for encoding */
};

/* Appends the whole frame to out. ERR_EXHAUSTED beyond BRIDGE_MAX_REQUEST. */
int bridge_request_encode(const struct bridge_request *r, uint64_t id, struct sbuf *out,
                          struct err *err);
/* type is the header's. An error carries its HRESULT: NOT_IMPLEMENTED for a type the Linux guest
 * does not know, INVALID_JSON …; then *ret still has type and, if they could be read, the ids, so
 * that bridge_response_for() works. Release *ret in either case. */
int bridge_request_decode(uint32_t type, const void *payload, size_t len,
                          struct bridge_request *ret, struct err *err);
void bridge_request_release(struct bridge_request *r);
AUTO_VALUE(struct bridge_request, bridge_request_release);

/* --- responses, guest to host ------------------------------------------------------------------
 */

struct bridge_caps {
    const char *os; /* "Linux"; empty means Windows */
    bool namespace_add, signal_process, dump_stacks, delete_container_state;
    bool holder; /* lcow's own: Create knows it, and CombinedLayers may be without layers */
};

/* lcow's own: a step of the guest for a traced request, in ns since the guest began with it. */
#define BRIDGE_SPANS_MAX 16
struct bridge_span {
    const char *name;
    uint64_t start, end;
    bool failed;
};

struct bridge_response {
    uint32_t type;           /* of the request or of the response, both are fine */
    uint32_t result;         /* HRESULT; if not 0, none of the union is encoded */
    const char *activity_id; /* left out unless it is a GUID: hcsshim crashes on other texts */
    const char *error_message;
    const char *reason;        /* lcow's own, of a failure: reason_name(); NULL or "": none */
    struct bridge_span *spans; /* the last is the request as a whole; left out if too long */
    size_t n_spans;
    union {
        struct {
            uint32_t version;
            struct bridge_caps caps;
        } negotiate;
        uint32_t process_id;    /* ExecuteProcess */
        uint32_t exit_code;     /* WaitForProcess */
        const char *properties; /* GetProperties: JSON text; encoded as "{}" if empty */
        const char *stacks;     /* DumpStacks */
    };
    struct bridge_mem *mem; /* private; NULL for encoding */
};

/* Success with the request's activity id, which is borrowed from it. */
struct bridge_response bridge_response_for(const struct bridge_request *r);
/* Result and text of err, which is borrowed until encoded. */
void bridge_response_fail(struct bridge_response *r, const struct err *err);
/* Appends the whole frame, never longer than max (BRIDGE_MAX_RESPONSE): error texts and stacks
 * are cut at a character boundary and end with BRIDGE_CUT. Properties cannot be cut and still be
 * JSON: too long ones become a failure that gives their size (see bridge_properties_encode, which
 * drops what does not fit). Cannot fail for max >= 1024. */
#define BRIDGE_CUT " …[cut]"
void bridge_response_encode(const struct bridge_response *r, uint64_t id, uint32_t max,
                            struct sbuf *out);
/* request_type: of the request with this id. An error means an invalid message. */
int bridge_response_decode(uint32_t request_type, const void *payload, size_t len,
                           struct bridge_response *ret, struct err *err);
void bridge_response_release(struct bridge_response *r);
AUTO_VALUE(struct bridge_response, bridge_response_release);

/* The JSON text in bridge_response.properties. */
struct bridge_process {
    uint32_t pid; /* in the VM's root pid namespace */
    /* lcow's own; 0 and "": unknown, left out. */
    uint32_t leader;  /* the exec's process that it descends from, or is; 0: not known, or init */
    const char *name; /* the kernel's, as a process can set it */
    uint64_t age_ms, user_ms, kernel_ms;
    uint64_t data_kib, private_kib, shared_kib; /* private, shared: resident */
};
struct bridge_properties {
    struct bridge_process *processes;
    size_t n_processes;
    json_t *metrics;          /* LCOWMetrics, decoded; NULL: none */
    const char *metrics_text; /* the same as JSON text, to be encoded as it is; NULL: none */
    bool out_of_memory;       /* OutOfMemory; left out if false */
    uint64_t scratch; /* lcow's own, with Statistics: bytes in use; 0: not known, left out */
    uint64_t clock;   /* lcow's own, with Clock: ns; 0: unknown, left out */
    struct bridge_mem *mem;
};
/* As much of the process list as fits into a response of BRIDGE_MAX_RESPONSE. Caller frees. */
char *bridge_properties_encode(const struct bridge_properties *p);
int bridge_properties_decode(const char *text, struct bridge_properties *ret, struct err *err);
void bridge_properties_release(struct bridge_properties *p);
AUTO_VALUE(struct bridge_properties, bridge_properties_release);

/* --- the container notification, guest to host ---------------------------------------------------
 */

#define BRIDGE_NOTIFY_GRACEFUL_EXIT "GracefulExit"     /* the last signal sent to init was TERM */
#define BRIDGE_NOTIFY_FORCED_EXIT "ForcedExit"         /* it was KILL */
#define BRIDGE_NOTIFY_UNEXPECTED_EXIT "UnexpectedExit" /* neither; also a normal exit */

struct bridge_notification {
    const char *container_id;
    const char *activity_id; /* of Create; encoded as BRIDGE_NULL_ID unless it is a GUID */
    const char *type;        /* BRIDGE_NOTIFY_… */
};
/* ERR_EXHAUSTED beyond BRIDGE_MAX_RESPONSE: nothing in it can be cut. */
int bridge_notification_encode(const struct bridge_notification *n, struct sbuf *out,
                               struct err *err);
