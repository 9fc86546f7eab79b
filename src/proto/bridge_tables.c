/* The messages of gcs-protocol.md §3 as tables. */
#include "base/err.h"
#include "proto/bridge_priv.h"

#define F(knd, k, type, member, alw)                                                               \
    {                                                                                              \
        .key = k, .kind = knd, .always = alw, .offset = offsetof(type, member)                     \
    }
#define F_SUB(knd, k, off, schema, alw)                                                            \
    {                                                                                              \
        .key = k, .kind = knd, .always = alw, .offset = off, .sub = &(schema)                      \
    }
#define F_ARRAY(k, type, member, count, schema)                                                    \
    {                                                                                              \
        .key = k, .kind = BF_ARRAY, .offset = offsetof(type, member),                              \
        .count_offset = offsetof(type, count), .sub = &(schema)                                    \
    }
#define F_FIXED(knd, k)                                                                            \
    {                                                                                              \
        .key = k, .kind = knd, .always = true                                                      \
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

SCHEMA(bridge_request_base, REQ, F(BF_STR, "ContainerId", REQ, container_id, BF_ALWAYS),
       F(BF_STR, "ActivityId", REQ, activity_id, BF_ALWAYS),
       F(BF_MAP, "otsc", REQ, trace, BF_OMIT));

#define REC struct bridge_error_record
SCHEMA_STATIC(error_record, REC, F(BF_HR, "Result", REC, result, BF_ALWAYS),
              F(BF_STR, "Message", REC, message, BF_ALWAYS),
              F(BF_STR, "StackTrace", REC, stack, BF_OMIT),
              F(BF_STR, "ModuleName", REC, module, BF_ALWAYS),
              F(BF_STR, "FileName", REC, file, BF_ALWAYS), F(BF_U32, "Line", REC, line, BF_ALWAYS),
              F(BF_STR, "FunctionName", REC, function, BF_OMIT));

SCHEMA(bridge_response_base, RESP, F(BF_HR, "Result", RESP, result, BF_ALWAYS),
       F(BF_STR, "ActivityId", RESP, activity_id, BF_OMIT),
       F(BF_STR, "ErrorMessage", RESP, error_message, BF_OMIT),
       F_ARRAY("ErrorRecords", RESP, records, n_records, error_record));

#define NOTE struct bridge_notification
SCHEMA(bridge_notification_schema, NOTE, F(BF_STR, "ContainerId", NOTE, container_id, BF_ALWAYS),
       F(BF_STR, "ActivityId", NOTE, activity_id, BF_ALWAYS),
       F(BF_STR, "Type", NOTE, type, BF_ALWAYS), F(BF_STR, "Operation", NOTE, operation, BF_ALWAYS),
       F(BF_HR, "Result", NOTE, result, BF_ALWAYS));

/* --- request bodies -------------------------------------------------------------------------- */

SCHEMA_STATIC(negotiate_request, REQ,
              F(BF_U32, "MinimumVersion", REQ, negotiate.minimum, BF_ALWAYS),
              F(BF_U32, "MaximumVersion", REQ, negotiate.maximum, BF_ALWAYS));

#define VERSION struct bridge_schema_version
SCHEMA_STATIC(schema_version, VERSION, F(BF_U32, "Major", VERSION, major, BF_ALWAYS),
              F(BF_U32, "Minor", VERSION, minor, BF_ALWAYS));

#define CREATE struct bridge_create
SCHEMA_STATIC(container_config, CREATE,
              F_SUB(BF_OBJ, "SchemaVersion", offsetof(CREATE, schema), schema_version, BF_ALWAYS),
              F(BF_STR, "OciBundlePath", CREATE, bundle_path, BF_ALWAYS),
              F(BF_JSON, "OciSpecification", CREATE, spec, BF_ALWAYS),
              F(BF_STR, "ScratchDirPath", CREATE, scratch_path, BF_ALWAYS),
              F(BF_BOOL, "Privileged", CREATE, privileged, BF_OMIT));
SCHEMA_STATIC(create_request, REQ,
              F_SUB(BF_TEXT, "ContainerConfig", offsetof(REQ, create), container_config,
                    BF_ALWAYS));

#define EXEC struct bridge_exec
SCHEMA_STATIC(process_parameters, EXEC, F(BF_STR, "ApplicationName", EXEC, application, BF_OMIT),
              F(BF_STR, "CommandLine", EXEC, command_line, BF_OMIT),
              F(BF_STRS, "CommandArgs", EXEC, args, BF_OMIT),
              F(BF_STR, "User", EXEC, user, BF_OMIT),
              F(BF_STR, "WorkingDirectory", EXEC, cwd, BF_OMIT),
              F(BF_MAP, "Environment", EXEC, env, BF_OMIT),
              F(BF_BOOL, "RestrictedToken", EXEC, restricted_token, BF_OMIT),
              F(BF_BOOL, "EmulateConsole", EXEC, terminal, BF_OMIT),
              F(BF_BOOL, "CreateStdInPipe", EXEC, want_in, BF_OMIT),
              F(BF_BOOL, "CreateStdOutPipe", EXEC, want_out, BF_OMIT),
              F(BF_BOOL, "CreateStdErrPipe", EXEC, want_err, BF_OMIT),
              F(BF_PAIR, "ConsoleSize", EXEC, rows, BF_OMIT),
              F(BF_BOOL, "UseExistingLogin", EXEC, use_existing_login, BF_OMIT),
              F(BF_BOOL, "UseLegacyConsole", EXEC, use_legacy_console, BF_OMIT),
              F(BF_BOOL, "CreateInUtilityVM", EXEC, in_vm, BF_OMIT),
              F(BF_JSON, "OciProcess", EXEC, oci_process, BF_OMIT));
_Static_assert(offsetof(EXEC, cols) == offsetof(EXEC, rows) + sizeof(int32_t), "BF_PAIR");

#define PORTS struct bridge_stdio_ports
SCHEMA_STATIC(stdio_ports, PORTS, F(BF_U32, "StdIn", PORTS, in, BF_OMIT),
              F(BF_U32, "StdOut", PORTS, out, BF_OMIT), F(BF_U32, "StdErr", PORTS, err, BF_OMIT));
SCHEMA_STATIC(exec_settings, EXEC,
              F_SUB(BF_TEXT, "ProcessParameters", 0, process_parameters, BF_ALWAYS),
              F_SUB(BF_OBJ, "VsockStdioRelaySettings", offsetof(EXEC, ports), stdio_ports,
                    BF_ALWAYS));
SCHEMA_STATIC(exec_request, REQ,
              F_SUB(BF_OBJ, "Settings", offsetof(REQ, exec), exec_settings, BF_ALWAYS));

SCHEMA_STATIC(wait_request, REQ, F(BF_U32, "ProcessId", REQ, wait.pid, BF_ALWAYS),
              F(BF_U32, "TimeoutInMs", REQ, wait.timeout_ms, BF_ALWAYS));

SCHEMA_STATIC(signal_options, REQ, F(BF_I32, "Signal", REQ, signal.signal, BF_OMIT));
SCHEMA_STATIC(signal_request, REQ, F(BF_U32, "ProcessId", REQ, signal.pid, BF_ALWAYS),
              F_SUB(BF_OBJ, "Options", 0, signal_options, BF_OMIT));

SCHEMA_STATIC(resize_request, REQ, F(BF_U32, "ProcessId", REQ, resize.pid, BF_ALWAYS),
              F(BF_U16, "Height", REQ, resize.rows, BF_ALWAYS),
              F(BF_U16, "Width", REQ, resize.cols, BF_ALWAYS));

#define QUERY struct bridge_query
SCHEMA_STATIC(property_query, QUERY, F(BF_STRS, "PropertyTypes", QUERY, types, BF_OMIT));
SCHEMA_STATIC(query_request, REQ,
              F_SUB(BF_QUERY, "Query", offsetof(REQ, query), property_query, BF_ALWAYS));

SCHEMA_STATIC(modify_request, REQ, F(BF_MODIFY, "Request", REQ, modify, BF_ALWAYS));

static const struct bridge_schema no_fields = { 0 };

/* --- settings of ModifySettings ------------------------------------------------------------------
 */

#define VERITY struct bridge_verity
SCHEMA_STATIC(verity, VERITY, F(BF_BOOL, "SuperBlock", VERITY, super_block, BF_OMIT),
              F(BF_STR, "RootDigest", VERITY, root_digest, BF_OMIT));

#define DISK struct bridge_disk
SCHEMA_STATIC(disk, DISK, F(BF_STR, "MountPath", DISK, mount_path, BF_OMIT),
              F(BF_U8, "Lun", DISK, lun, BF_OMIT),
              F(BF_U8, "Controller", DISK, controller, BF_OMIT),
              F(BF_U64, "Partition", DISK, partition, BF_OMIT),
              F(BF_BOOL, "ReadOnly", DISK, read_only, BF_OMIT),
              F(BF_BOOL, "Encrypted", DISK, encrypted, BF_OMIT),
              F(BF_STRS, "Options", DISK, options, BF_OMIT),
              F(BF_BOOL, "BlockDev", DISK, block_dev, BF_OMIT),
              F_SUB(BF_OBJ, "VerityInfo", offsetof(DISK, verity), verity, BF_OMIT),
              F(BF_BOOL, "EnsureFilesystem", DISK, ensure_filesystem, BF_OMIT),
              F(BF_STR, "Filesystem", DISK, filesystem, BF_OMIT));

#define SCSI struct bridge_scsi_device
SCHEMA_STATIC(scsi_device, SCSI, F(BF_U8, "Controller", SCSI, controller, BF_OMIT),
              F(BF_U8, "Lun", SCSI, lun, BF_OMIT));

#define VPMEM struct bridge_vpmem
SCHEMA_STATIC(vpmem_mapping, VPMEM, F(BF_U64, "DeviceOffsetInBytes", VPMEM, map_offset, BF_OMIT),
              F(BF_U64, "DeviceSizeInBytes", VPMEM, map_size, BF_OMIT));
SCHEMA_STATIC(vpmem, VPMEM, F(BF_U32, "DeviceNumber", VPMEM, device, BF_OMIT),
              F(BF_STR, "MountPath", VPMEM, mount_path, BF_OMIT),
              F_SUB(BF_OBJ, "MappingInfo", 0, vpmem_mapping, BF_OMIT));

#define DIR struct bridge_directory
SCHEMA_STATIC(directory, DIR, F(BF_STR, "MountPath", DIR, mount_path, BF_OMIT),
              F(BF_I32, "Port", DIR, port, BF_OMIT),
              F(BF_STR, "ShareName", DIR, share_name, BF_OMIT),
              F(BF_BOOL, "ReadOnly", DIR, read_only, BF_OMIT));

#define LAYER struct bridge_layer
#define LAYERS struct bridge_layers
SCHEMA_STATIC(layer, LAYER, F(BF_STR, "Id", LAYER, id, BF_OMIT),
              F(BF_STR, "Path", LAYER, path, BF_OMIT));
SCHEMA_STATIC(layers, LAYERS, F(BF_STR, "ContainerID", LAYERS, container_id, BF_OMIT),
              F(BF_STR, "ContainerRootPath", LAYERS, root_path, BF_OMIT),
              F_ARRAY("Layers", LAYERS, layers, n_layers, layer),
              F(BF_STR, "ScratchPath", LAYERS, scratch_path, BF_OMIT),
              F(BF_U64, "ScratchQuotaBytes", LAYERS, scratch_quota, BF_OMIT));

#define IP struct bridge_ip
#define ROUTE struct bridge_route
#define NET struct bridge_network
SCHEMA_STATIC(ip_config, IP, F(BF_STR, "IPAddress", IP, address, BF_OMIT),
              F(BF_U8, "PrefixLength", IP, prefix, BF_OMIT));
SCHEMA_STATIC(route, ROUTE, F(BF_STR, "NextHop", ROUTE, next_hop, BF_OMIT),
              F(BF_STR, "DestinationPrefix", ROUTE, destination, BF_OMIT),
              F(BF_U32, "Metric", ROUTE, metric, BF_OMIT),
              F(BF_STR, "Source", ROUTE, source, BF_OMIT), F(BF_U32, "Mtu", ROUTE, mtu, BF_OMIT),
              F(BF_BOOL, "OnLink", ROUTE, on_link, BF_OMIT),
              F(BF_BOOL, "LinkScope", ROUTE, link_scope, BF_OMIT));
#define NEIGHBOUR struct bridge_neighbour
SCHEMA_STATIC(neighbour, NEIGHBOUR, F(BF_STR, "IPAddress", NEIGHBOUR, address, BF_OMIT),
              F(BF_STR, "MacAddress", NEIGHBOUR, mac, BF_OMIT));
SCHEMA_STATIC(network, NET, F(BF_STR, "NamespaceID", NET, namespace_id, BF_OMIT),
              F(BF_STR, "ID", NET, id, BF_OMIT), F(BF_STR, "MacAddress", NET, mac, BF_OMIT),
              F(BF_STR, "DNSSuffix", NET, dns_search, BF_OMIT),
              F(BF_STR, "DNSServerList", NET, dns_servers, BF_OMIT),
              F(BF_U16, "EncapOverhead", NET, encap_overhead, BF_OMIT),
              F(BF_BOOL, "VPCIAssigned", NET, vpci_assigned, BF_OMIT),
              F_ARRAY("IPConfigs", NET, ips, n_ips, ip_config),
              F_ARRAY("Routes", NET, routes, n_routes, route),
              F(BF_BOOL, "PolicyBasedRouting", NET, policy_routing, BF_OMIT),
              F(BF_BOOL, "EnableLowMetric", NET, low_metric, BF_OMIT),
              F(BF_STR, "Name", NET, name, BF_OMIT), F(BF_U32, "Mtu", NET, mtu, BF_OMIT),
              F_ARRAY("Neighbors", NET, neighbours, n_neighbours, neighbour));

#define VPCI struct bridge_vpci
SCHEMA_STATIC(vpci, VPCI, F(BF_STR, "VMBusGUID", VPCI, vmbus_guid, BF_OMIT));

/* The host writes `Windows` although it is empty: in Go a struct never counts as empty. */
#define CONSTRAINTS struct bridge_constraints
SCHEMA_STATIC(constraints, CONSTRAINTS, F_FIXED(BF_EMPTY, "Windows"),
              F(BF_JSON, "Linux", CONSTRAINTS, linux_resources, BF_OMIT));

#define POLICY struct bridge_policy
SCHEMA_STATIC(policy, POLICY, F(BF_STR, "EnforcerType", POLICY, enforcer, BF_OMIT),
              F(BF_STR, "EncodedSecurityPolicy", POLICY, policy, BF_OMIT),
              F(BF_STR, "EncodedUVMReference", POLICY, uvm_reference, BF_OMIT),
              F(BF_STR, "EncodedUVMHashEnvelopeReference", POLICY, uvm_hash_envelope, BF_OMIT));

#define FRAGMENT struct bridge_fragment
SCHEMA_STATIC(fragment, FRAGMENT, F(BF_STR, "Fragment", FRAGMENT, fragment, BF_OMIT),
              F(BF_STR, "MediaType", FRAGMENT, media_type, BF_OMIT));

#define FREEZER struct bridge_freezer
SCHEMA_STATIC(freezer, FREEZER, F(BF_BOOL, "Frozen", FREEZER, frozen, BF_ALWAYS));

#define CLOCK struct bridge_clock
SCHEMA_STATIC(clock_time, CLOCK, F(BF_U64, "WallNs", CLOCK, wall_ns, BF_ALWAYS));

#define FORWARD struct bridge_forward
SCHEMA_STATIC(forward, FORWARD, F(BF_STR, "NamespaceID", FORWARD, namespace_id, BF_ALWAYS),
              F(BF_BOOL, "IPv6", FORWARD, ipv6, BF_OMIT),
              F(BF_U16, "Port", FORWARD, port, BF_ALWAYS),
              F(BF_U32, "HostPort", FORWARD, host_port, BF_ALWAYS));

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
    [BRIDGE_RES_VPMEM_DEVICE] = { "VPMemDevice", &vpmem, ADD_REMOVE },
    [BRIDGE_RES_MAPPED_DIRECTORY] = { "MappedDirectory", &directory, ADD_REMOVE },
    [BRIDGE_RES_COMBINED_LAYERS] = { "CombinedLayers", &layers, ADD_REMOVE },
    [BRIDGE_RES_NETWORK] = { "Network", &network, ADD_REMOVE },
    [BRIDGE_RES_VPCI_DEVICE] = { "VPCIDevice", &vpci, 1u << BRIDGE_ADD },
    [BRIDGE_RES_CONTAINER_CONSTRAINTS] = { "ContainerConstraints", &constraints, ANY_ACTION },
    [BRIDGE_RES_SECURITY_POLICY] = { "SecurityPolicy", &policy, ANY_ACTION },
    [BRIDGE_RES_SECURITY_POLICY_FRAGMENT] = { "SecurityPolicyFragment", &fragment, ANY_ACTION },
    [BRIDGE_RES_POD_CGROUP_MEMORY_LIMIT] = { "PodCgroupMemoryLimit", NULL, 1u << BRIDGE_UPDATE },
    [BRIDGE_RES_CONTAINER_FREEZER] = { "ContainerFreezer", &freezer, ANY_ACTION },
    [BRIDGE_RES_CLOCK] = { "Clock", &clock_time, ANY_ACTION },
    [BRIDGE_RES_PORT_FORWARD] = { "PortForward", &forward, 1u << BRIDGE_ADD },
};

/* --- response bodies -----------------------------------------------------------------------------
 */

#define CAPS struct bridge_caps
SCHEMA_STATIC(guest_caps, CAPS,
              F(BF_BOOL, "NamespaceAddRequestSupported", CAPS, namespace_add, BF_OMIT),
              F(BF_BOOL, "SignalProcessSupported", CAPS, signal_process, BF_OMIT),
              F(BF_BOOL, "DumpStacksSupported", CAPS, dump_stacks, BF_OMIT),
              F(BF_BOOL, "DeleteContainerStateSupported", CAPS, delete_container_state, BF_OMIT));
/* GuestDefinedCapabilities is always there: without the key hcsshim's connect fails. */
SCHEMA_STATIC(caps, CAPS, F(BF_BOOL, "SendHostCreateMessage", CAPS, send_host_create, BF_OMIT),
              F(BF_BOOL, "SendHostStartMessage", CAPS, send_host_start, BF_OMIT),
              F(BF_BOOL, "HvSocketConfigOnStartup", CAPS, hvsocket_config, BF_OMIT),
              F(BF_BOOL, "SendLifecycleNotifications", CAPS, send_lifecycle, BF_OMIT),
              F(BF_BOOL, "ModifyServiceSettingsSupported", CAPS, modify_service_settings, BF_OMIT),
              F_ARRAY("SupportedSchemaVersions", CAPS, schemas, n_schemas, schema_version),
              F(BF_STR, "RuntimeOsType", CAPS, os, BF_OMIT),
              F_SUB(BF_OBJ, "GuestDefinedCapabilities", 0, guest_caps, BF_ALWAYS));
SCHEMA_STATIC(negotiate_reply, RESP, F(BF_U32, "Version", RESP, negotiate.version, BF_OMIT),
              F_SUB(BF_OBJ, "Capabilities", offsetof(RESP, negotiate.caps), caps, BF_ALWAYS));
SCHEMA_STATIC(create_reply, RESP, F_FIXED(BF_ZERO, "SelectedProtocolVersion"));
SCHEMA_STATIC(exec_reply, RESP, F(BF_U32, "ProcessId", RESP, process_id, BF_ALWAYS));
SCHEMA_STATIC(wait_reply, RESP, F(BF_U32, "ExitCode", RESP, exit_code, BF_ALWAYS));
SCHEMA_STATIC(query_reply, RESP, F(BF_STR, "Properties", RESP, properties, BF_ALWAYS));
SCHEMA_STATIC(stacks_reply, RESP, F(BF_STR, "GuestStacks", RESP, stacks, BF_ALWAYS));

#define PROCESS struct bridge_process
#define PROPS struct bridge_properties
SCHEMA_STATIC(process, PROCESS, F(BF_U32, "ProcessId", PROCESS, pid, BF_ALWAYS));
SCHEMA(bridge_properties_schema, PROPS,
       F_ARRAY("ProcessList", PROPS, processes, n_processes, process),
       F(BF_JSON, "LCOWMetrics", PROPS, metrics, BF_OMIT),
       F(BF_RAW, "LCOWMetrics", PROPS, metrics_text, BF_OMIT),
       F(BF_BOOL, "OutOfMemory", PROPS, out_of_memory, BF_OMIT),
       F(BF_U64, "ScratchBytes", PROPS, scratch, BF_OMIT),
       F(BF_U64, "MonotonicNs", PROPS, clock, BF_OMIT));

/* --- the messages --------------------------------------------------------------------------------
 */

/* What would crash the real guest, refused here (gcs-protocol.md §2.3). */
static int check_create(const struct bridge_request *r, struct err *err)
{
    const struct bridge_schema_version *v = &r->create.schema;

    if (v->major < 2 || (v->major == 2 && v->minor < 1))
        return bridge_err(err, BRIDGE_HR_INVALID_JSON,
                          "ContainerConfig: schema version %u.%u is below 2.1", v->major, v->minor);
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

const char *bridge_action_name(enum bridge_action a)
{
    return (unsigned)a < BRIDGE_ACTION_COUNT ? bridge_actions[a] : "unknown";
}
