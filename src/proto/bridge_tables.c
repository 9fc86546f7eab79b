/* The messages of docs/reference/gcs-protocol.md §3 as tables. */
#include "base/err.h"
#include "proto/bridge_priv.h"

/* A row: kind, key on the wire, member. A row of FA is written even if it is zero (Go's omitempty
 * is missing there), one of F is not. */
#define FIELD(type, knd, k, member, alw)                                                           \
    {                                                                                              \
        .key = k, .kind = BF_##knd, .always = alw, .offset = offsetof(type, member)                \
    }
#define F(knd, k, member) FIELD(struct bridge_request, knd, k, member, false)
#define FA(knd, k, member) FIELD(struct bridge_request, knd, k, member, true)
#define R(knd, k, member) FIELD(struct bridge_response, knd, k, member, false)
#define RA(knd, k, member) FIELD(struct bridge_response, knd, k, member, true)
/* An object inside, whose members are of the same struct. */
#define SUB(knd, k, schema, alw)                                                                   \
    {                                                                                              \
        .key = k, .kind = BF_##knd, .always = alw, .sub = &(schema)                                \
    }
#define ARRAY(k, type, member, count, schema)                                                      \
    {                                                                                              \
        .key = k, .kind = BF_ARRAY, .offset = offsetof(type, member),                              \
        .count_offset = offsetof(type, count), .sub = &(schema)                                    \
    }
#define FIXED(k, json)                                                                             \
    {                                                                                              \
        .key = k, .kind = BF_FIXED, .always = true, .text = json                                   \
    }
#define SCHEMA(name, type, ...)                                                                    \
    static const struct bridge_field name##_fields[] = { __VA_ARGS__ };                            \
    const struct bridge_schema name = { name##_fields, ARRAY_LEN(name##_fields), sizeof(type) }
#define SCHEMA_STATIC(name, type, ...)                                                             \
    static const struct bridge_field name##_fields[] = { __VA_ARGS__ };                            \
    static const struct bridge_schema name = { name##_fields, ARRAY_LEN(name##_fields),            \
                                               sizeof(type) }
#define REQ struct bridge_request
#define RESP struct bridge_response

/* --- bases ----------------------------------------------------------------------------------- */

SCHEMA(bridge_request_base, REQ, FA(STR, "ContainerId", container_id),
       FA(STR, "ActivityId", activity_id), F(MAP, "otsc", trace));

#define STEP struct bridge_span
SCHEMA_STATIC(step, STEP, FIELD(STEP, STR, "Name", name, false),
              FIELD(STEP, U64, "Start", start, false), FIELD(STEP, U64, "End", end, false),
              FIELD(STEP, BOOL, "Failed", failed, false));
SCHEMA(bridge_response_base, RESP, RA(HR, "Result", result), R(STR, "ActivityId", activity_id),
       R(STR, "ErrorMessage", error_message), R(STR, "Reason", reason),
       ARRAY("Spans", RESP, spans, n_spans, step));

#define NTF struct bridge_notification
SCHEMA(bridge_notification_schema, NTF, FIELD(NTF, STR, "ContainerId", container_id, true),
       FIELD(NTF, STR, "ActivityId", activity_id, true), FIELD(NTF, STR, "Type", type, true),
       FIXED("Operation", "\"None\""), FIXED("Result", "0"));

/* --- request bodies -------------------------------------------------------------------------- */

SCHEMA_STATIC(negotiate_request, REQ, FA(U32, "MinimumVersion", negotiate.minimum),
              FA(U32, "MaximumVersion", negotiate.maximum));

SCHEMA_STATIC(create_schema, REQ, FA(U32, "Major", create.schema.major),
              FA(U32, "Minor", create.schema.minor));
SCHEMA_STATIC(container_config, REQ, SUB(OBJ, "SchemaVersion", create_schema, true),
              FA(STR, "OciBundlePath", create.bundle_path),
              FA(JSON, "OciSpecification", create.spec),
              FA(STR, "ScratchDirPath", create.scratch_path),
              F(BOOL, "Privileged", create.privileged), F(BOOL, "Holder", create.holder));
SCHEMA_STATIC(create_request, REQ, SUB(TEXT, "ContainerConfig", container_config, true));

SCHEMA_STATIC(process_parameters, REQ, F(STR, "CommandLine", exec.command_line),
              F(STRS, "CommandArgs", exec.args), F(STR, "WorkingDirectory", exec.cwd),
              F(MAP, "Environment", exec.env), F(BOOL, "EmulateConsole", exec.terminal),
              F(BOOL, "CreateStdInPipe", exec.want_in), F(BOOL, "CreateStdOutPipe", exec.want_out),
              F(BOOL, "CreateStdErrPipe", exec.want_err), F(BOOL, "CreateInUtilityVM", exec.in_vm),
              F(JSON, "OciProcess", exec.oci_process));
SCHEMA_STATIC(stdio_ports, REQ, F(U32, "StdIn", exec.ports.in), F(U32, "StdOut", exec.ports.out),
              F(U32, "StdErr", exec.ports.err));
SCHEMA_STATIC(exec_settings, REQ, SUB(TEXT, "ProcessParameters", process_parameters, true),
              SUB(OBJ, "VsockStdioRelaySettings", stdio_ports, true));
SCHEMA_STATIC(exec_request, REQ, SUB(OBJ, "Settings", exec_settings, true));

SCHEMA_STATIC(wait_request, REQ, FA(U32, "ProcessId", wait.pid),
              FA(U32, "TimeoutInMs", wait.timeout_ms));

SCHEMA_STATIC(signal_options, REQ, F(I32, "Signal", signal.signal));
SCHEMA_STATIC(signal_request, REQ, FA(U32, "ProcessId", signal.pid),
              SUB(OBJ, "Options", signal_options, false));

SCHEMA_STATIC(resize_request, REQ, FA(U32, "ProcessId", resize.pid), FA(U16, "Height", resize.rows),
              FA(U16, "Width", resize.cols));

SCHEMA_STATIC(property_query, REQ, F(STRS, "PropertyTypes", query.types));
SCHEMA_STATIC(query_request, REQ, SUB(QUERY, "Query", property_query, true));

SCHEMA_STATIC(modify_request, REQ, FA(MODIFY, "Request", modify));

static const struct bridge_schema no_fields = { 0 };

/* --- settings of ModifySettings ------------------------------------------------------------------
 */

SCHEMA_STATIC(verity, REQ, F(BOOL, "SuperBlock", modify.disk.verity),
              F(STR, "RootDigest", modify.disk.root_hash));
SCHEMA_STATIC(disk, REQ, F(STR, "MountPath", modify.disk.mount_path), F(U8, "Lun", modify.disk.lun),
              F(U8, "Controller", modify.disk.controller),
              F(U64, "Partition", modify.disk.partition),
              F(BOOL, "ReadOnly", modify.disk.read_only),
              F(BOOL, "Encrypted", modify.disk.encrypted), F(STRS, "Options", modify.disk.options),
              F(BOOL, "BlockDev", modify.disk.block_device), SUB(OBJ, "VerityInfo", verity, false),
              F(BOOL, "EnsureFilesystem", modify.disk.ensure_filesystem),
              F(STR, "Filesystem", modify.disk.filesystem), F(U32, "FsGroup", modify.disk.fs_group),
              F(STR, "FsGroupPolicy", modify.disk.fs_group_policy));

SCHEMA_STATIC(scsi_device, REQ, F(U8, "Controller", modify.scsi_device.controller),
              F(U8, "Lun", modify.scsi_device.lun));

/* hcsshim sends the port of its 9p server; a virtio device needs none. */
SCHEMA_STATIC(share, REQ, F(STR, "MountPath", modify.share.mount_path), FIXED("Port", "564"),
              F(STR, "ShareName", modify.share.name), F(BOOL, "ReadOnly", modify.share.read_only));

#define LAYER struct bridge_layer
SCHEMA_STATIC(layer, LAYER, FIELD(LAYER, STR, "Path", path, false));
SCHEMA_STATIC(layers, REQ, F(STR, "ContainerID", modify.layers.container_id),
              F(STR, "ContainerRootPath", modify.layers.root_path),
              ARRAY("Layers", REQ, modify.layers.layers, modify.layers.n_layers, layer),
              F(STR, "ScratchPath", modify.layers.scratch_path),
              F(U64, "ScratchQuotaBytes", modify.layers.scratch_quota),
              F(STR, "UidMap", modify.layers.uid_map), F(STR, "GidMap", modify.layers.gid_map),
              F(BOOL, "MapLayers", modify.layers.map_layers));

#define IP struct guest_ip
SCHEMA_STATIC(ip_config, IP, FIELD(IP, STR, "IPAddress", address, false),
              FIELD(IP, U8, "PrefixLength", prefix, false));
#define ROUTE struct guest_route
SCHEMA_STATIC(route, ROUTE, FIELD(ROUTE, STR, "NextHop", next_hop, false),
              FIELD(ROUTE, STR, "DestinationPrefix", destination, false),
              FIELD(ROUTE, U32, "Metric", metric, false),
              FIELD(ROUTE, STR, "Source", source, false), FIELD(ROUTE, U32, "Mtu", mtu, false),
              FIELD(ROUTE, BOOL, "OnLink", on_link, false),
              FIELD(ROUTE, BOOL, "LinkScope", link_scope, false),
              FIELD(ROUTE, U32, "Table", table, false), FIELD(ROUTE, STR, "Interface", dev, false),
              FIELD(ROUTE, U32, "Weight", weight, false), FIELD(ROUTE, U32, "Hops", hops, false));
#define RULE struct guest_rule
SCHEMA_STATIC(rule, RULE, FIELD(RULE, U32, "Priority", priority, false),
              FIELD(RULE, BOOL, "IPv6", ipv6, false), FIELD(RULE, BOOL, "Not", invert, false),
              FIELD(RULE, STR, "From", source, false), FIELD(RULE, STR, "To", destination, false),
              FIELD(RULE, STR, "Iif", iif, false), FIELD(RULE, STR, "Oif", oif, false),
              FIELD(RULE, U32, "Mark", mark, false), FIELD(RULE, U32, "Mask", mask, false),
              FIELD(RULE, U32, "Table", table, false));
#define NEIGHBOUR struct bridge_neighbour
SCHEMA_STATIC(neighbour, NEIGHBOUR, FIELD(NEIGHBOUR, STR, "IPAddress", address, false),
              FIELD(NEIGHBOUR, STR, "MacAddress", mac, false));
#define NET modify.network
SCHEMA_STATIC(network, REQ, F(STR, "NamespaceID", NET.namespace_id), F(STR, "ID", NET.id),
              F(STR, "MacAddress", NET.mac), F(STR, "DNSSuffix", NET.dns_search),
              F(STR, "DNSServerList", NET.dns_servers), F(U16, "EncapOverhead", NET.encap_overhead),
              F(BOOL, "VPCIAssigned", NET.vpci_assigned),
              ARRAY("IPConfigs", REQ, NET.ips, NET.n_ips, ip_config),
              ARRAY("Routes", REQ, NET.routes, NET.n_routes, route),
              F(BOOL, "PolicyBasedRouting", NET.policy_routing),
              F(BOOL, "EnableLowMetric", NET.low_metric), F(STR, "Name", NET.name),
              F(U32, "Mtu", NET.mtu),
              ARRAY("Neighbors", REQ, NET.neighbours, NET.n_neighbours, neighbour),
              ARRAY("Rules", REQ, NET.rules, NET.n_rules, rule), F(MAP, "Sysctls", NET.sysctls));

SCHEMA_STATIC(vpci, REQ, F(STR, "VMBusGUID", modify.vpci.vmbus_guid));

/* The host writes `Windows` although it is empty: in Go a struct never counts as empty. */
SCHEMA_STATIC(constraints, REQ, FIXED("Windows", "{}"),
              F(JSON, "Linux", modify.constraints.linux_resources));

SCHEMA_STATIC(policy, REQ, F(STR, "EncodedSecurityPolicy", modify.policy.policy));

SCHEMA_STATIC(freezer, REQ, FA(BOOL, "Frozen", modify.freezer.frozen));

SCHEMA_STATIC(clock_time, REQ, FA(U64, "WallNs", modify.clock.wall_ns));

SCHEMA_STATIC(forward, REQ, FA(STR, "NamespaceID", modify.forward.namespace_id),
              F(BOOL, "IPv6", modify.forward.ipv6), FA(U16, "Port", modify.forward.port),
              FA(U32, "HostPort", modify.forward.host_port));

const char *const bridge_actions[BRIDGE_ACTION_COUNT] = {
    [BRIDGE_ADD] = "Add",
    [BRIDGE_REMOVE] = "Remove",
    [BRIDGE_UPDATE] = "Update",
    [BRIDGE_PRE_ADD] = "PreAdd",
};

#define ADD_REMOVE (1u << BRIDGE_ADD | 1u << BRIDGE_REMOVE)
#define ANY_ACTION ((1u << BRIDGE_ACTION_COUNT) - 1)
const struct bridge_resource_def bridge_resources[BRIDGE_RES_COUNT] = {
    [BRIDGE_RES_MAPPED_VIRTUAL_DISK] = { "MappedVirtualDisk", &disk, ADD_REMOVE },
    [BRIDGE_RES_SCSI_DEVICE] = { "SCSIDevice", &scsi_device, 1u << BRIDGE_REMOVE },
    [BRIDGE_RES_VPMEM_DEVICE] = { "VPMemDevice", NULL, ADD_REMOVE },
    [BRIDGE_RES_MAPPED_DIRECTORY] = { "MappedDirectory", &share, ADD_REMOVE },
    [BRIDGE_RES_COMBINED_LAYERS] = { "CombinedLayers", &layers, ADD_REMOVE },
    [BRIDGE_RES_NETWORK] = { "Network", &network, ADD_REMOVE },
    [BRIDGE_RES_VPCI_DEVICE] = { "VPCIDevice", &vpci, 1u << BRIDGE_ADD },
    [BRIDGE_RES_CONTAINER_CONSTRAINTS] = { "ContainerConstraints", &constraints, ANY_ACTION },
    [BRIDGE_RES_SECURITY_POLICY] = { "SecurityPolicy", &policy, ANY_ACTION },
    [BRIDGE_RES_SECURITY_POLICY_FRAGMENT] = { "SecurityPolicyFragment", NULL, ANY_ACTION },
    [BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT] = { "PodCgroupMemoryLimit", NULL, 1u << BRIDGE_UPDATE },
    [BRIDGE_RES_CONTAINER_FREEZER] = { "ContainerFreezer", &freezer, ANY_ACTION },
    [BRIDGE_RES_CLOCK] = { "Clock", &clock_time, ANY_ACTION },
    [BRIDGE_RES_PORT_FORWARD] = { "PortForward", &forward, 1u << BRIDGE_ADD },
};

/* --- response bodies -----------------------------------------------------------------------------
 */

#define CAPS negotiate.caps
SCHEMA_STATIC(guest_caps, RESP, R(BOOL, "NamespaceAddRequestSupported", CAPS.namespace_add),
              R(BOOL, "SignalProcessSupported", CAPS.signal_process),
              R(BOOL, "DumpStacksSupported", CAPS.dump_stacks),
              R(BOOL, "DeleteContainerStateSupported", CAPS.delete_container_state),
              R(BOOL, "HolderSupported", CAPS.holder));
/* GuestDefinedCapabilities is always there: without the key hcsshim's connect fails. */
SCHEMA_STATIC(caps, RESP, FIXED("SupportedSchemaVersions", "[{\"Major\":2,\"Minor\":1}]"),
              R(STR, "RuntimeOsType", CAPS.os),
              SUB(OBJ, "GuestDefinedCapabilities", guest_caps, true));
SCHEMA_STATIC(negotiate_reply, RESP, R(U32, "Version", negotiate.version),
              SUB(OBJ, "Capabilities", caps, true));
SCHEMA_STATIC(create_reply, RESP, FIXED("SelectedProtocolVersion", "0"));
SCHEMA_STATIC(exec_reply, RESP, RA(U32, "ProcessId", process_id));
SCHEMA_STATIC(wait_reply, RESP, RA(U32, "ExitCode", exit_code));
SCHEMA_STATIC(query_reply, RESP, RA(STR, "Properties", properties));
SCHEMA_STATIC(stacks_reply, RESP, RA(STR, "GuestStacks", stacks));

#define PROCESS struct bridge_process
SCHEMA_STATIC(process, PROCESS, FIELD(PROCESS, U32, "ProcessId", pid, true),
              FIELD(PROCESS, U32, "Leader", leader, false),
              FIELD(PROCESS, STR, "Name", name, false), FIELD(PROCESS, U64, "AgeMs", age_ms, false),
              FIELD(PROCESS, U64, "UserMs", user_ms, false),
              FIELD(PROCESS, U64, "KernelMs", kernel_ms, false),
              FIELD(PROCESS, U64, "DataKiB", data_kib, false),
              FIELD(PROCESS, U64, "PrivateKiB", private_kib, false),
              FIELD(PROCESS, U64, "SharedKiB", shared_kib, false));
#define PROPS struct bridge_properties
SCHEMA(bridge_properties_schema, PROPS,
       ARRAY("ProcessList", PROPS, processes, n_processes, process),
       FIELD(PROPS, JSON, "LCOWMetrics", metrics, false),
       FIELD(PROPS, RAW, "LCOWMetrics", metrics_text, false),
       FIELD(PROPS, BOOL, "OutOfMemory", out_of_memory, false),
       FIELD(PROPS, U64, "ScratchBytes", scratch, false),
       FIELD(PROPS, U64, "MonotonicNs", clock, false));

/* --- the messages --------------------------------------------------------------------------------
 */

/* Refuses what would crash the original guest (docs/reference/gcs-protocol.md §2.3). */
static int check_create(const struct bridge_request *r, struct err *err)
{
    const struct bridge_schema_version *v = &r->create.schema;

    if (v->major < 2 || (v->major == 2 && v->minor < 1))
        return bridge_err(
            err, BRIDGE_HR_INVALID_JSON,
            "unsupported schema version %u.%u in ContainerConfig: must be 2.1 or later", v->major,
            v->minor);
    if (!r->create.spec)
        return bridge_err(err, BRIDGE_HR_INVALID_JSON,
                          "ContainerConfig: OciSpecification is missing");
    return 0;
}

static const struct bridge_message messages[] = {
    { BRIDGE_CREATE, "Create", true, &create_request, &create_reply, check_create },
    { BRIDGE_START, "Start", true, &no_fields, &no_fields },
    { BRIDGE_SHUTDOWN_GRACEFUL, "ShutdownGraceful", true, &no_fields, &no_fields },
    { BRIDGE_SHUTDOWN_FORCED, "ShutdownForced", true, &no_fields, &no_fields },
    { BRIDGE_EXECUTE_PROCESS, "ExecuteProcess", true, &exec_request, &exec_reply },
    { BRIDGE_WAIT_FOR_PROCESS, "WaitForProcess", true, &wait_request, &wait_reply },
    { BRIDGE_SIGNAL_PROCESS, "SignalProcess", true, &signal_request, &no_fields },
    { BRIDGE_RESIZE_CONSOLE, "ResizeConsole", true, &resize_request, &no_fields },
    { BRIDGE_GET_PROPERTIES, "GetProperties", true, &query_request, &query_reply },
    { BRIDGE_MODIFY_SETTINGS, "ModifySettings", true, &modify_request, &no_fields },
    { BRIDGE_NEGOTIATE_PROTOCOL, "NegotiateProtocol", true, &negotiate_request, &negotiate_reply },
    { BRIDGE_DUMP_STACKS, "DumpStacks", true, &no_fields, &stacks_reply },
    { BRIDGE_DELETE_CONTAINER_STATE, "DeleteContainerState", true, &no_fields, &no_fields },
    { BRIDGE_UPDATE_CONTAINER, "UpdateContainer", false, &no_fields, &no_fields },
    { BRIDGE_LIFECYCLE_NOTIFICATION, "LifecycleNotification", false, &no_fields, &no_fields },
    { BRIDGE_MODIFY_SERVICE_SETTINGS, "ModifyServiceSettings", false, &no_fields, &no_fields },
};

const struct bridge_message *bridge_message_find(uint32_t type)
{
    unsigned kind = bridge_kind(type);

    if (kind != BRIDGE_KIND_REQUEST && kind != BRIDGE_KIND_RESPONSE)
        return NULL;
    for (size_t i = 0; i < ARRAY_LEN(messages); i++)
        if ((messages[i].type & 0x0fffffffu) == (type & 0x0fffffffu))
            return &messages[i];
    return NULL;
}

const char *bridge_message_name(uint32_t type)
{
    const struct bridge_message *m = bridge_message_find(type);

    if (type == BRIDGE_CONTAINER_NOTIFICATION)
        return "ContainerNotification";
    return m ? m->name : "unknown";
}

const char *bridge_resource_name(enum bridge_resource r)
{
    return (unsigned)r < BRIDGE_RES_COUNT ? bridge_resources[r].name : "unknown";
}
