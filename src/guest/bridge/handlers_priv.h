/* handlers_priv.h - for handlers*.c only. */
#pragma once
#include "guest/bridge/handlers.h"
#include "guest/stdio/dial.h"

/* Errors that have only a number, with the original guest's text. */
int handlers_fail_code(struct err *err, uint32_t hr);
/* Gives an error of another room its HRESULT, and keeps its text. */
int handlers_fail_as(struct err *err, uint32_t hr);
/* Of calls that name a pid. */
int handlers_fail_process(struct err *err);
/* The container that the request names; NULL with its HRESULT. Caller unrefs. */
struct container *handlers_container(const struct handlers *h, const struct server_call *call,
                                     struct err *err);

/* Of containers (handlers_container.c). */
struct stdio_ports handlers_stdio(const struct bridge_exec *e);
int handlers_create(struct ctx *ctx, void *arg, struct server_call *call, struct err *err);
int handlers_exec(struct ctx *ctx, struct handlers *h, struct server_call *call, struct err *err);
int handlers_wait(struct ctx *ctx, struct handlers *h, struct server_call *call, struct err *err);
int handlers_properties(struct ctx *ctx, struct handlers *h, struct server_call *call,
                        struct err *err);
int handlers_stop(struct handlers *h, struct server_call *call, struct err *err);
int handlers_delete(struct ctx *ctx, void *arg, struct server_call *call, struct err *err);
/* ModifySettings (handlers_modify.c). */
int handlers_modify(struct ctx *ctx, void *arg, struct server_call *call, struct err *err);
