// Package routing finds the leader of the group, and carries calls to it until they are answered.
//
// A Router is coord.Service over all members: a command goes to the leader, under an identity that it lends or the caller
// brought. It is repeated at the next leader after a failure, and applied once. Questions go to this peer's own member if it has one.
package routing
