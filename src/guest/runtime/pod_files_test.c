#include "base/str.h"
#include "guest/runtime/pod_files.h"
#include "harness/tap.h"
#include <string.h>

TEST(host_names_have_plain_characters)
{
    char name[257];
    struct err err = ERR_INIT;

    ASSERT_OK(pod_files_check_hostname("", &err), err);
    ASSERT_OK(pod_files_check_hostname("Pod_0.x-y", &err), err);
    ASSERT_FAIL(pod_files_check_hostname("a b", &err), err, ERR_INVALID);
    ASSERT_FAIL(pod_files_check_hostname("a\n127.0.0.1 b", &err), err, ERR_INVALID);
    memset(name, 'a', sizeof(name));
    name[256] = '\0';
    ASSERT_FAIL(pod_files_check_hostname(name, &err), err, ERR_INVALID);
    name[255] = '\0';
    ASSERT_OK(pod_files_check_hostname(name, &err), err);
}

TEST(hosts_knows_the_name_and_its_short_form)
{
    AUTO_FREE char *plain = pod_files_hosts("pod0"), *dotted = pod_files_hosts("pod0.example.org"),
                   *none = pod_files_hosts("");

    ASSERT_HAS(plain, "127.0.0.1 localhost\n127.0.0.1 pod0\n\n");
    ASSERT_HAS(dotted, "\n127.0.0.1 pod0.example.org pod0\n");
    ASSERT_HAS(none, "127.0.0.1 localhost\n\n");
    ASSERT_HAS(plain, "::1 ip6-localhost ip6-loopback\nfe00::0 ip6-localnet\n");
    ASSERT_HAS(plain, "ff02::2 ip6-allrouters\n");
}

TEST(resolv_is_trimmed_lower_case_and_unique)
{
    AUTO_FREE char *text = NULL, *none = NULL;
    struct err err = ERR_INIT;

    ASSERT_OK(
        pod_files_resolv(" B.Example, a,b.example ,,", "10.0.0.1, 10.0.0.2,10.0.0.1", &text, &err),
        err);
    ASSERT_STR(text, "search b.example a\nnameserver 10.0.0.1\nnameserver 10.0.0.2\n");
    ASSERT_OK(pod_files_resolv("", "", &none, &err), err);
    ASSERT_STR(none, "");
}

TEST(resolv_refuses_what_would_make_another_line)
{
    char *text = NULL;
    struct err err = ERR_INIT;

    ASSERT_FAIL(pod_files_resolv("a\nnameserver 6.6.6.6", "", &text, &err), err, ERR_INVALID);
    ASSERT_FAIL(pod_files_resolv("", "1.1.1.1 x", &text, &err), err, ERR_INVALID);
    ASSERT_FAIL(pod_files_resolv("a,b,c,d,e,f,g", "", &text, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "at most 6");
    ASSERT(!text);
}

TEST(a_whole_resolv_conf_is_lines_of_text)
{
    struct err err = ERR_INIT;

    ASSERT_OK(pod_files_check_resolv("search a b\nnameserver ::1\noptions\tndots:5\n", &err), err);
    ASSERT_FAIL(pod_files_check_resolv("search a\r\n", &err), err, ERR_INVALID);
    AUTO_FREE char *much = str_format("%20000s", "x");
    ASSERT_FAIL(pod_files_check_resolv(much, &err), err, ERR_INVALID);
    ASSERT_MSG_HAS(err.msg, "16384 bytes");
}
