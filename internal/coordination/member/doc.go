// Package member runs one member of the coordination group: a goroutine that owns a replica.Replica, and
// blocking calls for all other goroutines.
//
// # One goroutine
//
// The loop takes all messages and requests since the last turn and works them off together: many proposals
// share one append, one sync of the disk and one round of heartbeats. The loop blocks only on the disk and, while it
// changes the state, on its readers. So a stalled disk stops the heartbeats too, and another member is elected. The queues
// are bounded; callers wait for room within their context. Outgoing messages never wait: the Transport drops the excess, and Raft
// repeats it.
//
// # Readers
//
// Readers share a lock with the loop, which holds it during changes of the state, not during disk writes. Long
// reads use an immutable Keyspace.
//
// # The end
//
// A disk error, an entry that cannot be applied, a panic during its application, and a long stall of the loop
// are final: the member stops and Config.Fatal is called; a new start goes on from the disk.
package member
