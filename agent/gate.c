/* The start gate: preloaded into an iperf3 client, it holds the test back until one instant.
 *
 * iperf3 opens one control connection, then one a stream, each with a first write (TCP: its
 * cookie; UDP: a hello). The server starts its test when it has read the last of these, and sends
 * the client a TEST_START byte. So there are two places to hold:
 *
 *   1. The first write on the last stream's socket. All connections are open by then, and no clock
 *      runs yet. Released a settling time before the instant, or at it.
 *   2. The TEST_START byte, as it comes in, until the instant: the server is ready and only this
 *      client's sending is missing. Where the server sends (reverse, bidirectional) this would
 *      hold one end only, so these settle for no time, and the first place releases.
 *
 * The server's readings count from its own start. The settling time is therefore one whole reading
 * of the server (gate.py), and the first place releases half a round trip earlier, so that the
 * server's readings begin at whole seconds from the instant.
 *
 * A server from 3.16 to 3.19 that waited long for its client ends a test without data in its first
 * reading. A server with this gate does not (QUIET_MAX_S). For one without it one byte is sent
 * ahead, while the server settles: of TCP the first byte of the first write, of UDP a datagram with
 * sequence number 0, which counts as no packet. On a busy host that byte may come too late.
 *
 * UDP: iperf3 sends each stream's hello once, and waits 30 s for one reply. Either may be lost. The
 * gate sends the hello again. A copy that the server does not need is read as data later, so
 * copies are valid datagrams with sequence number 0. The server answers once only: after
 * HELLOS_COUNT copies without an answer the reply is taken to be lost, and iperf3 is given one.
 * Whether the server has all streams shows at TEST_START: until it comes, unanswered streams are
 * sent copies, and after OPENING_MAX_S the test is given up.
 *
 * A server waits 10 s for a cookie, so the first hold must be shorter.
 *
 * Of many clients that a host releases at one instant the first would fill its buffers before the
 * last had a turn. So a held client wakes with real-time priority, where the host allows that
 * (RLIMIT_RTPRIO). In the second place each sending thread keeps it until its first write; not in
 * the first one, where iperf3 before 3.16 asks without a pause whether the server has started.
 *
 * In a server (BROADSIDE_GATE_SERVES) it holds nothing: it prints when the server's clock starts,
 * and lets it wait for the first data.
 *
 * At both ends: iperf3 from 3.16 on receives whole blocks, and counts nothing of a block before its
 * last byte has come. At the end of a reading each stream has up to a block (128 KiB) that is
 * received and not counted. So a short read ends its block here.
 *
 * Environment (gate.py sets it; without BROADSIDE_GATE_AT or _SERVES nothing happens):
 *   BROADSIDE_GATE_AT        the instant, epoch s
 *   BROADSIDE_GATE_CONNECTS  connections in all, control included; without it only place 2 holds
 *   BROADSIDE_GATE_SETTLE    s between the server's start and the instant; 0 or unset: none
 *   BROADSIDE_GATE_SERVES    this is a server
 *   BROADSIDE_GATE_PROBE     say so on the first connection: proves that the gate takes hold here
 *
 * What it did goes to standard error, a line each:
 *   broadside-gate: armed <epoch s>
 *   broadside-gate: unanswered <streams without a reply> of <streams opened>
 *   broadside-gate: released <epoch s> started <epoch s at which the server's clock ran, or 0>
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    TEST_START = 1,
    HELLOS_COUNT = 6, /* 5 % loss: all of them are lost once in 64 million streams */
    SILENT_COUNT = 3, /* first streams without any reply: not loss, the path is closed */
    WAIT_MIN_MS = 50, /* for a reply: a busy host's turn; three round trips where that is more */
};
#define OPENING_MAX_S 3.0 /* after the release: the server has all streams, or never will */
#define QUIET_MAX_S 5.0 /* after its start, in which a server waits for data whatever its age */
#define UDP_REPLY 0x39383736u /* iperf.h, UDP_CONNECT_REPLY */

static int (*real_connect)(int, const struct sockaddr *, socklen_t);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_recv)(int, void *, size_t, int);
static int (*real_select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
static ssize_t (*real_write)(int, const void *, size_t);

static double at_s, settle_s;
static int connects_expected, connects_seen;
static int control_fd = -1; /* -1 once there is nothing left to hold there */
static int last_fd = -1;
static int final_fd = -1; /* the last stream's, also after its first write */
static int ahead_fd = -1; /* the stream whose first byte was sent ahead */
static int probing, serving;
static double server_started_s; /* epoch s of a server's TEST_START; 0: none yet */

static bool opening[FD_SETSIZE]; /* a UDP stream that waits for the server's reply */
static bool unanswered[FD_SETSIZE]; /* one that was given a reply which did not come */
static int streams_count, answered_count, unanswered_count;
static double released_s; /* epoch s at which the last stream's first write went */

static bool receiving; /* the test runs */
static int talking_fd = -1; /* the control connection meanwhile; its messages are read whole */
static bool was_short[FD_SETSIZE]; /* by stream: the last read gave less than was asked for */

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
    real_recv = dlsym(RTLD_NEXT, "recv");
    real_select = dlsym(RTLD_NEXT, "select");
    real_write = dlsym(RTLD_NEXT, "write");
    at_s = number("BROADSIDE_GATE_AT");
    settle_s = number("BROADSIDE_GATE_SETTLE");
    connects_expected = (int)number("BROADSIDE_GATE_CONNECTS");
    probing = getenv("BROADSIDE_GATE_PROBE") != NULL;
    serving = getenv("BROADSIDE_GATE_SERVES") != NULL;
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

/* The least round trip that the control connection has seen. */
static double round_trip_s(void)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;
    if (control_fd < 0 || getsockopt(control_fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return 0.0;
    bool has_least = length >= offsetof(struct tcp_info, tcpi_min_rtt) + sizeof info.tcpi_min_rtt;
    uint32_t least_us = has_least && info.tcpi_min_rtt != UINT32_MAX ? info.tcpi_min_rtt : 0;
    double found_s = (least_us ? least_us : info.tcpi_rtt) / 1e6;
    return found_s < 1.0 ? found_s : 1.0;
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
    return real_recv(control_fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) == sizeof word;
}

/* In the second place, or where the server's clock starts with the test, as that is read. */
static void say_released(double started_s)
{
    control_fd = -1;
    if (streams_count > 0)
        dprintf(STDERR_FILENO, "broadside-gate: unanswered %d of %d\n", unanswered_count,
                streams_count);
    dprintf(STDERR_FILENO, "broadside-gate: released %.6f started %.6f\n", now_s(), started_s);
}

static void hold_client(double until_s, double started_s)
{
    hurry();
    hold_until(until_s);
    if (urgent && !(started_s > 0 && is_running())) {
        urgent = false;
        calm_down(0);
    }
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

static bool is_socket(int fd, int wanted)
{
    int kind = 0;
    socklen_t length = sizeof kind;
    return getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &length) == 0 && kind == wanted;
}

/* Whether iperf3 asks for the rest of a block that a short read has ended. */
static bool ends_block(int fd)
{
    if (!receiving || !may_be_stream(fd) || !was_short[fd])
        return false;
    was_short[fd] = false;
    errno = EAGAIN;
    return true;
}

static ssize_t received(int fd, ssize_t got, size_t asked)
{
    if (receiving && got > 0 && (size_t)got < asked && fd != talking_fd && may_be_stream(fd))
        was_short[fd] = is_socket(fd, SOCK_STREAM);
    return got;
}

/* A datagram that opens a stream, and that counts as no packet where it is read as data: its time,
 * by the clock that iperf3 stamps with, and a sequence number of 0. It is sent when the server's
 * clock starts, or as if. */
static void send_copy(int fd)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double ahead_s = at_s - settle_s - now_s();
    double sent_s = (double)now.tv_sec + (double)now.tv_nsec / 1e9 + (ahead_s > 0 ? ahead_s : 0);
    uint32_t whole_s = (uint32_t)sent_s;
    uint32_t header[4] = {htonl(whole_s), htonl((uint32_t)((sent_s - whole_s) * 1e6))};
    (void)!real_write(fd, header, sizeof header);
}

/* Some data, before the server misses it. */
static void send_ahead(void)
{
    if (!may_be_stream(final_fd))
        return;
    if (streams_count == 0) {
        if (real_write(final_fd, "", 1) == 1)
            ahead_fd = final_fd;
        return;
    }
    for (int copies = 0; copies < 3; copies++)
        send_copy(final_fd);
}

static ssize_t write_rest(int fd, const void *bytes, size_t count)
{
    if (fd != ahead_fd || fd == -1 || count == 0)
        return real_write(fd, bytes, count);
    ssize_t wrote = count == 1 ? 0 : real_write(fd, (const char *)bytes + 1, count - 1);
    if (wrote < 0)
        return wrote;
    ahead_fd = -1;
    return wrote + 1;
}

static ssize_t give_reply(int fd, void *bytes, size_t count, bool is_open)
{
    uint32_t reply = UDP_REPLY;
    size_t size = count < sizeof reply ? count : sizeof reply;
    opening[fd] = false;
    unanswered[fd] = true;
    unanswered_count += !is_open;
    memcpy(bytes, &reply, size);
    return (ssize_t)size;
}

static ssize_t give_up(int fd)
{
    opening[fd] = false;
    dprintf(STDERR_FILENO, "broadside-gate: unanswered %d of %d\n", unanswered_count + 1,
            streams_count);
    errno = ETIMEDOUT;
    return -1;
}

/* Opens one UDP stream: what iperf3 reads as the server's reply to its hello. */
static ssize_t await_reply(int fd, void *bytes, size_t count, int flags)
{
    bool is_final = fd == final_fd;
    double wait_ms = 3e3 * round_trip_s();
    if (wait_ms < WAIT_MIN_MS)
        wait_ms = WAIT_MIN_MS;
    for (int sent_count = 1;; sent_count++) {
        struct pollfd ready[] = {{fd, POLLIN, 0}, {is_final ? control_fd : -1, POLLIN, 0}};
        poll(ready, 2, (int)wait_ms);
        if (ready[0].revents) {
            uint32_t reply = 0;
            ssize_t size = real_recv(fd, &reply, sizeof reply, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
            if (size > (ssize_t)sizeof reply) /* a server that sends: its reply was lost */
                return give_reply(fd, bytes, count, true);
            opening[fd] = false;
            answered_count++;
            return real_recv(fd, bytes, count, flags);
        }
        if (ready[1].revents) /* the server has all streams, or something to say */
            return give_reply(fd, bytes, count, true);
        if (!is_final && sent_count >= HELLOS_COUNT) {
            if (answered_count == 0 && unanswered_count + 1 >= SILENT_COUNT)
                return give_up(fd);
            return give_reply(fd, bytes, count, false);
        }
        if (is_final && now_s() > released_s + OPENING_MAX_S)
            return give_up(fd);
        send_copy(fd);
        for (int other = 0; is_final && other < FD_SETSIZE; other++)
            if (unanswered[other])
                send_copy(other);
    }
}

/* A reply that came after all is no data. */
static void drop_late_replies(void)
{
    uint32_t reply;
    for (int fd = 0; streams_count > 0 && fd < FD_SETSIZE; fd++)
        while (unanswered[fd]
               && real_recv(fd, &reply, sizeof reply, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT)
                   == sizeof reply
               && reply == UDP_REPLY)
            real_recv(fd, &reply, sizeof reply, MSG_DONTWAIT);
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
                if (connects_expected > 0 && is_socket(fd, SOCK_DGRAM)) {
                    opening[fd] = true;
                    streams_count++;
                }
            }
            if (connects_seen == connects_expected)
                last_fd = final_fd = fd;
        }
    }
    return real_connect(fd, address, length);
}

ssize_t write(int fd, const void *bytes, size_t count)
{
    if (!real_write)
        set_up();
    if (fd == last_fd && fd != -1) {
        double round_s = round_trip_s();
        last_fd = -1;
        dprintf(STDERR_FILENO, "broadside-gate: armed %.6f\n", now_s());
        if (settle_s > 0)
            hold_until(at_s - settle_s - round_s / 2);
        else
            hold_client(at_s - round_s, 0.0);
        released_s = now_s();
    } else if (urgent && unsent_count > 0 && may_be_stream(fd)
               && atomic_exchange(&unsent[fd], false)) {
        ssize_t wrote = write_rest(fd, bytes, count);
        calm_down(0);
        if (atomic_fetch_sub(&unsent_count, 1) == 1)
            calm_down(getpid()); /* iperf3's main thread, which has started all of them */
        return wrote;
    } else if (serving && count == 1 && *(const signed char *)bytes == TEST_START) {
        serving = 0;
        talking_fd = fd;
        receiving = true;
        ssize_t wrote = real_write(fd, bytes, count);
        server_started_s = now_s();
        dprintf(STDERR_FILENO, "broadside-gate: armed %.6f\nbroadside-gate: released %.6f "
                "started 0.0\n", server_started_s, server_started_s);
        return wrote;
    }
    return write_rest(fd, bytes, count);
}

/* A server looks for missing data where its select() ends with nothing to read. An interrupted one
 * it repeats. */
int select(int count, fd_set *to_read, fd_set *to_write, fd_set *odd, struct timeval *timeout)
{
    if (!real_select)
        set_up();
    int ready = real_select(count, to_read, to_write, odd, timeout);
    if (ready == 0 && server_started_s > 0 && now_s() < server_started_s + QUIET_MAX_S) {
        errno = EINTR;
        return -1;
    }
    return ready;
}

ssize_t recv(int fd, void *bytes, size_t count, int flags)
{
    if (!real_recv)
        set_up();
    if (may_be_stream(fd) && opening[fd])
        return await_reply(fd, bytes, count, flags);
    if (ends_block(fd))
        return -1;
    return received(fd, real_recv(fd, bytes, count, flags), count);
}

ssize_t read(int fd, void *bytes, size_t count)
{
    if (!real_read)
        set_up();
    if (ends_block(fd))
        return -1;
    ssize_t got = received(fd, real_read(fd, bytes, count), count);
    if (fd == control_fd && fd != -1 && count == 1 && got == 1
        && *(signed char *)bytes == TEST_START) {
        double started_s = now_s() - round_trip_s() / 2;
        talking_fd = fd;
        receiving = true;
        drop_late_replies();
        if (connects_expected == 0 || settle_s > 0) {
            send_ahead();
            hold_client(at_s, started_s);
        } else {
            started_s = 0.0;
        }
        say_released(started_s);
    }
    return got;
}
