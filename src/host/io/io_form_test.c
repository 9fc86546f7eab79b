#include "base/err.h"
#include "harness/tap.h"
#include "host/io/io_priv.h"

#include <string.h>

static void expect(const char *text, enum io_kind kind, const char *path, const char *args)
{
    struct io_form f;
    struct err err = ERR_INIT;
    AUTO(sbuf_release) struct sbuf joined = { 0 };

    ASSERT_OK(io_form_parse(text, &f, &err), err);
    ASSERT_EQ(f.kind, kind);
    if (path)
        ASSERT_STR(f.path, path);
    sbuf_adds(&joined, "");
    for (size_t i = 0; i < f.args.n; i++)
        sbuf_addf(&joined, "[%s]", f.args.v[i]);
    ASSERT_STR(joined.data ? joined.data : "", args);
    io_form_release(&f);
    io_form_release(&f);
}

static void refuse(const char *text, enum err_code code, const char *why)
{
    struct io_form f;
    struct err err = ERR_INIT;

    ASSERT_FAIL(io_form_parse(text, &f, &err), err, code);
    ASSERT_MSG_HAS(err.msg, why);
}

TEST(an_empty_text_means_no_stdio)
{
    expect(NULL, IO_NONE, NULL, "");
    expect("", IO_NONE, NULL, "");
}

TEST(a_plain_path_is_not_decoded)
{
    expect("/run/fifo/1-stdout", IO_PATH, "/run/fifo/1-stdout", "");
    expect("/run/a%20b?c#d://e", IO_PATH, "/run/a%20b?c#d://e", "");
}

TEST(paths_of_uris_are_decoded)
{
    expect("fifo:///run/a%20b", IO_FIFO, "/run/a b", "");
    expect("file:///var/log/x+y.log", IO_FILE, "/var/log/x+y.log", "");
    expect("FILE:///X", IO_FILE, "/X", "");
}

TEST(a_query_becomes_arguments_in_order)
{
    expect("binary:///usr/bin/log?b=2&a=1", IO_BINARY, "/usr/bin/log", "[b][2][a][1]");
    expect("binary-v2:///l?k=v", IO_BINARY2, "/l", "[k][v]");
    expect("binary:///l", IO_BINARY, "/l", "");
    expect("binary:///l?", IO_BINARY, "/l", "");
    expect("binary:///l?&&a&b=&=c&d=e=f#g", IO_BINARY, "/l", "[a][][b][][][c][d][e=f]");
    expect("binary:///l?a=%3d%26+x&a=2", IO_BINARY, "/l", "[a][=& x]");
}

TEST(a_stream_has_a_socket_and_an_id)
{
    expect("ttrpc+unix:///run/s?streaming_id=c1-stdout", IO_STREAM, "/run/s", "[c1-stdout]");
    expect("ttrpc+unix:////run/s?x=y&streaming_id=a%2fb&id=2", IO_STREAM, "//run/s", "[a/b]");
    refuse("ttrpc+unix:///run/s?streaming_id=", ERR_INVALID, "streaming_id is missing");
    refuse("ttrpc+unix:///run/s", ERR_INVALID, "streaming_id is missing");
}

TEST(unknown_schemes_are_refused)
{
    refuse("http:///x", ERR_INVALID, "unknown scheme");
    refuse("npipe:////./pipe/x", ERR_INVALID, "unknown scheme");
    refuse("binary-v3:///x", ERR_INVALID, "unknown scheme");
    refuse("grpc+unix:///run/s?streaming_id=1", ERR_UNIMPLEMENTED, "must be ttrpc+unix://");
}

TEST(a_text_that_is_not_a_path_is_refused)
{
    refuse("stdout", ERR_INVALID, "stdout: must be");
    refuse("./x", ERR_INVALID, "must be an absolute path");
    refuse("file://host/x", ERR_INVALID, "absolute path");
    refuse("file:x", ERR_INVALID, "absolute path");
    refuse("file://", ERR_INVALID, "absolute path");
    refuse("://x", ERR_INVALID, "must be an absolute path");
    refuse(" file:///x", ERR_INVALID, "must be an absolute path");
}

TEST(broken_escapes_are_refused)
{
    refuse("file:///a%", ERR_INVALID, "hex");
    refuse("file:///a%1", ERR_INVALID, "hex");
    refuse("file:///a%zz", ERR_INVALID, "hex");
    refuse("file:///a%00b", ERR_INVALID, "hex");
    refuse("binary:///a?x=%0", ERR_INVALID, "hex");
}

TEST(sizes_are_bounded)
{
    AUTO(sbuf_release) struct sbuf text = { 0 };

    sbuf_adds(&text, "binary:///l?");
    for (int i = 0; i < 300; i++)
        sbuf_addf(&text, "k%d=v&", i);
    refuse(text.data, ERR_INVALID, "the maximum is 256 arguments");
    for (int i = 0; i < 8000; i++)
        sbuf_adds(&text, "0123456789");
    refuse(text.data, ERR_INVALID, "longer than");
}
