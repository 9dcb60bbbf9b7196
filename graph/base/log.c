/* SPDX-License-Identifier: LGPL-2.1-or-later */
/* Messages and the progress line, under one lock so that lines never mix.
 *
 * On a terminal the progress line overwrites itself. In a log file it would be
 * one endless line, so there it becomes an ordinary line at most every ten
 * seconds, and the last one is always written. */
#define _GNU_SOURCE
#include "graph/base/log.h"

#include "graph/base/log_internal.h"
#include "graph/base/util.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define LINE_SIZE        2048
#define PROGRESS_SECONDS 10.0 /* between progress lines in a log file */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_int level_now = SDP_LOG_INFO;

/* Under the lock. */
static char progress_line[LINE_SIZE]; /* the newest progress text, "" if none */
static bool progress_open;            /* it stands on the terminal without a newline */
static bool progress_pending;         /* it was not yet written to the log file */
static double progress_written;       /* when the log file last got one; 0: never */

void sdp_log_set_level(enum sdp_log_level level)
{
    atomic_store(&level_now, (int)level);
}

enum sdp_log_level sdp_log_level(void)
{
    return (enum sdp_log_level)atomic_load(&level_now);
}

/* Ends a progress line that stands open on the terminal. */
static void close_progress(void)
{
    if (progress_open)
        fputc('\n', stderr);
    progress_open = false;
}

static void write_line(const char *prefix, const char *text)
{
    close_progress();
    fprintf(stderr, "slidedp: %s%s\n", prefix, text);
    fflush(stderr);
}

void sdpi_log_write(const char *text)
{
    pthread_mutex_lock(&lock);
    write_line("", text);
    pthread_mutex_unlock(&lock);
}

SDP_PRINTF(3, 0)
static void message(enum sdp_log_level level, const char *prefix, const char *format,
                    va_list args)
{
    char text[LINE_SIZE];

    if (sdp_log_level() < level)
        return;
    if (vsnprintf(text, sizeof text, format, args) < 0)
        return;
    pthread_mutex_lock(&lock);
    write_line(prefix, text);
    pthread_mutex_unlock(&lock);
}

void sdp_warn(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    message(SDP_LOG_WARN, "warning: ", format, args);
    va_end(args);
}

void sdp_info(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    message(SDP_LOG_INFO, "", format, args);
    va_end(args);
}

void sdp_debug(const char *format, ...)
{
    va_list args;

    va_start(args, format);
    message(SDP_LOG_DEBUG, "debug: ", format, args);
    va_end(args);
}

static void progress_on_terminal(void)
{
    /* Back to the first column, then erase what the older text leaves. */
    fprintf(stderr, "\rslidedp: %s\033[K", progress_line);
    fflush(stderr);
    progress_open = true;
}

static void progress_in_file(void)
{
    double now = sdp_now();

    progress_pending = true;
    if (progress_written > 0.0 && now - progress_written < PROGRESS_SECONDS)
        return;
    write_line("", progress_line);
    progress_written = now;
    progress_pending = false;
}

void sdp_progress(const char *format, ...)
{
    va_list args;
    int length;

    if (sdp_log_level() < SDP_LOG_INFO)
        return;
    pthread_mutex_lock(&lock);
    va_start(args, format);
    length = vsnprintf(progress_line, sizeof progress_line, format, args);
    va_end(args);
    if (length >= 0) {
        if (isatty(STDERR_FILENO))
            progress_on_terminal();
        else
            progress_in_file();
    }
    pthread_mutex_unlock(&lock);
}

void sdp_progress_end(void)
{
    pthread_mutex_lock(&lock);
    close_progress();
    if (progress_pending)
        write_line("", progress_line);
    progress_pending = false;
    progress_written = 0.0;
    pthread_mutex_unlock(&lock);
}
