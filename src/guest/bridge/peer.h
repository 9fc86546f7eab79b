/* peer.h - for tests: the host's end of a bridge, one frame at a time. */
#pragma once
#include "proto/bridge.h"
#include <jansson.h>
#include <stdint.h>

struct ctx;
struct dial_pair;
struct stream;

/* All of these fail the running test when something goes wrong. */

/* Accepts the guest's dial of PORT_BRIDGE. Caller frees the stream. */
struct stream *peer_accept(struct ctx *ctx, struct dial_pair *p);
void peer_send_raw(struct ctx *ctx, struct stream *s, const void *data, size_t len);
void peer_send(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id, const char *json);
/* The next frame's header; its payload as text, caller frees. */
struct bridge_header peer_recv(struct ctx *ctx, struct stream *s, char **ret_text);
/* The next frame must be this one; gives its result (HRESULT as unsigned). */
uint32_t peer_expect(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id);
/* The same, with the payload. Caller decrefs. */
json_t *peer_expect_json(struct ctx *ctx, struct stream *s, uint32_t type, uint64_t id);
/* The guest closes the connection. */
void peer_expect_end(struct ctx *ctx, struct stream *s);
/* Sends NegotiateProtocol as id 0 and takes its success. */
void peer_negotiate(struct ctx *ctx, struct stream *s);
