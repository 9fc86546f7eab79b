#include "base/mem.h"
#include "base/scrub.h"
#include "harness/tap.h"
#include <string.h>

static const char message[] =
    "{\"ContainerId\":\"c1\",\"Settings\":\"{\\\"OciSpecification\\\":{\\\"process\\\":{"
    "\\\"args\\\":"
    "[\\\"sh\\\",\\\"canary\\\"],\\\"env\\\":[\\\"A=canary\\\"],\\\"cwd\\\":\\\"/here\\\"},"
    "\\\"annotations\\\":{\\\"x\\\":\\\"canary\\\"},\\\"mounts\\\":[{\\\"source\\\":\\\"/run/"
    "x\\\"}]}}\","
    "\"ProcessParameters\":{\"CommandLine\":\"canary\",\"Environment\":{\"B\":\"canary\"}},"
    "\"registryAuth\":{\"user\":\"u\",\"x\":\"canary\"},\"EncodedSecurityPolicy\":\"canary\"}";

TEST(secrets_are_removed_also_from_json_inside_of_strings)
{
    AUTO_FREE char *text = scrub_json(message, strlen(message));

    ASSERT(!strstr(text, "canary"));
    ASSERT_HAS(text, SCRUBBED);
    ASSERT_HAS(text, "/here");
    ASSERT_HAS(text, "/run/x");
    ASSERT_HAS(text, "\"ContainerId\":\"c1\"");
}

TEST(a_document_in_a_string_that_cannot_be_read_is_removed_whole)
{
    static const char broken[] = "{\"Settings\":\" {\\\"env\\\": [\\\"A=canary\"}";

    AUTO_FREE char *text = scrub_json(broken, strlen(broken));

    ASSERT(!strstr(text, "canary"));
    ASSERT_HAS(text, SCRUBBED);
}

TEST(text_that_is_not_json_becomes_its_size)
{
    AUTO_FREE char *text = scrub_json("canary", 6);

    ASSERT(!strstr(text, "canary"));
    ASSERT_HAS(text, "6 bytes");
}

TEST(scrubbing_can_be_turned_off)
{
    scrub_set(false);

    AUTO_FREE char *text = scrub_json(message, strlen(message));

    scrub_set(true);
    ASSERT_STR(text, message);
}

TEST(a_long_message_is_cut)
{
    AUTO_FREE char *big = mem_alloc(20000), *text = NULL;

    memset(big, 'a', 20000);
    memcpy(big, "[\"", 2);
    memcpy(big + 19998, "\"]", 2);
    text = scrub_json(big, 20000);
    ASSERT(strlen(text) <= SCRUB_TEXT_MAX);
}
