/* TLS for the generator of connections, with the libssl of the host (OpenSSL 3).
 *
 * The library is loaded at run time, so that the generator needs OpenSSL neither to be built nor for
 * the modes without TLS.
 */
#ifndef BROADSIDE_CONNECTIONS_TLS_H
#define BROADSIDE_CONNECTIONS_TLS_H
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct tls_settings {
    /* "any", "1.2" or "1.3". */
    const char *version;
    /* OpenSSL's name of the only cipher suite, or NULL. */
    const char *cipher;
    /* Files of a server in PEM format, or NULL for a client. */
    const char *certificate, *key;
    bool resumes;
};

/* Load the library and make a context. Return NULL on success, or the reason of a failure. */
const char *tls_set_up(const struct tls_settings *settings);

/* Return a new TLS connection over a socket, or NULL. A client sends `name` as SNI if it has one. */
void *tls_open(int fd, bool is_client, const char *name);

/* Continue a handshake. Return 1 when it is complete, 0 while it waits, -1 if it failed. */
int tls_shake(void *tls);

/* Like recv and send without flags. */
ssize_t tls_receive(void *tls, void *bytes, size_t count);
ssize_t tls_send(void *tls, const void *bytes, size_t count);

/* Send the alert "close_notify". */
void tls_notify(void *tls);
void tls_close(void *tls);

/* True if a server has sent a session that can be resumed. */
bool tls_has_session(void);

bool tls_is_resumed(void *tls);
const char *tls_version(void *tls);
const char *tls_cipher(void *tls);

enum { TLS_DIGEST_BYTES = 32 };
/* Write the SHA-256 of the certificate of this server, or of the server of a connection. Return
 * false if there is none. */
bool tls_own_digest(unsigned char digest[TLS_DIGEST_BYTES]);
bool tls_peer_digest(void *tls, unsigned char digest[TLS_DIGEST_BYTES]);

/* The name (SNI) that the client sent, or "". */
const char *tls_server_name(void *tls);

#endif
