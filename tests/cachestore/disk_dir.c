/* A directory for the disk tier, and children to kill (see disk_dir.h). */
#include "tests/cachestore/disk_dir.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

char disk_dir[256];

void disk_dir_make(void)
{
    const char *tmp = getenv("TMPDIR");
    snprintf(disk_dir, sizeof disk_dir, "%s/store-test-XXXXXX", tmp ? tmp : "/tmp");
    assert_non_null(mkdtemp(disk_dir));
}

void disk_dir_remove_tree(const char *path)
{
    DIR *d = opendir(path);
    if (!d) {
        unlink(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char inner[1024];
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        disk_dir_remove_tree(inner);
    }
    closedir(d);
    rmdir(path);
}

void disk_dir_remove(void)
{
    disk_dir_remove_tree(disk_dir);
}

pid_t disk_child_start(const char *what, uint32_t number, int fd)
{
    char number_text[16], fd_text[16];
    snprintf(number_text, sizeof number_text, "%u", number);
    snprintf(fd_text, sizeof fd_text, "%d", fd);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "child", what, disk_dir, number_text, fd_text, (char *)NULL);
        _exit(127);
    }
    return pid;
}

const char *disk_child_is(int argc, char **argv, uint32_t *number, int *fd)
{
    if (argc != 5)
        return NULL;
    snprintf(disk_dir, sizeof disk_dir, "%s", argv[2]);
    *number = (uint32_t)strtoul(argv[3], NULL, 10);
    *fd = atoi(argv[4]);
    return argv[1];
}

uint32_t disk_child_kill(const char *what, uint32_t first, uint32_t kill_after)
{
    int fds[2];
    assert_int_equal(pipe(fds), 0);
    pid_t pid = disk_child_start(what, first, fds[1]);
    close(fds[1]);
    uint32_t last = 0, k;
    for (uint32_t i = 0; i < kill_after; i++)
        if (read(fds[0], &k, sizeof k) == sizeof k)
            last = k;
    kill(pid, SIGKILL);
    int status;
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL); /* it had found nothing wrong */
    while (read(fds[0], &k, sizeof k) == sizeof k)
        last = k;
    close(fds[0]);
    assert_true(last > 0);
    return last;
}
