/* TLS for the generator of connections, see connections_tls.h. */
#include "connections_tls.h"
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>

/* Names and values of OpenSSL's ABI, which are the same in all of 3. */
typedef struct ssl_st SSL;
typedef struct ssl_ctx_st SSL_CTX;
typedef struct ssl_session_st SSL_SESSION;

enum {
    SSL_ERROR_SYSCALL = 5,
    SSL_ERROR_WANT_READ = 2,
    SSL_ERROR_WANT_WRITE = 3,
    SSL_ERROR_ZERO_RETURN = 6,
    SSL_FILETYPE_PEM = 1,
    SSL_CTRL_MODE = 33,
    SSL_CTRL_SET_SESS_CACHE_MODE = 44,
    SSL_CTRL_SET_TLSEXT_SERVERNAME_CB = 53,
    SSL_CTRL_SET_TLSEXT_HOSTNAME = 55,
    SSL_CTRL_SET_MIN_PROTO_VERSION = 123,
    SSL_CTRL_SET_MAX_PROTO_VERSION = 124,
    /* ENABLE_PARTIAL_WRITE, ACCEPT_MOVING_WRITE_BUFFER and RELEASE_BUFFERS. */
    MODES = 0x13,
    SSL_SESS_CACHE_CLIENT = 1,
    SSL_SESS_CACHE_NO_INTERNAL_STORE = 0x200,
    TLS1_2 = 0x303,
    TLS1_3 = 0x304,
};

#define FUNCTIONS(F)                                                                               \
    F(const void *, TLS_client_method, (void))                                                     \
    F(const void *, TLS_server_method, (void))                                                     \
    F(SSL_CTX *, SSL_CTX_new, (const void *))                                                      \
    F(long, SSL_CTX_ctrl, (SSL_CTX *, int, long, void *))                                          \
    F(long, SSL_CTX_callback_ctrl, (SSL_CTX *, int, void (*)(void)))                               \
    F(int, SSL_CTX_set_cipher_list, (SSL_CTX *, const char *))                                     \
    F(int, SSL_CTX_set_ciphersuites, (SSL_CTX *, const char *))                                    \
    F(int, SSL_CTX_use_certificate_chain_file, (SSL_CTX *, const char *))                          \
    F(int, SSL_CTX_use_PrivateKey_file, (SSL_CTX *, const char *, int))                            \
    F(void, SSL_CTX_sess_set_new_cb, (SSL_CTX *, int (*)(SSL *, SSL_SESSION *)))                    \
    F(SSL *, SSL_new, (SSL_CTX *))                                                                 \
    F(void, SSL_free, (SSL *))                                                                     \
    F(int, SSL_set_fd, (SSL *, int))                                                               \
    F(long, SSL_ctrl, (SSL *, int, long, void *))                                                  \
    F(void, SSL_set_connect_state, (SSL *))                                                        \
    F(void, SSL_set_accept_state, (SSL *))                                                         \
    F(int, SSL_do_handshake, (SSL *))                                                              \
    F(int, SSL_read, (SSL *, void *, int))                                                         \
    F(int, SSL_write, (SSL *, const void *, int))                                                  \
    F(int, SSL_get_error, (const SSL *, int))                                                      \
    F(int, SSL_shutdown, (SSL *))                                                                  \
    F(void, SSL_set_quiet_shutdown, (SSL *, int))                                                  \
    F(int, SSL_set_session, (SSL *, SSL_SESSION *))                                                \
    F(int, SSL_session_reused, (const SSL *))                                                      \
    F(const char *, SSL_get_version, (const SSL *))                                                \
    F(const void *, SSL_get_current_cipher, (const SSL *))                                         \
    F(const char *, SSL_CIPHER_get_name, (const void *))                                           \
    F(const char *, SSL_get_servername, (const SSL *, int))                                        \
    F(void *, SSL_CTX_get0_certificate, (const SSL_CTX *))                                         \
    F(void *, SSL_get0_peer_certificate, (const SSL *))                                            \
    F(const void *, EVP_sha256, (void))                                                            \
    F(int, X509_digest, (const void *, const void *, unsigned char *, unsigned *))                 \
    F(void, ERR_clear_error, (void))

#define DECLARE(type, name, arguments) type(*name) arguments;
static struct {
    FUNCTIONS(DECLARE)
} ssl;

static SSL_CTX *context;
/* The session that all connections resume. */
static SSL_SESSION *session;
static bool resuming;

static bool load(void)
{
    void *library = dlopen("libssl.so.3", RTLD_NOW);
    if (!library)
        return false;
    bool complete = true;
    /* ISO C has no conversion from void * to a pointer to a function. */
#define FIND(type, name, arguments)                                                                \
    *(void **)(&ssl.name) = dlsym(library, #name);                                                 \
    complete = complete && ssl.name;
    FUNCTIONS(FIND)
    return complete;
}

static int keep_session(SSL *tls, SSL_SESSION *received)
{
    (void)tls;
    if (session)
        return 0;
    /* OpenSSL passes its reference to us. All connections use this session. With the cache on,
     * OpenSSL would mark it as used up after the first of them (TLS 1.3). */
    session = received;
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, 0, NULL);
    return 1;
}

/* Accept the server name. OpenSSL stores it with the session only if a callback has accepted it. */
static int accept_name(SSL *tls, int *alert, void *unused)
{
    (void)tls, (void)alert, (void)unused;
    return 0;
}

static bool choose(const struct tls_settings *settings)
{
    long least = TLS1_2, most = TLS1_3;
    if (settings->version && strcmp(settings->version, "1.2") == 0)
        most = TLS1_2;
    if (settings->version && strcmp(settings->version, "1.3") == 0)
        least = TLS1_3;
    if (settings->cipher && strncmp(settings->cipher, "TLS_", 4) == 0) {
        least = TLS1_3;
        if (ssl.SSL_CTX_set_ciphersuites(context, settings->cipher) != 1)
            return false;
    } else if (settings->cipher) {
        most = TLS1_2;
        if (ssl.SSL_CTX_set_cipher_list(context, settings->cipher) != 1)
            return false;
    }
    return least <= most && ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, least, NULL)
           && ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_MAX_PROTO_VERSION, most, NULL);
}

const char *tls_set_up(const struct tls_settings *settings)
{
    bool is_client = !settings->certificate;
    if (!load())
        return "libssl.so.3 (OpenSSL) is not installed on this host";
    context = ssl.SSL_CTX_new(is_client ? ssl.TLS_client_method() : ssl.TLS_server_method());
    if (!context || !choose(settings))
        return "this OpenSSL has no such version or cipher";
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_MODE, MODES, NULL);
    resuming = settings->resumes;
    if (is_client) {
        long cached = resuming ? SSL_SESS_CACHE_CLIENT | SSL_SESS_CACHE_NO_INTERNAL_STORE : 0;
        ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, cached, NULL);
        if (resuming)
            ssl.SSL_CTX_sess_set_new_cb(context, keep_session);
        return NULL;
    }
    ssl.SSL_CTX_callback_ctrl(context, SSL_CTRL_SET_TLSEXT_SERVERNAME_CB,
                              (void (*)(void))accept_name);
    /* Sessions are in the clients' tickets only. */
    ssl.SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, 0, NULL);
    if (ssl.SSL_CTX_use_certificate_chain_file(context, settings->certificate) != 1
        || ssl.SSL_CTX_use_PrivateKey_file(context, settings->key, SSL_FILETYPE_PEM) != 1)
        return "the certificate or its key cannot be read";
    return NULL;
}

void *tls_open(int fd, bool is_client, const char *name)
{
    SSL *tls = context ? ssl.SSL_new(context) : NULL;
    if (!tls || ssl.SSL_set_fd(tls, fd) != 1)
        return NULL;
    if (!is_client) {
        ssl.SSL_set_accept_state(tls);
        return tls;
    }
    ssl.SSL_set_connect_state(tls);
    if (name)
        ssl.SSL_ctrl(tls, SSL_CTRL_SET_TLSEXT_HOSTNAME, 0, (void *)(uintptr_t)name);
    if (session)
        ssl.SSL_set_session(tls, session);
    return tls;
}

int tls_shake(void *tls)
{
    ssl.ERR_clear_error();
    int result = ssl.SSL_do_handshake(tls);
    if (result == 1)
        return 1;
    int reason = ssl.SSL_get_error(tls, result);
    return reason == SSL_ERROR_WANT_READ || reason == SSL_ERROR_WANT_WRITE ? 0 : -1;
}

static ssize_t finish(SSL *tls, int result)
{
    if (result > 0)
        return result;
    switch (ssl.SSL_get_error(tls, result)) {
    case SSL_ERROR_WANT_READ:
    case SSL_ERROR_WANT_WRITE:
        errno = EAGAIN;
        return -1;
    case SSL_ERROR_ZERO_RETURN:
        return 0;
    case SSL_ERROR_SYSCALL:
        /* The end without close_notify is the end of a TCP connection. */
        return errno == 0 ? 0 : -1;
    default:
        errno = EPROTO;
        return -1;
    }
}

ssize_t tls_receive(void *tls, void *bytes, size_t count)
{
    ssl.ERR_clear_error();
    errno = 0;
    return finish(tls, ssl.SSL_read(tls, bytes, (int)count));
}

ssize_t tls_send(void *tls, const void *bytes, size_t count)
{
    ssl.ERR_clear_error();
    errno = 0;
    return finish(tls, ssl.SSL_write(tls, bytes, (int)count));
}

void tls_notify(void *tls)
{
    ssl.ERR_clear_error();
    ssl.SSL_shutdown(tls);
}

void tls_close(void *tls)
{
    ssl.SSL_set_quiet_shutdown(tls, 1);
    /* Without this, OpenSSL would mark the session as unusable. */
    ssl.SSL_shutdown(tls);
    ssl.SSL_free(tls);
}

bool tls_has_session(void)
{
    return session != NULL;
}

bool tls_own_digest(unsigned char digest[TLS_DIGEST_BYTES])
{
    void *certificate = context ? ssl.SSL_CTX_get0_certificate(context) : NULL;
    return certificate && ssl.X509_digest(certificate, ssl.EVP_sha256(), digest, NULL) == 1;
}

bool tls_peer_digest(void *tls, unsigned char digest[TLS_DIGEST_BYTES])
{
    void *certificate = ssl.SSL_get0_peer_certificate(tls);
    return certificate && ssl.X509_digest(certificate, ssl.EVP_sha256(), digest, NULL) == 1;
}

bool tls_is_resumed(void *tls)
{
    return ssl.SSL_session_reused(tls) == 1;
}

const char *tls_version(void *tls)
{
    return ssl.SSL_get_version(tls);
}

const char *tls_cipher(void *tls)
{
    return ssl.SSL_CIPHER_get_name(ssl.SSL_get_current_cipher(tls));
}

const char *tls_server_name(void *tls)
{
    const char *name = ssl.SSL_get_servername(tls, 0);
    return name ? name : "";
}
