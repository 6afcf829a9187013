/* A path with a delay, for kernels without netem: frames go from one tap to the other, each way,
 * a fixed time after they came in. Or a firewall's inspection: every byte of them is read so often.
 *
 *   delay FD FD MICROSECONDS [TIMES]     two open tap descriptors, frames without packet information
 *
 * One queue a direction, in order; a full one drops the newest frame, as a full link would. The
 * frames of a queue are one delay apart at most, so 32,768 frames carry 1,500-byte frames of
 * 98 Gbit/s x ms.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { FRAMES_MAX = 32768, FRAME_BYTES = 9300, READS_MAX = 64 };
#define SECOND_NS 1000000000LL

struct frame {
    long long due_ns;
    int bytes;
    char *data;
};

struct queue {
    struct frame frames[FRAMES_MAX];
    unsigned head, tail; /* frames are head..tail-1, modulo FRAMES_MAX */
};

static struct queue queues[2];
static char spare[FRAME_BYTES];
static volatile unsigned seen; /* so that no compiler leaves the reading out */

static long long now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

/* Send what is due; return the time until the next frame is, at most a second. */
static long long send_due(struct queue *queue, int to) {
    long long now = now_ns();
    for (; queue->head != queue->tail; queue->head++) {
        struct frame *frame = &queue->frames[queue->head % FRAMES_MAX];
        if (frame->due_ns > now)
            return frame->due_ns - now < SECOND_NS ? frame->due_ns - now : SECOND_NS - 1;
        if (write(to, frame->data, frame->bytes) < 0 && errno != EAGAIN && errno != EIO)
            exit(1); /* the tap is gone */
    }
    return SECOND_NS - 1;
}

/* Read every byte so many times, by FNV-1a: a fixed work a byte, of the process's own CPU. */
static void inspect(const char *data, int bytes, int times) {
    unsigned hash = 2166136261u;
    while (times-- > 0)
        for (int place = 0; place < bytes; place++)
            hash = (hash ^ (unsigned char)data[place]) * 16777619u;
    seen = hash;
}

/* Take in what has come, a bounded number at a time so that the other direction gets its turn. */
static void take_in(struct queue *queue, int from, long long delay_ns, int times) {
    for (int reads = 0; reads < READS_MAX; reads++) {
        struct frame *frame = &queue->frames[queue->tail % FRAMES_MAX];
        int full = queue->tail - queue->head >= FRAMES_MAX;
        if (!full && !frame->data && !(frame->data = malloc(FRAME_BYTES)))
            exit(1);
        int bytes = read(from, full ? spare : frame->data, FRAME_BYTES);
        if (bytes <= 0)
            return;
        if (full)
            continue;
        inspect(frame->data, bytes, times);
        frame->bytes = bytes;
        frame->due_ns = now_ns() + delay_ns;
        queue->tail++;
    }
}

int main(int count, char **arguments) {
    if (count != 4 && count != 5)
        return 2;
    int taps[2] = {atoi(arguments[1]), atoi(arguments[2])};
    long long delay_ns = atoll(arguments[3]) * 1000;
    int times = count == 5 ? atoi(arguments[4]) : 0;
    for (;;) {
        long long wait_ns = SECOND_NS - 1;
        for (int way = 0; way < 2; way++) {
            long long next_ns = send_due(&queues[way], taps[1 - way]);
            wait_ns = next_ns < wait_ns ? next_ns : wait_ns;
        }
        struct pollfd ready[2] = {{taps[0], POLLIN, 0}, {taps[1], POLLIN, 0}};
        struct timespec wait = {0, wait_ns};
        if (ppoll(ready, 2, &wait, NULL) < 0 && errno != EINTR)
            return 1;
        for (int way = 0; way < 2; way++) {
            if (ready[way].revents & (POLLERR | POLLHUP | POLLNVAL))
                return 1;
            if (ready[way].revents & POLLIN)
                take_in(&queues[way], taps[way], delay_ns, times);
        }
    }
}
