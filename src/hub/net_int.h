/* net_int.h: what net.c gives fetch.c: a handle with the options that every request has. */
#ifndef HUB_NET_INT_H
#define HUB_NET_INT_H

#include <curl/curl.h>

#include "hub/net.h"

/* Options that every request has; headers receives the list that must live as long as the transfer. */
mb_status net_prepare(CURL *c, const struct net_opts *o, const char *url, struct curl_slist **headers, mb_error *err);
size_t net_on_header(char *data, size_t size, size_t n, void *answer);

#endif
