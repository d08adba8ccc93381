/* Preloaded into torch's server: names of peers are not looked up, but given as numbers.
 *
 * torch's server asks the resolver for the name of each peer that it accepts, on the thread
 * that serves all others (docs/spec/tcpstore-wire.md 6). With a name server that is slow or
 * far away that takes longer than everything which is compared here. The real function is
 * asked for a number only, which needs no name server. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>

int getnameinfo(const struct sockaddr *restrict sa, socklen_t salen, char *restrict host,
                socklen_t hostlen, char *restrict serv, socklen_t servlen, int flags) {
    int (*real)(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int) =
        dlsym(RTLD_NEXT, "getnameinfo");
    return real(sa, salen, host, hostlen, serv, servlen,
                flags | NI_NUMERICHOST | NI_NUMERICSERV);
}
