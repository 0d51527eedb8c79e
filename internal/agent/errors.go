package agent

import "errors"

var (
	errTaken   = errors.New("belongs to an offer of another instance: choose another id")
	errMissing = errors.New("are not registered: register these services first")

	errHeld  = errors.New("another caller registered the instance: use its credentials, or wait until its peer is gone")
	errOwned = errors.New("is an instance of an authenticated caller: call with credentials, at a peer with the key of the network or at its own peer")

	errElsewhere   = errors.New("an instance with this id is registered at another peer")
	errBehind      = errors.New("this peer has not caught up with the directory")
	errUncommitted = errors.New("the directory accepts no commit now, and the registration was undone: retry later")
)
