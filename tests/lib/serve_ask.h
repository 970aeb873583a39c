/* serve_ask.h - requests to a server in a test, besides those of http_client.h.
 * Thread: the test's. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* Returns the body of a completion of exactly n tokens; valid until the next call. */
char *serve_long_body(int n, bool stream);
/* Sends a completion over an open connection. key may be NULL. */
void serve_send(int fd, const char *key, const char *body);
/* Sends a completion of exactly n tokens over a new connection, and returns it. */
int serve_begin(uint16_t port, const char *key, int n, bool stream);
/* Returns the status of a GET. */
int serve_get_status(uint16_t port, const char *path, const char *key);
void serve_pause_ms(long ms);
