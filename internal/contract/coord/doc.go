// Package coord is the contract of the coordination plane: its nouns (keys, revisions, leases,
// locks) and the interfaces Service and Admin. Commands, questions and answers are the messages of
// blackhole.coord.v1. Every form of the plane implements Service and Admin: a member of the
// group, a peer outside the group, and the client of another process.
//
// # Revisions
//
// Every command that changes the keyspace makes one revision, one more than the last. All its
// changes carry that revision. A revision is not a log index: the log also counts entries
// without changes. Recent events stay readable; older events are compacted, and a request for
// them fails with Compacted.
//
// # Leases
//
// A lease ends when its owner sends no keepalive for the time to live, or by its revocation. All
// keys of the lease go in one revision.
//
// # Locks
//
// A lock is a queue of keys "name/<lease in hex>", as in etcd, ordered by create revision. The
// longest beginning of the queue that is compatible holds the lock: one exclusive claim, shared
// claims, or permits up to their number. The Token of a claim is the create revision of its key.
// The token stays the same from the first answer to the last, and later holders have greater tokens.
//
// A lock without its token is advice only: a paused holder can outlive its lease. The resource
// must refuse stale tokens (Fence), and writes to the keyspace need the comparison WhileHeld.
//
// # The directory
//
// The instances of applications are keys "directory/namespace/service/id", bound to the lease
// of their peer: see package directory. One command changes many in one revision. Requirements are keys
// "requirements/name": see package requirements.
//
// # Exactly once
//
// The group applies a command with a client and a sequence once, however often the log has
// it: it keeps the last result of each client. Idle clients are forgotten, and
// their later commands are refused.
//
// The contract follows the "Low-Level Design" of a distributed lock service and the design
// document "Service Discovery Race Condition", with two exceptions: a waiter keeps one token,
// and an unlock needs that token. The terms lease, revision, version and compaction are those
// of etcd v3.
package coord
