#include "base/err.h"
#include "base/str.h"
#include "harness/tap.h"
#include "oci/userns.h"
#include <string.h>

#define USER "{\"type\":\"user\"}"
#define ONE "[{\"containerID\":0,\"hostID\":100000,\"size\":65536}]"

static struct spec *parse(const char *namespaces, const char *uids, const char *gids)
{
    AUTO_FREE char *text = str_format("{\"linux\":{\"namespaces\":[%s]%s%s%s%s},\"process\":{"
                                      "\"args\":[\"a\"],\"cwd\":\"/\"},\"root\":{}}",
                                      namespaces, uids ? ",\"uidMappings\":" : "", uids ? uids : "",
                                      gids ? ",\"gidMappings\":" : "", gids ? gids : "");
    struct spec *s = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(spec_parse(text, strlen(text), &s, &err), err);
    return s;
}

static void refused(const char *namespaces, const char *uids, const char *gids, const char *message)
{
    AUTO(spec_free) struct spec *s = parse(namespaces, uids, gids);
    struct idmap ids = { 0 };
    struct err err = ERR_INIT;

    ASSERT_FAIL(userns_read(s, &ids, &err), err, ERR_INVALID);
    ASSERT_MSG(err.msg, message);
}

TEST(a_mapping_is_read)
{
    AUTO(spec_free) struct spec *s = parse(USER, ONE, ONE), *none = parse("", NULL, NULL);
    AUTO(idmap_release) struct idmap ids = { 0 };
    struct err err = ERR_INIT;

    ASSERT_OK(userns_read(none, &ids, &err), err);
    ASSERT(!ids.uid && !ids.gid);
    ASSERT_OK(userns_read(s, &ids, &err), err);
    ASSERT_STR(ids.uid, "0:100000:65536");
    ASSERT_STR(ids.gid, "0:100000:65536");
}

TEST(each_error_is_named)
{
    struct sbuf many = { 0 };

    refused(USER, NULL, NULL,
            "OCI spec: linux.namespaces has a user namespace, but linux.uidMappings and "
            "linux.gidMappings are missing");
    refused("", ONE, ONE,
            "OCI spec: linux.uidMappings is set, but linux.namespaces has no user namespace");
    refused(USER, ONE, "[]", "OCI spec: linux: gidMappings is empty");
    refused(USER, "[{\"containerID\":0,\"hostID\":1}]", ONE,
            "OCI spec: linux: uidMappings[0] has size 0");
    refused(USER, "[{\"containerID\":0,\"hostID\":4294967290,\"size\":10}]", ONE,
            "OCI spec: linux: uidMappings[0]: its ids exceed 4294967294");
    refused(USER, ONE, "[{\"hostID\":1,\"size\":4294967296}]",
            "OCI spec: linux: invalid gidMappings[0]: must be containerID, hostID and size, each "
            "at most 4294967295");
    refused(USER, ONE,
            "[{\"containerID\":0,\"hostID\":9,\"size\":2},{\"containerID\":1,\"hostID\":90,"
            "\"size\":1}]",
            "OCI spec: linux: gidMappings[1] overlaps gidMappings[0]");
    refused(USER, ONE, "[{\"containerID\":1,\"hostID\":9,\"size\":2}]",
            "OCI spec: linux.uidMappings and linux.gidMappings must map id 0: files of the "
            "container's root belong to it");
    for (unsigned i = 0; i < IDMAP_LINES_MAX + 1; i++)
        sbuf_addf(&many, "%s{\"containerID\":%u,\"hostID\":%u,\"size\":1}", i ? "," : "[", i, i);
    sbuf_addc(&many, ']');
    refused(USER, many.data, ONE, "OCI spec: linux: uidMappings has 340 lines, at most 339");
    sbuf_release(&many);
}

static int take(const char *mount, const struct idmap *container, struct idmap *ret,
                struct err *err)
{
    AUTO(json_decref) json_t *json = NULL;

    ASSERT_OK(js_parse(mount, strlen(mount), 4096, &json, err), *err);
    int r = userns_take_mount(json, container, ret, err);
    AUTO_FREE char *left = js_text(json, 0);
    ASSERT(!strstr(left, "idmap") && (r < 0 || !strstr(left, "Mappings")));
    return r;
}

TEST(a_mount_has_its_own_ids_or_the_containers)
{
    struct idmap none = { 0 }, container = { (char *)"0:7:1", (char *)"0:8:1" };
    struct err err = ERR_INIT;
    struct idmap ids = { 0 };

    ASSERT_OK(take("{\"destination\":\"/a\",\"options\":[\"rbind\"]}", &container, &ids, &err),
              err);
    ASSERT(!ids.uid);
    ASSERT_OK(take("{\"destination\":\"/a\",\"uidMappings\":" ONE ",\"gidMappings\":" ONE "}",
                   &none, &ids, &err),
              err);
    ASSERT_STR(ids.uid, "0:100000:65536");
    idmap_release(&ids);
    ASSERT_OK(
        take("{\"destination\":\"/a\",\"options\":[\"ridmap\",\"ro\"]}", &container, &ids, &err),
        err);
    ASSERT_STR(ids.gid, "0:8:1");
    idmap_release(&ids);
    ASSERT_FAIL(take("{\"destination\":\"/a\",\"options\":[\"idmap\"]}", &none, &ids, &err), err,
                ERR_INVALID);
    ASSERT_MSG(
        err.msg,
        "mount on /a: option idmap requires uidMappings or a container with a user namespace");
    err_clear(&err);
    ASSERT_FAIL(take("{\"destination\":\"/a\",\"uidMappings\":" ONE "}", &none, &ids, &err), err,
                ERR_INVALID);
    ASSERT_MSG(err.msg, "mount on /a: gidMappings is empty");
}
