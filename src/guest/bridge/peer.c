#include "guest/bridge/peer.h"
#include "base/ctx.h"
#include "base/json.h"
#include "base/stream.h"
#include "guest/stdio/dial_pair.h"
#include "harness/tap.h"
#include "proto/link.h"
#include <string.h>

struct stream *peer_accept(struct ctx *ctx, struct dial_pair *p)
{
    struct err err = ERR_INIT;
    int fd = -1;

    ASSERT_OK(dial_pair_accept(ctx, p, PORT_BRIDGE, &fd, &err), err);
    return stream_from_fd(ctx->loop, fd);
}

void peer_send_raw(struct ctx *ctx, struct stream *s, const void *data, size_t len)
{
    struct err err = ERR_INIT;

    ASSERT_OK(stream_write_full(ctx, s, data, len, &err), err);
}

void peer_send(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id, const char *json)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    size_t len = strlen(json);

    bridge_header_encode(&(struct bridge_header){ type, (uint32_t)(BRIDGE_HEADER_BYTES + len), id },
                         raw);
    peer_send_raw(ctx, s, raw, sizeof(raw));
    peer_send_raw(ctx, s, json, len);
}

struct bridge_header peer_recv(struct ctx *ctx, struct stream *s, char **ret_text)
{
    uint8_t raw[BRIDGE_HEADER_BYTES];
    struct bridge_header h;
    struct err err = ERR_INIT;

    ASSERT_OK(stream_read_full(ctx, s, raw, sizeof(raw), &err), err);
    ASSERT_OK(bridge_header_decode(raw, BRIDGE_SIDE_HOST, BRIDGE_MAX_RESPONSE, &h, &err), err);
    size_t len = h.size - BRIDGE_HEADER_BYTES;
    char *text = mem_zalloc(len + 1);
    if (stream_read_full(ctx, s, text, len, &err) < 0)
        tap_fail(__FILE__, __LINE__, "payload: %s", err.msg);
    *ret_text = text;
    return h;
}

json_t *peer_expect_json(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id)
{
    AUTO_FREE char *text = NULL;
    struct err err = ERR_INIT;
    json_t *json = NULL;
    struct bridge_header h = peer_recv(ctx, s, &text);

    ASSERT_EQ(h.type,
              bridge_kind(type) == BRIDGE_KIND_NOTIFICATION ? type : bridge_response_type(type));
    ASSERT_EQ(h.id, id);
    ASSERT_OK(js_parse(text, strlen(text), BRIDGE_MAX_RESPONSE, &json, &err), err);
    return json;
}

uint32_t peer_expect(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id)
{
    AUTO(json_decref) json_t *json = peer_expect_json(ctx, s, type, id);

    return (uint32_t)json_integer_value(json_object_get(json, "Result"));
}

void peer_expect_end(struct ctx *ctx, struct stream *s)
{
    struct err err = ERR_INIT;
    char byte;
    size_t n = 0;

    if (stream_read(ctx, s, &byte, 1, &n, &err) < 0)
        ASSERT_EQ(err.code, ERR_UNAVAILABLE); /* a reset is an end too */
    ASSERT_EQ(n, 0);
}

void peer_negotiate(struct ctx *ctx, struct stream *s)
{
    peer_send(ctx, s, BRIDGE_NEGOTIATE_PROTOCOL, 0,
              "{\"ContainerId\":\"\",\"ActivityId\":\"" BRIDGE_NULL_ID "\","
              "\"MinimumVersion\":4,\"MaximumVersion\":4}\n");
    ASSERT_EQ(peer_expect(ctx, s, BRIDGE_NEGOTIATE_PROTOCOL, 0), 0);
}
