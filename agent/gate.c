/* The start gate: preloaded into an iperf3 client, holds its test back until one instant.
 *
 * iperf3 opens one control connection, then one a stream, each with a first write (TCP: its
 * cookie; UDP: a hello). The server starts when it has read the last of these, and tells the
 * client with a TEST_START byte. So there are two places to hold:
 *
 *   1. The first write on the last stream's socket. Every connection stands by then; nobody's
 *      clock runs yet. Released a settling time before the instant, or at it.
 *   2. The TEST_START byte, as it comes in, until the instant: the server is ready and only this
 *      client's sending is missing. Where the server sends (reverse, bidirectional) this would
 *      hold one end only, so these settle for no time, and the first place releases.
 *
 * A server waits 10 s for a cookie, so the first hold must be shorter.
 *
 * Of many clients that a host releases at one instant the first would fill its buffers before the
 * last had a turn. So a held client wakes with real-time priority, where the host allows that
 * (RLIMIT_RTPRIO). In the second place each sending thread keeps it until its first write; not in
 * the first one, where iperf3 before 3.16 asks without a pause whether the server has started.
 *
 * Environment (gate.py sets it; without BROADSIDE_GATE_AT nothing happens):
 *   BROADSIDE_GATE_AT        the instant, epoch s
 *   BROADSIDE_GATE_CONNECTS  connections in all, control included; without it only place 2 holds
 *   BROADSIDE_GATE_SETTLE    s between the first release and the instant; 0 or unset: none
 *   BROADSIDE_GATE_PROBE     say so on the first connection: proves that the gate takes hold here
 *
 * What it did goes to standard error, a line each:
 *   broadside-gate: armed <epoch s>
 *   broadside-gate: released <epoch s> started <epoch s at which the server's clock ran, or 0>
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { TEST_START = 1 };

static int (*real_connect)(int, const struct sockaddr *, socklen_t);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_write)(int, const void *, size_t);

static double at_s, settle_s;
static int connects_expected, connects_seen;
static int control_fd = -1; /* -1 once there is nothing left to hold there */
static int last_fd = -1;
static int probing;

static bool urgent; /* real-time, as are the threads that it starts */
static int usual_policy;
static atomic_bool unsent[FD_SETSIZE]; /* by stream: no data yet; select() takes no higher one */
static atomic_int unsent_count;

static double number(const char *name)
{
    const char *text = getenv(name);
    return text ? strtod(text, NULL) : 0.0;
}

__attribute__((constructor)) static void set_up(void)
{
    real_connect = dlsym(RTLD_NEXT, "connect");
    real_read = dlsym(RTLD_NEXT, "read");
    real_write = dlsym(RTLD_NEXT, "write");
    at_s = number("BROADSIDE_GATE_AT");
    settle_s = number("BROADSIDE_GATE_SETTLE");
    connects_expected = (int)number("BROADSIDE_GATE_CONNECTS");
    probing = getenv("BROADSIDE_GATE_PROBE") != NULL;
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Absolute and on the real-time clock, so that a clock step moves the wait with it. */
static void hold_until(double epoch_s)
{
    struct timespec until = {(time_t)epoch_s, (long)((epoch_s - (double)(time_t)epoch_s) * 1e9)};
    while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

static bool may_be_stream(int fd)
{
    return fd >= 0 && fd < FD_SETSIZE;
}

static void hurry(void)
{
    struct sched_param lowest = {.sched_priority = 1};
    usual_policy = sched_getscheduler(0);
    if (usual_policy != SCHED_FIFO && usual_policy != SCHED_RR)
        urgent = sched_setscheduler(0, SCHED_FIFO, &lowest) == 0;
}

static void calm_down(pid_t thread)
{
    struct sched_param none = {0};
    sched_setscheduler(thread, usual_policy, &none);
}

/* Whether the server has also said that the test runs, so that nothing is left to wait for. */
static bool is_running(void)
{
    char word;
    return recv(control_fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) == sizeof word;
}

static void release(double started_s)
{
    hurry();
    hold_until(at_s);
    if (urgent && !(settle_s > 0 && started_s > 0 && is_running())) {
        urgent = false;
        calm_down(0);
    }
    control_fd = -1;
    dprintf(STDERR_FILENO, "broadside-gate: released %.6f started %.6f\n", now_s(), started_s);
}

/* The control connection is silent during a test, and cloud firewalls forget it after four minutes.
 * Before 3.19 iperf3 has no option against that. */
static void keep_alive(int fd)
{
    int on = 1, idle_s = 60, interval_s = 10, probes = 5;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

int connect(int fd, const struct sockaddr *address, socklen_t length)
{
    if (!real_connect)
        set_up();
    if (address && (address->sa_family == AF_INET || address->sa_family == AF_INET6)) {
        if (probing) {
            probing = 0;
            dprintf(STDERR_FILENO, "broadside-gate: probed\n");
        }
        if (at_s > 0 && ++connects_seen == 1) {
            control_fd = fd;
            keep_alive(fd);
        } else if (at_s > 0) {
            if (may_be_stream(fd)) {
                unsent[fd] = true;
                unsent_count++;
            }
            if (connects_seen == connects_expected)
                last_fd = fd;
        }
    }
    return real_connect(fd, address, length);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (!real_write)
        set_up();
    if (fd == last_fd && fd != -1) {
        last_fd = -1;
        dprintf(STDERR_FILENO, "broadside-gate: armed %.6f\n", now_s());
        if (settle_s > 0)
            hold_until(at_s - settle_s);
        else
            release(0.0);
    } else if (urgent && unsent_count > 0 && may_be_stream(fd)
               && atomic_exchange(&unsent[fd], false)) {
        ssize_t wrote = real_write(fd, bytes, count);
        calm_down(0);
        if (atomic_fetch_sub(&unsent_count, 1) == 1)
            calm_down(getpid()); /* iperf3's main thread, which has started all of them */
        return wrote;
    }
    return real_write(fd, bytes, count);
}

ssize_t read(int fd, void *bytes, size_t count)
{
    if (!real_read)
        set_up();
    ssize_t got = real_read(fd, bytes, count);
    if (fd == control_fd && fd != -1 && count == 1 && got == 1 && *(signed char *)bytes == TEST_START)
        release(now_s());
    return got;
}
