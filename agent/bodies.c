/* Content of large files without disk space, a library that is preloaded into servers and clients.
 *
 * The files that an engine sends are sparse. Their time stamp is the share of zeros in percent (0,
 * 25, 50, 75 or 100), in place of a time. When such a file is read, its content is a block of this
 * share, which is repeated: 1,024,000 bytes in the file BROADSIDE_BODIES/<percent>. All other files
 * are read as usual.
 *
 * An upload is written to /dev/null. vsftpd truncates the file of an upload first, so this has no
 * effect for a device.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1024000, STEP_PERCENT = 25, BLOCKS_COUNT = 5 };

static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_sendfile)(int, int, off_t *, size_t);
static int (*real_ftruncate)(int, off_t);
/* A copy, because nginx clears its environment. */
static char *folder;
/* File descriptor + 1 of each block, or 0 if it was not opened yet. */
static atomic_int opened[BLOCKS_COUNT];

/* Other libraries can read files before this constructor is called. */
__attribute__((constructor)) static void set_up(void)
{
    if (real_read != NULL)
        return;
    real_pread = dlsym(RTLD_NEXT, "pread64");
    real_sendfile = dlsym(RTLD_NEXT, "sendfile64");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate64");
    if (getenv("BROADSIDE_BODIES") != NULL)
        folder = strdup(getenv("BROADSIDE_BODIES"));
    real_read = dlsym(RTLD_NEXT, "read");
}

/* Return the block of a sparse file and its size, or -1 for any other file. */
static int block_of(int fd, off_t *size)
{
    struct stat64 known;

    set_up();
    if (folder == NULL || fstat64(fd, &known) != 0 || !S_ISREG(known.st_mode) ||
        known.st_blocks != 0 || known.st_size == 0 || known.st_mtime < 0 ||
        known.st_mtime >= BLOCKS_COUNT * STEP_PERCENT || known.st_mtime % STEP_PERCENT != 0)
        return -1;
    *size = known.st_size;
    atomic_int *place = &opened[known.st_mtime / STEP_PERCENT];
    if (*place == 0) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%d", folder, (int)known.st_mtime);
        *place = open(path, O_RDONLY | O_CLOEXEC) + 1;
    }
    return *place - 1;
}

/* Return how many of `count` bytes can be read from the block at once. */
static size_t part(off_t at, off_t size, size_t count)
{
    off_t left = BLOCK_BYTES - at % BLOCK_BYTES;

    if (at >= size)
        return 0;
    left = left < size - at ? left : size - at;
    return (off_t)count < left ? count : (size_t)left;
}

static ssize_t fill(int block, char *bytes, size_t count, off_t at, off_t size)
{
    size_t done = 0, some;

    while ((some = part(at + done, size, count - done)) > 0) {
        ssize_t got = real_pread(block, bytes + done, some, (at + done) % BLOCK_BYTES);
        if (got <= 0)
            return done > 0 ? (ssize_t)done : got;
        done += got;
    }
    return done;
}

ssize_t pread64(int fd, void *bytes, size_t count, off_t at)
{
    off_t size;
    int block = block_of(fd, &size);

    return block < 0 ? real_pread(fd, bytes, count, at) : fill(block, bytes, count, at, size);
}

ssize_t read(int fd, void *bytes, size_t count)
{
    off_t size;
    int block = block_of(fd, &size);

    if (block < 0)
        return real_read(fd, bytes, count);
    ssize_t got = fill(block, bytes, count, lseek64(fd, 0, SEEK_CUR), size);
    if (got > 0)
        lseek64(fd, got, SEEK_CUR);
    return got;
}

ssize_t sendfile64(int to, int fd, off_t *offset, size_t count)
{
    off_t size;
    int block = block_of(fd, &size);

    if (block < 0)
        return real_sendfile(to, fd, offset, count);
    off_t at = offset != NULL ? *offset : lseek64(fd, 0, SEEK_CUR);
    off_t from = at % BLOCK_BYTES;
    size_t some = part(at, size, count);
    ssize_t sent = some > 0 ? real_sendfile(to, block, &from, some) : 0;
    if (sent > 0 && offset != NULL)
        *offset += sent;
    else if (sent > 0)
        lseek64(fd, sent, SEEK_CUR);
    return sent;
}

int ftruncate64(int fd, off_t length)
{
    struct stat64 known;

    set_up();
    int result = real_ftruncate(fd, length);
    if (result != 0 && errno == EINVAL && fstat64(fd, &known) == 0 && S_ISCHR(known.st_mode))
        return 0;
    return result;
}

ssize_t pread(int fd, void *bytes, size_t count, off_t at)
{
    return pread64(fd, bytes, count, at);
}

ssize_t sendfile(int to, int fd, off_t *offset, size_t count)
{
    return sendfile64(to, fd, offset, count);
}

int ftruncate(int fd, off_t length)
{
    return ftruncate64(fd, length);
}
