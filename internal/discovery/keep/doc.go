// Package keep is what one peer keeps of the distributed index, and how its copies stay whole. It asks no questions
// and ranks no answers: see package ask. It has three parts.
//
// Who keeps what: the keepers of a cell are the Replicas peers closest to its key, and every peer finds them by a
// lookup in the DHT (Closest). In a network of at most Network peers every peer keeps every cell. Authority says
// what this peer keeps, and whether its records count as complete. Files: authority, closest, density, knowledge,
// region, round, state, suspension, table.
//
// Records come and go: Store takes records for the cells of this peer, Publisher sends records to the keepers of
// their cells. A cell without room is full, and its keepers say so (Cells). Publishers leave them out for a while,
// and continue below full cells of geo.MaxLen. Files: acks, cells, forward, intake, publish, quota, skips, store.
//
// Copies are compared: keepers of the same cells compare digests and pull missing records (Syncer). So a new peer
// is complete after one round, a withdrawal reaches every copy of the record, and two halves of a partitioned
// network converge. For a cell compared with two others a peer answers alone; in a small network this covers every
// query. Files: group, own, pull, serve, syncer, view.
package keep
