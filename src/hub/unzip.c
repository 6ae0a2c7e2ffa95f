/* unzip.c: see unzip.h. The directory at the end of the file is the truth; the local header is only asked where the data
 * begin. Every offset is checked against the mapped file before it is followed.
 */
#include "hub/unzip.h"

#include <string.h>
#include <zlib.h>

#include "base/filemap.h"
#include "base/mem.h"

#define END_BYTES 22u
#define ENTRY_BYTES 46u
#define LOCAL_BYTES 30u
#define OUT_BYTES ((size_t)256 << 10)
#define IN_BYTES ((size_t)1 << 20) /* zlib counts in 32 bits */

struct zip {
    struct filemap map;
    const char *path;
    mb_error *err;
};

struct zip_member {
    uint32_t method, crc;
    uint64_t packed_bytes, size_bytes;
    const uint8_t *data;
};

static uint32_t u16_at(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static uint32_t u32_at(const uint8_t *p)
{
    return u16_at(p) | u16_at(p + 2) << 16;
}

static mb_status damaged(const struct zip *z, const char *what)
{
    return mb_fail(z->err, MB_BAD_FORMAT, "%s is not a whole zip file: %s; fetch it again", z->path, what);
}

/* The end record stands in the last 22 + 65,535 bytes. */
static const uint8_t *end_find(const struct zip *z)
{
    size_t size = z->map.size_bytes;
    for (size_t back = END_BYTES; back <= size && back <= END_BYTES + 65535u; back++) {
        const uint8_t *p = z->map.data + size - back;
        if (u32_at(p) == 0x06054b50u) return p;
    }
    return NULL;
}

static mb_status entry_take(const struct zip *z, const uint8_t *e, struct zip_member *m)
{
    uint64_t local = u32_at(e + 42), size = z->map.size_bytes;
    *m = (struct zip_member){ u16_at(e + 10), u32_at(e + 16), u32_at(e + 20), u32_at(e + 24), NULL };
    if (u16_at(e + 8) & 1) return mb_fail(z->err, MB_UNSUPPORTED, "%s: the member is encrypted", z->path);
    if (m->packed_bytes == UINT32_MAX || m->size_bytes == UINT32_MAX || local == UINT32_MAX)
        return mb_fail(z->err, MB_UNSUPPORTED, "%s: zip64 is not read", z->path);
    if (local + LOCAL_BYTES > size || u32_at(z->map.data + local) != 0x04034b50u)
        return damaged(z, "a member does not stand where the directory says");
    const uint8_t *head = z->map.data + local;
    uint64_t first = local + LOCAL_BYTES + u16_at(head + 26) + u16_at(head + 28);
    if (first > size || m->packed_bytes > size - first) return damaged(z, "a member is cut off");
    m->data = z->map.data + first;
    return MB_OK;
}

static mb_status member_find(const struct zip *z, const char *member, struct zip_member *m)
{
    const uint8_t *end = end_find(z);
    if (!end) return damaged(z, "it has no directory");
    uint64_t at = u32_at(end + 16), limit = (uint64_t)(end - z->map.data);
    uint32_t n = u16_at(end + 10);
    for (uint32_t i = 0; i < n; i++) {
        if (at + ENTRY_BYTES > limit || u32_at(z->map.data + at) != 0x02014b50u)
            return damaged(z, "its directory is broken");
        const uint8_t *e = z->map.data + at;
        size_t name_len = u16_at(e + 28);
        if (at + ENTRY_BYTES + name_len > limit) return damaged(z, "its directory is broken");
        if (name_len == strlen(member) && memcmp(e + ENTRY_BYTES, member, name_len) == 0) return entry_take(z, e, m);
        at += ENTRY_BYTES + name_len + u16_at(e + 30) + u16_at(e + 32);
    }
    return mb_fail(z->err, MB_NOT_FOUND, "%s holds no %s", z->path, member);
}

/* Where unpacked bytes go: counted, summed, handed on. */
struct outlet {
    unzip_sink_fn sink;
    void *ctx;
    uint64_t n_bytes, limit_bytes;
    uLong crc;
};

static mb_status outlet_put(const struct zip *z, struct outlet *o, const void *data, size_t len)
{
    o->n_bytes += len;
    if (o->n_bytes > o->limit_bytes) return damaged(z, "a member is longer than its directory says");
    o->crc = crc32(o->crc, data, (uInt)len);
    return o->sink(o->ctx, data, len, z->err);
}

static mb_status copy_stored(const struct zip *z, const struct zip_member *m, struct outlet *o)
{
    for (uint64_t at = 0; at < m->packed_bytes; at += OUT_BYTES) {
        uint64_t n = m->packed_bytes - at < OUT_BYTES ? m->packed_bytes - at : OUT_BYTES;
        MB_TRY(outlet_put(z, o, m->data + at, (size_t)n));
    }
    return MB_OK;
}

static mb_status inflate_step(const struct zip *z, z_stream *s, struct outlet *o, uint8_t *out, bool *ended)
{
    s->next_out = out;
    s->avail_out = (uInt)OUT_BYTES;
    int rc = inflate(s, Z_NO_FLUSH);
    if (rc != Z_OK && rc != Z_STREAM_END) return damaged(z, "a member does not unpack");
    *ended = rc == Z_STREAM_END;
    if (s->avail_out == OUT_BYTES && s->avail_in == 0 && !*ended) return MB_OK; /* more input is wanted */
    return outlet_put(z, o, out, OUT_BYTES - s->avail_out);
}

static mb_status inflate_all(const struct zip *z, const struct zip_member *m, struct outlet *o, uint8_t *out, z_stream *s)
{
    uint64_t fed = 0;
    bool ended = false;
    while (!ended) {
        if (s->avail_in == 0) {
            uint64_t n = m->packed_bytes - fed < IN_BYTES ? m->packed_bytes - fed : IN_BYTES;
            if (n == 0) return damaged(z, "a member is cut off");
            s->next_in = (Bytef *)(uintptr_t)(m->data + fed);
            s->avail_in = (uInt)n;
            fed += n;
        }
        MB_TRY(inflate_step(z, s, o, out, &ended));
    }
    return MB_OK;
}

static mb_status copy_deflated(const struct zip *z, const struct zip_member *m, struct outlet *o)
{
    z_stream s = { 0 };
    uint8_t *out = mb_alloc(OUT_BYTES);
    if (!out || inflateInit2(&s, -MAX_WBITS) != Z_OK) {
        mb_free(out);
        return mb_fail(z->err, MB_NO_MEMORY, "%s: no memory to unpack it", z->path);
    }
    mb_status st = inflate_all(z, m, o, out, &s);
    inflateEnd(&s);
    mb_free(out);
    return st;
}

static mb_status member_copy(const struct zip *z, const struct zip_member *m, uint64_t limit, unzip_sink_fn sink, void *ctx)
{
    struct outlet o = { sink, ctx, 0, m->size_bytes, crc32(0, NULL, 0) };
    if (m->size_bytes > limit)
        return mb_fail(z->err, MB_TOO_LARGE, "%s: the member has %llu bytes, at most %llu are wanted", z->path,
                       (unsigned long long)m->size_bytes, (unsigned long long)limit);
    if (m->method != 0 && m->method != 8)
        return mb_fail(z->err, MB_UNSUPPORTED, "%s: compression method %u; stored and deflated are read", z->path,
                       m->method);
    MB_TRY(m->method == 0 ? copy_stored(z, m, &o) : copy_deflated(z, m, &o));
    if (o.n_bytes != m->size_bytes) return damaged(z, "a member is shorter than its directory says");
    return (uint32_t)o.crc == m->crc ? MB_OK : damaged(z, "a member's checksum is wrong");
}

mb_status unzip_member(const char *zip_path, const char *member, uint64_t limit_bytes, unzip_sink_fn sink, void *ctx,
                       mb_error *err)
{
    struct zip z = { .path = zip_path, .err = err };
    struct zip_member m = { 0 };
    MB_TRY(filemap_open(&z.map, zip_path, err));
    mb_status st = member_find(&z, member, &m);
    if (st == MB_OK) st = member_copy(&z, &m, limit_bytes, sink, ctx);
    filemap_close(&z.map);
    return st;
}
