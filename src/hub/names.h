/* names.h: the names that come from outside and end up in paths: repository ids, revisions, file names of a listing, digests.
 * Each has one check, made before the name is used for anything; what fails it never reaches a path (B-155). Texts for
 * errors go through name_shown, since a hub's answer may hold anything.
 */
#ifndef HUB_NAMES_H
#define HUB_NAMES_H

#include "base/status.h"

#define NAME_REPO_MAX 97      /* "owner/name" with its NUL */
#define NAME_REVISION_MAX 128
#define NAME_FILE_MAX 1024
#define NAME_FOLDER_MAX 128   /* "models--owner--name" */
#define NAME_DIGEST_MAX 65
#define NAME_COMMIT_LEN 40

/* "owner/name": letters, digits, '.', '_', '-'; neither part begins with '.' or '-' nor holds ".." or "--". */
bool name_is_repo(const char *s);
/* A branch, tag, commit or "refs/pr/1": the same letters in parts between single slashes, no part beginning with '.'. */
bool name_is_revision(const char *s);
/* A relative path that stays below its folder: no empty, "." or ".." part, no backslash, no control character, UTF-8. */
bool name_is_file(const char *s, size_t len);
bool name_is_hex(const char *s, size_t len); /* lower case, the whole string */
static inline bool name_is_commit(const char *s) { return name_is_hex(s, NAME_COMMIT_LEN); }
/* A blob's name: a git sha1 or a sha256. */
static inline bool name_is_digest(const char *s) { return name_is_hex(s, 40) || name_is_hex(s, 64); }

/* "owner/name@revision" -> both; without '@' the revision is `dflt`. MB_INVALID tells which part is wrong and how. */
mb_status name_parse_model(const char *arg, const char *dflt, char repo[NAME_REPO_MAX], char revision[NAME_REVISION_MAX],
                           mb_error *err);
/* Does it look like "owner/name[@rev]" (one slash, no leading '.', '/' or '~')? For arguments that may also be paths. */
bool name_looks_like_repo(const char *arg);

/* "owner/name" <-> "models--owner--name". The second is false for folders that are not a model repository's. */
void name_to_folder(const char *repo, char out[NAME_FOLDER_MAX]);
bool name_from_folder(const char *folder, char repo[NAME_REPO_MAX]);

/* A file that `get` fetches by default: weights, configuration, tokenizer, templates, README, LICENSE. */
bool name_is_wanted(const char *file);
bool name_ends(const char *s, const char *suffix);

/* s for an error text: control characters and broken UTF-8 as '?', at most 80 bytes. */
const char *name_shown(const char *s, size_t len, char out[84]);

#endif
