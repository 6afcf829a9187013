/* Generator and server of TCP connections for the engine "connections".
 *
 * The client makes attempts at a fixed rate, whatever earlier ones do (open loop). Attempt i is due
 * at the planned start + i / rate. All times of an attempt are counted from then, so a stall of the
 * path or of this program is part of the measured times (no coordinated omission). An attempt which
 * could not be made by the end of the burst is not made, and is missing in "attempted". Outcomes
 * after the end are counted in the last second.
 *
 * Modes:
 *   connect   handshake, then close
 *   exchange  handshake, N bytes in each direction, then close
 *   http      handshake, a request of HTTP/1.1 and its answer, then close
 *   hold      handshake, then N bytes in each direction at every heartbeat until the end
 *
 * With "--tls", each of them has a TLS handshake after that of TCP, and its bytes are encrypted. The
 * first connection, before the start, gets the session that all others resume with "--resume".
 *
 * The client closes first. With "rst" neither end has to wait. With "fin" each port of the client
 * stays in TIME_WAIT for a minute.
 *
 * Before the start, the client opens a control connection and sends "BSCN <token> <bytes> <tls>
 * <compressible percent>\n", with ramps also start and end of the sustain phase. The server counts connections for this token until the control
 * connection is closed, so both ends are joined without addresses. In the modes with bytes, each
 * connection starts with a hash of the token, or has it in its URL, and a connection with another
 * one is foreign. In mode "connect" there are no bytes, so the server counts all connections to its
 * port. All other bytes are pseudo-random, except for the share of zeros that was chosen.
 *
 * With "--ramp-up" and "--ramp-down", the rate of the attempts rises from 0 and falls to 0, and with
 * "hold" the number of connections does (RFC 9411, section 4.3.4). Attempts that were due between
 * both are the sustain phase. Its counts and histograms are apart in the last line, and the server
 * prints its time.
 *
 * With TLS, the server answers with the SHA-256 of its certificate, so that the client can count
 * connections whose certificate a device has replaced.
 *
 * Output: a JSON object in each line of standard output, with the counts of a second, and at the
 * end a line with histograms. The client counts seconds from the planned start, the server in UTC. The
 * lines on standard error are those of the start gate (gate.c).
 *
 * Bucket i of a histogram counts times from 2^(i/48) to 2^((i+1)/48) seconds, as in messages.py.
 */
#define _GNU_SOURCE
#include "connections_tls.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define VERSION "1.3"

enum {
    EVENTS_COUNT = 512,
    /* Attempts between two looks at the events. */
    LAUNCHES_COUNT = 32,
    /* Buckets per doubling. */
    RESOLUTION = 48,
    BUCKET_ZERO = 20 * RESOLUTION,
    BUCKETS_COUNT = 32 * RESOLUTION,
    ID_BYTES = 8,
    LINE_BYTES = 256,
    /* Longest head of an HTTP message. Devices can add lines to it. */
    HEAD_BYTES = 4096,
    /* Part of a body that is sent with its head. */
    PART_BYTES = 16384,
    /* Sizes of bodies in one test. */
    BODIES_COUNT = 16,
    NEGOTIATED_COUNT = 16,
    PEERS_MAX = 64,
    BLOCK_BYTES = 1000,
    ADDRESSES_COUNT = 1024,
    /* Reasons why there is no socket. */
    NO_FILE = -1,
    NO_SOURCE = -2,
    BYTES_MAX = 1 << 20,
    FILES_MAX = 1 << 20,
    /* Longest message on a socket that is used again. */
    REUSE_MAX_BYTES = 16384,
};
/* Seconds between two bytes on the control connection, against idle timeouts of devices. */
#define CONTROL_EVERY_S 5.0
/* Seconds after the end in which attempts that were due before can still be made. */
#define LATE_MAX_S 0.1
#define CONTROL_WAIT_S 2.0
/* Seconds before the start at which there is no further try for a control connection. */
#define CONTROL_LATEST_S 0.2
/* Seconds for which a server counts after its control connection was closed. */
#define LAST_EVENTS_S 0.2

static char payload[BYTES_MAX], inbox[BYTES_MAX];
static volatile sig_atomic_t stopping;

static void on_stop(int number)
{
    (void)number;
    stopping = 1;
}

static double clock_s(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static double least(double one, double other)
{
    return one < other ? one : other;
}

static void set_up(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max < FILES_MAX ? files.rlim_max : FILES_MAX;
    setrlimit(RLIMIT_NOFILE, &files);
    struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGTERM, &action, NULL);
    signal(SIGINT, SIG_DFL);
    signal(SIGPIPE, SIG_IGN);
}

/* Fill the payload: of each block, the first part is zeros and the rest is pseudo-random. */
static void fill_payload(unsigned compressible_percent)
{
    size_t zeros = BLOCK_BYTES * (compressible_percent > 100 ? 100 : compressible_percent) / 100;
    uint64_t state = 88172645463325252u;
    for (size_t place = 0; place < sizeof payload; place++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        payload[place] = place % BLOCK_BYTES < zeros ? 0 : (char)state;
    }
}

/* Return the value of a column, from a line of names and a line of values of the kernel. */
static unsigned long long column(const char *names, const char *values, const char *name, int base)
{
    while (*names && *values) {
        size_t length = strcspn(names, " \n");
        if (length == strlen(name) && strncmp(names, name, length) == 0)
            return strtoull(values, NULL, base);
        names += length;
        names += strspn(names, " \n");
        values += strcspn(values, " \n");
        values += strspn(values, " \n");
    }
    return 0;
}

/* Return a counter of /proc/net/netstat, where each line of values is below one of names. */
static unsigned long long tcp_counter(const char *name)
{
    char names[8192], values[8192];
    unsigned long long found = 0;
    FILE *file = fopen("/proc/net/netstat", "r");
    while (file && fgets(names, sizeof names, file) && fgets(values, sizeof values, file))
        found += column(names, values, name, 10);
    if (file)
        fclose(file);
    return found;
}

/* Return the packets that the connection tracking of this host dropped because its table was full.
 * The file has a line for each core. */
static unsigned long long conntrack_dropped(void)
{
    char names[1024], values[1024];
    unsigned long long found = 0;
    FILE *file = fopen("/proc/net/stat/nf_conntrack", "r");
    if (file && fgets(names, sizeof names, file))
        while (fgets(values, sizeof values, file))
            found += column(names, values, "drop", 16);
    if (file)
        fclose(file);
    return found;
}

static size_t files_limit(void)
{
    struct rlimit files;
    getrlimit(RLIMIT_NOFILE, &files);
    return (size_t)files.rlim_cur;
}

/* FNV-1a. It identifies a test and protects nothing. */
static void hash_token(const char *token, unsigned char id[ID_BYTES])
{
    uint64_t hash = 14695981039346656037u;
    for (; *token; token++)
        hash = (hash ^ (unsigned char)*token) * 1099511628211u;
    for (int place = 0; place < ID_BYTES; place++)
        id[place] = (unsigned char)(hash >> (8 * place));
}

static int fail(const char *what)
{
    fprintf(stderr, "connections: %s: %s\n", what, strerror(errno));
    return 1;
}

static bool parse_address(const char *address, const char *port, struct sockaddr_storage *out,
                          socklen_t *length)
{
    struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV,
                             .ai_socktype = SOCK_STREAM}, *found;
    if (getaddrinfo(address, port, &hints, &found) != 0) {
        errno = EINVAL;
        return false;
    }
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *length = found->ai_addrlen;
    freeaddrinfo(found);
    return true;
}

/* Read or write, with TLS or without. */
static ssize_t read_link(int fd, void *tls, void *bytes, size_t count)
{
    return tls ? tls_receive(tls, bytes, count) : recv(fd, bytes, count, 0);
}

static ssize_t write_link(int fd, void *tls, const void *bytes, size_t count)
{
    return tls ? tls_send(tls, bytes, count) : send(fd, bytes, count, MSG_NOSIGNAL);
}

/* Return the value of "Content-Length" in the head of an HTTP message, or 0. */
static uint64_t content_length(const char *head)
{
    const char *line = strcasestr(head, "\r\ncontent-length:");
    return line ? strtoull(line + strlen("\r\ncontent-length:"), NULL, 10) : 0;
}

/* Append data to the head of an HTTP message until its empty line. Return the number of bytes that
 * belong to the head, or -1 if the head is too long. `*complete` is set at its end. */
static ssize_t add_to_head(char *head, const char *bytes, size_t count, bool *complete)
{
    size_t has = strlen(head), part = HEAD_BYTES - 1 - has;
    part = count < part ? count : part;
    memcpy(head + has, bytes, part);
    head[has + part] = 0;
    char *end = strstr(head, "\r\n\r\n");
    *complete = end != NULL;
    if (!end)
        return has + part == HEAD_BYTES - 1 ? -1 : (ssize_t)part;
    end[4] = 0;
    return end + 4 - (head + has);
}

/* Histograms ----------------------------------------------------------------------------------- */

struct histogram {
    uint32_t counts[BUCKETS_COUNT];
    uint64_t count;
    double max_s;
};

static void record(struct histogram *histogram, double time_s)
{
    if (time_s < 1e-6)
        time_s = 1e-6;
    int bucket = (int)floor(RESOLUTION * log2(time_s)) + BUCKET_ZERO;
    histogram->counts[bucket < BUCKETS_COUNT ? bucket : BUCKETS_COUNT - 1]++;
    histogram->count++;
    if (time_s > histogram->max_s)
        histogram->max_s = time_s;
}

/* Return the value of a rank (nearest rank), as the geometric middle of its bucket. */
static double quantile(const struct histogram *histogram, double ratio)
{
    uint64_t rank = (uint64_t)ceil(ratio * (double)histogram->count), seen = 0;
    int bucket = 0;
    while (bucket < BUCKETS_COUNT && (seen += histogram->counts[bucket]) < rank)
        bucket++;
    double middle_s = exp2((bucket - BUCKET_ZERO + 0.5) / RESOLUTION);
    return middle_s < histogram->max_s ? middle_s : histogram->max_s;
}

static void print_histogram(const char *name, const struct histogram *histogram)
{
    const char *comma = "";
    printf(", \"%s\": {\"max_s\": %.9f, \"resolution\": %d, \"counts\": {", name,
           histogram->max_s, RESOLUTION);
    for (int bucket = 0; bucket < BUCKETS_COUNT; bucket++)
        if (histogram->counts[bucket]) {
            printf("%s\"%d\": %u", comma, bucket - BUCKET_ZERO, histogram->counts[bucket]);
            comma = ", ";
        }
    printf("}}");
}

/* Client --------------------------------------------------------------------------------------- */

enum time { HANDSHAKE, TLS_HANDSHAKE, FIRST_BYTE, TIMES_COUNT };
static const char *const time_names[] = {"handshake", "tls_handshake", "first_byte"};

enum count {
    ATTEMPTED, ESTABLISHED, SECURED, CLOSED, REFUSED, RESET, DENIED, TIMED_OUT, FAILED, TLS_FAILED,
    DROPPED, COUNTS_COUNT
};
static const char *const count_names[] = {
    "attempted", "established", "secured", "closed", "refused", "reset", "denied", "timed_out",
    "failed", "tls_failed", "dropped"
};

struct second {
    /* Times that were measured in this second, until it is printed. */
    struct histogram *times[TIMES_COUNT];
    uint64_t counts[COUNTS_COUNT], sent, received;
    double behind_s;
};

enum phase { FREE, CONNECTING, SHAKING, WAITING, CLOSING, HELD };

/* What a client sends on each connection. */
struct message {
    const char *bytes;
    size_t count;
};

struct connection {
    double due_s, until_s;
    void *tls;
    /* Start of an HTTP answer whose head is not complete. */
    char *head;
    const struct message *message;
    /* Bytes of the answer, once they are known. */
    uint64_t sent, got, needed;
    int previous, next;
    enum phase phase;
    /* Due in the sustain phase. */
    bool is_judged;
    bool was_held, is_denied;
};

/* Connections in the order of their `until_s`, which is the end of a time limit or a heartbeat. */
struct queue {
    int first, last;
};

static struct {
    const char *address, *port, *token, *bind, *mode, *close, *sources, *tls, *cipher, *resume,
        *name, *bodies, *certificate, *key;
    double at_s, duration_s, rate, limit_s, heartbeat_s, ramp_up_s, ramp_down_s;
    uint64_t count, upload;
    uint32_t bytes, compressible;
} options = {.mode = "connect", .close = "rst", .sources = "one", .limit_s = 3, .heartbeat_s = 1};

static struct connection *connections;
/* Sockets without a connection. */
static int *spare;
static size_t spare_count;
static struct queue waiting = {-1, -1}, held = {-1, -1};
static struct second *seconds;
/* Counts of the attempts that were due in the sustain phase, and drops in it. */
static uint64_t judged[COUNTS_COUNT];
/* Attempts to make. */
static uint64_t total;
static struct histogram times[TIMES_COUNT];
static struct message messages[BODIES_COUNT];
static size_t messages_count;
/* TLS handshakes by version and cipher suite. */
static struct {
    char name[LINE_BYTES];
    uint64_t count;
} negotiated[NEGOTIATED_COUNT];
static uint64_t resumed_count, replaced_count;
/* The certificate that the server has sent over the control connection. */
static unsigned char server_digest[TLS_DIGEST_BYTES];
static struct sockaddr_storage target, sources[ADDRESSES_COUNT];
static socklen_t target_bytes;
static int sources_count, poller, control;
static size_t connections_count, seconds_count, printed_count;
static uint64_t failed_ports, failed_files, open_count;
static double zero_s;
/* Seconds from the planned start to the first attempt. */
static double first_s;
/* True for real-time priority, which this process has from before the start to its first attempt. */
static bool urgent;
static int usual_policy;
/* Part of one core that this program used until the end of the attempts, or 0 if not known. */
static double core_ratio;
static bool exchanges, requests, holds, resets, ending;
/* Use sockets again. Larger messages would change the buffers, and so the windows, of a socket. */
static bool reuses;

static struct second *now_second(double now)
{
    double at_s = now - zero_s;
    size_t place = at_s > 0 ? (size_t)at_s : 0;
    return &seconds[place < seconds_count ? place : seconds_count - 1];
}

static void count(struct second *second, enum count which, bool is_judged)
{
    second->counts[which]++;
    judged[which] += is_judged;
}

/* Return when an attempt is due, in seconds after the start. With ramps, the rate is linear in the
 * time, so the number of attempts is quadratic. Tests of the schedule call this. */
double broadside_due_after_s(uint64_t number, double rate, double duration_s, double up_s,
                             double down_s)
{
    double past_s = (double)number / rate - up_s / 2, flat_s = duration_s - up_s - down_s;
    if (past_s < 0)
        return sqrt(2 * up_s * (double)number / rate);
    if (past_s <= flat_s || down_s <= 0)
        return up_s + past_s;
    double left = down_s * down_s - 2 * down_s * (past_s - flat_s);
    return duration_s - sqrt(left > 0 ? left : 0);
}

/* With "hold", the attempts have a constant rate, and the number of connections is linear. */
static double due_after_s(uint64_t number)
{
    return broadside_due_after_s(number, options.rate, options.duration_s,
                                 holds ? 0 : options.ramp_up_s, holds ? 0 : options.ramp_down_s);
}

/* Return how many attempts are due before a time, in seconds after the start. */
static uint64_t due_before(double after_s)
{
    uint64_t low = 0, high = total;
    while (low < high) {
        uint64_t middle = low + (high - low) / 2;
        if (due_after_s(middle) < after_s - 1e-6)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static double sustain_end_s(void)
{
    return options.duration_s - options.ramp_down_s;
}

/* Return the start of the time in which judged attempts are due, in seconds after the start.
 * Connections that are held in the sustain phase were opened before. */
static double judged_from_s(void)
{
    return holds ? 0 : options.ramp_up_s;
}

static bool has_ramps(void)
{
    return options.ramp_up_s > 0 || options.ramp_down_s > 0;
}

static void record_time(enum time which, double time_s, struct second *second, bool is_judged)
{
    struct histogram **own = &second->times[which];
    if (is_judged)
        record(&times[which], time_s);
    if (!*own)
        *own = calloc(1, sizeof **own);
    if (*own)
        record(*own, time_s);
}

static void print_times(struct second *second)
{
    for (int which = 0; which < TIMES_COUNT; which++) {
        struct histogram *own = second->times[which];
        if (own)
            printf(", \"%s_us\": [%.0f, %.0f, %.0f]", time_names[which], quantile(own, 0.5) * 1e6,
                   quantile(own, 0.99) * 1e6, own->max_s * 1e6);
        free(own);
        second->times[which] = NULL;
    }
}

static void push(struct queue *queue, int fd, double until_s)
{
    struct connection *added = &connections[fd];
    added->until_s = until_s;
    added->previous = queue->last;
    added->next = -1;
    *(queue->last < 0 ? &queue->first : &connections[queue->last].next) = fd;
    queue->last = fd;
}

static void pull(struct queue *queue, int fd)
{
    struct connection *gone = &connections[fd];
    *(gone->previous < 0 ? &queue->first : &connections[gone->previous].next) = gone->next;
    *(gone->next < 0 ? &queue->last : &connections[gone->next].previous) = gone->previous;
}

/* Send a reset, and return true if the socket can make another connection. This takes about a quarter
 * less time than a new socket, and is the same on the wire. */
static bool disconnect_socket(int fd)
{
    static const struct sockaddr none = {.sa_family = AF_UNSPEC};
    return reuses && connect(fd, &none, sizeof none) == 0;
}

static void finish(int fd, struct second *second, enum count outcome)
{
    struct connection *done = &connections[fd];
    pull(done->phase == HELD ? &held : &waiting, fd);
    done->phase = FREE;
    open_count--;
    count(second, outcome, done->is_judged);
    if (done->tls)
        tls_close(done->tls);
    free(done->head);
    done->tls = done->head = NULL;
    if (outcome == CLOSED && disconnect_socket(fd))
        spare[spare_count++] = fd;
    else
        close(fd);
}

/* Close a connection that is complete. Data that was not read, such as a TLS session, would turn
 * FIN into a reset, so a TLS connection is first read to its end. */
static void complete(int fd, struct second *second)
{
    struct connection *one = &connections[fd];
    if (one->is_denied) {
        finish(fd, second, DENIED);
    } else if (resets || !one->tls) {
        finish(fd, second, CLOSED);
    } else {
        one->phase = CLOSING;
        tls_notify(one->tls);
        shutdown(fd, SHUT_WR);
    }
}

/* End a connection that was established but is not complete. */
static void lose(int fd, double now, struct second *second, enum count outcome)
{
    if (connections[fd].was_held)
        count(second, DROPPED, now >= zero_s + options.ramp_up_s && now < zero_s + sustain_end_s());
    finish(fd, second, outcome);
}

static void send_rest(int fd, struct second *second)
{
    struct connection *one = &connections[fd];
    const struct message *message = one->message;
    while (one->sent < message->count) {
        ssize_t wrote = write_link(fd, one->tls, message->bytes + one->sent,
                                   message->count - one->sent);
        if (wrote <= 0)
            return;
        one->sent += (uint64_t)wrote;
        second->sent += (uint64_t)wrote;
    }
}

/* Read the head of an HTTP answer. Return false if it is not valid. */
static bool read_answer(struct connection *one, const char *bytes, size_t count)
{
    bool is_complete;
    if (!one->head)
        one->head = calloc(1, HEAD_BYTES);
    ssize_t part = one->head ? add_to_head(one->head, bytes, count, &is_complete) : -1;
    if (part < 0)
        return false;
    if (!is_complete)
        return true;
    unsigned status = 0;
    if (sscanf(one->head, "HTTP/1.%*1[01] %3u", &status) != 1)
        return false;
    one->is_denied = status != 200;
    one->needed = strlen(one->head) + content_length(one->head);
    free(one->head);
    one->head = NULL;
    return true;
}

static void receive(int fd, double now, struct second *second)
{
    struct connection *one = &connections[fd];
    for (;;) {
        ssize_t got = read_link(fd, one->tls, inbox, sizeof inbox);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (one->phase == CLOSING) {
            if (got > 0)
                continue;
            finish(fd, second, CLOSED);
            return;
        }
        if (got <= 0) {
            lose(fd, now, second, RESET);
            return;
        }
        second->received += (uint64_t)got;
        if (one->got == 0 && !one->was_held)
            record_time(FIRST_BYTE, now - one->due_s, second, one->is_judged);
        one->got += (uint64_t)got;
        if (one->needed == 0 && !read_answer(one, inbox, (size_t)got)) {
            lose(fd, now, second, RESET);
            return;
        }
        if (one->needed == 0 || one->got < one->needed || one->phase != WAITING)
            continue;
        if (!holds || ending) {
            complete(fd, second);
            if (one->phase != CLOSING)
                return;
            continue;
        }
        pull(&waiting, fd);
        one->phase = HELD;
        one->was_held = true;
        push(&held, fd, now + options.heartbeat_s);
    }
}

/* Go on with a connection whose handshakes are complete. */
static void on_ready(int fd, struct second *second)
{
    if (!exchanges) {
        complete(fd, second);
        return;
    }
    connections[fd].phase = WAITING;
    send_rest(fd, second);
}

static void count_negotiated(void *tls)
{
    char name[LINE_BYTES];
    size_t place = 0;
    snprintf(name, sizeof name, "%s %s", tls_version(tls), tls_cipher(tls));
    while (place < NEGOTIATED_COUNT - 1 && negotiated[place].count
           && strcmp(negotiated[place].name, name) != 0)
        place++;
    memcpy(negotiated[place].name, name, sizeof name);
    negotiated[place].count++;
    resumed_count += tls_is_resumed(tls);
    unsigned char digest[TLS_DIGEST_BYTES];
    replaced_count += tls_peer_digest(tls, digest)
                      && memcmp(digest, server_digest, sizeof digest) != 0;
}

static void shake(int fd, struct second *second)
{
    struct connection *one = &connections[fd];
    int state = tls_shake(one->tls);
    if (state < 0) {
        count(second, TLS_FAILED, one->is_judged);
        finish(fd, second, RESET);
    } else if (state > 0) {
        count(second, SECURED, one->is_judged);
        record_time(TLS_HANDSHAKE, clock_s(CLOCK_MONOTONIC) - one->due_s, second, one->is_judged);
        if (one->is_judged)
            count_negotiated(one->tls);
        on_ready(fd, second);
    }
}

static void on_established(int fd, double now, struct second *second)
{
    struct connection *one = &connections[fd];
    count(second, ESTABLISHED, one->is_judged);
    record_time(HANDSHAKE, now - one->due_s, second, one->is_judged);
    if (!options.tls) {
        on_ready(fd, second);
        return;
    }
    one->tls = tls_open(fd, true, options.name);
    if (!one->tls) {
        finish(fd, second, FAILED);
        return;
    }
    one->phase = SHAKING;
}

static void on_event(int fd, uint32_t events, double now)
{
    struct connection *one = &connections[fd];
    struct second *second = now_second(now);
    if (one->phase == FREE)
        return;
    if (one->phase == CONNECTING) {
        if (events & EPOLLERR) {
            int reason = 0;
            socklen_t length = sizeof reason;
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &reason, &length);
            /* The kernel gives up after its own retries, which can be shorter than our limit. */
            finish(fd, second, reason == ETIMEDOUT ? TIMED_OUT : REFUSED);
            return;
        }
        if (!(events & EPOLLOUT))
            return;
        on_established(fd, now, second);
    }
    if (one->phase == SHAKING) {
        shake(fd, second);
        if (one->phase == SHAKING)
            return;
        /* The end of the handshake can have come with data, which cause no other event. */
        events |= EPOLLIN;
    }
    if (one->phase == WAITING && events & EPOLLOUT)
        send_rest(fd, second);
    if (one->phase != FREE && events & (EPOLLIN | EPOLLRDHUP | EPOLLERR | EPOLLHUP))
        receive(fd, now, second);
}

static bool bind_source(int fd, uint64_t number)
{
    int on = 1;
    if (sources_count == 0)
        return true;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    struct sockaddr_storage *source = &sources[number % (uint64_t)sources_count];
    return bind(fd, (struct sockaddr *)source, target_bytes) == 0;
}

/* Return a socket for an attempt, or NO_FILE or NO_SOURCE. */
static int new_socket(uint64_t number)
{
    struct linger at_once = {1, 0};
    int fd = socket(target.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return NO_FILE;
    bool is_known = (size_t)fd < connections_count;
    if (!is_known || !bind_source(fd, number)) {
        failed_ports += is_known && (errno == EADDRNOTAVAIL || errno == EADDRINUSE);
        close(fd);
        return is_known ? NO_SOURCE : NO_FILE;
    }
    if (resets)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    struct epoll_event event = {EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, {.fd = fd}};
    epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
    return fd;
}

static void launch(uint64_t number, double due_s)
{
    double after_s = due_s - zero_s;
    size_t place = (size_t)(after_s + 1e-6);
    bool is_judged = after_s > judged_from_s() - 1e-6 && after_s < sustain_end_s() - 1e-6;
    struct second *planned = &seconds[place < seconds_count ? place : seconds_count - 1];
    double now = clock_s(CLOCK_MONOTONIC);
    count(planned, ATTEMPTED, is_judged);
    if (number == 0)
        first_s = now - zero_s;
    if (now - due_s > planned->behind_s)
        planned->behind_s = now - due_s;
    struct second *second = now_second(now);
    int fd = spare_count > 0 ? spare[--spare_count] : new_socket(number);
    if (fd < 0) {
        failed_files += fd == NO_FILE;
        count(second, FAILED, is_judged);
        return;
    }
    if (connect(fd, (struct sockaddr *)&target, target_bytes) != 0 && errno != EINPROGRESS) {
        bool refused = errno == ECONNREFUSED || errno == ENETUNREACH || errno == EHOSTUNREACH;
        failed_ports += errno == EADDRNOTAVAIL || errno == EADDRINUSE;
        count(second, refused ? REFUSED : FAILED, is_judged);
        close(fd);
        return;
    }
    connections[fd] = (struct connection){.due_s = due_s,
                                          .phase = CONNECTING,
                                          .is_judged = is_judged,
                                          .message = &messages[number % messages_count],
                                          .needed = requests ? 0 : options.bytes};
    open_count++;
    push(&waiting, fd, now + options.limit_s);
}

/* Return when the next held connection has to be closed in the ramp-down, or infinity. */
static double next_close_s(void)
{
    if (!holds || options.ramp_down_s <= 0 || held.first < 0)
        return INFINITY;
    double left_s = options.ramp_down_s * ((double)open_count - 0.5) / (double)total;
    return zero_s + options.duration_s - least(left_s, options.ramp_down_s);
}

static void expire(double now)
{
    struct second *second = now_second(now);
    while (next_close_s() <= now)
        finish(held.first, second, CLOSED);
    while (waiting.first >= 0 && connections[waiting.first].until_s <= now)
        lose(waiting.first, now, second, TIMED_OUT);
    while (held.first >= 0 && (ending || connections[held.first].until_s <= now)) {
        int fd = held.first;
        if (ending) {
            finish(fd, second, CLOSED);
            continue;
        }
        pull(&held, fd);
        connections[fd].phase = WAITING;
        connections[fd].sent = connections[fd].got = 0;
        push(&waiting, fd, now + options.limit_s);
        send_rest(fd, second);
    }
}

static void print_counts(const uint64_t counts[COUNTS_COUNT])
{
    for (int which = 0; which < COUNTS_COUNT; which++)
        printf(", \"%s\": %lu", count_names[which], counts[which]);
}

static void print_seconds(double now, double launched_until_s)
{
    double until_s = now < launched_until_s ? now : launched_until_s;
    while (printed_count < seconds_count && zero_s + (double)printed_count + 1 <= until_s
           && (printed_count + 1 < seconds_count || until_s == INFINITY)) {
        struct second *one = &seconds[printed_count];
        printf("{\"second\": %zu", printed_count++);
        print_counts(one->counts);
        printf(", \"open\": %lu, \"sent_bytes\": %lu, \"received_bytes\": %lu, "
               "\"behind_s\": %.6f, \"first_s\": %.6f",
               open_count, one->sent, one->received, one->behind_s, first_s);
        print_times(one);
        printf("}\n");
        fflush(stdout);
    }
}

/* Return the number in the first line of a file that follows a word, or 0. */
static unsigned long read_number(const char *path, const char *word, int which)
{
    char line[LINE_BYTES];
    unsigned long found[2] = {0, 0};
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        char *at = strstr(line, word);
        if (at && sscanf(at + strlen(word), "%lu %lu", &found[0], &found[1]) >= 1)
            break;
    }
    if (file)
        fclose(file);
    return found[which];
}

static bool same_address(const struct sockaddr *one, const struct sockaddr_storage *other)
{
    if (!one || one->sa_family != other->ss_family)
        return false;
    if (one->sa_family == AF_INET)
        return ((const struct sockaddr_in *)one)->sin_addr.s_addr
               == ((const struct sockaddr_in *)other)->sin_addr.s_addr;
    return one->sa_family == AF_INET6
           && memcmp(&((const struct sockaddr_in6 *)one)->sin6_addr,
                     &((const struct sockaddr_in6 *)other)->sin6_addr, 16) == 0;
}

static void add_source(const struct sockaddr *address)
{
    if (sources_count == ADDRESSES_COUNT)
        return;
    memcpy(&sources[sources_count], address, target_bytes);
    /* The port has the same place in both families. */
    ((struct sockaddr_in *)&sources[sources_count++])->sin_port = 0;
}

/* Choose the source addresses. There are none if the kernel chooses the right one itself. */
static bool choose_sources(void)
{
    struct sockaddr_storage own = {0}, wanted = {0};
    socklen_t length = sizeof own;
    int fd = socket(target.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    connect(fd, (struct sockaddr *)&target, target_bytes);
    getsockname(fd, (struct sockaddr *)&own, &length);
    close(fd);
    if (options.bind && !parse_address(options.bind, "0", &wanted, &length))
        return false;
    if (!options.bind)
        wanted = own;
    if (strcmp(options.sources, "all") != 0) {
        if (options.bind && !same_address((struct sockaddr *)&wanted, &own))
            add_source((struct sockaddr *)&wanted);
        return true;
    }
    struct ifaddrs *all, *one;
    const char *name = "";
    if (getifaddrs(&all) != 0)
        return false;
    for (one = all; one; one = one->ifa_next)
        if (same_address(one->ifa_addr, &wanted))
            name = one->ifa_name;
    for (one = all; one; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == target.ss_family
            && strcmp(one->ifa_name, name) == 0
            && !(target.ss_family == AF_INET6
                 && IN6_IS_ADDR_LINKLOCAL(&((struct sockaddr_in6 *)one->ifa_addr)->sin6_addr)))
            add_source(one->ifa_addr);
    freeifaddrs(all);
    return true;
}

/* Open the control connection once. Return false with errno. */
static bool open_control(void)
{
    char line[LINE_BYTES], reply[3] = "";
    struct timeval wait = {(time_t)CONTROL_WAIT_S, 0};
    int on = 1;
    control = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    setsockopt(control, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    setsockopt(control, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    setsockopt(control, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    int length = snprintf(line, sizeof line, "BSCN %s %u %d %u\n", options.token,
                          requests ? 0 : options.bytes, options.tls != NULL, options.compressible);
    if (has_ramps())
        length += snprintf(line + length - 1, sizeof line - (size_t)length, " %.3f %.3f\n",
                           options.at_s + judged_from_s(), options.at_s + sustain_end_s()) - 1;
    errno = 0;
    if (bind_source(control, 0)
        && connect(control, (struct sockaddr *)&target, target_bytes) == 0
        && send(control, line, (size_t)length, MSG_NOSIGNAL) == length
        && recv(control, reply, sizeof reply, MSG_WAITALL) == sizeof reply
        && memcmp(reply, "OK\n", 3) == 0
        && (!options.tls
            || recv(control, server_digest, sizeof server_digest, MSG_WAITALL)
               == sizeof server_digest))
        return true;
    int reason = errno == 0 || errno == EINPROGRESS || errno == EAGAIN ? ETIMEDOUT : errno;
    close(control);
    errno = reason;
    return false;
}

/* Make a TLS connection that gets a session from the server, and is not counted. */
static bool get_session(void)
{
    struct timeval wait = {(time_t)CONTROL_WAIT_S, 0};
    int fd = socket(target.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    void *tls = NULL;
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof wait);
    if (bind_source(fd, 0) && connect(fd, (struct sockaddr *)&target, target_bytes) == 0
        && (tls = tls_open(fd, true, options.name)) && tls_shake(tls) == 1
        && tls_send(tls, "BSCN session\n", 13) == 13) {
        /* The server answers with one byte, behind the session of TLS 1.3. */
        (void)!tls_receive(tls, inbox, 1);
        tls_notify(tls);
    }
    if (tls)
        tls_close(tls);
    close(fd);
    return tls_has_session();
}

static void hold_until(double epoch_s)
{
    struct timespec until = {(time_t)epoch_s, (long)((epoch_s - (double)(time_t)epoch_s) * 1e9)};
    while (clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &until, NULL) == EINTR && !stopping)
        ;
}

/* Set real-time priority if this is allowed (RLIMIT_RTPRIO). Many clients of one host then make
 * their first attempt together, whatever else is running. See gate.c. */
static void hurry(void)
{
    struct sched_param lowest = {.sched_priority = 1};
    usual_policy = sched_getscheduler(0);
    if (usual_policy != SCHED_FIFO && usual_policy != SCHED_RR)
        urgent = sched_setscheduler(0, SCHED_FIFO, &lowest) == 0;
}

static void calm_down(void)
{
    struct sched_param none = {0};
    if (urgent)
        sched_setscheduler(0, usual_policy, &none);
    urgent = false;
}

static bool arm(void)
{
    while (!open_control()) {
        int reason = errno;
        if (stopping || clock_s(CLOCK_REALTIME) + CONTROL_LATEST_S > options.at_s) {
            errno = reason;
            return false;
        }
        usleep(100000);
    }
    if (options.resume && !get_session()) {
        errno = EPROTO;
        return false;
    }
    dprintf(STDERR_FILENO, "broadside-gate: armed %.6f\n", clock_s(CLOCK_REALTIME));
    hurry();
    hold_until(options.at_s);
    zero_s = clock_s(CLOCK_MONOTONIC) - (clock_s(CLOCK_REALTIME) - options.at_s);
    dprintf(STDERR_FILENO, "broadside-gate: released %.6f started 0.0\n", clock_s(CLOCK_REALTIME));
    return true;
}

static void sleep_until(double at_s)
{
    double left_s = at_s - clock_s(CLOCK_MONOTONIC);
    if (left_s <= 0)
        return;
    struct timespec wait = {(time_t)left_s, (long)((left_s - (double)(time_t)left_s) * 1e9)};
    struct pollfd ready = {poller, POLLIN, 0};
    ppoll(&ready, 1, &wait, NULL);
}

static double next_wake_s(double due_s, double control_s)
{
    double wake_s = least(due_s, control_s);
    if (printed_count + 1 < seconds_count)
        wake_s = least(wake_s, zero_s + (double)printed_count + 1);
    if (waiting.first >= 0)
        wake_s = least(wake_s, connections[waiting.first].until_s);
    if (held.first >= 0)
        wake_s = least(wake_s, connections[held.first].until_s);
    return least(wake_s, next_close_s());
}

static void run(void)
{
    struct epoll_event events[EVENTS_COUNT];
    double end_s = zero_s + options.duration_s, control_s = zero_s;
    double cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
    uint64_t made = 0;
    for (;;) {
        double now = clock_s(CLOCK_MONOTONIC);
        ending = stopping || now >= end_s + (made < total ? LATE_MAX_S : 0);
        if (ending && core_ratio <= 0 && now > zero_s)
            core_ratio = (clock_s(CLOCK_PROCESS_CPUTIME_ID) - cpu_s) / (now - zero_s);
        double due_s = zero_s + due_after_s(made);
        for (int burst = 0; !ending && made < total && due_s <= now && burst < LAUNCHES_COUNT;
             burst++) {
            launch(made++, due_s);
            due_s = zero_s + due_after_s(made);
        }
        if (made > 0 || ending)
            calm_down();
        int ready = epoll_wait(poller, events, EVENTS_COUNT, 0);
        now = clock_s(CLOCK_MONOTONIC);
        for (int place = 0; place < ready; place++)
            on_event(events[place].data.fd, events[place].events, now);
        expire(now);
        bool launching = made < total && !ending;
        print_seconds(now, launching ? due_s : now);
        if (now >= control_s) {
            (void)!send(control, ".", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
            control_s = now + CONTROL_EVERY_S;
        }
        if (stopping || (ending && (waiting.first < 0 || now >= end_s + options.limit_s)))
            return;
        if (ready <= 0)
            sleep_until(next_wake_s(launching ? due_s : ending ? now + 1 : end_s, control_s));
    }
}

/* Write the messages that the attempts send in turn. Return false if there is no memory. */
static bool write_messages(void)
{
    const char *bodies = options.bodies ? options.bodies : "0";
    const char *host = options.name ? options.name : options.address;
    bool is_ipv6 = strchr(host, ':') != NULL;
    reuses = resets && sources_count <= 1 && options.bytes <= REUSE_MAX_BYTES
             && options.upload <= REUSE_MAX_BYTES;
    if (!requests) {
        hash_token(options.token, (unsigned char *)payload);
        messages[messages_count++] = (struct message){payload, options.bytes};
        return true;
    }
    while (*bodies && messages_count < BODIES_COUNT) {
        char *next, *text = malloc(HEAD_BYTES + options.upload);
        uint64_t body_bytes = strtoull(bodies, &next, 10);
        if (!text)
            return false;
        reuses = reuses && body_bytes <= REUSE_MAX_BYTES;
        int length = snprintf(text, HEAD_BYTES,
                              "%s /%lu?job=%s HTTP/1.1\r\nHost: %s%s%s\r\nUser-Agent: broadside/"
                              VERSION "\r\nAccept: */*\r\nConnection: close\r\n",
                              options.upload ? "POST" : "GET", body_bytes, options.token,
                              is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "");
        if (options.upload)
            length += snprintf(text + length, HEAD_BYTES - (size_t)length,
                               "Content-Type: application/octet-stream\r\nContent-Length: %lu\r\n",
                               options.upload);
        length += snprintf(text + length, HEAD_BYTES - (size_t)length, "\r\n");
        for (uint64_t place = 0; place < options.upload; place++)
            text[(uint64_t)length + place] = payload[place % sizeof payload];
        messages[messages_count++] = (struct message){text, (size_t)length + options.upload};
        bodies = *next ? next + 1 : next;
    }
    return true;
}

static void print_negotiated(void)
{
    const char *comma = "";
    printf(", \"resumed\": %lu, \"replaced\": %lu, \"negotiated\": {", resumed_count,
           replaced_count);
    for (int place = 0; place < NEGOTIATED_COUNT && negotiated[place].count; place++) {
        printf("%s\"%s\": %lu", comma, negotiated[place].name, negotiated[place].count);
        comma = ", ";
    }
    printf("}");
}

/* Set the number of attempts. With "hold", the ramps are those of the held connections. */
static void count_attempts(void)
{
    double ramps_s = options.ramp_up_s + options.ramp_down_s;
    if (holds && options.count && options.ramp_up_s > 0)
        options.rate = (double)options.count / options.ramp_up_s;
    double full_s = holds ? sustain_end_s() : options.duration_s - ramps_s / 2;
    total = (uint64_t)(options.rate * full_s + 1e-6);
    if (options.count && options.count < total)
        total = options.count;
}

static void print_sustain(double lasted_s)
{
    double end_s = least(sustain_end_s(), stopping ? lasted_s : INFINITY);
    uint64_t before = due_before(judged_from_s()), until = due_before(end_s);
    printf(", \"sustain\": {\"scheduled\": %lu", until > before ? until - before : 0);
    print_counts(judged);
    printf("}");
}

static int run_client(void)
{
    struct tls_settings tls = {options.tls, options.cipher, NULL, NULL, options.resume != NULL};
    const char *problem = options.tls ? tls_set_up(&tls) : NULL;
    if (problem) {
        fprintf(stderr, "connections: TLS: %s\n", problem);
        return 1;
    }
    if (!parse_address(options.address, options.port, &target, &target_bytes) || !choose_sources())
        return fail("address");
    exchanges = strcmp(options.mode, "connect") != 0;
    holds = strcmp(options.mode, "hold") == 0;
    requests = strcmp(options.mode, "http") == 0;
    resets = strcmp(options.close, "rst") == 0;
    fill_payload(options.compressible);
    connections_count = files_limit();
    connections = calloc(connections_count, sizeof *connections);
    spare = calloc(connections_count, sizeof *spare);
    seconds_count = (size_t)ceil(options.duration_s);
    seconds = calloc(seconds_count, sizeof *seconds);
    poller = epoll_create1(EPOLL_CLOEXEC);
    if (!connections || !spare || !seconds || poller < 0 || !write_messages())
        return fail("memory");
    count_attempts();
    unsigned long first = read_number("/proc/sys/net/ipv4/ip_local_port_range", "", 0);
    unsigned long last = read_number("/proc/sys/net/ipv4/ip_local_port_range", "", 1);
    printf("{\"started\": %.6f, \"version\": \"" VERSION "\", \"addresses\": %d, "
           "\"ports\": %lu, \"files\": %zu, \"time_wait\": %lu}\n", options.at_s,
           sources_count ? sources_count : 1, last - first + 1, connections_count,
           read_number("/proc/net/sockstat", " tw ", 0));
    fflush(stdout);
    unsigned long long dropped = conntrack_dropped();
    if (!arm())
        return fail("no control connection");
    run();
    double lasted_s = clock_s(CLOCK_MONOTONIC) - zero_s;
    uint64_t unfinished = open_count;
    /* A burst that was stopped has fewer seconds, and the last of them has not ended. */
    if (lasted_s < (double)seconds_count)
        seconds_count = (size_t)lasted_s + 1;
    print_seconds(INFINITY, INFINITY);
    printf("{\"ended\": %.6f, \"scheduled\": %lu, \"unfinished\": %lu, \"failed_ports\": %lu, "
           "\"failed_files\": %lu, \"time_wait\": %lu, \"conntrack_dropped\": %llu, "
           "\"core_ratio\": %.4f", lasted_s,
           stopping && lasted_s < options.duration_s ? due_before(lasted_s) : total,
           unfinished, failed_ports, failed_files, read_number("/proc/net/sockstat", " tw ", 0),
           conntrack_dropped() - dropped, core_ratio);
    if (has_ramps())
        print_sustain(lasted_s);
    print_negotiated();
    for (int which = 0; which < TIMES_COUNT; which++)
        print_histogram(time_names[which], &times[which]);
    printf("}\n");
    fflush(stdout);
    return 0;
}

/* Server --------------------------------------------------------------------------------------- */

/* Source address of connections, and what it did in the current second. */
struct peer {
    struct sockaddr_storage address;
    uint64_t established, bytes;
};

struct served {
    uint64_t got;
    struct peer *peer;
    /* Bytes of the answer to send, and size of its body (HTTP). */
    uint64_t owed, body_bytes;
    /* Bytes of an uploaded body that were not received yet. */
    uint64_t uploads;
    void *tls;
    /* Line of a control connection, or head of a request. */
    char *line;
    uint32_t head_bytes;
    unsigned char head[ID_BYTES];
    bool open, counted, waits, is_control, is_new, shakes, is_request, is_answered;
};

static struct {
    char token[LINE_BYTES], client[INET6_ADDRSTRLEN];
    unsigned char id[ID_BYTES];
    uint32_t bytes;
    unsigned compressible;
    int control;
    bool active, tls;
    double over_s, first_at_s;
    /* Sustain phase, which the client has sent. */
    double judged_from_s, judged_to_s;
    uint64_t established, secured, named, closed, reset, foreign, sent, received, open;
    unsigned long long backlog_dropped, backlog_overflowed, conntrack_dropped, failed_files;
    /* Clock and CPU time at the first connection, and part of one core used since then. */
    double first_s, first_cpu_s, core_ratio;
} test = {.control = -1};

static struct served *served;
static int spare_file;
static int64_t counted_second;
/* The last one is for all further addresses, and is not printed. */
static struct peer peers[PEERS_MAX + 1];
static size_t peers_count;

/* Return the place of a source address. It stays valid until the next test. */
static struct peer *peer_of(const struct sockaddr_storage *address)
{
    size_t place = 0;
    while (place < peers_count
           && !same_address((const struct sockaddr *)address, &peers[place].address))
        place++;
    if (place == peers_count && place < PEERS_MAX)
        peers[peers_count++].address = *address;
    return &peers[place];
}

static void name_address(const struct sockaddr_storage *address, char *name)
{
    getnameinfo((const struct sockaddr *)address, sizeof *address, name, INET6_ADDRSTRLEN, NULL, 0,
                NI_NUMERICHOST);
}

/* Print the connections and payload of each source address, if it had any. */
static void print_peers(void)
{
    const char *comma = "";
    char name[INET6_ADDRSTRLEN];
    printf(", \"peers\": {");
    for (struct peer *one = peers; one < peers + peers_count; one++) {
        if (one->established + one->bytes == 0)
            continue;
        name_address(&one->address, name);
        printf("%s\"%s\": [%lu, %lu]", comma, name, one->established, one->bytes);
        one->established = one->bytes = 0;
        comma = ", ";
    }
    printf("}");
}

static void count_payload(const struct served *one, uint64_t *direction, uint64_t bytes)
{
    *direction += bytes;
    if (one->peer)
        one->peer->bytes += bytes;
}

static void print_served(void)
{
    if (test.established > 0 && clock_s(CLOCK_MONOTONIC) > test.first_s)
        test.core_ratio = (clock_s(CLOCK_PROCESS_CPUTIME_ID) - test.first_cpu_s)
                          / (clock_s(CLOCK_MONOTONIC) - test.first_s);
    printf("{\"test\": \"%s\", \"client\": \"%s\", \"first_at\": %.6f, "
           "\"second\": %ld, \"established\": %lu, \"secured\": %lu, \"named\": %lu, "
           "\"closed\": %lu, \"reset\": %lu, \"foreign\": %lu, \"open\": %lu, "
           "\"sent_bytes\": %lu, \"received_bytes\": %lu", test.token, test.client,
           test.first_at_s, (long)counted_second, test.established, test.secured, test.named,
           test.closed, test.reset, test.foreign, test.open, test.sent, test.received);
    if (test.judged_to_s > 0)
        printf(", \"sustain\": [%.3f, %.3f]", test.judged_from_s, test.judged_to_s);
    print_peers();
    printf("}\n");
    fflush(stdout);
    test.established = test.secured = test.named = test.closed = test.reset = test.foreign = 0;
    test.sent = test.received = 0;
}

static void end_test(void)
{
    if (!test.active)
        return;
    print_served();
    printf("{\"test\": \"%s\", \"ended\": %.6f, \"backlog_dropped\": %llu, "
           "\"backlog_overflowed\": %llu, \"backlog\": %lu, \"failed_files\": %llu, "
           "\"files\": %zu, \"conntrack_dropped\": %llu, \"core_ratio\": %.4f}\n",
           test.token, clock_s(CLOCK_REALTIME), tcp_counter("ListenDrops") - test.backlog_dropped,
           tcp_counter("ListenOverflows") - test.backlog_overflowed,
           read_number("/proc/sys/net/core/somaxconn", "", 0), test.failed_files,
           connections_count, conntrack_dropped() - test.conntrack_dropped, test.core_ratio);
    fflush(stdout);
    test.active = false;
    test.control = -1;
    test.open = 0;
}

static void drop(int fd, uint64_t *outcome)
{
    struct served *one = &served[fd];
    if (fd == test.control)
        test.over_s = clock_s(CLOCK_REALTIME) + LAST_EVENTS_S;
    if (one->counted) {
        ++*outcome;
        test.open -= test.open > 0;
    }
    if (one->tls)
        tls_close(one->tls);
    free(one->line);
    *one = (struct served){0};
    close(fd);
}

/* Do not count a connection any longer, because it is not one of the test. */
static void uncount(struct served *one)
{
    if (!one->counted)
        return;
    one->counted = false;
    test.established -= test.established > 0;
    one->peer->established -= one->peer->established > 0;
    if (one->tls && !one->shakes) {
        test.secured -= test.secured > 0;
        test.named -= test.named > 0 && *tls_server_name(one->tls);
    }
    test.open -= test.open > 0;
    if (test.established == 0 && test.closed + test.reset == 0)
        test.first_at_s = 0;
}

static void watch(int fd, int how, bool writes)
{
    uint32_t wanted = EPOLLIN | EPOLLRDHUP | EPOLLET | (writes ? EPOLLOUT : 0);
    struct epoll_event event = {wanted, {.fd = fd}};
    epoll_ctl(poller, how, fd, &event);
}

/* Write the head of an HTTP answer. Return its length. */
static size_t write_head(const struct served *one, char *out)
{
    return (size_t)snprintf(out, HEAD_BYTES,
                            "HTTP/1.1 200 OK\r\nServer: broadside\r\nContent-Type: "
                            "application/octet-stream\r\nContent-Length: %lu\r\n"
                            "Connection: close\r\n\r\n", one->body_bytes);
}

/* Copy the next bytes of an HTTP answer to `out`. Return their number. */
static size_t copy_answer(const struct served *one, char *out)
{
    size_t head = write_head(one, out), done = head + one->body_bytes - one->owed;
    size_t skip = done < head ? done : head, from = (done - skip) % (BYTES_MAX - PART_BYTES);
    size_t part = done < head ? one->body_bytes : one->owed;
    part = part < PART_BYTES ? part : PART_BYTES;
    memmove(out, out + skip, head - skip);
    memcpy(out + head - skip, payload + from, part);
    return head - skip + part;
}

static void answer(int fd)
{
    struct served *one = &served[fd];
    char part[HEAD_BYTES + PART_BYTES];
    while (one->owed > 0) {
        size_t size = one->owed < BYTES_MAX ? one->owed : BYTES_MAX;
        if (one->is_request)
            size = copy_answer(one, part);
        ssize_t wrote = write_link(fd, one->tls, one->is_request ? part : payload, size);
        if (wrote <= 0)
            break;
        one->owed -= (uint64_t)wrote;
        if (one->counted)
            count_payload(one, &test.sent, (uint64_t)wrote);
    }
    if ((one->owed > 0) != one->waits) {
        one->waits = one->owed > 0;
        watch(fd, EPOLL_CTL_MOD, one->waits);
    }
}

/* Start to count a test. */
static void begin_test(int fd, const char *line)
{
    struct sockaddr_storage peer;
    socklen_t length = sizeof peer;
    char token[LINE_BYTES];
    unsigned bytes, tls = 0, compressible = 0;
    double from_s = 0, to_s = 0;
    if (sscanf(line, "BSCN %200[A-Za-z0-9.-] %u %u %u %lf %lf", token, &bytes, &tls, &compressible,
               &from_s, &to_s) < 2
        || bytes > BYTES_MAX)
        return;
    end_test();
    test.judged_from_s = from_s;
    test.judged_to_s = to_s;
    strcpy(test.token, token);
    hash_token(token, test.id);
    test.bytes = bytes;
    test.tls = tls > 0;
    if (compressible != test.compressible)
        fill_payload(compressible);
    test.compressible = compressible;
    test.control = fd;
    test.over_s = test.first_at_s = 0;
    test.backlog_dropped = tcp_counter("ListenDrops");
    test.backlog_overflowed = tcp_counter("ListenOverflows");
    test.conntrack_dropped = conntrack_dropped();
    test.failed_files = 0;
    test.core_ratio = 0;
    test.active = true;
    test.client[0] = 0;
    memset(peers, 0, sizeof peers);
    peers_count = 0;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0)
        name_address(&peer, test.client);
    counted_second = (int64_t)clock_s(CLOCK_REALTIME);
    unsigned char reply[3 + TLS_DIGEST_BYTES] = "OK\n";
    bool has_certificate = test.tls && tls_own_digest(reply + 3);
    (void)!send(fd, reply, has_certificate ? sizeof reply : 3, MSG_NOSIGNAL);
}

static void read_control(int fd, const char *bytes, size_t count)
{
    struct served *one = &served[fd];
    size_t has = strlen(one->line);
    if (one->is_control || has + count >= LINE_BYTES)
        return;
    memcpy(one->line + has, bytes, count);
    if (strchr(one->line, '\n')) {
        one->is_control = true;
        if (one->tls)
            (void)!write_link(fd, one->tls, ".", 1);
        else
            begin_test(fd, one->line);
    }
}

/* Read an HTTP request. Return false if it is not one of the test. */
static bool read_request(int fd, const char *bytes, size_t count)
{
    struct served *one = &served[fd];
    char token[LINE_BYTES];
    bool is_complete = false;
    if (!one->is_answered) {
        ssize_t part = add_to_head(one->line, bytes, count, &is_complete);
        if (part < 0)
            return false;
        if (!is_complete)
            return true;
        if (sscanf(one->line, "%*4[A-Z] /%lu?job=%200[A-Za-z0-9.-]", &one->body_bytes, token) != 2
            || strcmp(token, test.token) != 0)
            return false;
        one->is_answered = true;
        one->uploads = content_length(one->line);
        count -= (size_t)part;
        count_payload(one, &test.received, strlen(one->line));
    }
    count_payload(one, &test.received, count);
    bool was_pending = one->uploads > 0 || is_complete;
    one->uploads -= count < one->uploads ? count : one->uploads;
    if (was_pending && one->uploads == 0) {
        char head[HEAD_BYTES];
        one->owed = write_head(one, head) + one->body_bytes;
    }
    answer(fd);
    return true;
}

/* Handle data. Return false if the connection should be closed. */
static bool take(int fd, const char *bytes, size_t count)
{
    struct served *one = &served[fd];
    if (one->is_request)
        return read_request(fd, bytes, count);
    if (one->line) {
        read_control(fd, bytes, count);
        return true;
    }
    size_t need = ID_BYTES - one->head_bytes, part = count < need ? count : need;
    memcpy(one->head + one->head_bytes, bytes, part);
    one->head_bytes += (uint32_t)part;
    if (one->head_bytes < ID_BYTES)
        return true;
    const char *head = (const char *)one->head;
    if (part > 0 && memcmp(head, "BSCN ", 5) == 0) {
        uncount(one);
        one->line = calloc(1, LINE_BYTES);
        read_control(fd, head, ID_BYTES);
        read_control(fd, bytes + part, count - part);
        return true;
    }
    if (part > 0 && one->counted && test.bytes == 0
        && (memcmp(head, "GET /", 5) == 0 || memcmp(head, "POST /", 6) == 0)) {
        one->is_request = true;
        one->line = calloc(1, HEAD_BYTES);
        return read_request(fd, head, ID_BYTES)
               && (count == part || read_request(fd, bytes + part, count - part));
    }
    if (part > 0) {
        if (!one->counted || test.bytes == 0 || memcmp(one->head, test.id, ID_BYTES) != 0)
            return false;
        one->got += one->head_bytes - part;
        count_payload(one, &test.received, one->head_bytes - part);
    }
    one->got += count;
    count_payload(one, &test.received, count);
    for (; test.bytes > 0 && one->got >= test.bytes; one->got -= test.bytes)
        one->owed += test.bytes;
    answer(fd);
    return true;
}

/* Start TLS if the first byte is one of TLS. Return false if the connection should be closed. */
static bool begin_tls(int fd)
{
    struct served *one = &served[fd];
    char first;
    if (recv(fd, &first, 1, MSG_PEEK) != 1)
        return true;
    one->is_new = false;
    if (first != 0x16)
        return true;
    one->tls = tls_open(fd, false, NULL);
    one->shakes = true;
    return one->tls != NULL;
}

/* Continue a TLS handshake. Return false while it is not complete. */
static bool shake_served(int fd)
{
    struct served *one = &served[fd];
    int state = tls_shake(one->tls);
    if (state < 0)
        drop(fd, &test.reset);
    if (state <= 0)
        return false;
    one->shakes = false;
    test.secured += one->counted;
    test.named += one->counted && *tls_server_name(one->tls);
    return true;
}

static void serve(int fd, uint32_t events)
{
    if (!served[fd].open)
        return;
    struct served *one = &served[fd];
    if (one->is_new && test.tls && !begin_tls(fd)) {
        drop(fd, &test.reset);
        return;
    }
    if (one->shakes && !shake_served(fd))
        return;
    if (events & EPOLLOUT)
        answer(fd);
    for (;;) {
        ssize_t got = read_link(fd, one->tls, inbox, sizeof inbox);
        if (got < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (got <= 0) {
            drop(fd, got == 0 ? &test.closed : &test.reset);
            return;
        }
        if (!take(fd, inbox, (size_t)got)) {
            test.foreign += one->counted;
            uncount(one);
            drop(fd, &test.closed);
            return;
        }
    }
}

/* Close a connection for which no file descriptor is left, with the spare one. Otherwise it would
 * stay in the listen queue, and wake this program all the time. Return false if there is none. */
static bool refuse(int listener)
{
    close(spare_file);
    int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        test.failed_files += test.active;
        close(fd);
    }
    spare_file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return fd >= 0;
}

static void accept_all(int listener)
{
    for (int count = 0; count < EVENTS_COUNT; count++) {
        struct sockaddr_storage from;
        socklen_t from_bytes = sizeof from;
        int fd = accept4(listener, (struct sockaddr *)&from, &from_bytes,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0 && (errno == EMFILE || errno == ENFILE)) {
            if (!refuse(listener))
                return;
            continue;
        }
        if (fd < 0)
            return;
        if ((size_t)fd >= connections_count) {
            close(fd);
            continue;
        }
        if (test.active && test.first_at_s <= 0) {
            test.first_at_s = clock_s(CLOCK_REALTIME);
            test.first_s = clock_s(CLOCK_MONOTONIC);
            test.first_cpu_s = clock_s(CLOCK_PROCESS_CPUTIME_ID);
        }
        served[fd] = (struct served){.open = true, .is_new = true, .counted = test.active};
        if (test.active) {
            served[fd].peer = peer_of(&from);
            served[fd].peer->established++;
            test.established++;
            test.open++;
        }
        watch(fd, EPOLL_CTL_ADD, false);
    }
}

static int server_wait_ms(void)
{
    if (!test.active)
        return -1;
    double wake_s = (double)counted_second + 1, now = clock_s(CLOCK_REALTIME);
    if (test.over_s > 0)
        wake_s = least(wake_s, test.over_s);
    return wake_s > now ? (int)((wake_s - now) * 1e3) + 1 : 0;
}

static int run_server(void)
{
    struct epoll_event events[EVENTS_COUNT];
    int on = 1;
    struct tls_settings tls = {NULL, NULL, options.certificate, options.key, false};
    const char *problem = options.certificate ? tls_set_up(&tls) : NULL;
    /* All modes without TLS work. */
    if (problem)
        fprintf(stderr, "connections: TLS: %s\n", problem);
    if (!parse_address(options.address, options.port, &target, &target_bytes))
        return fail("address");
    fill_payload(0);
    connections_count = files_limit();
    served = calloc(connections_count, sizeof *served);
    spare_file = open("/dev/null", O_RDONLY | O_CLOEXEC);
    poller = epoll_create1(EPOLL_CLOEXEC);
    int listener = socket(target.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (!served || bind(listener, (struct sockaddr *)&target, target_bytes) != 0
        || listen(listener, 65535) != 0)
        return fail("listen");
    struct epoll_event event = {EPOLLIN, {.fd = listener}};
    epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
    while (!stopping) {
        int ready = epoll_wait(poller, events, EVENTS_COUNT, server_wait_ms());
        double now = clock_s(CLOCK_REALTIME);
        if (test.active && (int64_t)now > counted_second) {
            print_served();
            counted_second = (int64_t)now;
        }
        if (test.active && test.over_s > 0 && now >= test.over_s)
            end_test();
        for (int place = 0; place < ready; place++)
            if (events[place].data.fd == listener)
                accept_all(listener);
            else
                serve(events[place].data.fd, events[place].events);
    }
    end_test();
    return 0;
}

/* Command line --------------------------------------------------------------------------------- */

static bool set_option(const char *name, const char *value)
{
    struct {
        const char *name, **text;
        double *number;
    } known[] = {
        {"--address", &options.address, NULL},   {"--port", &options.port, NULL},
        {"--token", &options.token, NULL},       {"--bind", &options.bind, NULL},
        {"--mode", &options.mode, NULL},         {"--close", &options.close, NULL},
        {"--sources", &options.sources, NULL},   {"--at", NULL, &options.at_s},
        {"--tls", &options.tls, NULL},           {"--cipher", &options.cipher, NULL},
        {"--resume", &options.resume, NULL},     {"--name", &options.name, NULL},
        {"--bodies", &options.bodies, NULL},     {"--certificate", &options.certificate, NULL},
        {"--key", &options.key, NULL},
        {"--duration", NULL, &options.duration_s}, {"--rate", NULL, &options.rate},
        {"--limit", NULL, &options.limit_s},     {"--heartbeat", NULL, &options.heartbeat_s},
        {"--ramp-up", NULL, &options.ramp_up_s}, {"--ramp-down", NULL, &options.ramp_down_s},
    };
    for (size_t place = 0; place < sizeof known / sizeof *known; place++)
        if (strcmp(name, known[place].name) == 0) {
            if (known[place].text)
                *known[place].text = value;
            else
                *known[place].number = strtod(value, NULL);
            return true;
        }
    if (strcmp(name, "--bytes") == 0)
        options.bytes = (uint32_t)strtoul(value, NULL, 10);
    else if (strcmp(name, "--count") == 0)
        options.count = strtoull(value, NULL, 10);
    else if (strcmp(name, "--upload") == 0)
        options.upload = strtoull(value, NULL, 10);
    else if (strcmp(name, "--compressible") == 0)
        options.compressible = (uint32_t)strtoul(value, NULL, 10);
    else
        return false;
    return true;
}

/* Entry for connection_generator.py, which loads this library. */
int broadside_connections(int count, char **words)
{
    set_up();
    if (count == 1 && strcmp(words[0], "--version") == 0) {
        printf("connections " VERSION "\n");
        fflush(stdout);
        return 0;
    }
    bool valid = count % 2 == 1;
    for (int place = 1; valid && place < count; place += 2)
        valid = set_option(words[place], words[place + 1]);
    if (valid && options.address && options.port && strcmp(words[0], "server") == 0)
        return run_server();
    if (valid && options.address && options.port && options.token && options.rate > 0
        && options.ramp_up_s + options.ramp_down_s <= options.duration_s
        && options.bytes <= BYTES_MAX && strcmp(words[0], "client") == 0)
        return run_client();
    fprintf(stderr, "connections: usage: --version | server|client --address A --port P ...\n");
    return 2;
}
