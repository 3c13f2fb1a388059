/*
 * Record what a process does to the files of one folder, in order, for p02_power.py.
 *
 * Loaded by LD_PRELOAD. Every call is passed on and then written to a log, both under one mutex, so
 * that the log has the order in which the calls took effect. Shared memory (-shm) is not recorded:
 * it does not outlive a power cut. A write to the file "marks" is logged as a mark, so that what the
 * process says stands in the same order as what it does.
 *
 * A record is a header and `size` bytes of data. What the replay does not know how to undo is logged
 * as '?', and ends the proof instead of weakening it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { MOST_DESCRIPTORS = 4096, MOST_FILES = 256, NONE = 0, FOLDER = -1, MARKS = -2 };

struct header {
    uint32_t kind;
    uint32_t file;
    uint64_t offset;
    uint64_t size;
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static int log_descriptor = -1;
static int file_of[MOST_DESCRIPTORS];
static char *names[MOST_FILES]; /* by file number, from 1; NULL once it is unlinked */
static int files;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

__attribute__((constructor)) static void begin(void)
{
    const char *log = getenv("RECORDER_LOG");
    folder = getenv("RECORDER_FOLDER");
    if (folder && log)
        log_descriptor = REAL(open)(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    /* Processes that this one starts are not of interest. */
    unsetenv("LD_PRELOAD");
}

static void record(char kind, int file, uint64_t offset, const void *data, size_t size)
{
    struct header header = {(uint32_t)kind, (uint32_t)file, offset, size};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)data, size}};
    if (writev(log_descriptor, parts, 2) != (ssize_t)(sizeof header + size))
        abort(); /* a log with a hole would prove nothing */
}

/* Return the name inside the folder, "" for the folder itself, or NULL for what lies elsewhere. */
static const char *inside(const char *path)
{
    size_t length;
    if (log_descriptor < 0 || !path)
        return NULL;
    length = strlen(folder);
    if (strncmp(path, folder, length) != 0)
        return NULL;
    if (path[length] == '\0')
        return "";
    return path[length] == '/' ? path + length + 1 : NULL;
}

static int is_shared_memory(const char *name)
{
    size_t length = strlen(name);
    return length > 4 && strcmp(name + length - 4, "-shm") == 0;
}

static int number_of(const char *name)
{
    for (int file = 1; file <= files; file++)
        if (names[file] && strcmp(names[file], name) == 0)
            return file;
    if (files + 1 >= MOST_FILES)
        abort();
    names[++files] = strdup(name);
    record('c', files, 0, name, strlen(name));
    return files;
}

static int opened(int descriptor, const char *path, int flags)
{
    const char *name = inside(path);
    if (descriptor < 0 || !name || is_shared_memory(name))
        return descriptor;
    if (descriptor >= MOST_DESCRIPTORS)
        abort();
    if (*name == '\0') {
        file_of[descriptor] = FOLDER;
    } else if (strcmp(name, "marks") == 0) {
        file_of[descriptor] = MARKS;
    } else {
        file_of[descriptor] = number_of(name);
        if (flags & O_TRUNC)
            record('t', file_of[descriptor], 0, NULL, 0);
    }
    return descriptor;
}

static int tracked(int descriptor)
{
    return descriptor >= 0 && descriptor < MOST_DESCRIPTORS ? file_of[descriptor] : NONE;
}

static void wrote(int descriptor, const void *data, ssize_t size, off_t offset)
{
    int file = tracked(descriptor);
    int error = errno;
    if (file == MARKS && size > 0)
        record('m', 0, 0, data, (size_t)size);
    else if (file > 0 && size > 0)
        record('w', file, (uint64_t)offset, data, (size_t)size);
    errno = error;
}

static void synced(int descriptor, int result)
{
    int file = tracked(descriptor);
    if (result == 0 && file == FOLDER)
        record('d', 0, 0, NULL, 0);
    else if (result == 0 && file > 0)
        record('s', file, 0, NULL, 0);
}

static void unforeseen(const char *call)
{
    record('?', 0, 0, call, strlen(call));
}

#define LOCKED(type, call, then)       \
    do {                               \
        type result;                   \
        pthread_mutex_lock(&mutex);    \
        result = call;                 \
        then;                          \
        pthread_mutex_unlock(&mutex);  \
        return result;                 \
    } while (0)

#define MODE(flags, mode)                                             \
    mode_t mode = 0;                                                  \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {    \
        va_list rest;                                                 \
        va_start(rest, flags);                                        \
        mode = (mode_t)va_arg(rest, int);                             \
        va_end(rest);                                                 \
    }

int open(const char *path, int flags, ...)
{
    MODE(flags, mode)
    LOCKED(int, REAL(open)(path, flags, mode), opened(result, path, flags));
}

int open64(const char *path, int flags, ...)
{
    MODE(flags, mode)
    LOCKED(int, REAL(open64)(path, flags, mode), opened(result, path, flags));
}

int openat(int at, const char *path, int flags, ...)
{
    MODE(flags, mode)
    LOCKED(int, REAL(openat)(at, path, flags, mode), opened(result, path, flags));
}

int openat64(int at, const char *path, int flags, ...)
{
    MODE(flags, mode)
    LOCKED(int, REAL(openat64)(at, path, flags, mode), opened(result, path, flags));
}

int close(int descriptor)
{
    int known = tracked(descriptor);
    if (known != NONE)
        file_of[descriptor] = NONE;
    return REAL(close)(descriptor);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset)
{
    LOCKED(ssize_t, REAL(pwrite)(descriptor, data, size, offset),
           wrote(descriptor, data, result, offset));
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t offset)
{
    LOCKED(ssize_t, REAL(pwrite64)(descriptor, data, size, offset),
           wrote(descriptor, data, result, offset));
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    if (tracked(descriptor) == NONE)
        return REAL(write)(descriptor, data, size);
    LOCKED(ssize_t, REAL(write)(descriptor, data, size),
           wrote(descriptor, data, result, lseek(descriptor, 0, SEEK_CUR) - result));
}

int ftruncate(int descriptor, off_t size)
{
    LOCKED(int, REAL(ftruncate)(descriptor, size),
           if (result == 0 && tracked(descriptor) > 0)
               record('t', tracked(descriptor), (uint64_t)size, NULL, 0));
}

int ftruncate64(int descriptor, off64_t size)
{
    LOCKED(int, REAL(ftruncate64)(descriptor, size),
           if (result == 0 && tracked(descriptor) > 0)
               record('t', tracked(descriptor), (uint64_t)size, NULL, 0));
}

int fsync(int descriptor)
{
    LOCKED(int, REAL(fsync)(descriptor), synced(descriptor, result));
}

int fdatasync(int descriptor)
{
    LOCKED(int, REAL(fdatasync)(descriptor), synced(descriptor, result));
}

static void unlinked(const char *path, int result)
{
    const char *name = inside(path);
    if (result != 0 || !name)
        return;
    for (int file = 1; file <= files; file++) {
        if (names[file] && strcmp(names[file], name) == 0) {
            record('u', file, 0, NULL, 0);
            free(names[file]);
            names[file] = NULL;
        }
    }
}

int unlink(const char *path)
{
    LOCKED(int, REAL(unlink)(path), unlinked(path, result));
}

int rename(const char *from, const char *to)
{
    LOCKED(int, REAL(rename)(from, to),
           if (inside(from) || inside(to)) unforeseen("rename"));
}

int truncate(const char *path, off_t size)
{
    LOCKED(int, REAL(truncate)(path, size), if (inside(path)) unforeseen("truncate"));
}

int fallocate(int descriptor, int mode, off_t offset, off_t size)
{
    LOCKED(int, REAL(fallocate)(descriptor, mode, offset, size),
           if (tracked(descriptor) > 0) unforeseen("fallocate"));
}

int fallocate64(int descriptor, int mode, off64_t offset, off64_t size)
{
    LOCKED(int, REAL(fallocate64)(descriptor, mode, offset, size),
           if (tracked(descriptor) > 0) unforeseen("fallocate64"));
}

int posix_fallocate(int descriptor, off_t offset, off_t size)
{
    LOCKED(int, REAL(posix_fallocate)(descriptor, offset, size),
           if (tracked(descriptor) > 0) unforeseen("posix_fallocate"));
}

int posix_fallocate64(int descriptor, off64_t offset, off64_t size)
{
    LOCKED(int, REAL(posix_fallocate64)(descriptor, offset, size),
           if (tracked(descriptor) > 0) unforeseen("posix_fallocate64"));
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset)
{
    LOCKED(ssize_t, REAL(pwritev)(descriptor, parts, count, offset),
           if (tracked(descriptor) > 0) unforeseen("pwritev"));
}
