// Package bootstrap holds how the coordination group of a network begins, and what a peer remembers of it.
//
// # Founding
//
// With listed founders the initial membership is the list, as the initial cluster of etcd: every founder derives the same
// voters, the same group id and the same first snapshot from its settings, and a majority of them elects. Without a list
// the first peer of the network founds a group of one.
//
// A founder begins when a majority of the list is in sight and none of them shows a group: a group that exists is joined.
// Without a list a peer that may found begins after a settling time, in which it saw neither a group nor a lower peer id
// that may found too.
//
// # A lost disk
//
// A peer that voted and lost its disk must not vote again under the same raft id. The mark beside its identity key says
// that the key had a state; with the mark and without the state the peer founds nothing, and joins the group as a new
// member (see Store). A restored backup of the state is a loss that the peer cannot detect: exclude it from backups.
package bootstrap
