// The minimal client: it sends, reads, stamps each read, counts tokens, and stores nothing.
//
// Any further cost is overhead of a client. benchmarks/cost.py builds and runs this program:
//
//     cc -O2 -o floor floor.c && ./floor PORT CONCURRENCY REQUESTS OUTPUT_TOKENS < REQUEST
//
// REQUEST is one complete HTTP request, which is sent repeatedly. Prints one line of JSON: processor time
// and duration of the load (first send to end of last answer), and the received events.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define REQUEST_BYTES (1 << 20)
#define READ_BYTES (1 << 16)
#define EVENTS 512

static const char END[] = "0\r\n\r\n";

static long long now_ns(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1000000000LL + at.tv_nsec;
}

static double used_s(void) {
  struct rusage used;
  getrusage(RUSAGE_SELF, &used);
  return used.ru_utime.tv_sec + used.ru_stime.tv_sec + (used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6;
}

static void fail(const char *what) {
  perror(what);
  exit(1);
}

static int connected(int port) {
  struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int sock = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  if (sock < 0 || connect(sock, (struct sockaddr *)&address, sizeof address)) fail("connect");
  setsockopt(sock, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return sock;
}

static long count(const char *data, size_t bytes) {
  long found = 0;
  const char *end = data + bytes;
  for (const char *at = data; (at = memmem(at, end - at, "data: ", 6)) != NULL; at += 6) found++;
  return found;
}

int main(int words, char **word) {
  if (words != 5) {
    fprintf(stderr, "usage: %s PORT CONCURRENCY REQUESTS OUTPUT_TOKENS < REQUEST\n", word[0]);
    return 2;
  }
  int port = atoi(word[1]), concurrency = atoi(word[2]), requests = atoi(word[3]);
  static char request[REQUEST_BYTES], data[READ_BYTES];
  size_t request_bytes = fread(request, 1, sizeof request, stdin);
  struct epoll_event events[EVENTS];
  int epoll = epoll_create1(0), sent = 0, ended = 0;
  int *socks = malloc(sizeof(int) * concurrency);
  long tokens = 0;
  volatile long long last_ns = 0;

  for (int i = 0; i < concurrency; i++) {
    socks[i] = connected(port);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = socks[i]};
    epoll_ctl(epoll, EPOLL_CTL_ADD, socks[i], &event);
  }
  long long begun_ns = now_ns();
  double used_before_s = used_s();
  for (; sent < concurrency && sent < requests; sent++)
    if (send(socks[sent], request, request_bytes, 0) != (ssize_t)request_bytes) fail("send");
  while (ended < requests) {
    int ready = epoll_wait(epoll, events, EVENTS, -1);
    for (int i = 0; i < ready; i++) {
      int sock = events[i].data.fd;
      ssize_t bytes = read(sock, data, sizeof data);
      if (bytes <= 0) fail("read");
      last_ns = now_ns();
      tokens += count(data, bytes);
      // Each event arrives in one read, and the end of an answer with its last event.
      if (bytes < 5 || memcmp(data + bytes - 5, END, 5)) continue;
      ended++;
      if (sent < requests) {
        if (send(sock, request, request_bytes, 0) != (ssize_t)request_bytes) fail("send");
        sent++;
      }
    }
  }
  double cpu_s = used_s() - used_before_s;
  long expected = (long)requests * (atoi(word[4]) + 2);  // usage and [DONE] are events, too
  if (tokens != expected) {
    fprintf(stderr, "received %ld events, expected %ld\n", tokens, expected);
    return 1;
  }
  printf("{\"cpu_s\": %.6f, \"wall_s\": %.6f, \"requests\": %d, \"events\": %ld}\n", cpu_s,
         (last_ns - begun_ns) / 1e9, ended, tokens);
  return 0;
}
