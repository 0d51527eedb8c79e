// Package member runs one member of the coordination group: a goroutine that owns a
// replica.Replica, and blocking calls for everybody else.
//
// # One goroutine
//
// The loop takes what has come since the last turn, messages and requests alike, and works it off
// as one: however many have proposed, there is one append, one sync of the disk and one round
// of heartbeats. It waits for nothing but the disk, so a disk that stalls stops the heartbeats as
// well and another member is elected. Queues into it are bounded; those who call wait for room,
// as long as their context. What goes out never waits: the Transport drops what it cannot
// take, and Raft sends it again.
//
// # Readers
//
// The state is read under a lock that the loop holds while it changes it, not while it writes to
// the disk. Long reads take a Keyspace, which stays as it is.
//
// # The end
//
// An error of the disk, an entry that cannot be applied and a panic in applying one are final: the
// member stops, and Config.Fatal is to end the process, which starts again from what is
// on the disk. So does a loop that stands still for long.
package member
