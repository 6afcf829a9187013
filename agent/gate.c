/* Start gate, a library that is preloaded into an iperf3 client to delay a test until its planned
 * start.
 *
 * iperf3 opens a control connection and then a connection for each stream. Each one starts with a
 * first write, which is the cookie for TCP and a hello for UDP. The server starts its test when it
 * has received the last of these, and sends a TEST_START byte to the client. So there are two
 * places to wait in:
 *
 *   1. The first write on the socket of the last stream. All connections are open at this point,
 *      and no clock is running yet. It is released at the planned start or a settling time before
 *      it.
 *   2. The TEST_START byte when it is received, until the planned start. The server is ready, and
 *      only this client has to start sending. If the server sends (reverse, bidirectional), this
 *      would only delay one end. In this case there is no settling time, and the first place is
 *      released at the planned start.
 *
 * The intervals of the server are counted from its own start. For this reason the settling time is
 * one full interval of the server (see gate.py). The first place is released half a round trip
 * earlier, so that the intervals of the server begin at full seconds from the planned start.
 *
 * A server with version 3.16 to 3.19 that has been waiting for its client for a long time will end
 * a test if there is no data in its first interval. This does not happen if the server uses this
 * gate (see QUIET_MAX_S). For other servers we send a single byte while the server is settling. For
 * TCP this is the first byte of the first write. For UDP it is a datagram with sequence number 0,
 * which is not counted as a packet. If the host is busy, this byte might be sent too late.
 *
 * UDP: iperf3 sends the hello of each stream once, and waits 30 s for a single reply. Both can be
 * lost. The gate will send the hello again. If the server does not need a copy, it will be received
 * as data later, so all copies are valid datagrams with sequence number 0. The server replies only
 * once. After HELLOS_COUNT copies without a reply, we assume that the reply was lost, and return
 * one to iperf3. TEST_START shows that the server has all streams. Until then, we send copies on
 * the streams without a reply. After OPENING_MAX_S the test is stopped.
 *
 * A server waits 10 s for a cookie, so the time in the first place must be less than that.
 *
 * If a host starts many clients at the same time, the first one could fill its buffers before the
 * last one gets any CPU time. So a client wakes up with real-time priority, if this is allowed on
 * the host (RLIMIT_RTPRIO). In the second place, each sending thread has this priority until its
 * first write. This is not done in the first place, because iperf3 before 3.16 polls without a
 * pause to see if the server has started.
 *
 * In a server (BROADSIDE_GATE_SERVES) there is nothing to delay. We print the time when the
 * server's clock starts, and make the server wait for the first data.
 *
 * On both ends: iperf3 3.16 and later receives full blocks, and does not count any bytes of a block
 * until it is complete. At the end of an interval, each stream can have up to one block (128 KiB)
 * that has been received but not counted. So we end a block after a short read.
 *
 * Environment (set by gate.py, nothing is done without BROADSIDE_GATE_AT or _SERVES):
 *   BROADSIDE_GATE_AT        Unix timestamp of the planned start
 *   BROADSIDE_GATE_CONNECTS  number of connections, including the control connection; if not set,
 *                            only place 2 is used
 *   BROADSIDE_GATE_SETTLE    seconds from the start of the server to the planned start; 0 or not
 *                            set for none
 *   BROADSIDE_GATE_SERVES    set in a server
 *   BROADSIDE_GATE_PROBE     print a line on the first connection to show that the gate can be used
 *
 * The gate writes these lines to standard error, using Unix timestamps:
 *   broadside-gate: armed <time>
 *   broadside-gate: unanswered <streams without a reply> of <streams opened>
 *   broadside-gate: released <time> started <time when the server's clock was started, or 0>
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
    /* With a loss of 5 %, all of them are lost for one in 64 million streams. */
    HELLOS_COUNT = 6,
    /* If the first streams do not get any reply, this is not loss but a closed path. */
    SILENT_COUNT = 3,
    /* Time to wait for a reply on a busy host. Three round trips are used if this is more. */
    WAIT_MIN_MS = 50,
};
/* Seconds after the release for the server to get all streams. */
#define OPENING_MAX_S 3.0
/* Seconds after its start for which a server waits for data in any case. */
#define QUIET_MAX_S 5.0
/* UDP_CONNECT_REPLY in iperf.h. */
#define UDP_REPLY 0x39383736u

static int (*real_connect)(int, const struct sockaddr *, socklen_t);
static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_recv)(int, void *, size_t, int);
static int (*real_select)(int, fd_set *, fd_set *, fd_set *, struct timeval *);
static ssize_t (*real_write)(int, const void *, size_t);

static double at_s, settle_s;
static int connects_expected, connects_seen;
/* Set to -1 when there is nothing left to wait for. */
static int control_fd = -1;
static int last_fd = -1;
/* Socket of the last stream, also after its first write. */
static int final_fd = -1;
/* Stream with a first byte that has already been sent. */
static int ahead_fd = -1;
static int probing, serving;
/* Unix timestamp of TEST_START in a server, or 0 before that. */
static double server_started_s;

/* True for a UDP stream that is waiting for the reply of the server. */
static bool opening[FD_SETSIZE];
/* True if we have returned a reply to iperf3 that was not received. */
static bool unanswered[FD_SETSIZE];
static int streams_count, answered_count, unanswered_count;
/* Unix timestamp of the first write on the last stream. */
static double released_s;

/* True while the test is running. */
static bool receiving;
/* Control connection during the test. Its messages are always complete. */
static int talking_fd = -1;
/* True for a stream if the last read has returned less than requested. */
static bool was_short[FD_SETSIZE];

/* True for real-time priority, which is also used by new threads. */
static bool urgent;
static int usual_policy;
/* True for a stream without data so far. select() does not support higher descriptors. */
static atomic_bool unsent[FD_SETSIZE];
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

/* Use an absolute time on the real-time clock, so that the end changes with a step of the clock. */
static void hold_until(double epoch_s)
{
    struct timespec until = {(time_t)epoch_s, (long)((epoch_s - (double)(time_t)epoch_s) * 1e9)};
    while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == EINTR)
        ;
}

/* Return the minimum round trip time of the control connection in seconds. */
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

/* Return true if the server has already reported a running test, so there is no need to wait. */
static bool is_running(void)
{
    char word;
    return real_recv(control_fd, &word, sizeof word, MSG_PEEK | MSG_DONTWAIT) == sizeof word;
}

/* Report the release, after TEST_START was received and there is nothing left to wait for. */
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

/* The control connection is idle during a test, and cloud firewalls drop it after four minutes.
 * iperf3 before 3.19 does not have an option for this. */
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

/* Return true if iperf3 requests the rest of a block that was ended by a short read. */
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

/* Send a datagram that opens a stream, and that is not counted as a packet if it is received as
 * data. It has a timestamp of the clock used by iperf3 and the sequence number 0. The timestamp is
 * the time when the server's clock starts, or the current time after that. */
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

/* Send some data before the server ends the test without any. */
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

/* Open a UDP stream and return the data that iperf3 uses as the server's reply to its hello. */
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
            /* The server is sending data, so its reply was lost. */
            if (size > (ssize_t)sizeof reply)
                return give_reply(fd, bytes, count, true);
            opening[fd] = false;
            answered_count++;
            return real_recv(fd, bytes, count, flags);
        }
        /* The server has all streams, or it has sent a message. */
        if (ready[1].revents)
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

/* Drop replies that were received late, because they are not data. */
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
            /* This is the main thread of iperf3, which has started all others. */
            calm_down(getpid());
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

/* A server checks for missing data if its select() returns without anything to read. If it was
 * interrupted, the server calls it again. */
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
