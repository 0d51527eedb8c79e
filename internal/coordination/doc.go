// Package coordination is the coordination plane of one peer: it founds the group or finds it, is a
// member where the peer is eligible, and carries out the contract of package coord on every
// peer, by passing on to the leader what only the leader can do.
//
// The parts are below it: founding decides who begins, storage and replica and member are one
// member of the group, link is its network, lessor the leader's clock, repair what the leader
// does about the dead. This package connects them and adds what an asker needs who is not the
// leader: to find the leader, to try again without doing a thing twice, to wait.
//
// It knows the network (through link) and package coord. Front ends do not know it.
package coordination
