// Package coord is the state machine that the members of the coordination group replicate:
// a keyspace with revisions, leases, locks with fencing tokens, and watches over all of it.
//
// # Pure
//
// A Machine does nothing but compute. Apply takes the next entry of the group's log and
// returns what came of it; given the same entries, every member goes through the same
// states and gives the same answers. It reads no clock, draws no random number, starts no
// goroutine, and has no configuration: its Limits are state, changed by a command as
// everything else is. Time, the network, the log and the disk belong to internal/group.
//
// # Revisions
//
// Every command that changes the keyspace makes one revision, one more than the last;
// all that it changed carries that revision. It is not the index of the log, which also
// counts entries that change nothing and starts again in a group restored from a snapshot.
//
// A recent part of the history is kept as one ring of events. It serves the watches, each
// of which is no more than a Revision to go on from, and reads at an earlier revision,
// which undo the events since. What fell out of it is compacted: whoever asks for it is told
// so (Compacted), nothing is left out silently.
//
// # Leases
//
// The state knows a lease's time to live, not its deadline. Deadlines live on the clock of
// the leader, which proposes Expire when one passes; Apply drops an Expire that another
// term's leader measured, and one that names an earlier grant of the same id. When a lease
// ends, by Expire or LeaseRevoke, all keys bound to it go in one revision.
//
// # Locks
//
// A lock is the queue of the keys "name/<lease in hex>", as etcd lays it out, ordered by
// create revision. Its holders are the longest beginning of that queue that may hold
// together: one exclusive claim, or shared claims, or as many permits as they say. So
// claims are served strictly in order, and whoever waits is granted by the very command that
// makes room. A claim's Token is its create revision, the same number from the first answer to
// the last; successive holders of one lock have ever greater ones.
//
// A lock without its token is advice: a holder may be paused past the end of its lease and
// not know. Let the resource refuse stale tokens (Fence), and guard writes to the keyspace
// with IfHolds.
//
// # The directory
//
// The instances of applications are keys too, "directory/namespace/service/id", each bound to the
// lease of the peer at which it runs, so that ranges and watches serve them as any others and a
// peer that dies takes its own along. A RegisterBatch changes many in one revision, and what
// it finds as it should be makes no event. Of the registrations that peers have of one instance the last one
// counts, in whatever order they come back: an entry has the revision of its own (Entry.Since), and what was taken out is
// remembered for a while (MaxDepartures). A peer's batches are of generations, which rise as it begins anew:
// nothing that an earlier one sent comes in late. For each peer the state has a digest of its
// entries at hand (Publication), by which the peer sees with each keepalive whether the group has
// what it should. What is needed of a service stands beside them, "requirements/name". Packages
// below this one hold one against the other (director), and are the two machines by which a
// peer finds the leader (scout) and keeps what runs there in the directory (publisher).
//
// # Exactly once
//
// A command that names its client and a sequence is applied once, however often it is in the
// log: the client's last result is kept and given again. Clients that nobody has heard of
// for long are forgotten by a command (ClientsExpire), and theirs are refused from then on
// rather than applied twice.
//
// The directory follows the design document "Service Discovery Race Condition", which has no liveness
// in it: here that is the lease's. The specification of locks, leases and watches is the "Low-Level Design" of a distributed
// lock service; its state tables are tests here. Where it gives a waiter another token than the
// holder it becomes, or unlocks by name alone, this package does not follow it. The layout of
// locks and the terms lease, revision, version and compaction are those of etcd v3.
package coord
