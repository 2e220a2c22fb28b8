/* The engine's end over a disk that does not answer: it comes back, says so and has freed nothing. */
#include "rig.h"
#include "tests/support/stuck_writes.h"

#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 300, SAID = 1, UNSAID = 2, CLOSED = 3 };

static bool said;

static void listen(void *ctx, enum cs_log_level level, const char *line)
{
    (void)ctx;
    said = said || (level == CS_LOG_WARN && strstr(line, "does not answer") && strstr(line, "pending"));
}

/* In a process of its own, because it ends as such an engine has to: with _exit. */
static void child_main(void)
{
    struct eng_config c = rig_config("qwen2-q8_0", 200);
    c.disk_dir = rig_test_folder;
    c.disk_bytes = 64 << 20;
    c.disk_io = CS_IO_PREAD;
    c.log = listen;
    struct rig_options o = rig_defaults();
    struct rig_call call;
    struct eng_engine *e = rig_open(&c);
    stuck_writes(true);
    uint32_t *ids = rig_ids(1, PROMPT);
    rig_run(e, ids, PROMPT, &o, &call);
    stuck_wait();
    int rc = eng_engine_close(e, 100);
    _exit(rc != ENG_EIO ? CLOSED : said ? SAID : UNSAID);
}

static void an_engine_ends_without_its_disk(void **state)
{
    (void)state;
    int status;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        child_main();
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), SAID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_engine_ends_without_its_disk, rig_make_folder, rig_drop_folder),
    };
    return cmocka_run_group_tests_name("close", tests, NULL, NULL);
}
