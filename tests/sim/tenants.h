/* Tenants of a seed, their quotas, and what must be true of both (tenants.c). */
#ifndef ISOTHERM_TESTS_SIM_TENANTS_H
#define ISOTHERM_TESTS_SIM_TENANTS_H

#include "cachestore/inspect.h"
#include "cachestore/tier_disk.h"
#include "tests/sim/checker.h"

/* A new seed. */
void tenants_reset(void);
/* How many say the same; their paths lie N_PATHS apart. */
uint32_t tenants_n(void);
/* What those without limits of their own may have in this process. */
void tenants_plan(struct cs_config *c);
void tenants_begin(const struct cs_config *c);
void tenants_opened(struct cs_store *s, bool disk_on, bool catalog_was_read);
void tenants_ended(void);
/* Gives one of them other limits: of the store (in NULL), or through the socket, or while nobody has it open
 * (s NULL). */
int tenants_change(struct cs_store *s, struct cs_inspect *in, char *err, size_t err_len);
/* A flush that has done all there was to do: what was set is in the catalogue. */
void tenants_flushed(void);
/* After a rebuild that has succeeded. */
void tenants_rebuilt(void);
/* What is over a limit and could go. idle: nothing is in use or under way. */
void tenants_check(struct cs_store *s, bool idle);
/* A listing begins; it says this of one. */
void tenants_listing(void);
int tenants_listed(void *ctx, const struct cs_tenant_use *use);

/* A record is handed to the disk; one is deleted there; the lock is held. */
void tenants_written(struct cs_store *s, const struct cs_tenant *tenant);
void tenants_deleted(struct cs_store *s, struct record_id id);

/* Keys that a tenant publishes; the first n pages of a look-up were found, and why no more. */
void tenants_published(const uint64_t *keys, uint32_t n);
/* Pages of a prompt that its own tenant has published. */
uint32_t tenants_own_pages(struct cs_store *s, const struct turn *t);
void tenants_found(struct cs_store *s, const struct turn *t, uint32_t n_pages);

#endif
