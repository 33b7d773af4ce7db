#pragma once

// The attribute of ops that compute numbers of rows of this rank's shard from ids: the routes of lookups, the checks of
// ids without a route, and the search for keys. No other op has it. By it, Python distinguishes the indices of a
// table's gradient from ids (python/lockstep/_src/tables/sharded/scatters.py).
#define LOCKSTEP_SHARD_ROWS_ATTR "lockstep_shard_rows"
