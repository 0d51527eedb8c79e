package agent

import "errors"

var (
	errTaken   = errors.New("belongs to an offer of another instance: choose another id")
	errMissing = errors.New("are not registered: register these services first")

	errElsewhere   = errors.New("an instance with this id is registered at another peer")
	errBehind      = errors.New("this peer has not caught up with the directory")
	errUncommitted = errors.New("the directory accepts no commit now, and the registration was undone: retry later")
)
