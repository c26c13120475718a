/* Loaded into a test's server: while the file FULL_DISK_FLAG exists, its tables cannot grow. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_full(int fd, off_t end)
{
    const char *flag = getenv("FULL_DISK_FLAG");
    char link[64], path[4096];
    struct stat status;
    ssize_t length;

    if (flag == NULL || access(flag, F_OK) != 0) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strstr(path, "/base/") != NULL && fstat(fd, &status) == 0 && end > status.st_size;
}

int posix_fallocate(int fd, off_t offset, off_t length)
{
    static int (*real)(int, off_t, off_t);
    if (real == NULL) real = dlsym(RTLD_NEXT, "posix_fallocate");
    return is_full(fd, offset + length) ? ENOSPC : real(fd, offset, length);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    static ssize_t (*real)(int, const void *, size_t, off_t);
    if (real == NULL) real = dlsym(RTLD_NEXT, "pwrite");
    if (is_full(fd, offset + (off_t)size)) { errno = ENOSPC; return -1; }
    return real(fd, data, size, offset);
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset)
{
    static ssize_t (*real)(int, const struct iovec *, int, off_t);
    off_t end = offset;
    if (real == NULL) real = dlsym(RTLD_NEXT, "pwritev");
    for (int i = 0; i < count; i++) end += (off_t)parts[i].iov_len;
    if (is_full(fd, end)) { errno = ENOSPC; return -1; }
    return real(fd, parts, count, offset);
}
