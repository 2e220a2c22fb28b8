/* See catalog_ahead.h. */
#include "cachestore/catalog_ahead.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cachestore/list.h"

enum { STEP_BYTES = 4 << 20, NAME_BYTES = 32 };

struct catalog_ahead {
    pthread_t thread;
    atomic_bool stop;
    int folder_fd;
    char (*names)[NAME_BYTES];
    size_t n_names, names_room;
};

static void file_read_ahead(struct catalog_ahead *a, const char *name)
{
    int fd = openat(a->folder_fd, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    struct stat st;
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        for (off_t at = 0; at < st.st_size && !atomic_load(&a->stop); at += STEP_BYTES)
            (void)readahead(fd, at, STEP_BYTES);
    }
    if (fd >= 0)
        close(fd);
}

static void *ahead_main(void *arg)
{
    struct catalog_ahead *a = arg;
    for (size_t i = 0; i < a->n_names && !atomic_load(&a->stop); i++)
        file_read_ahead(a, a->names[i]);
    return NULL;
}

/* Names begin with a number that counts up; a longer one is higher. */
static int newest_first(const void *a, const void *b)
{
    size_t len_a = strlen(a), len_b = strlen(b);
    return len_a != len_b ? (len_a < len_b ? 1 : -1) : strcmp(b, a);
}

static void names_read(struct catalog_ahead *a)
{
    int fd = openat(a->folder_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *d = fd >= 0 ? fdopendir(fd) : NULL;
    if (d == NULL) {
        if (fd >= 0)
            close(fd);
        return;
    }
    const struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        size_t len = strlen(e->d_name);
        if (len >= NAME_BYTES || e->d_name[0] < '0' || e->d_name[0] > '9')
            continue;
        if (!list_reserve((void **)&a->names, &a->names_room, a->n_names, sizeof *a->names))
            break;
        memcpy(a->names[a->n_names++], e->d_name, len + 1);
    }
    closedir(d);
    if (a->n_names > 0)
        qsort(a->names, a->n_names, sizeof *a->names, newest_first);
}

struct catalog_ahead *catalog_ahead_start(int dir_fd)
{
    struct catalog_ahead *a = calloc(1, sizeof *a);
    if (a == NULL)
        return NULL;
    a->folder_fd = openat(dir_fd, "catalog", O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (a->folder_fd >= 0)
        names_read(a);
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are for the application's threads */
    bool runs = a->n_names > 0 && pthread_create(&a->thread, NULL, ahead_main, a) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (runs)
        return a;
    if (a->folder_fd >= 0)
        close(a->folder_fd);
    free(a->names);
    free(a);
    return NULL;
}

void catalog_ahead_stop(struct catalog_ahead *a)
{
    if (a == NULL)
        return;
    atomic_store(&a->stop, true);
    pthread_join(a->thread, NULL);
    close(a->folder_fd);
    free(a->names);
    free(a);
}
